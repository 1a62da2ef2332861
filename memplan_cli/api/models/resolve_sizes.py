"""Resolve free dimensions and data-dependent sizes of a model, once per command.

A dim without a number is assumed: 1 if it leads a shape, otherwise the smallest value with which
the model runs. Without a runtime, the constraints of the ops (`analysis.dim_constraints`) alone decide.
The same run observes the sizes that no inference knows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import TYPE_CHECKING, NamedTuple, Self

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
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from onnx import ModelProto  # noqa: TID251 - types only; onnx_io makes them

    from memplan_cli.core.bindings import FeedSpec, Provenance
    from memplan_cli.core.program import VarId
    from memplan_cli.onnx_io.load import LazyModel
    from memplan_cli.onnx_io.shapes.bindings import Known
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


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """A program with its sizes, and bound settings in which every dim has a number for a run.

    Attributes:
        run_failure: the warning that says why no run observed sizes; empty if one did, or if none was
            tried.
    """

    settings: Settings
    loaded: Loaded
    run_failure: str = ""


def resolve_sizes(source: LazyModel, path: Path, settings: Settings) -> ResolvedModel:
    """Read a model, assume numbers for its free dims, and observe the sizes that depend on data.

    The model is run if a size depends on data, or if free dims have no assumed numbers in the settings. If the
    model cannot be run, the constraints of its ops give the numbers. Free dims stay symbolic in the program, and
    the settings assume their numbers. But after a run that observed sizes, the settings bind free dims to the
    numbers of that run.

    Raises:
        MemplanError: the model or a setting is wrong, or the model fails on the inputs given.
    """
    search = _SizeSearch.of(source, path, settings)
    # None, or the numbers of an earlier call: these are complete, so that no free dim needs a further one.
    assumed = search.settings.inputs.assumed
    needs_numbers = assumed is None and bool(search.dims.free)
    if (search.data_dependent or needs_numbers) and search.may_run():
        return search.run()
    return search.with_assumed(search.smallest_dims() if assumed is None else assumed)


def resolve_first_sizes(source: LazyModel, path: Path, settings: Settings) -> ResolvedModel:
    """Resolve a model like `resolve_sizes`, but assume the numbers that would be tried first.

    For a caller that runs the model anyway, and calls `resolve_sizes` if it does not run. The model is run
    here too only if sizes depend on data, which a run has to observe.

    Raises:
        MemplanError: as for `resolve_sizes`.
    """
    search = _SizeSearch.of(source, path, settings)
    if search.data_dependent and search.may_run():
        return search.run()
    assumed = search.settings.inputs.assumed
    return search.with_assumed(search.first_candidate() if assumed is None else assumed)


def resolve_to_numbers(source: LazyModel, path: Path, settings: Settings) -> ResolvedModel:
    """Resolve a model so that no dim stays symbolic: assumed dims are bound to their numbers."""
    symbolic = resolve_sizes(source, path, settings)
    assumed = symbolic.settings.inputs.assumed
    if not assumed:
        return symbolic
    bound = resolve_sizes(source, path, bind_assumed(symbolic.settings, assumed))
    warnings = tuple(dict.fromkeys((*symbolic.loaded.warnings, *bound.loaded.warnings)))
    return ResolvedModel(bound.settings, replace(bound.loaded, warnings=warnings))


def resolve_all_but(
    source: LazyModel, path: Path, settings: Settings, symbolic_dim: str
) -> ResolvedModel:
    """Resolve a model with numbers for all dims except one.

    Free dims get the numbers that `resolve_sizes` finds, which may run the model for them. But if
    ``symbolic_dim`` is no dim of an input, they stay symbolic: the caller will refuse that name.
    """
    settings = bind(source.model, settings)
    input_dims = _InputDims.of(source.model, settings)
    dims_to_assume = input_dims.free.keys() - {symbolic_dim}
    if dims_to_assume and symbolic_dim in input_dims.names:
        all_dims = binding_of(resolve_sizes(source, path, settings).settings).dims
        assumed = {name: n for name, n in all_dims.items() if name in dims_to_assume}
        settings = bind_assumed(settings, assumed)
    return ResolvedModel(settings, read_checked(source, _bindings(settings)))


def free_dim_names(source: LazyModel, settings: Settings) -> tuple[str, ...]:
    """Return the names of the dims that settings leave open, as ``--dim`` takes them."""
    return tuple(_InputDims.of(source.model, bind(source.model, settings)).free)


def _bindings(settings: Settings) -> Bindings:
    """Return what bound settings give to read a model: dims, shapes, small input values."""
    from memplan_cli.onnx_io.shapes.light_model import small_values

    values = small_values(settings.inputs.feeds or {})
    return Bindings(settings.dims, settings.shapes, values=values)


def bind_assumed(settings: Settings, dims: Mapping[str, int]) -> Settings:
    """Return settings that bind dims without a number to assumed ones, with the provenance ``assumed``.

    ``inputs.assumed`` becomes empty, so that no further numbers are assumed.
    """
    inputs = settings.inputs
    provenance: dict[str, Provenance] = dict(inputs.provenance)
    provenance |= dict.fromkeys((n for n in dims if n not in settings.dims), "assumed")
    return replace(
        settings,
        dims={**dims, **settings.dims},
        inputs=replace(inputs, provenance=provenance, assumed={}),
    )


@dataclass(frozen=True, slots=True)
class _InputDims:
    """The dims of a model's inputs.

    Attributes:
        fixed: dim -> number, for dims that have a number or bounds in the settings.
        free: dim without a number -> whether it is the leading dim of an input, mostly a batch, which can be 1.
        names: all dims.
    """

    fixed: Mapping[str, int]
    free: Mapping[str, bool]
    names: frozenset[str]

    @classmethod
    def of(cls, model: ModelProto, settings: Settings) -> Self:
        """Return the dims of a model's inputs, with the numbers in ``settings``, which `bind` returned."""
        from memplan_cli.onnx_io.interface import free_dims

        # The lowest number of a dim with bounds makes runs short.
        lower_bounds = {name: limits.low for name, limits in settings.bounds.items()}
        fixed = {**lower_bounds, **settings.dims}
        dims_in_shapes = [dim for shape in settings.shapes.values() for dim in shape]
        names_in_shapes = sorted({name for dim in dims_in_shapes for name in symbols_of(dim)})
        # Dim -> whether it leads an input, as a batch does. A dim that is only in ``--shape`` counts as not leading;
        # for a dim that is also in the model, ``free_dims`` decides.
        is_leading = {**dict.fromkeys(names_in_shapes, False), **free_dims(model)}
        free = {name: leads for name, leads in is_leading.items() if name not in fixed}
        return cls(fixed, free, names=frozenset(is_leading))


class _Trial(NamedTuple):
    """A candidate, and how the inputs of its run are drawn."""

    dims: Dims
    specs: tuple[FeedSpec, ...]


@dataclass(frozen=True, slots=True)
class _SizeSearch:
    """The search of numbers for the free dims of one model, mostly by running it.

    A candidate is a number for each free dim.

    Attributes:
        settings: bound to the model.
        dims: of the model's inputs.
        loaded: the model read with what the settings give; free dims are symbols in it.
        data_dependent: the results whose sizes a run is to show, since inference does not find them.
    """

    source: LazyModel
    path: Path
    settings: Settings
    dims: _InputDims
    loaded: Loaded
    data_dependent: tuple[VarId, ...]

    @classmethod
    def of(cls, source: LazyModel, path: Path, settings: Settings) -> Self:
        """Return the search for a model. Its file and the files of its inputs are read, and nothing is run."""
        settings = bind(source.model, settings)  # reads the inputs
        dims = _InputDims.of(source.model, settings)
        loaded = read_checked(source, _bindings(settings))
        if settings.bounds or len(loaded.program.body.ops) > MAX_OBSERVED_OPS:
            # A run would show the sizes at one value within the bounds only, or take too long.
            sizes_to_observe: tuple[VarId, ...] = ()
        else:
            sizes_to_observe = unresolved_results(loaded.program, dims.free)
        return cls(source, path, settings, dims, loaded, data_dependent=sizes_to_observe)

    def may_run(self) -> bool:
        """Return whether runs are allowed, ONNX Runtime is installed, and no weights are missing."""
        from memplan_cli.onnx_io.runs.prepared_models import missing_weights
        from memplan_cli.runtime.installed import runtime_version

        return self.settings.run and bool(runtime_version()) and not missing_weights(self.path)

    def with_assumed(self, dims: Mapping[str, int]) -> ResolvedModel:
        """Return the model as it was read, and settings that assume these dims, and upper bounds."""
        upper_bounds = {name: limits.high for name, limits in self.settings.bounds.items()}
        inputs = replace(self.settings.inputs, assumed={**upper_bounds, **dims})
        return ResolvedModel(replace(self.settings, inputs=inputs), self.loaded)

    def smallest_dims(self) -> Dims:
        """Return the smallest free dims that satisfy the constraints of the ops."""
        if not self.dims.free:
            return {}
        dims = UnboundDims(self.dims.free, self.dims.fixed)
        return smallest_satisfying_dims(dim_constraints(self.loaded.program), dims)

    def first_candidate(self) -> Dims:
        """Return the candidate that `run` would try first: the first without an empty tensor.

        If every candidate has an empty tensor, `run` tries all candidates, first the dims that are all 1.
        """
        usable = self._without_empty(self._candidates())
        return next(usable, dict.fromkeys(self.dims.free, 1))

    def run(self) -> ResolvedModel:
        """Run the model with one candidate after the other until a run succeeds; return the model's sizes.

        The settings get the numbers of the candidate that runs. Sizes that depend on data are those of its run.

        Raises:
            RuntimeUnavailableError: sizes depend on data, and the model does not run on data that the
                user gave.
        """
        from memplan_cli.onnx_io.shapes.numbered_nodes import number_nodes
        from memplan_cli.runtime.run.size_probe import first_that_runs

        assumed = self.settings.inputs.assumed
        candidates = list(self._candidates()) if assumed is None else [dict(assumed)]
        # If every candidate has an empty tensor, all are tried: an empty tensor may be intended.
        trials = self._trials(list(self._without_empty(candidates)) or candidates)
        # Sizes are recorded in a run of a copy whose nodes have unique names, those of the profile.
        recorded_copy = number_nodes(self.source.model) if self.data_dependent else None
        result = first_that_runs(self.path, [trial.specs for trial in trials], recorded_copy)
        if not result.ran:
            return self._assume_smallest(result)
        first_success = result.ran[0]  # ``ran`` has the indices of the trials that succeeded
        dims_that_run = trials[first_success].dims
        if not result.known:  # no shapes were recorded
            return self.with_assumed(dims_that_run)
        return self._with_sizes_of_run(dims_that_run, result.known)

    def _with_sizes_of_run(self, dims: Dims, run_types: Known) -> ResolvedModel:
        """Return the model with the types and shapes of a run, and settings that bind the free dims of that run."""
        settings = bind_assumed(self.settings, dims)
        inputs = "the inputs given" if self._has_data else "drawn inputs"
        loaded = read_observed(
            self.source, _bindings(settings), run_types, self.loaded.program, inputs=inputs
        )
        return ResolvedModel(settings, loaded)

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
        trials: list[_Trial] = []
        for dims in candidates:
            if any(dims == trial.dims for trial in trials):
                continue
            specs = feeder.specs({**self.dims.fixed, **dims})
            elements = sum(prod(spec.shape) for spec in specs)
            if not trials or elements <= _MAX_INPUT_ELEMENTS:
                trials.append(_Trial(dims, specs))
        return trials

    def _candidates(self) -> Iterator[Dims]:
        """Yield candidates for the free dims, roughly by size.

        1. All dims are 1, which mostly will do. Without free dims this candidate is empty, and the only one.
        2. The smallest dims that satisfy the constraints of the ops.
        3. If the dims are few: a small length for one dim, 1 for the other dims. For example, a decoder may
           need a past that is longer than what is added to it.
        4. Each common length above 1 for all dims except leading ones, mostly batches, which are 1.
        5. A small length for all dims.
        """
        free = self.dims.free
        yield dict.fromkeys(free, 1)
        if not free:
            return
        yield self.smallest_dims()
        if len(free) <= _MAX_DIMS_ALONE:
            for length, longer in product(_SMALL_LENGTHS, free):
                yield {name: length if name == longer else 1 for name in free}
        for length in COMMON_LENGTHS[1:]:  # the first is 1
            yield {name: 1 if is_leading else length for name, is_leading in free.items()}
        for length in _SMALL_LENGTHS:
            yield dict.fromkeys(free, length)

    def _without_empty(self, candidates: Iterable[Dims]) -> Iterator[Dims]:
        """Yield the candidates at which no symbolic dim of the program is 0: no tensor is empty.

        A pooling window larger than its input gives 0 by the formula for output shapes, and 1 in some
        kernels; such sizes would be predicted wrongly.
        """
        shapes = {var.shape for var in self.loaded.program.vars.values() if var.shape}
        symbolic = {dim for shape in shapes for dim in shape if isinstance(dim, str)}
        for dims in candidates:
            numbers = {**self.dims.fixed, **dims}
            if all(bind_dim(dim, numbers) != 0 for dim in symbolic):
                yield dims

    def _assume_smallest(self, probe: ProbeResult) -> ResolvedModel:
        """Assume the smallest dims that satisfy the constraints, and warn that the model did not run.

        ``probe`` is the result of the runs, all of which failed. The warning names the assumed dims, and why
        the first run failed. Sizes that depend on data stay unknown.

        Raises:
            RuntimeUnavailableError: sizes depend on data, and the user gave data of inputs for the run.
        """
        reason = probe.reasons[0] if probe.reasons else "no size of its inputs was tried"
        if self._has_data and self.data_dependent:
            from memplan_cli.core.bindings import given_text

            inputs = given_text(self.settings.inputs.feeds or {})
            raise RuntimeUnavailableError(
                f"{self.path} could not be run for its shapes{inputs}: {reason}",
                hint="--no-run plans without a run; give other inputs",
            )
        dims = self.smallest_dims()
        sizes = binding_text({**self.dims.fixed, **dims})
        where = f" at {sizes}" if sizes else ""
        if not probe.loaded:
            warning = f"{MODEL_DOES_NOT} load in ONNX Runtime: {reason}"
        elif self._has_data:
            warning = f"{MODEL_DOES_NOT} run on the inputs given{where}: {reason}"
        else:
            warning = f"{MODEL_DOES_NOT} run on drawn inputs{where}: {reason}"
            warning += f"; real ones tell more: {self._input_options()}"
        loaded = replace(self.loaded, warnings=(*self.loaded.warnings, warning))
        return replace(self.with_assumed(dims), loaded=loaded, run_failure=warning)

    def _input_options(self) -> str:
        """Return the options with which the user can give this model its inputs, for a message."""
        from shlex import quote

        # Inputs have the same names and types at every size, such as 1 for each free dim.
        inputs = self._trials([dict.fromkeys(self.dims.free, 1)])[0].specs
        # A single integer is often a length or a position, for which a random number is wrong.
        integers = [i for i in inputs if not i.shape and i.dtype.startswith(("int", "uint"))]
        # The message names three inputs at most.
        options = " ".join(f"--input {quote(f'{i.name}=N')}" for i in integers[:3])
        return f"{options} or --inputs FILE" if options else "--inputs FILE"
