"""Resolve free dimensions and data-dependent sizes of a model, once per command.

A dim without a number is assumed: 1 if it leads a shape, otherwise the smallest value with which
the model runs. Candidates start at what the ops demand of their dims (`analysis.demands`); without
a runtime these demands alone decide. The same run observes the sizes that no inference knows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Literal, NamedTuple

from memplan_cli.analysis.dim_constraints import (
    COMMON_LENGTHS,
    UnboundDims,
    dim_constraints,
    smallest_satisfying_dims,
)
from memplan_cli.api.models.binding import bind, binding_of
from memplan_cli.api.models.reading import read_observed, unresolved_results
from memplan_cli.core.results.report import MODEL_DOES_NOT
from memplan_cli.core.symbolic.dims import bind_dim, binding_text, symbols_of
from memplan_cli.errors import RuntimeUnavailableError
from memplan_cli.onnx_io.shapes.bindings import Bindings
from memplan_cli.onnx_io.shapes.reading import read_checked

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from memplan_cli.core.bindings import FeedSpec, Provenance
    from memplan_cli.core.program import Program, VarId
    from memplan_cli.onnx_io.load import LazyModel
    from memplan_cli.onnx_io.shapes.reading import Loaded
    from memplan_cli.runtime.run.size_probe import ProbeResult
    from memplan_cli.settings.settings import Settings

MAX_OBSERVED_OPS = 20_000
"""Larger models are not run to observe sizes: profiling such a run takes too long."""

_SMALL_LENGTHS = (2, 4, 8, 16)

_MAX_DIMS_ALONE = 16
"""With more free dims, no candidate has a small length for one dim alone: there would be too many."""

_MAX_INPUT_ELEMENTS = 2**24
"""A candidate whose inputs have more elements in total is not tried."""

Dims = dict[str, int]

SizeProbing = Literal["probe", "defer"]
"""``probe``: run the model to find assumed dims. ``defer``: take the first candidate untried,
because the caller runs the model anyway and resolves the sizes again if that fails."""


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """A program with its sizes, and settings in which every dim has a number for a run.

    Attributes:
        run_failure: the warning that says why no run observed sizes; empty if one did, or if none was
            tried.
    """

    settings: Settings
    loaded: Loaded
    run_failure: str = ""


def resolve_sizes(
    source: LazyModel, path: Path, settings: Settings, probing: SizeProbing = "probe"
) -> ResolvedModel:
    """Read a model, assume numbers for its free dims, and resolve data-dependent sizes.

    Assumed dims stay symbolic in the program; the settings record their numbers. But if sizes depend
    on data, the model is run, and the program has the sizes of that run.

    The settings need not be bound. ``probing`` tells whether assumed numbers are tried by
    running the model.

    Raises:
        MemplanError: the model or a setting is wrong, or the model fails on the inputs given.
    """
    settings = bind(source.model, settings)
    search = _SizeSearch(source, path, settings)
    loaded = read_checked(source, search.bindings)
    assumed = settings.inputs.assumed  # None: numbers of the free dims are still to be found
    if search.unresolved(loaded.program) and search.may_run:
        return search.run(loaded, assumed)
    # No run has to observe sizes: at most numbers of free dims are missing.
    if assumed is None:
        assumed = search.dims_without_run(loaded, probing)
    if assumed is None:  # only runs show which numbers work, and they are allowed
        return search.run(loaded, None)
    return ResolvedModel(_with_assumed(settings, assumed), loaded)


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
    """Resolve a model with numbers for all dims except those in ``symbolic``.

    The numbers of free dims are those that `resolve_sizes` finds, which may run the model for them. None
    are looked for if a name in ``symbolic`` is no dim of an input: the caller will refuse that name.
    """
    bound_settings = bind(source.model, settings)
    search = _SizeSearch(source, path, bound_settings)
    dims_to_assume = search.free_dims.keys() - set(symbolic)
    assumed: Mapping[str, int] = {}
    if dims_to_assume and search.input_dims.issuperset(symbolic):
        # These have numbers for ``symbolic`` as well, and are not used further.
        numbers = binding_of(resolve_sizes(source, path, bound_settings).settings).dims
        assumed = {name: numbers[name] for name in numbers if name in dims_to_assume}
    settings = _bound_to(bound_settings, assumed)
    bindings = replace(search.bindings, dims=settings.dims)
    return ResolvedModel(settings, read_checked(source, bindings))


def free_dim_names(source: LazyModel, path: Path, settings: Settings) -> tuple[str, ...]:
    """Return the names of the dims that settings leave open, as ``--dim`` takes them."""
    return tuple(_SizeSearch(source, path, bind(source.model, settings)).free_dims)


def _with_assumed(settings: Settings, dims: Mapping[str, int]) -> Settings:
    """Return settings with the dims of a run; a dim with bounds gets the upper one."""
    upper_bounds = {name: limits.high for name, limits in settings.bounds.items()}
    inputs = replace(settings.inputs, assumed={**upper_bounds, **dims})
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
        fixed_dims: the numbers that every candidate has in common: those of bound dims, and the
            lower bounds of dims with bounds, which make the runs of a search short.
        input_dims: the names of all dims of the inputs.
        free_dims: the dims of the inputs without a fixed number -> whether the dim leads a shape,
            as a batch does. Leading dims need only be 1 in most models.
    """

    def __init__(self, source: LazyModel, path: Path, settings: Settings) -> None:
        """Collect the dims of the inputs; run nothing. The settings are bound."""
        from memplan_cli.onnx_io.interface import free_dims
        from memplan_cli.onnx_io.shapes.light_model import small_values

        self.source, self.path, self.settings = source, path, settings
        values = small_values(settings.inputs.feeds or {})
        self.bindings = Bindings(settings.dims, settings.shapes, values=values)
        lower_bounds = {name: limits.low for name, limits in settings.bounds.items()}
        self.fixed_dims = {**lower_bounds, **settings.dims}
        # ``--shape`` may give an input dims with names that the file does not have.
        symbols_in_shapes = frozenset().union(
            *(symbols_of(dim) for shape in settings.shapes.values() for dim in shape)
        )
        # Whether a dim is the first of an input, as the file declares it. Dims that only ``--shape`` names
        # count as no first ones.
        leads_shape = {**dict.fromkeys(symbols_in_shapes, False), **free_dims(source.model)}
        self.input_dims = frozenset(leads_shape)
        self.free_dims = {
            name: leads for name, leads in leads_shape.items() if name not in self.fixed_dims
        }

    @cached_property
    def may_run(self) -> bool:
        """Whether runs are allowed, ONNX Runtime is installed, and no weights are missing."""
        from memplan_cli.onnx_io.runs.prepared_models import missing_weights
        from memplan_cli.runtime.installed import runtime_version

        return self.settings.run and bool(runtime_version()) and not missing_weights(self.path)

    def unresolved(self, program: Program) -> tuple[VarId, ...]:
        """Return the results whose size a run has to observe: it is unknown, or depends on data.

        With bounds there are none: one run does not tell the sizes within them. Nor are there any
        for models that are too large to be observed.
        """
        if self.settings.bounds or len(program.body.ops) > MAX_OBSERVED_OPS:
            return ()
        return unresolved_results(program, self.free_dims)

    def dims_without_run(self, loaded: Loaded, probing: SizeProbing) -> Dims | None:
        """Return numbers for the free dims without running the model; None if it must be run."""
        if not self.free_dims:
            return {}
        if not self.may_run:  # the constraints of the ops decide alone
            return self._smallest_dims(loaded.program)
        return self.first_candidate(loaded.program) if probing == "defer" else None

    def _smallest_dims(self, program: Program) -> Dims:
        """Return the smallest free dims that satisfy the constraints of the ops."""
        dims = UnboundDims(self.free_dims, self.fixed_dims)
        return smallest_satisfying_dims(dim_constraints(program), dims)

    def run(self, loaded: Loaded, assumed: Mapping[str, int] | None) -> ResolvedModel:
        """Run the model with one candidate after the other; return the sizes of the first success.

        Args:
            loaded: the program as inferred.
            assumed: the only candidate; None: all candidates are tried.

        Returns:
            The program as inferred, with the dims of the candidate as assumed ones.
            If sizes were observed in its run: the program with these, its dims bound to the candidate.
            If no candidate runs: the result of `_assume_smallest`.

        Raises:
            RuntimeUnavailableError: the model does not run on input data of the user's, which
                decides sizes.
        """
        from memplan_cli.onnx_io.shapes.numbered_nodes import number_nodes
        from memplan_cli.runtime.run.size_probe import first_that_runs

        unresolved = self.unresolved(loaded.program)  # their sizes are observed in the run
        if assumed is not None:
            candidates = [dict(assumed)]
        else:
            candidates = list(self._candidates(loaded.program))
        # If every candidate has an empty tensor, all are tried: an empty tensor may be intended.
        usable = list(_without_empty(candidates, loaded.program, self.fixed_dims))
        trials = self._trials(usable or candidates)
        profiled_copy = number_nodes(self.source.model) if unresolved else None
        result = first_that_runs(self.path, [trial.specs for trial in trials], profiled_copy)
        if not result.ran:
            return self._assume_smallest(loaded, result, unresolved)
        dims = trials[result.ran[0]].dims
        if not result.known:  # no sizes were observed
            return ResolvedModel(_with_assumed(self.settings, dims), loaded)
        settings = _bound_to(self.settings, dims)
        inputs = "the inputs given" if self._has_data else "drawn inputs"
        bindings = replace(self.bindings, dims=settings.dims)
        observed = read_observed(self.source, bindings, result.known, loaded.program, inputs)
        return ResolvedModel(settings, observed)

    def first_candidate(self, program: Program) -> Dims:
        """Return the candidate that `run` would try first: the first one without an empty tensor.

        If all candidates have an empty tensor, `run` tries all of them, and the first one is all 1.
        """
        usable = _without_empty(self._candidates(program), program, self.fixed_dims)
        return next(usable, dict.fromkeys(self.free_dims, 1))

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
            specs = feeder.specs({**self.fixed_dims, **dims})
            elements = sum(prod(spec.shape) for spec in specs)
            if not trials or elements <= _MAX_INPUT_ELEMENTS:
                trials[key] = specs
        return [_Trial(dict(key), specs) for key, specs in trials.items()]

    def _candidates(self, program: Program) -> Iterator[Dims]:
        """Yield candidates for the free dims, roughly by size.

        1. All dims are 1, which mostly will do. Without free dims this candidate is empty, and the only one.
        2. The smallest dims that satisfy the constraints.
        3. If the dims are few: a small length for one, 1 for the others. For a past that is longer than
           what is added to it.
        4. Each common length for all dims but those that lead a shape, which are 1.
        5. A small length for all dims, also for those that lead a shape.
        """
        yield dict.fromkeys(self.free_dims, 1)
        if not self.free_dims:
            return
        yield self._smallest_dims(program)
        alone = self.free_dims if len(self.free_dims) <= _MAX_DIMS_ALONE else ()
        for length in _SMALL_LENGTHS:
            for longer in alone:
                yield {name: length if name == longer else 1 for name in self.free_dims}
        for length in COMMON_LENGTHS[1:]:
            yield {name: 1 if leads else length for name, leads in self.free_dims.items()}
        for length in _SMALL_LENGTHS:
            yield dict.fromkeys(self.free_dims, length)

    def _assume_smallest(
        self,
        loaded: Loaded,
        probing: ProbeResult,
        unresolved: Sequence[str],
    ) -> ResolvedModel:
        """Assume the smallest dims that satisfy the constraints, and warn that the model did not run.

        ``probing`` is the result of the runs, all of which failed. They should have observed the sizes of
        ``unresolved``, which stay unknown.

        Raises:
            RuntimeUnavailableError: some are unresolved, and the user gave data of inputs to observe them.
        """
        reason = probing.reasons[0] if probing.reasons else "no size of its inputs was tried"
        if self._has_data and unresolved:
            from memplan_cli.core.bindings import given_text

            inputs = given_text(self.settings.inputs.feeds or {})
            raise RuntimeUnavailableError(
                f"{self.path} could not be run for its shapes{inputs}: {reason}",
                hint="--no-run plans without a run; give other inputs",
            )
        dims = self._smallest_dims(loaded.program)
        sizes = binding_text({**self.fixed_dims, **dims})
        where = f" at {sizes}" if sizes else ""
        if not probing.loaded:
            warning = f"{MODEL_DOES_NOT} load in ONNX Runtime: {reason}"
        elif self._has_data:
            warning = f"{MODEL_DOES_NOT} run on the inputs given{where}: {reason}"
        else:
            warning = f"{MODEL_DOES_NOT} run on drawn inputs{where}: {reason}"
            warning += f"; real ones tell more: {self._input_options()}"
        loaded = replace(loaded, warnings=(*loaded.warnings, warning))
        return ResolvedModel(_with_assumed(self.settings, dims), loaded, run_failure=warning)

    def _input_options(self) -> str:
        """Return the options that give this model its inputs, for a message."""
        from shlex import quote

        specs = self._trials([dict.fromkeys(self.free_dims, 1)])[0].specs
        # A single integer is often a length or a position, for which a drawn value is wrong.
        numbers = [s for s in specs if not s.shape and s.dtype.startswith(("int", "uint"))]
        options = [f"--input {quote(f'{spec.name}=N')}" for spec in numbers[:3]]
        return (
            " or ".join((" ".join(options), "--inputs FILE")) if options else "--inputs FILE"
        )


def _without_empty(
    candidates: Iterable[Dims], program: Program, fixed: Mapping[str, int]
) -> Iterator[Dims]:
    """Yield the candidates at which no symbolic dim of the program is 0: no tensor is empty.

    A pooling window larger than its input gives 0 by the formula for output shapes, and 1 in some
    kernels; such sizes would be predicted wrongly.
    """
    shapes = {var.shape for var in program.vars.values() if var.shape}
    symbolic = {dim for shape in shapes for dim in shape if isinstance(dim, str)}
    for dims in candidates:
        numbers = {**fixed, **dims}
        if all(bind_dim(dim, numbers) != 0 for dim in symbolic):
            yield dims
