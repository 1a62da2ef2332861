"""Resolve unbound dimensions and data-dependent sizes of a model, once per command.

A dim without a number is assumed: 1 if it leads a shape, otherwise the smallest value with which
the model runs. Candidates start at what the ops demand of their dims (`analysis.demands`); without
a runtime these demands alone decide. The same run observes the sizes that no inference knows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from re import findall
from typing import TYPE_CHECKING, Literal, NamedTuple

from memplan_cli.analysis.dim_constraints import (
    COMMON_LENGTHS,
    STRIDES,
    UnboundDims,
    dim_constraints,
    smallest_satisfying_dims,
)
from memplan_cli.api.models.binding import bind
from memplan_cli.api.models.reading import (
    missing_sizes,
    read_completely,
    read_observed,
    unbound,
    with_runtime_inference,
)
from memplan_cli.core.symbolic.dims import bind_dim, binding_text, symbols_of
from memplan_cli.errors import RuntimeUnavailableError
from memplan_cli.onnx_io.shapes.bindings import Bindings
from memplan_cli.onnx_io.shapes.reading import read_checked

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from memplan_cli.analysis.dim_constraints import DimConstraint
    from memplan_cli.core.bindings import FeedSpec, Provenance
    from memplan_cli.core.program import Program, VarId
    from memplan_cli.onnx_io.load import LazyModel
    from memplan_cli.onnx_io.shapes.reading import Loaded
    from memplan_cli.runtime.run.size_probe import ProbeResult
    from memplan_cli.settings.settings import Settings

MAX_OBSERVED_OPS = 20_000
"""Larger models are not run to observe sizes: profiling such a run takes too long."""

_MAX_INPUT_ELEMENTS = 2**24
"""A candidate whose inputs have more elements in total is not tried."""

_MAX_SOLVED_CONSTRAINTS = 400
"""With more demands, they are solved only once, from length 1."""

_SOLVED_LENGTHS = frozenset({2, 4, 8, 16, 32, 64, 128, 224, 256, 512})
"""Lengths from which the demands are solved again for further candidates."""

_MAX_MESSAGE_NUMBERS = 12
"""Numbers that are taken from ONNX Runtime's error messages."""

Dims = dict[str, int]

SizeProbing = Literal["probe", "defer"]
"""``probe``: run the model to find assumed dims. ``defer``: take the first candidate untried,
because the caller runs the model anyway and resolves the sizes again if that fails."""


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """A program with its sizes, and settings in which every dim has a number for a run."""

    settings: Settings
    loaded: Loaded


def resolve_sizes(
    source: LazyModel, path: Path, settings: Settings, probing: SizeProbing = "probe"
) -> ResolvedModel:
    """Read a model, assume numbers for its unbound dims, and resolve data-dependent sizes.

    Assumed dims stay symbolic in the program; the settings record their numbers. If sizes depend
    on data, however, the model is run and the program has the sizes of that run.

    The settings need not be bound. ``probing`` tells whether assumed numbers are tried by
    running the model.

    Raises:
        MemplanError: the model or a setting is wrong, or the model fails on the inputs given.
    """
    settings = bind(source.model, settings)
    search = _SizeSearch(source, path, settings)
    free = search.free
    loaded = read_checked(source, search.bindings)
    # A model whose dims are all bound is run below instead: that costs the same and tells more.
    if missing_sizes(loaded.program) and (free or settings.bounds or not search.may_run):
        loaded = with_runtime_inference(source, path, search.bindings, loaded)
    assumed = settings.inputs.assumed  # None: numbers of the free dims are still to be found
    if assumed is None and not free:
        assumed = {}
    needs_run = bool(search.unresolved(loaded.program)) and search.may_run
    if assumed is not None and not needs_run:
        return ResolvedModel(_with_assumed(settings, assumed), loaded)
    if not search.may_run:  # the constraints of the ops decide alone
        smallest = smallest_satisfying_dims(
            dim_constraints(loaded.program), UnboundDims(free, search.fixed)
        )
        return ResolvedModel(_with_assumed(settings, smallest), loaded)
    if probing == "defer" and not needs_run:
        return ResolvedModel(_with_assumed(settings, search.first_candidate(loaded)), loaded)
    return search.run(loaded, assumed)


def resolve_to_numbers(source: LazyModel, path: Path, settings: Settings) -> ResolvedModel:
    """Resolve a model so that no dim stays symbolic: assumed dims are bound to their numbers."""
    symbolic = resolve_sizes(source, path, settings)
    assumed = symbolic.settings.inputs.assumed
    if not assumed:
        return symbolic
    bound = resolve_sizes(source, path, _bound_to(symbolic.settings, assumed))
    warnings = tuple(dict.fromkeys((*symbolic.loaded.warnings, *bound.loaded.warnings)))
    return ResolvedModel(bound.settings, replace(bound.loaded, warnings=warnings))


def resolve_all_but(
    source: LazyModel, path: Path, settings: Settings, symbolic: Collection[str]
) -> ResolvedModel:
    """Resolve a model with numbers for all dims except those that have to stay symbolic."""
    settings = bind(source.model, settings)
    search = _SizeSearch(source, path, settings)
    assumed: Mapping[str, int] = {}
    # For a name that is no dim of an input the model is not run: the caller refuses the name.
    if search.free.keys() - set(symbolic) and search.names.issuperset(symbolic):
        resolved = resolve_sizes(source, path, settings).settings
        numbers = {**(resolved.inputs.assumed or {}), **resolved.dims}
        assumed = {n: v for n, v in numbers.items() if n not in symbolic and n in search.free}
    settings = _bound_to(settings, assumed)
    bindings = replace(search.bindings, dims=settings.dims)
    return ResolvedModel(settings, read_completely(source, path, bindings))


def open_dims(source: LazyModel, path: Path, settings: Settings) -> tuple[str, ...]:
    """Return the names of the dims that settings leave open, as ``--dim`` takes them."""
    return tuple(_SizeSearch(source, path, bind(source.model, settings)).free)


def _with_assumed(settings: Settings, dims: Mapping[str, int]) -> Settings:
    """Return settings with the dims of a run; a dim with bounds gets the lower one."""
    lower_bounds = {name: low for name, (low, _) in settings.bounds.items()}
    inputs = replace(settings.inputs, assumed={**lower_bounds, **dims})
    return replace(settings, inputs=inputs)


def _bound_to(settings: Settings, dims: Mapping[str, int]) -> Settings:
    """Return settings that bind dims to assumed numbers, with ``assumed`` as their provenance.

    ``inputs.assumed`` becomes empty: no dim is left without a number.
    """
    inputs = settings.inputs
    provenance: dict[str, Provenance] = dict(inputs.provenance)
    provenance |= dict.fromkeys((n for n in dims if n not in settings.dims), "assumed")
    return replace(
        settings,
        dims={**dims, **settings.dims},
        inputs=replace(inputs, provenance=provenance, assumed={}),
    )


class _Trial(NamedTuple):
    """A candidate, and how the inputs of its run are drawn."""

    dims: Dims
    specs: tuple[FeedSpec, ...]


class _SizeSearch:
    """The search of numbers for the free dims of one model, mostly by running it.

    A candidate is a number for each free dim.

    Attributes:
        settings: bound to the model.
        bindings: what the settings give: dims, shapes, small input values.
        fixed: dims that the settings bind. A dim with bounds counts as bound to the lower one,
            because a plan for all values within bounds needs no search, and runs need any number.
        names: all dims of the inputs.
        free: the other dims of the inputs -> whether the dim is the first of a shape, such as a
            batch. These need only be 1 in most models.
    """

    def __init__(self, source: LazyModel, path: Path, settings: Settings) -> None:
        from memplan_cli.onnx_io.interface import free_dims
        from memplan_cli.onnx_io.shapes.light_model import small_values

        self.source, self.path, self.settings = source, path, settings
        values = small_values(settings.inputs.feeds or {})
        self.bindings = Bindings(settings.dims, settings.shapes, values=values)
        lower_bounds = {name: low for name, (low, _) in settings.bounds.items()}
        self.fixed = {**lower_bounds, **settings.dims}
        # ``--shape`` may give an input dims with names that the file does not have.
        symbols_in_shapes = frozenset().union(
            *(symbols_of(dim) for shape in settings.shapes.values() for dim in shape)
        )
        input_dims = free_dims(source.model)
        self.names = frozenset(input_dims) | symbols_in_shapes
        leads_shape = {**dict.fromkeys(symbols_in_shapes, False), **input_dims}
        self.free = {n: leads for n, leads in leads_shape.items() if n not in self.fixed}

    @cached_property
    def may_run(self) -> bool:
        """Whether runs are allowed, ONNX Runtime is installed, and no weights are missing."""
        from memplan_cli.onnx_io.runs.prepared_models import missing_weights
        from memplan_cli.runtime.installed import runtime_version

        return self.settings.run and bool(runtime_version()) and not missing_weights(self.path)

    def unresolved(self, program: Program) -> tuple[VarId, ...]:
        """Return the results whose size a run could observe: it is unknown, or depends on data.

        With bounds there are none: one run does not tell the sizes within them. Nor are there any
        for models that are too large to be observed.
        """
        if self.settings.bounds or len(program.body.ops) > MAX_OBSERVED_OPS:
            return ()
        by_data = unbound(program, self.names - self.fixed.keys())
        return tuple(dict.fromkeys((*missing_sizes(program), *by_data)))

    def run(self, loaded: Loaded, assumed: Mapping[str, int] | None) -> ResolvedModel:
        """Run the model with one candidate after the other; return the sizes of the first success.

        If no candidate runs, further ones are made of the numbers in the error messages.

        Args:
            loaded: the program as inferred.
            assumed: the only candidate; None: all candidates are tried.

        Returns:
            The program as inferred, with the dims of the candidate, or lower ones, as assumed ones.
            If sizes were observed in its run: the program with these, its dims bound to the candidate.
            If no candidate runs: as `_assume_smallest`.

        Raises:
            RuntimeUnavailableError: the model does not run on input data of the user's, which
                decides sizes.
        """
        unresolved = self.unresolved(loaded.program)
        constraints = dim_constraints(loaded.program) if self.free and assumed is None else ()
        if assumed is not None:
            candidates = [dict(assumed)]
        else:
            candidates = list(self._default_candidates(constraints))
        # If every candidate has an empty tensor, all are tried: an empty tensor may be intended.
        candidates = _without_empty(candidates, loaded.program, self.fixed) or candidates
        trials = self._trials(candidates)
        result = self._first_that_runs(trials, unresolved)
        if not result.ran and assumed is None and self.free and result.reasons:
            further_trials = self._trials(self._candidates_from_messages(candidates, result))
            further_result = self._first_that_runs(further_trials, unresolved)
            if further_result.ran:
                trials, result = further_trials, further_result
        if not result.ran:
            return self._assume_smallest(loaded, constraints, result, unresolved)
        dims = trials[result.ran[0]].dims
        # Later candidates may be larger than needed in some dims. The first two default ones are small
        # in each, the first two from messages have a size that an op asked for, and a single dim is
        # tried in rising order. Observed sizes hold only for the dims of the run that observed them.
        if result.ran[0] > 1 and len(self.free) > 1 and not unresolved:
            dims = self._lowered(dims)
        if not result.known:  # no shapes were recorded
            return ResolvedModel(_with_assumed(self.settings, dims), loaded)
        settings = _bound_to(self.settings, dims)
        inputs = "the inputs given" if self._has_data else "drawn inputs"
        bindings = replace(self.bindings, dims=settings.dims)
        observed = read_observed(self.source, bindings, result.known, loaded.program, inputs)
        return ResolvedModel(settings, observed)

    def _first_that_runs(
        self, trials: Sequence[_Trial], unresolved: Sequence[VarId] = ()
    ) -> ProbeResult:
        """Run the model with one trial after the other, until one runs.

        Sizes are observed in that run if some are ``unresolved``.
        """
        from memplan_cli.onnx_io.shapes.runtime_query import number_nodes
        from memplan_cli.runtime.run.size_probe import first_that_runs

        profiled_copy = number_nodes(self.source.model) if unresolved else None
        return first_that_runs(self.path, [trial.specs for trial in trials], profiled_copy)

    def first_candidate(self, loaded: Loaded) -> Dims:
        """Return the candidate that `run` would try first: the first one without an empty tensor.

        If all candidates have an empty tensor, `run` tries all of them, and the first one is all 1.
        """
        program = loaded.program
        # Mostly 1 will do: the constraints of the ops are then not collected.
        ones = dict.fromkeys(self.free, 1)
        if _without_empty([ones], program, self.fixed):
            return ones
        for dims in self._default_candidates(dim_constraints(program)):
            if _without_empty([dims], program, self.fixed):
                return dims
        return ones

    @property
    def _has_data(self) -> bool:
        """Whether the user gave the data of an input."""
        return any(feed.files for feed in (self.settings.inputs.feeds or {}).values())

    def _trials(self, candidates: Iterable[Dims]) -> list[_Trial]:
        """Return a trial of each different candidate.

        Candidates with too large inputs are dropped, but not the first one.
        """
        from memplan_cli.onnx_io.runs.random_inputs import Feeder

        feeder = Feeder(self.source.model, self.settings.inputs.feeds)
        trials: dict[tuple[tuple[str, int], ...], tuple[FeedSpec, ...]] = {}
        for dims in candidates:
            key = tuple(dims.items())
            if key in trials:
                continue
            specs = feeder.specs({**self.fixed, **dims})
            elements = sum(prod(spec.shape) for spec in specs)
            if not trials or elements <= _MAX_INPUT_ELEMENTS:
                trials[key] = specs
        return [_Trial(dict(key), specs) for key, specs in trials.items()]

    def _default_candidates(self, constraints: Sequence[DimConstraint]) -> Iterator[Dims]:
        """Yield candidates for the free dims, roughly by size.

        First all dims are 1. Next come the smallest dims that satisfy the constraints. Then each
        common length is given to all dims but those that lead a shape, which are 1; for some lengths
        dims that satisfy the constraints and start at this length come before it, unless there are
        too many constraints to solve them again. At last the leading dims get a small length as well.
        Without free dims the only candidate is empty.
        """
        yield dict.fromkeys(self.free, 1)
        if not self.free:
            return
        wanted = UnboundDims(self.free, self.fixed)
        yield smallest_satisfying_dims(constraints, wanted)
        for length in COMMON_LENGTHS[1:]:
            if len(constraints) <= _MAX_SOLVED_CONSTRAINTS and length in _SOLVED_LENGTHS:
                yield smallest_satisfying_dims(constraints, wanted, length)
            yield {name: 1 if leads else length for name, leads in self.free.items()}
        for length in (2, 4, 8, 16):
            yield dict.fromkeys(self.free, length)

    def _candidates_from_messages(
        self, failed: Sequence[Dims], result: ProbeResult
    ) -> Iterator[Dims]:
        """Yield candidates with the numbers in the error messages of candidates that failed.

        A message such as ``expected: 197`` names the size that an op needs; strided ops reach it
        from a multiple. Each number and its multiples replace all dims that do not lead a shape,
        then each of them alone, in the first two failed candidates. Leading dims come last.
        """
        numbers = dict.fromkeys(
            int(digits) for reason in result.reasons for digits in findall(r"\d{1,5}", reason)
        )
        sizes = [number for number in numbers if number > 1][:_MAX_MESSAGE_NUMBERS]
        leading = [name for name, leads in self.free.items() if leads]
        others = [name for name, leads in self.free.items() if not leads]
        for dims in failed[:2]:
            for length in (size * stride for size in sizes for stride in STRIDES):
                yield {**dims, **dict.fromkeys(others, length)}
                yield from ({**dims, name: length} for name in others)
        yield from ({**failed[0], name: size} for size in sizes for name in leading)

    def _lowered(self, dims: Dims) -> Dims:
        """Return dims of which each is as small as the model still runs with.

        Each dim is lowered alone. If the model does not run with all of the lowered values together,
        the dims with the smallest sum that it ran with are returned.
        """
        from memplan_cli.runtime.run.size_probe import all_that_run

        one_lowered = self._trials(
            {**dims, name: length}
            for name in self.free
            for length in COMMON_LENGTHS
            if length < dims[name]
        )
        result = all_that_run(self.path, [trial.specs for trial in one_lowered])
        working = [one_lowered[index].dims for index in result.ran]
        all_lowered = {name: min(other[name] for other in (dims, *working)) for name in dims}
        by_sum = sorted(working, key=lambda other: sum(other.values()))
        trials = self._trials([all_lowered, *by_sum])
        ran = self._first_that_runs(trials).ran
        return trials[ran[0]].dims if ran else dims

    def _assume_smallest(
        self,
        loaded: Loaded,
        constraints: Sequence[DimConstraint],
        result: ProbeResult,
        unresolved: Sequence[str],
    ) -> ResolvedModel:
        """Assume the smallest dims that satisfy the constraints, and warn that the model did not run.

        ``result`` is that of the runs that failed, which should have observed the sizes of
        ``unresolved``.

        Raises:
            RuntimeUnavailableError: it does not run on input data of the caller's, which decides
                sizes.
        """
        reason = result.reasons[0] if result.reasons else "no size of its inputs was tried"
        if self._has_data and unresolved:
            from memplan_cli.core.bindings import given_text

            inputs = given_text(self.settings.inputs.feeds or {})
            raise RuntimeUnavailableError(
                f"{self.path} could not be run for its shapes{inputs}: {reason}",
                hint="--no-run plans without a run; give other inputs",
            )
        dims = smallest_satisfying_dims(constraints, UnboundDims(self.free, self.fixed))
        warning = f"the model does not load in ONNX Runtime: {reason}"
        if result.loaded:
            where = f" at {binding_text(dims)}" if dims else ""
            warning = f"the model does not run on drawn inputs{where}: {reason}"
            warning += f"; real ones tell more: {self._input_options()}"
        loaded = replace(loaded, warnings=(*loaded.warnings, warning))
        return ResolvedModel(_with_assumed(self.settings, dims), loaded)

    def _input_options(self) -> str:
        """Return the options that give this model its inputs, for a message."""
        from shlex import quote

        specs = self._trials([dict.fromkeys(self.free, 1)])[0].specs
        # A single integer is often a length or a position, for which a drawn value is wrong.
        numbers = [s for s in specs if not s.shape and s.dtype.startswith(("int", "uint"))]
        options = [f"--input {quote(f'{spec.name}=N')}" for spec in numbers[:3]]
        return (
            " or ".join((" ".join(options), "--inputs FILE")) if options else "--inputs FILE"
        )


def _without_empty(
    candidates: Sequence[Dims], program: Program, fixed: Mapping[str, int]
) -> list[Dims]:
    """Return the candidates at which no symbolic dim of the program is 0: no tensor is empty.

    A pooling window larger than its input gives 0 by the formula for output shapes, and 1 in some
    kernels; such sizes would be predicted wrongly.
    """
    shapes = {var.shape for var in program.vars.values() if var.shape}
    symbolic = {dim for shape in shapes for dim in shape if isinstance(dim, str)}
    return [
        dims
        for dims in candidates
        if all(bind_dim(dim, {**fixed, **dims}) != 0 for dim in symbolic)
    ]
