"""``optimize --kv-cache in-place``: a decoder written with its caches in buffers of fixed size.

The rewritten graph is planned for the step that fills the caches. It is written if its decode loop
gives the same outputs as the original's, whose caches grow.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

from memplan_cli.api.models.binding import bind, binding_of
from memplan_cli.api.models.model_file import ModelFile, plan_model, plan_resolved
from memplan_cli.api.output.optimized import Optimized, publish, write_unverified
from memplan_cli.api.output.rewriting import Rewriting, RewrittenFiles
from memplan_cli.core.bindings import Inputs
from memplan_cli.core.files import staged
from memplan_cli.core.program import VarId
from memplan_cli.core.results.observations import RuntimeSettings
from memplan_cli.core.symbolic.sizes import size_of
from memplan_cli.errors import SettingsError
from memplan_cli.features.kv_cache.buffered import BufferedDecoder
from memplan_cli.features.kv_cache.decode_loop import (
    DecodeLoop,
    OriginalDecoding,
    decode_original,
    decoding_verdict,
)

if TYPE_CHECKING:
    from memplan_cli.api.optimizing.candidates import OptimizeRequest
    from memplan_cli.core.bindings import FeedSpec, Provenance
    from memplan_cli.core.check import Check
    from memplan_cli.core.program import Program
    from memplan_cli.core.results.plan import Plan
    from memplan_cli.core.results.rewrites import CacheSummary
    from memplan_cli.features.kv_cache.buffered import CacheAttempt
    from memplan_cli.settings.settings import Settings

_SESSION = RuntimeSettings(
    session={"execution_order": "PRIORITY_BASED", "enable_mem_pattern": False}
)
"""Settings of the written model. A memory pattern is for one length, and each step has another."""


def write_with_caches_in_place(request: OptimizeRequest) -> Optimized:
    """Write a decoder with its caches in buffers.

    With a check, the file is written only if it decodes as the original does.

    Raises:
        ModelError: no cache can be updated in place, or a file cannot be written.
        SettingsError: another setting excludes this, or the capacity is missing.
        RuntimeUnavailableError: no step of the original runs here.
    """
    settings = request.settings
    _refuse_combined(request)
    request.targets.refuse_overwriting_weights(request.file)
    request.progress("looking for caches")
    if settings.capacity is None:
        raise SettingsError(
            "--kv-cache in-place needs the number of entries of a cache",
            hint="add --capacity N",
        )
    model = request.file.model
    names = [value.name for value in (*model.graph.input, *model.graph.output)]
    excluded = [n for n in names if any(fnmatchcase(n, glob) for glob in settings.excluded)]
    decoder = BufferedDecoder.of(model, settings.capacity, excluded)
    planner = _DecoderPlanner(request, bind(model, settings), settings.capacity, decoder)
    if request.check is None:  # the first graph is the one that needs least memory
        first_attempt = decoder.attempts()[0]
        return write_unverified(planner.plan(first_attempt, decoding=None))
    with tempfile.TemporaryDirectory(prefix="memplan-decode-") as folder:
        return _write_first_that_decodes(planner, request.check, Path(folder))


def _refuse_combined(request: OptimizeRequest) -> None:
    """Refuse options that need the original graph, or that change the graph as well."""
    settings = request.settings
    excluded_options = {
        "--target": settings.target != "portable",
        "--chunk": settings.chunk != "none",
        "--recompute": settings.recompute != "none",
        "--donate": bool(settings.donate),
        "--expose": settings.expose,
        "--bounds": bool(settings.bounds),
        "--certificate": request.targets.certificate is not None,
    }
    for option, is_set in excluded_options.items():
        if is_set:
            raise SettingsError(
                f"--kv-cache in-place and {option} cannot be combined yet",
                hint=f"remove one of --kv-cache and {option}",
            )


def _write_first_that_decodes(
    planner: _DecoderPlanner, check: Check, folder: Path
) -> Optimized:
    """Plan, write and run one attempt after the other; publish the first with equal outputs.

    If none has equal outputs, nothing is written, and the result has the plan of the first attempt.
    The original's outputs go to ``folder``.

    Raises:
        RuntimeUnavailableError: no step of the original runs here.
    """
    request, decoder = planner.request, planner.decoder
    original_loop = planner.original_loop(check, folder)
    # The written model is decoded under these settings, which its report recommends.
    written_settings = _SESSION.updated(original_loop.settings)
    request.progress("decoding with the original")
    decoding = decode_original(request.file.path, decoder.caches, original_loop)
    failed: list[Plan] = []
    for attempt in decoder.attempts():
        rewriting = planner.plan(attempt, decoding)
        with RewrittenFiles(rewriting) as files:
            request.progress("decoding with caches in place")
            with staged(request.targets.model, files.data) as path:
                caches = rewriting.caches
                assert caches is not None  # noqa: S101 - `_DecoderPlanner.plan` sets them
                verdict = decoding_verdict(
                    path, caches, decoding, original_loop, written_settings, check.reference
                )
            verdict = replace(verdict, notes=(*verdict.notes, *attempt.notes))
            plan = rewriting.planned.plan
            plan = plan.with_report(replace(plan.report, validation=verdict))
            if verdict.passed:
                request.progress("writing")
                # The notes explain the verdict, and are warnings of the file that is written.
                plan = plan.with_warnings(*attempt.notes)
                plan = _with_runtime_settings(plan, written_settings, original_loop.provider)
                return publish(rewriting, files, plan)
            failed.append(plan)
    return Optimized(failed[0], None, None)


@dataclass(frozen=True, slots=True)
class _DecoderPlanner:
    """Plans rewritten graphs of one decoder.

    Attributes:
        request: the original, and what the user asked for.
        bound_settings: the settings of the request, bound to the original: with the user's dims and
            inputs, some of which have data.
        capacity: entries of each cache.
        decoder: the original's caches, and the graphs to plan.
    """

    request: OptimizeRequest
    bound_settings: Settings
    capacity: int
    decoder: BufferedDecoder

    def original_loop(self, check: Check, folder: Path) -> DecodeLoop:
        """Return how `decode_original` runs the original: at the user's dims, with the user's data.

        The outputs are saved in ``folder``.
        """
        from memplan_cli.onnx_io.runs.random_inputs import feed_specs

        binding = binding_of(self.bound_settings)
        names_with_data = {name for name, feed in binding.feeds.items() if feed.files}
        specs: tuple[FeedSpec, ...] = ()
        if names_with_data:
            specs = feed_specs(self.request.file.model, binding.dims, binding.feeds)
        # Inputs without data need no spec: the decode loop draws random data for them in each step.
        specs = tuple(spec for spec in specs if spec.name in names_with_data)
        return DecodeLoop.of_original(check, folder, binding.dims, specs)

    def plan(self, attempt: CacheAttempt, decoding: OriginalDecoding | None) -> Rewriting:
        """Plan a rewritten graph for the step that fills its caches.

        The original's decode loop tells the dims of that step; it is None if nothing is run.
        """
        from memplan_cli.api.models.resolve_sizes import resolve_sizes
        from memplan_cli.onnx_io.caches_metadata import caches_note
        from memplan_cli.onnx_io.load import LazyModel
        from memplan_cli.onnx_io.writing.structure import checked

        original = self.request.file
        rewritten = checked(attempt.model, lambda: original.model)
        settings = bind(rewritten, self._last_step_settings(attempt, decoding))
        # `bind` records all dims as given by the user. Those that the user did not give are assumed.
        settings = _with_assumed_provenance(settings, self.bound_settings)
        # The rewritten graph has no file yet. It keeps the original's path, for weights beside it, and is
        # not run: a run would be of the original's graph, and observe other sizes.
        file = ModelFile(original.path, LazyModel(rewritten))
        resolved = resolve_sizes(file.lazy, file.path, replace(settings, run=False))
        planned = plan_resolved(file, resolved, self.request.progress)
        caches = self.decoder.caches
        if decoding is not None:
            caches = replace(caches, tokens=decoding.tokens)
        report_caches = self._with_figures(caches, planned.program, decoding)
        plan = self._as_plan_of_original(planned.plan, report_caches)
        return Rewriting(
            file,
            replace(planned, plan=plan),
            resolved.settings,
            self.request.targets,
            # The model's metadata has what a run needs: neither the caches without a buffer (``kept``)
            # nor the figures, which only the report has.
            notes=caches_note(replace(caches, kept=())),
            caches=report_caches,
        )

    def _as_plan_of_original(self, plan: Plan, caches: CacheSummary) -> Plan:
        """Return the plan of a rewritten graph as one of the original, with the caches in its report.

        The rewritten graph was planned without runs. The setting ``run`` of the result is the user's.
        """
        from memplan_cli.onnx_io.load import graph_digest

        settings = dict(plan.settings)
        if self.bound_settings.run:  # a plan records only ``"run": False``
            settings.pop("run", None)
        plan = plan.with_report(replace(plan.report, caches=caches))
        return replace(
            plan, settings=settings, graph_sha256=graph_digest(self.request.file.model)
        )

    def _with_figures(
        self, caches: CacheSummary, program: Program, decoding: OriginalDecoding | None
    ) -> CacheSummary:
        """Return the caches with what the report says of their memory and of the decode loop.

        ``program`` is the rewritten graph; ``decoding`` is None if nothing is run.
        """
        return replace(
            caches,
            bytes=sum(_bytes(program, cache.output) for cache in caches.buffers),
            before=self._original_memory(decoding),
            planned_at=self._last_position(decoding),
            steps=() if decoding is None else decoding.steps,
        )

    def _last_step_settings(
        self, attempt: CacheAttempt, decoding: OriginalDecoding | None
    ) -> Settings:
        """Return settings for the step that fills the caches: dims, position, donated buffers.

        Each cache is donated to its output, which a settings file would ask for by ``donate``. Dims
        of which neither the user nor a decode loop tells the number are 1.
        """
        from memplan_cli.onnx_io.interface import free_dims

        caches, position = self.decoder.caches, self._last_position(decoding)
        model_dims = free_dims(attempt.model)
        if decoding is None:
            step_dims = dict.fromkeys(model_dims, 1)
        else:
            step_dims = decoding.dims_at(past=position, new=self.capacity - position)
        dims = {**step_dims, **self.bound_settings.dims}
        return replace(
            self.request.settings,
            dims={name: value for name, value in dims.items() if name in model_dims},
            shapes={},
            inputs=Inputs(values={caches.position: [position]}),
            donate={_as_glob(input_): output for input_, output in caches.donated},
        )

    def _last_position(self, decoding: OriginalDecoding | None) -> int:
        """Return the number of valid entries before the step that fills the caches.

        The step adds as many as the last observed step, or 1 if nothing was run.
        """
        new_entries = decoding.steps[-1] if decoding is not None and decoding.steps else 1
        return max(self.capacity - new_entries, 0)

    def _original_memory(
        self, decoding: OriginalDecoding | None
    ) -> tuple[int, int, int] | None:
        """Return the original's bytes of inputs, outputs and plan at the step that fills the capacity.

        None if a size is unknown, or if the original was not decoded (``decoding`` is None), which shows
        the dims of that step.
        """
        if decoding is None:
            return None
        position = self._last_position(decoding)
        new_entries = self.capacity - position
        step_dims = decoding.dims_at(past=position, new=new_entries)
        bound_settings = self.bound_settings
        settings = replace(
            bound_settings,
            # The user's numbers win: the decode loop ran with them as well.
            dims={**step_dims, **self._cache_lengths(position), **bound_settings.dims},
            # Empty: the user's data has the dims of other steps. None would mean that data is still to be
            # bound, and numbers to be assumed.
            inputs=replace(bound_settings.inputs, feeds={}, assumed={}),
            shapes={},
            kv_cache="keep",
            capacity=None,
            run=False,
        )
        memory = plan_model(self.request.file, settings).plan.report.memory
        if memory.inputs is None or memory.outputs is None or memory.planned is None:
            return None
        return memory.inputs, memory.outputs, memory.planned

    def _cache_lengths(self, position: int) -> dict[str, int]:
        """Return ``position`` for each dim of the original that is the length of a growing cache.

        Before a step, the original's caches are as long as the valid entries of the buffers.
        """
        from memplan_cli.onnx_io.interface import fed_inputs, names_taken, tensor_dims
        from memplan_cli.onnx_io.types import container_and_tensor_type

        model = self.request.file.model
        names_of_dims = names_taken(model)
        axes = {cache.input: cache.axis for cache in self.decoder.caches.growing}
        lengths = {}
        for value in fed_inputs(model):
            if value.name in axes:
                _, tensor = container_and_tensor_type(value)
                length = tensor_dims(value, tensor, names_of_dims)[axes[value.name]]
                if isinstance(length, str):
                    lengths[length] = position
        return lengths


def _with_runtime_settings(
    plan: Plan, runtime_settings: RuntimeSettings, provider: str
) -> Plan:
    """Return a plan whose report has the settings of the written model, its buffers bound."""
    from memplan_cli.core.results.report import RuntimeSummary
    from memplan_cli.runtime.installed import required_version

    io_binding = {cache.output: cache.input for cache in plan.report.caches.buffers}
    facts = RuntimeSummary(
        "onnxruntime",
        required_version(),
        provider,
        settings=replace(runtime_settings, io_binding=io_binding),
    )
    return plan.with_report(replace(plan.report, runtime=facts))


def _bytes(program: Program, name: str) -> int:
    """Return the bytes of a tensor; 0 if they are unknown or symbolic."""
    var = program.vars[VarId(name)]
    size = size_of(var.shape, var.dtype)
    return 0 if size is None or size.symbols else size.coefficient


def _with_assumed_provenance(settings: Settings, user_settings: Settings) -> Settings:
    """Return settings in which dims count as assumed unless the user's settings bind them."""
    assumed: dict[str, Provenance] = {
        name: "assumed" for name in settings.dims if name not in user_settings.dims
    }
    provenance = {**settings.inputs.provenance, **assumed}
    return replace(settings, inputs=replace(settings.inputs, provenance=provenance))


def _as_glob(name: str) -> str:
    """Return the glob that matches only this name."""
    return name.replace("[", "[[]")
