"""``optimize --kv-cache in-place``: a decoder written with its caches in buffers of fixed size.

The rewritten graph is planned for the step that fills the caches. It is written if its decode loop
gives the same outputs as the original's, whose caches grow.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from memplan_cli.api.models.binding import bind, binding_of
from memplan_cli.api.models.model_file import ModelFile, plan_model, plan_resolved
from memplan_cli.api.output.optimized import Optimized, publish, write_unverified
from memplan_cli.api.output.rewriting import Rewriting, rewritten_files
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
    from onnx import ModelProto  # noqa: TID251 - types only; onnx_io makes them

    from memplan_cli.api.output.rewriting import Targets
    from memplan_cli.core.bindings import FeedSpec
    from memplan_cli.core.check import Check, Reference
    from memplan_cli.core.program import Program
    from memplan_cli.core.progress import Progress
    from memplan_cli.core.results.plan import Plan
    from memplan_cli.core.results.rewrites import CacheSummary
    from memplan_cli.features.kv_cache.buffered import CacheAttempt
    from memplan_cli.settings.settings import Settings

_SESSION = RuntimeSettings(
    session={"execution_order": "PRIORITY_BASED", "enable_mem_pattern": False}
)
"""Settings of the written model. A memory pattern is for one length, and each step has another."""


def write_with_caches_in_place(
    file: ModelFile,
    settings: Settings,
    targets: Targets,
    check: Check | None,
    progress: Progress,
) -> Optimized:
    """Write a decoder with its caches in buffers.

    With a check, the file is written only if it decodes as the original does.

    Raises:
        ModelError: no cache can be updated in place, or a file cannot be written.
        SettingsError: another setting excludes this, or the capacity is missing.
        RuntimeUnavailableError: no step of the original runs here.
    """
    _refuse_combined(settings, targets)
    targets.refuse_overwriting_weights(file)
    progress("looking for caches")
    if settings.capacity is None:
        raise SettingsError(
            "--kv-cache in-place needs the number of entries of a cache",
            hint="add --capacity N",
        )
    model = file.model
    names = [value.name for value in (*model.graph.input, *model.graph.output)]
    excluded = [n for n in names if any(fnmatchcase(n, glob) for glob in settings.excluded)]
    decoder = BufferedDecoder.of(model, settings.capacity, excluded)
    settings = bind(model, settings)
    if check is None:
        planner = _DecoderPlanner(file, settings, targets, progress, decoder, decoding=None)
        first_attempt = decoder.attempts()[0]  # the graph that needs least memory
        return write_unverified(planner.plan(first_attempt))
    with tempfile.TemporaryDirectory(prefix="memplan-decode-") as folder:
        loop = _original_loop(model, settings, check, Path(folder))
        progress("decoding with the original")
        decoding = decode_original(file.path, decoder.caches, loop)
        planner = _DecoderPlanner(file, settings, targets, progress, decoder, decoding)
        return _write_first_that_decodes(planner, decoding, loop, check.reference)


def _refuse_combined(settings: Settings, targets: Targets) -> None:
    """Refuse options that need the original graph, or that change the graph as well."""
    excluded_options = {
        "--target": settings.target != "portable",
        "--chunk": settings.chunk != "none",
        "--recompute": settings.recompute != "none",
        "--donate": bool(settings.donate),
        "--expose": settings.expose,
        "--bounds": bool(settings.bounds),
        "--certificate": targets.certificate is not None,
    }
    for option, is_set in excluded_options.items():
        if is_set:
            raise SettingsError(
                f"--kv-cache in-place and {option} cannot be combined yet",
                hint=f"remove one of --kv-cache and {option}",
            )


def _original_loop(
    model: ModelProto, settings: Settings, check: Check, folder: Path
) -> DecodeLoop:
    """Return how `decode_original` runs the original: at the dims and with the data in bound settings.

    Each run saves its outputs in ``folder``.
    """
    from memplan_cli.onnx_io.runs.random_inputs import feed_specs

    binding = binding_of(settings)
    names_with_data = {name for name, feed in binding.feeds.items() if feed.files}
    specs: tuple[FeedSpec, ...] = ()
    if names_with_data:
        specs = feed_specs(model, binding.dims, binding.feeds)
    # Inputs without data need no spec: the decode loop draws random data for them in each step.
    specs = tuple(spec for spec in specs if spec.name in names_with_data)
    return DecodeLoop.of_original(check, folder, binding.dims, specs)


def _write_first_that_decodes(
    planner: _DecoderPlanner,
    decoding: OriginalDecoding,
    original_loop: DecodeLoop,
    reference: Reference,
) -> Optimized:
    """Plan, write and run attempts in turn; publish the first that decodes as the original did.

    If no attempt does, nothing is written, and the result has the plan of the first attempt. ``decoding`` is
    the result of ``original_loop``, in which the original was decoded before. ``reference`` names the settings of
    that loop: ``defaults`` are those of ONNX Runtime, ``unoptimized`` are without graph optimization.

    Raises:
        RuntimeUnavailableError: the original, decoded ``unoptimized``, does not run under ``defaults``.
    """
    # The written model is decoded under these settings, which its report recommends.
    written_settings = _SESSION.updated(original_loop.settings)
    failed: list[Plan] = []
    for attempt in planner.decoder.attempts():  # at least one
        rewriting = planner.plan(attempt)
        plan = rewriting.plan
        with rewritten_files(rewriting) as files:
            planner.progress("decoding with caches in place")
            with staged(planner.targets.model, files.data) as path:
                verdict = decoding_verdict(
                    path,
                    plan.report.caches,
                    decoding,
                    original_loop,
                    written_settings,
                    reference,  # "unoptimized": an attempt that passes is also compared under the defaults
                )
            verdict = replace(verdict, notes=(*verdict.notes, *attempt.notes))
            plan = plan.with_report(replace(plan.report, validation=verdict))
            if verdict.passed:
                planner.progress("writing")
                # The notes explain the verdict, and are warnings of the file that is written.
                plan = plan.with_warnings(*attempt.notes)
                plan = _with_runtime_settings(plan, written_settings, original_loop.provider)
                return publish(files, plan)
            failed.append(plan)
    return Optimized(failed[0])


class _Step(NamedTuple):
    """A decode step: the valid entries of the caches before it, and the entries that it adds."""

    past: int
    new: int


@dataclass(frozen=True, slots=True)
class _DecoderPlanner:
    """Plans rewritten graphs of one decoder, for the step that fills the caches.

    Attributes:
        file: the original.
        settings: bound to the original: with the user's dims and inputs, some of which have data.
        decoder: the original's caches, and the graphs to plan.
        decoding: what the original's decode loop showed; None if nothing is run.
    """

    file: ModelFile
    settings: Settings
    targets: Targets
    progress: Progress
    decoder: BufferedDecoder
    decoding: OriginalDecoding | None

    @property
    def last_step(self) -> _Step:
        """The step that fills the caches: with as many new entries as the last observed step had, or with 1."""
        decoding, capacity = self.decoding, self.decoder.caches.capacity
        new = decoding.steps[-1] if decoding is not None and decoding.steps else 1
        past = max(capacity - new, 0)
        return _Step(past, capacity - past)

    def plan(self, attempt: CacheAttempt) -> Rewriting:
        """Plan the rewritten graph of an attempt at the sizes of the last decode step, with full caches.

        The plan names the original as its source, and its report describes the caches.
        """
        from memplan_cli.api.models.resolve_sizes import resolve_sizes
        from memplan_cli.onnx_io.caches_metadata import caches_note
        from memplan_cli.onnx_io.load import LazyModel
        from memplan_cli.onnx_io.writing.structure import checked

        rewritten = checked(attempt.model, source=lambda: self.file.model)
        # The rewritten graph has no file yet. It keeps the original's path, for weights beside it.
        file = ModelFile(self.file.path, LazyModel(rewritten))
        resolved = resolve_sizes(file.lazy, file.path, self._last_step_settings(rewritten))
        planned = plan_resolved(file, resolved, self.progress)
        caches = self.decoder.caches
        if self.decoding is not None:
            # Inputs with one entry for each new token, which the decode loop showed.
            caches = replace(caches, tokens=self.decoding.tokens)
        caches_of_report = self._with_figures(caches, planned.program)
        plan = self._as_plan_of_original(planned.plan, caches_of_report)
        # A run of the written model needs no figures, and nothing about caches that are kept as they are.
        metadata = caches_note(replace(caches, kept=()))
        planned = replace(planned, plan=plan)
        return Rewriting(file, planned, resolved.settings, self.targets, metadata=metadata)

    def _with_figures(self, caches: CacheSummary, program: Program) -> CacheSummary:
        """Return the caches with figures for a report. ``program`` is the rewritten graph."""
        return replace(
            caches,
            bytes=sum(_bytes(program, cache.output) for cache in caches.buffers),
            before=self._original_memory(),  # of the original model, before it was rewritten
            planned_at=self.last_step.past,  # entries in the caches before the planned step
            steps=() if self.decoding is None else self.decoding.steps,
        )

    def _last_step_settings(self, rewritten: ModelProto) -> Settings:
        """Return settings to plan a rewritten graph at the last step, with each cache donated to its output."""
        from memplan_cli.api.models.resolve_sizes import bind_assumed
        from memplan_cli.onnx_io.interface import free_dims

        caches = self.decoder.caches
        step = self.last_step  # the step that fills the caches
        # The rewritten graph lacks some dims of the original, such as the lengths of growing caches.
        names = free_dims(rewritten)
        user_dims = {n: value for n, value in self.settings.dims.items() if n in names}
        if self.decoding is None:  # no decode loop was run, which shows the dims
            step_dims = dict.fromkeys(names, 1)
        else:
            dims_of_loop = self.decoding.dims_at(step.past, step.new)
            step_dims = {n: value for n, value in dims_of_loop.items() if n in names}
        settings = replace(
            self.settings,
            dims=user_dims,
            shapes={},  # those of the settings are of the original's inputs
            inputs=Inputs(values={caches.position: [step.past]}),
            donate=dict(caches.donated),
            run=False,  # a run to observe sizes would be of the file at the path, the original
        )
        # The user's numbers, and those of the inputs that `bind` reads, have precedence over ``step_dims``.
        return bind_assumed(bind(rewritten, settings), step_dims)

    def _as_plan_of_original(self, plan: Plan, caches: CacheSummary) -> Plan:
        """Return the plan of a rewritten graph as one of the original, with the caches in its report.

        The rewritten graph was planned without runs. The setting ``run`` of the result is the user's.
        """
        from memplan_cli.onnx_io.load import graph_digest

        settings = dict(plan.settings)
        if self.settings.run:  # a plan records only ``"run": False``
            settings.pop("run", None)
        plan = plan.with_report(replace(plan.report, caches=caches))
        return replace(plan, settings=settings, graph_sha256=graph_digest(self.file.model))

    def _original_memory(self) -> tuple[int, int, int] | None:
        """Return the original's bytes of inputs, outputs and plan at the last step.

        None if a size is unknown, or if no decode loop showed the dims of that step.
        """
        if self.decoding is None:
            return None
        step = self.last_step
        step_dims = self.decoding.dims_at(step.past, step.new)
        settings = replace(
            self.settings,
            # ``step_dims`` lacks the lengths of the caches. The user's numbers hold for every step.
            dims={**step_dims, **self._cache_lengths(step.past), **self.settings.dims},
            # The user's data and shapes may be those of another step. Each dim has its number above.
            inputs=replace(self.settings.inputs, feeds={}, assumed={}),
            shapes={},
            kv_cache="keep",
            capacity=None,
            run=False,
        )
        memory = plan_model(self.file, settings).plan.report.memory
        if memory.inputs is None or memory.outputs is None or memory.planned is None:
            return None
        return memory.inputs, memory.outputs, memory.planned

    def _cache_lengths(self, past: int) -> dict[str, int]:
        """Map each symbolic dim that is the length of a growing cache to ``past``, the number of cached tokens."""
        from memplan_cli.onnx_io.interface import fed_inputs, names_taken, tensor_dims
        from memplan_cli.onnx_io.types import container_and_tensor_type

        model = self.file.model
        # A dim without a name gets one, such as ``x_dim0``, as in the plan. It must get none of these.
        forbidden_names = names_taken(model)
        axes = {cache.input: cache.axis for cache in self.decoder.caches.growing}
        lengths = {}
        for value in fed_inputs(model):
            if value.name in axes:
                _, tensor = container_and_tensor_type(value)
                length = tensor_dims(value, tensor, forbidden_names)[axes[value.name]]
                if isinstance(length, str):
                    lengths[length] = past
        return lengths


def _with_runtime_settings(
    plan: Plan, runtime_settings: RuntimeSettings, provider: str
) -> Plan:
    """Return a plan whose report says how to run the written model: runtime, version, provider and settings.

    The settings bind the output of each cache to the buffer of its input.
    """
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
