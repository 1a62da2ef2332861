"""The candidates of `optimize`: the model's own graph, or the graph as ONNX Runtime optimizes it.

ONNX Runtime's graph optimization would undo an order. For a provider, it is therefore done in
advance: the optimized graph is dumped, ordered with what this version shares and frees, and run
without further optimization. Its outputs have the bits of a run under the defaults, which fuses the same
nodes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Self

from memplan_cli.api.models.model_file import (
    ModelFile,
    plan_resolved,
    source_of,
    with_chunking_facts,
)
from memplan_cli.api.models.profiles import at_dims, with_profiles
from memplan_cli.api.output.rewriting import Rewriting
from memplan_cli.api.output.weight_files import (
    FUSED,
    UNFUSED,
    data_name,
    own_weights,
    refuse_foreign_weights,
)
from memplan_cli.api.request_range import with_numbers_in_bounds
from memplan_cli.core.results.report import READ_BY_SHAPE
from memplan_cli.core.results.rewrites import WEIGHTS_UNPACKED, Fallback
from memplan_cli.core.symbolic.sizes import size_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from memplan_cli.analysis.aliasing import Aliasing
    from memplan_cli.api.models.profiles import Profiles
    from memplan_cli.api.models.resolve_sizes import ResolvedModel
    from memplan_cli.api.output.optimized import Optimized
    from memplan_cli.api.output.rewriting import Targets
    from memplan_cli.core.check import Check
    from memplan_cli.core.program import Program
    from memplan_cli.core.progress import Progress
    from memplan_cli.onnx_io.shapes.bindings import Known
    from memplan_cli.planning.candidate import Source
    from memplan_cli.runtime.graph.offline import Dump, Packing
    from memplan_cli.settings.settings import Settings

_SHAPE_OUTPUT_BYTES = 256
"""Bytes of an arena for the output of a Shape node, its alignment included."""


@dataclass(frozen=True, slots=True)
class OptimizeRequest:
    """A model whose sizes are resolved, and how it is to be optimized.

    Attributes:
        check: how the written model is verified; None runs nothing.
        profiles: several values of dims, for which one plan is made. The settings have bounds from the
            smallest to the largest.
    """

    file: ModelFile
    resolved: ResolvedModel
    targets: Targets
    check: Check | None
    progress: Progress
    profiles: Profiles | None = None

    @property
    def settings(self) -> Settings:
        """The settings, with a number for every dim."""
        return self.resolved.settings

    def with_settings(self, settings: Settings) -> Self:
        """Return a request with other settings for the same sizes."""
        return replace(self, resolved=replace(self.resolved, settings=settings))


def plan_portable(request: OptimizeRequest) -> Rewriting:
    """Plan the model's own graph, which any provider can run.

    The settings of the result have the dims at which the written model will be verified. A dim with several
    values (profiles) has the largest. A dim with bounds has the highest number, or the lowest if the plan needs
    too much of this machine's memory at the highest.
    """
    file, profiles = request.file, request.profiles
    planned = plan_resolved(file, request.resolved, request.progress)
    settings = planned.settings
    if profiles:
        planned = with_profiles(planned, file, profiles, request.progress)
        settings = at_dims(settings, {name: max(values) for name, values in profiles.items()})
    settings = with_numbers_in_bounds(settings, planned.plan.report.memory)
    return Rewriting(file, planned, settings, request.targets)


def plainer_settings(settings: Settings) -> Iterator[Settings]:
    """Yield at most two settings with which the written model is less likely to have other outputs.

    Outputs change mostly because ONNX Runtime fuses other nodes. The first settings have no chunks, no
    recomputation and no donation, so that the file runs with graph optimization, as the original does. The
    second settings also keep the order of the nodes, which can decide what is fused.
    """
    if settings.budget is not None:
        return  # without chunks and recomputation, a plan would exceed the budget
    plain = replace(
        settings,
        target="portable",
        chunk="none",
        recompute="none",
        checkpoints=(),
        donate={},
        notes="plan",  # in the plan file only: shapes noted in the model let more nodes be fused
    )
    if plain != settings:
        yield plain
    if plain.order != "keep":
        yield replace(plain, order="keep")


@dataclass(frozen=True, slots=True)
class TargetCandidates:
    """The candidates for one provider of the installed ONNX Runtime, in at most two rounds.

    A dump is a file into which ONNX Runtime writes the graph that it optimized, with the weights as
    its kernels want them: packed, and large operands of matrix products cut into pieces.

    The first round has ONNX Runtime's graph, and that graph without the fusions that cost memory. A second
    round, with other dumps, follows if ONNX Runtime cannot run a file with packed weights.

    Attributes:
        settings: those of the request, with the numbers of dims at which candidates are run.
        provider: ONNX Runtime's name of it.
        packing: whether the dumps of the first round have packed weights, or each session packs them.
        folder: for the dumps.
    """

    request: OptimizeRequest
    settings: Settings
    provider: str
    packing: Packing
    folder: Path

    @classmethod
    def of(cls, request: OptimizeRequest, folder: Path) -> Self:
        """Return the candidates for the provider of a request, not yet planned; dumps will go to ``folder``.

        Raises:
            RuntimeUnavailableError: the provider does not work here.
            ModelError: an output would be written over the model's weights.
        """
        from memplan_cli.runtime.graph.offline import Packing, packing_for
        from memplan_cli.runtime.workers.session import resolve_provider

        settings = request.settings
        provider = resolve_provider(settings.target)
        request.targets.refuse_overwriting_weights(request.file)  # the files to write
        packing = Packing.AT_LOAD  # each session packs the weights
        if request.check is not None:  # a check shows whether a file with packed weights runs
            packing = packing_for(provider, request.file.model)
        if settings.bounds:
            # A plan for any provider chooses a number for each dim with bounds; the plan itself is not used.
            for_any_provider = request.with_settings(replace(settings, target="portable"))
            settings_with_numbers = plan_portable(for_any_provider).settings
            settings = replace(settings_with_numbers, target=settings.target)
        return cls(request, settings, provider, packing, folder)

    def first_round(self) -> list[Rewriting]:
        """Plan the candidates of the first round. Errors are those of `_plan_round`."""
        self.request.progress("optimizing the graph for the runtime")
        return self._plan_round(self.packing)

    def second_round(self, result: Optimized) -> list[Rewriting]:
        """Plan the candidates of the second round; empty if the result of the first one is final.

        The second round follows if no model was written because the file with packed weights did not run.
        Its files have weights that each session packs, and their reports say so. Errors are those of
        `_plan_round`.
        """
        from memplan_cli.runtime.graph.offline import Packing

        verdict = result.plan.report.validation
        did_not_run = result.model is None and verdict is not None and verdict.did_not_run
        if not did_not_run or self.packing is Packing.AT_LOAD:
            return []
        self.request.progress(
            "packing weights at load: the file with packed ones does not run"
        )
        candidates = self._plan_round(Packing.AT_LOAD)
        return [_with_unpacked_weights(each, result) for each in candidates]

    def _plan_round(self, packing: Packing) -> list[Rewriting]:
        """Have ONNX Runtime dump its graphs with this packing of weights, and plan each of them.

        The unfused graph, without the fusions that cost memory, is the first candidate, and the fused graph
        the last. If the fused graph has no such fusions, or there is no check, it is the only candidate.

        Raises:
            RuntimeUnavailableError: weights are missing, or the model does not load.
            ModelError: a file is in the way.
        """
        from memplan_cli.runtime.graph.offline import DumpJob

        file, out = self.request.file, self.request.targets.model
        # Without a check nothing is run that could show which graph is better.
        kinds = (FUSED,) if self.request.check is None else (FUSED, UNFUSED)
        weight_names = [data_name(out, kind, taken=file.data_files) for kind in kinds]
        # The weights will be copied beside the output, which fails if another file has their name. Such a
        # file is refused now, for the fused graph alone: the unfused one may not be made.
        weights_of_fused = weight_names[0]
        refuse_foreign_weights(out, [weights_of_fused], own_weights(out))
        folder = self.folder / packing.name
        folder.mkdir()
        # ONNX Runtime appends ``.data`` to the name of a dump for its weights.
        paths = [folder / name.removesuffix(".data") for name in weight_names]
        with DumpJob(file.path, paths, self.provider, packing, self.settings.dims) as job:
            fused, *unfused = job.result()  # without costly fusions there is no unfused one
        return [self._plan_dump(dump) for dump in (*unfused, fused)]

    def _plan_dump(self, dump: Dump) -> Rewriting:
        """Plan a dumped graph. Large outputs that no node reads get a Shape node as a reader.

        ONNX Runtime keeps a tensor without readers until the end of the run, others until their last reader
        has run.
        """
        from memplan_cli.onnx_io.load import load_model
        from memplan_cli.onnx_io.runs.prepared_models import unread_outputs

        file = ModelFile.of(dump.path, load_model(dump.path))
        program = self._program(dump, file)
        # A small output gets no reader: the output of the Shape node would need as much memory.
        large_unread = _larger_than_shapes(unread_outputs(file.model), program)
        if not large_unread:
            return self._plan_program(dump, file, program)
        file = _with_shape_readers(file, large_unread)
        rewriting = self._plan_program(dump, file, self._program(dump, file))
        warning = f"{len(large_unread)} outputs that nobody reads {READ_BY_SHAPE}"
        return rewriting.with_plan(rewriting.plan.with_warnings(warning))

    def _program(self, dump: Dump, file: ModelFile) -> Program:
        """Return the program of ``file``, the dumped graph, with sizes that a run of the original observed."""
        from memplan_cli.api.models.reading import read_observed
        from memplan_cli.onnx_io.shapes.bindings import Bindings
        from memplan_cli.runtime.graph.offline import offline_program

        dims, resolved = self.settings.dims, self.request.resolved.loaded
        program = offline_program(file.path, dims, self.provider, dump.shapes)
        if not resolved.observed:
            return program
        # The dump is not run: values that ONNX Runtime did not fuse away have the same names in both graphs.
        observed: Known = {
            identity: (var.dtype, var.shape)
            for identity, var in resolved.program.vars.items()
            if identity in program.vars
            and var.shape is not None
            and all(isinstance(dim, int) for dim in var.shape)
        }
        # ``inputs`` is a text for warnings, which are dropped here: `_plan_program` adds its own.
        return read_observed(file.lazy, Bindings(dims), observed, program, inputs="").program

    def _plan_program(self, dump: Dump, file: ModelFile, program: Program) -> Rewriting:
        """Plan the program of a dumped graph, in the order that needs least memory in ONNX Runtime's arena.

        ``file`` is the dump, or a copy of it with Shape nodes added.
        """
        from memplan_cli.api.rewrites import REWRITES
        from memplan_cli.planning.candidate import Runtime
        from memplan_cli.planning.planner import make_plan
        from memplan_cli.runtime.graph.offline import offline_metadata
        from memplan_cli.runtime.installed import required_version
        from memplan_cli.runtime.simulate.arena_order import arena_bytes, order_for_arena

        settings, provider = self.settings, self.provider
        runtime = Runtime(
            aliasing=runtime_aliasing(provider),
            order_for_arena=partial(order_for_arena, dims=settings.dims, provider=provider),
            arena_bytes=partial(arena_bytes, dims=settings.dims, provider=provider),
        )
        source = self._source_of_dump(dump, file)
        planned = make_plan(program, settings, source, REWRITES, runtime=runtime)
        return Rewriting(
            file,
            planned,
            settings,
            self.request.targets,
            optimized_from=self.request.file,
            # Only this version of ONNX Runtime can run the file, on this provider.
            metadata=offline_metadata(required_version(), provider),
        )

    def _source_of_dump(self, dump: Dump, file: ModelFile) -> Source:
        """Return the facts of a dumped graph for its plan, with the path and the digests of the original.

        ``file`` has the graph to plan: the dump, or a copy of it with Shape nodes added.
        """
        source = source_of(self.request.file)
        source = replace(source, block=dump.block)  # channels per block of the layout NCHWc
        source = with_chunking_facts(source, file.model, self.settings)
        if not self.request.resolved.loaded.observed:
            return source
        warning = (
            "sizes that data decides were learned from the inputs of a run of the model; "
            "other data may need more"
        )
        return replace(source, warnings=(warning,), sizes_observed=True)


def _with_shape_readers(file: ModelFile, names: Sequence[str]) -> ModelFile:
    """Write a copy of a model, beside it, in which a Shape node reads each of some tensors; return the copy."""
    from memplan_cli.onnx_io.runs.prepared_models import with_readers
    from memplan_cli.onnx_io.writing.structure import checked

    source = file.model
    # Checked: the copy keeps the rules of ONNX as far as its source does, and has the same inputs.
    model = checked(with_readers(source, names), source=lambda: source, fed_like=source)
    path = file.path.with_name(f"{file.path.stem}.read{file.path.suffix}")
    path.write_bytes(model.SerializeToString())
    return ModelFile.of(path, model)


def _larger_than_shapes(names: Sequence[str], program: Program) -> list[str]:
    """Return those of some tensors of the main graph that need more memory than a Shape's output.

    Tensors of unknown size are left out.
    """
    sizes = {
        var.name: size_of(var.shape, var.dtype)
        for var in program.vars.values()
        if not var.block
    }
    # At any numbers of its dims, a tensor has at least as many bytes as its coefficient.
    return [
        name
        for name in names
        if (size := sizes.get(name)) is not None and size.coefficient > _SHAPE_OUTPUT_BYTES
    ]


def runtime_aliasing(provider: str) -> Aliasing:
    """Return which outputs ONNX Runtime puts into the memory of an input, by operator."""
    from memplan_cli.analysis.aliasing import Aliasing
    from memplan_cli.runtime.profile.in_place import load_table

    table = load_table(provider)
    return Aliasing(frozenset(table.alias), table.in_place)


def _with_unpacked_weights(rewriting: Rewriting, failed: Optimized) -> Rewriting:
    """Return a rewriting whose report says why its weights are not packed in the file."""
    verdict = failed.plan.report.validation
    reason = (
        verdict.notes[0] if verdict is not None and verdict.notes else "the file does not run"
    )
    fallback = Fallback(WEIGHTS_UNPACKED, "weights are not packed into the file", reason)
    return rewriting.with_plan(rewriting.plan.with_fallbacks(fallback))
