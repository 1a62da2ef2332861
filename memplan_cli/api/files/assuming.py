"""Numbers for dims that nobody bound, and sizes that only a run tells: found once a command.

Where a number is asked for, a free dim is assumed: 1 for what leads a shape, for others the
least with which the model runs. What its ops demand of dims says where to begin, and where no
runtime may be asked, it is all there is. A run at these numbers also tells the sizes that no
inference knows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from re import findall
from typing import TYPE_CHECKING, Literal

from memplan_cli.analysis.dim_constraints import (
    COMMON_LENGTHS,
    STRIDES,
    UnboundDims,
    dim_constraints,
    smallest_satisfying_dims,
)
from memplan_cli.api.files.binding import bind
from memplan_cli.api.files.reading import (
    completed,
    missing_sizes,
    read_as_inferred,
    read_completely,
    read_seen,
    unbound,
)
from memplan_cli.core.symbolic.dims import bind_dim, binding_text, symbols_of
from memplan_cli.errors import RuntimeUnavailableError, SettingsError
from memplan_cli.onnx_io.shapes.bindings import Bindings

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

_MOST_ELEMENTS = 2**24
"""Of all inputs together: a size that takes more is not tried."""

_MOST_SOLVED = 400
"""Demands above which only the first guess is worked out from them."""

_MOST_WORDS = 12
"""Numbers that are taken from what a runtime says of its failures."""

Dims = dict[str, int]

Trust = Literal["tried", "believed"]
"""Whether a model is run at the sizes assumed, or the first are believed: whoever runs it in
any case finds out, and begins anew with sizes that were tried."""


@dataclass(frozen=True, slots=True)
class Settled:
    """A program with its sizes, and settings in which every dim has a number for a run."""

    settings: Settings
    loaded: Loaded


def settle(
    source: LazyModel, path: Path, settings: Settings, trust: Trust = "tried"
) -> Settled:
    """Read a model and find what nobody said of its sizes.

    Dims stay free in the program, and settings say what is assumed of them. Where sizes are
    left that only a run tells, the model is run, and what is planned is for its numbers.

    Raises:
        MemplanError: the model or a setting is wrong, or it fails on the inputs given.
    """
    settings = bind(source.model, settings)
    search = _Search(source, path, settings)
    _refuse_without_run(settings, path)
    free = search.free
    loaded = read_as_inferred(source, search.bindings)
    # With nothing to assume, a run tells more than inference by a session, at the same price.
    if missing_sizes(loaded.program) and (free or settings.bounds or not search.may_run):
        loaded = completed(source, path, search.bindings, loaded)
    known = settings.inputs.assumed
    gaps = search.gaps(loaded.program)
    if known is None and not free:
        known = {}
    if known is not None and not (gaps and search.may_run):
        return Settled(_assuming(settings, known), loaded)
    if not search.may_run:
        least = smallest_satisfying_dims(
            dim_constraints(loaded.program), UnboundDims(free, search.fixed)
        )
        return Settled(_assuming(settings, least), loaded)
    if trust == "believed" and not gaps:
        return Settled(_assuming(settings, search.first(loaded)), loaded)
    return search.run(loaded, known)


def settle_in_numbers(source: LazyModel, path: Path, settings: Settings) -> Settled:
    """Settle a model whose dims are all to be numbers: those assumed are bound.

    Raises:
        MemplanError: as of `settle`.
    """
    found = settle(source, path, settings)
    assumed = found.settings.inputs.assumed
    if not assumed:
        return found
    bound = _bound_to(found.settings, assumed)
    again = settle(source, path, bound)
    warnings = tuple(dict.fromkeys((*found.loaded.warnings, *again.loaded.warnings)))
    return Settled(again.settings, replace(again.loaded, warnings=warnings))


def settle_all_but(
    source: LazyModel, path: Path, settings: Settings, left: Collection[str]
) -> Settled:
    """Settle a model in which some dims are looked for: the others are numbers.

    Raises:
        MemplanError: as of `settle`.
    """
    settings = bind(source.model, settings)
    search = _Search(source, path, settings)
    assumed: Mapping[str, int] = {}
    if search.free.keys() - set(left) and search.names.issuperset(left):
        found = settle(source, path, settings).settings
        every = {**(found.inputs.assumed or {}), **found.dims}
        assumed = {n: v for n, v in every.items() if n not in left and n in search.free}
    settings = _bound_to(settings, assumed)
    return Settled(
        settings, read_completely(source, path, replace(search.bindings, dims=settings.dims))
    )


def names_left_open(source: LazyModel, path: Path, settings: Settings) -> tuple[str, ...]:
    """Return the names of the dims that settings leave open, as options take them.

    Raises:
        MemplanError: the model or a setting is wrong.
    """
    return tuple(_Search(source, path, bind(source.model, settings)).free)


def _assuming(settings: Settings, dims: Mapping[str, int]) -> Settings:
    """Return settings that say what a run is at; a dim with bounds is at the least of them."""
    lows = {name: low for name, (low, _) in settings.bounds.items()}
    assumed = {**lows, **dims}
    return replace(settings, inputs=replace(settings.inputs, assumed=assumed))


def _bound_to(settings: Settings, dims: Mapping[str, int]) -> Settings:
    """Return settings in which the numbers assumed are planned for, and said to be assumed."""
    inputs = settings.inputs
    provenance: dict[str, Provenance] = dict(inputs.provenance)
    provenance |= dict.fromkeys((n for n in dims if n not in settings.dims), "assumed")
    return replace(
        settings,
        dims={**dims, **settings.dims},
        inputs=replace(inputs, provenance=provenance, assumed={}),
    )


class _Search:
    """One model, and what is to be found of it."""

    def __init__(self, source: LazyModel, path: Path, settings: Settings) -> None:
        from memplan_cli.onnx_io.interface import free_dims
        from memplan_cli.onnx_io.shapes.light_model import small_values

        self.source, self.path, self.settings = source, path, settings
        values = small_values(settings.inputs.feeds or {})
        self.bindings = Bindings(settings.dims, settings.shapes, values=values)
        lows = {name: low for name, (low, _) in settings.bounds.items()}
        self.fixed = {**lows, **settings.dims}
        leads = free_dims(source.model)
        self.names = frozenset(leads) | _symbols_given(settings)
        every = {**dict.fromkeys(_symbols_given(settings), False), **leads}
        self.free = {name: lead for name, lead in every.items() if name not in self.fixed}

    @cached_property
    def may_run(self) -> bool:
        """Whether running is allowed, and a runtime and all that it needs are here."""
        return self.settings.run and _may_run(self.path)

    def gaps(self, program: Program) -> tuple[VarId, ...]:
        """Return what has no size that inputs' dims decide; with bounds no run can tell it."""
        if self.settings.bounds or len(program.body.ops) > MOST_OPS:
            return ()
        found = (*missing_sizes(program), *unbound(program, self.names - self.fixed.keys()))
        return tuple(dict.fromkeys(found))

    def run(self, loaded: Loaded, known: Mapping[str, int] | None) -> Settled:
        """Try sizes; take what is seen in a run of the first that works."""
        from memplan_cli.onnx_io.shapes.runtime_query import number_nodes

        gaps = self.gaps(loaded.program)
        asked = dim_constraints(loaded.program) if self.free and known is None else ()
        every = [dict(known)] if known is not None else list(self._candidates(asked))
        first = self._with_places(every, loaded.program)
        copy = number_nodes(self.source.model) if gaps else None
        from memplan_cli.runtime.run.size_probe import first_that_runs

        tries = self._possible(first)
        tried = first_that_runs(self.path, [specs for _, specs in tries], copy)
        if not tried.ran and known is None and self.free and tried.reasons:
            more = self._possible(self._by_messages(first, tried))
            again = first_that_runs(self.path, [specs for _, specs in more], copy)
            tries, tried = (more, again) if again.ran else (tries, tried)
        if not tried.ran:
            return self._not_run(loaded, asked, tried, gaps)
        dims = tries[tried.ran[0]][0]
        if tried.ran[0] > 1 and len(self.free) > 1 and not gaps:
            dims = self._lowered(dims)
        if not tried.known:
            return Settled(_assuming(self.settings, dims), loaded)
        settings = _bound_to(self.settings, dims)
        whose = "the inputs given" if self._has_data else "drawn inputs"
        bindings = replace(self.bindings, dims=settings.dims)
        seen = read_seen(self.source, bindings, tried.known, loaded.program, whose)
        return Settled(settings, seen)

    def first(self, loaded: Loaded) -> Dims:
        """Return the sizes that would be tried first."""
        least = dict.fromkeys(self.free, 1)
        if _without_empty([least], loaded.program, self.fixed):
            return least
        program = loaded.program
        candidates = self._candidates(dim_constraints(program))
        found = (dims for dims in candidates if _without_empty([dims], program, self.fixed))
        return next(found, least)

    def _with_places(self, every: list[Dims], program: Program) -> list[Dims]:
        """Return the sizes at which nothing comes to nothing, all where it does at each."""
        return _without_empty(every, program, self.fixed) or every

    @property
    def _has_data(self) -> bool:
        return any(feed.files for feed in (self.settings.inputs.feeds or {}).values())

    def _possible(self, candidates: Iterable[Dims]) -> list[tuple[Dims, tuple[FeedSpec, ...]]]:
        """Return each candidate once, with what it is fed, those that fit."""
        from memplan_cli.onnx_io.runs.random_inputs import Feeder

        feeder = Feeder(self.source.model, self.settings.inputs.feeds)
        found: dict[tuple[tuple[str, int], ...], tuple[FeedSpec, ...]] = {}
        for dims in candidates:
            key = tuple(dims.items())
            if key in found:
                continue
            specs = feeder.specs({**self.fixed, **dims})
            if not found or sum(prod(spec.shape) for spec in specs) <= _MOST_ELEMENTS:
                found[key] = specs
        return [(dict(key), specs) for key, specs in found.items()]

    def _candidates(self, asked: Sequence[DimConstraint]) -> Iterator[Dims]:
        """Yield numbers for the free dims, the least first."""
        yield dict.fromkeys(self.free, 1)
        if not self.free:
            return
        wanted = UnboundDims(self.free, self.fixed)
        yield smallest_satisfying_dims(asked, wanted)
        for length in COMMON_LENGTHS[1:]:
            if len(asked) <= _MOST_SOLVED and length in _SOLVED:
                yield smallest_satisfying_dims(asked, wanted, length)
            yield {name: 1 if leads else length for name, leads in self.free.items()}
        for length in (2, 4, 8, 16):
            yield dict.fromkeys(self.free, length)

    def _by_messages(self, before: Sequence[Dims], tried: ProbeResult) -> Iterator[Dims]:
        """Yield sizes with the numbers in what the runtime says of sizes that fail."""
        told = dict.fromkeys(
            int(word) for reason in tried.reasons for word in findall(r"\d{1,5}", reason)
        )
        numbers = [number for number in told if number > 1][:_MOST_WORDS]
        growing = [name for name, leads in self.free.items() if not leads]
        leading = [name for name in self.free if name not in growing]
        for dims in before[:2]:
            for length in (number * stride for number in numbers for stride in STRIDES):
                yield {**dims, **dict.fromkeys(growing, length)}
                yield from ({**dims, name: length} for name in growing)
        yield from ({**before[0], name: n} for n in numbers for name in leading)

    def _lowered(self, dims: Dims) -> Dims:
        """Return less for each dim where the model runs with less."""
        from memplan_cli.runtime.run.size_probe import all_that_run, first_that_runs

        single = [
            {**dims, name: length}
            for name in self.free
            for length in COMMON_LENGTHS
            if length < dims[name]
        ]
        tries = self._possible(single)
        ran = [tries[at][0] for at in all_that_run(self.path, [s for _, s in tries]).ran]
        least = {name: min(found[name] for found in (dims, *ran)) for name in dims}
        best = self._possible([least, *sorted(ran, key=lambda found: sum(found.values()))])
        works = first_that_runs(self.path, [specs for _, specs in best]).ran
        return best[works[0]][0] if works else dims

    def _not_run(
        self,
        loaded: Loaded,
        asked: Sequence[DimConstraint],
        tried: ProbeResult,
        gaps: Sequence[str],
    ) -> Settled:
        """Assume what the ops agree with; say why the model was not run, where that matters.

        Raises:
            RuntimeUnavailableError: it fails on inputs that somebody gave.
        """
        reason = tried.reasons[0] if tried.reasons else "no size of its inputs was tried"
        if self._has_data and gaps:
            from memplan_cli.core.bindings import given_text

            what = f"{self.path} could not be run for its shapes"
            raise RuntimeUnavailableError(
                f"{what}{given_text(self.settings.inputs.feeds or {})}: {reason}",
                hint="--no-run plans without a run; give other inputs",
            )
        dims = smallest_satisfying_dims(asked, UnboundDims(self.free, self.fixed))
        where = f" at {binding_text(dims)}" if dims else ""
        note = f"the model does not load in ONNX Runtime: {reason}"
        if tried.loaded:
            note = f"the model does not run on drawn inputs{where}: {reason}"
            note += f"; real ones tell more: {self._how_to_give()}"
        warned = replace(loaded, warnings=(*loaded.warnings, note))
        return Settled(_assuming(self.settings, dims), warned)

    def _how_to_give(self) -> str:
        """Return the options that give this model its inputs."""
        from shlex import quote

        specs = self._possible([dict.fromkeys(self.free, 1)])[0][1]
        numbers = [s for s in specs if not s.shape and s.dtype.startswith(("int", "uint"))]
        words = [f"--input {quote(f'{spec.name}=N')}" for spec in numbers[:3]]
        return " or ".join((" ".join(words), "--inputs FILE")) if words else "--inputs FILE"


def _without_empty(
    candidates: Sequence[Dims], program: Program, fixed: Mapping[str, int]
) -> list[Dims]:
    """Return the sizes at which no expression of the plan comes to nothing.

    A window larger than what it slides over is where runtimes and formulas part: the formula
    rounds down to no place at all, and a kernel makes one.
    """
    shapes = {var.shape for var in program.vars.values() if var.shape}
    dims = {dim for shape in shapes for dim in shape if isinstance(dim, str)}
    return [
        found
        for found in candidates
        if all(bind_dim(dim, {**fixed, **found}) != 0 for dim in dims)
    ]


MOST_OPS = 20_000
"""Above this no copy of a model is run for its sizes: the profile of a run takes too long."""

_SOLVED = frozenset({2, 4, 8, 16, 32, 64, 128, 224, 256, 512})


def _symbols_given(settings: Settings) -> frozenset[str]:
    return frozenset().union(
        *(symbols_of(dim) for shape in settings.shapes.values() for dim in shape)
    )


def _may_run(path: Path) -> bool:
    """Whether a runtime is here, and all that it needs of the model."""
    from memplan_cli.onnx_io.runs.prepared_models import missing_weights
    from memplan_cli.runtime.installed import runtime_version

    return bool(runtime_version()) and not missing_weights(path)


def _refuse_without_run(settings: Settings, path: Path) -> None:
    """Refuse to look at a run where somebody asked for one and none can be made.

    Raises:
        SettingsError: a run is ruled out too.
        RuntimeUnavailableError: weights are not there.
    """
    if not settings.profile_shapes:
        return
    if not settings.run:
        raise SettingsError(
            "--profile-shapes looks at a run, and --no-run leaves it out",
            hint="leave --no-run out; leave --profile-shapes out",
        )
    from memplan_cli.runtime.run.run_model import require_weights

    require_weights(path, "leave --profile-shapes out")
