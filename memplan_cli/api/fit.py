"""The largest values of dims with which a model fits a memory size.

The model is read and ordered once. Its plan for all values gives the first guess by
arithmetic alone; exact plans at single values, in the same order of nodes, then move that
guess until one value fits and the next does not.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from shlex import quote
from typing import TYPE_CHECKING, Literal

from memplan_cli.api.files.binding import refuse_run
from memplan_cli.api.files.model_file import refuse_caches
from memplan_cli.api.files.sources import on_files
from memplan_cli.api.fit_by_run import SOURCE, SizesOfRuns
from memplan_cli.api.request import settings_of
from memplan_cli.api.rewrites import REWRITES
from memplan_cli.core.binding_options import (
    dim_option,
    input_shapes,
    usual_numbers,
)
from memplan_cli.core.progress import Detail
from memplan_cli.core.selection import free_dims
from memplan_cli.core.symbolic.dims import bind_dim, binding_text
from memplan_cli.errors import ModelError, SettingsError, UnknownSizeError
from memplan_cli.planning.fit import (
    Fit,
    Growth,
    Need,
    Point,
    Question,
    frontier,
    on_expressions,
)
from memplan_cli.planning.planner import make_plan
from memplan_cli.planning.totals import input_bytes, output_bytes, summed
from memplan_cli.runtime.profile.record import PROFILE
from memplan_cli.settings.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from memplan_cli.api.files.sources import ModelSource
    from memplan_cli.api.fit_process import ProcessSearch
    from memplan_cli.api.request import FilePath
    from memplan_cli.core.program import Program
    from memplan_cli.core.progress import Progress
    from memplan_cli.core.results.plan import Plan
    from memplan_cli.planning.fit import Confirmation


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """What a model has to fit, and the dims whose largest values are looked for.

    Attributes:
        memory: bytes.
        unknown: the symbols looked for; with several, the first is maximised for powers
            of two of the others.
        overhead: bytes of the runtime itself; None: the usual ones.
        provider: where to run the answer, None not to.
        of: ``process``: what the runtime is predicted to take under its defaults;
            ``tensors``: what the plan needs; ``auto``: the process where it can be predicted.
    """

    memory: int
    unknown: tuple[str, ...]
    overhead: int | None = None
    provider: str | None = None
    of: str = "auto"


def fit(
    model: ModelSource,
    memory: int | str,
    unknown: str | Sequence[str],
    settings: Settings | None = None,
    *,
    overhead: int | str | None = None,
    of: Literal["auto", "process", "tensors"] = "auto",
    provider: str | None = None,
    progress: Progress | None = None,
    config: FilePath | None = None,
    **options: object,
) -> Fit:
    """Return the largest value of a dim with which a model fits a memory size.

    Args:
        model: A model, as a file or in memory.
        memory: Bytes, or text like ``16GiB``.
        unknown: The dim; with several, the first is the largest for powers of two of the
            others.
        settings: What binds the other dims.
        overhead: Bytes of Python and the runtime; None: the usual ones.
        of: What has to fit, the predicted process or the planned tensors; ``auto``: the
            process where it can be predicted.
        provider: Where to run the answer; None: nothing is run.
        progress: Called with the name of each stage.
        config: A settings file, in place of ``settings``.
        options: Settings by name, in place of ``settings``: ``dims={"seq": 128}``.

    Raises:
        MemplanError: the model has no such dim, it has a value, or another has none.
    """
    names = (unknown,) if isinstance(unknown, str) else tuple(unknown)
    spare = None if overhead is None else _bytes(overhead)
    limit = MemoryLimit(_bytes(memory), names, spare, provider, of)

    def work(path: Path) -> Fit:
        return fit_within(path, limit, settings_of(path, settings, config, options), progress)

    return on_files((model,), work)


def _bytes(size: int | str) -> int:
    from memplan_cli.core.quantities import parse_size

    return size if isinstance(size, int) else parse_size(size)


def fit_within(
    path: Path,
    limit: MemoryLimit,
    settings: Settings | None = None,
    progress: Progress | None = None,
) -> Fit:
    """Return the largest values of symbols with which a model fits a memory size.

    Raises:
        SettingsError: the model has no such symbol, it has a value, or another has none.
        UnknownSizeError: a size depends on data.
        MemplanError: the model is wrong, or could not be run where that was asked for.
    """
    from memplan_cli.api.fit_process import Runs, confirm
    from memplan_cli.runtime.workers.session import resolve_provider

    settings = settings or Settings()
    refuse_run(settings, "--confirm" if limit.provider is not None else "")
    _refuse_decided(limit.unknown, settings)
    refuse_caches(settings)
    changed = {"chunk": settings.chunk, "recompute": settings.recompute}
    for option in (name for name, choice in changed.items() if choice == "auto"):
        raise SettingsError(
            f"fit looks at a model as it is, and --{option} changes it for one size",
            hint=f"leave --{option} and --budget out",
        )
    search = _Search.of(path, limit, settings, progress)
    of, overhead = "process" if search.process else "tensors", limit.overhead
    if overhead is None:
        overhead = PROFILE.imported_process if search.process else PROFILE.session_process
    question = Question(limit.unknown[0], {}, limit.memory - overhead)
    points = tuple(frontier(search.need, question, limit.unknown[1:], search.guess))
    confirmed = None
    if limit.provider is not None and points:
        where = resolve_provider(limit.provider)
        if progress:
            progress("running the original")
        confirmed = confirm(question, points[0], Runs(path, where, search.settings))
        points = (_at(search, question, points[0], confirmed), *points[1:])
    return Fit(
        model=str(path),
        memory=limit.memory,
        overhead=overhead,
        unknown=limit.unknown,
        dims=search.settings.dims,
        points=points,
        least=search.need(dict.fromkeys(limit.unknown, 1)),
        expressions=search.totals,
        plans=len(search.known),
        confirmed=confirmed,
        of=of,
        warnings=search.said(points),
    )


def _nothing_to_find(free: tuple[str, ...]) -> SettingsError:
    """Return the error of a search for no dim, with those that there are."""
    words = " ".join(f"--dim {quote(f'{name}=?')}" for name in free[:_MOST_DIMS])
    return SettingsError(
        "fit looks for a dim: name it with --dim NAME=?",
        hint=f"its dims are open as {words}" if free else "every dim of MODEL has a number",
    )


def _refuse_decided(unknown: tuple[str, ...], settings: Settings) -> None:
    """Refuse to look for a dim of which an option or a settings file says something already.

    Raises:
        SettingsError: naming the dim.
    """
    for name in unknown:
        known = (
            "a number"
            if name in settings.dims
            else "bounds"
            if name in settings.bounds
            else ""
        )
        if known:
            raise SettingsError(
                f"--dim {name}=? looks for a dim that has {known} already",
                hint="take it out of the other options, or of the settings files",
            )


_MOST_DIMS = 6
"""Dims that a hint names."""


@dataclass(slots=True)
class _Search:
    """One model, ordered once, planned for as many bindings as are asked about."""

    program: Program
    settings: Settings
    totals: Mapping[str, int]
    warnings: tuple[str, ...]
    progress: Progress | None = None
    process: ProcessSearch | None = None
    limit: int = 0
    by_run: SizesOfRuns | None = None
    growth: Growth | None = None
    known: dict[tuple[tuple[str, int], ...], Need | None] = field(default_factory=dict)

    @classmethod
    def of(
        cls, path: Path, limit: MemoryLimit, settings: Settings, progress: Progress | None
    ) -> _Search:
        from memplan_cli.api.files.assuming import names_left_open, settle_all_but
        from memplan_cli.api.files.binding import assumed_in, bind
        from memplan_cli.api.files.model_file import read_model
        from memplan_cli.api.fit_process import process_search

        file = read_model(path)
        settings = bind(file.model, settings)
        _refuse_decided(limit.unknown, settings)
        if not limit.unknown:
            raise _nothing_to_find(names_left_open(file.lazy, path, settings))
        found = settle_all_but(file.lazy, path, settings, limit.unknown)
        settings, loaded = found.settings, found.loaded
        ends = input_bytes(loaded.program), output_bytes(loaded.program)
        told = _told_by_runs(
            loaded.program, names_left_open(file.lazy, path, settings), settings
        )
        _check_symbols(loaded.program, (*limit.unknown, *told), settings)
        planned = make_plan(loaded.program, settings, SOURCE, REWRITES, progress=progress)
        by_run = None
        by_data = set(told) - set(limit.unknown)
        if planned.plan.report.coverage < 1.0 or None in ends or by_data:
            by_run = SizesOfRuns(file.lazy, path, settings)
            by_run.memory(dict.fromkeys(limit.unknown, 1))
        del file
        process, notes = process_search(path, limit.of, limit.unknown, settings)
        search = cls(
            planned.program,
            replace(settings, order="keep"),
            {} if by_run else _totals(planned.program, planned.plan, settings),
            (*loaded.warnings, *assumed_in(settings), *notes),
            progress,
            process,
            limit.memory,
            by_run,
        )
        if by_run or (process and process.runs):
            search.growth = Growth(search._planned, limit.unknown[0])
        return search

    def said(self, points: Sequence[Point]) -> tuple[str, ...]:
        """Return what answers hang on."""
        by_run = self.by_run.warnings if self.by_run else ()
        foreseen = self.growth.extrapolation_notes(points) if self.growth else ()
        return (*self.warnings, *by_run, *foreseen)

    def need(self, dims: Mapping[str, int]) -> Need | None:
        """Plan for one binding; None where it is more than any machine has."""
        key = tuple(sorted(dims.items()))
        if key not in self.known:
            if self.progress:
                self.progress(Detail(f"planning {binding_text(dict(key))}"))
            planned = self.growth.need if self.growth else self._planned
            self.known[key] = planned(dims)
        return self.known[key]

    def guess(self, question: Question) -> int:
        """Return the answer of the plan that holds for all values."""
        return on_expressions(self.totals, question) if self.totals else 1

    def _planned(self, dims: Mapping[str, int]) -> Need | None:
        try:
            bound = bind_program(self.program, dims)
            memory = make_plan(bound, self.settings, SOURCE, REWRITES).plan.report.memory
            # What is too large by the sizes known need not be run for the others.
            if self.by_run and memory.weights + (memory.planned or 0) <= self.limit:
                memory = self.by_run.memory(dims)
        except ModelError:  # more bytes than any machine has
            return None
        numbers = (memory.weights, memory.inputs, memory.outputs, memory.planned)
        if None in numbers:
            raise UnknownSizeError("an input's or output's size is not known for some dims")
        need = Need(*(number for number in numbers if number is not None))
        # What is far too large as it is planned is no smaller as the runtime has it.
        if self.process is None or need.total > 2 * self.limit:
            return need
        return replace(need, process=self.process.highest(dims))


def bind_program(program: Program, dims: Mapping[str, int]) -> Program:
    """Return a program with numbers for the symbols of its shapes."""
    bound = {
        identity: var
        if var.shape is None or not any(isinstance(dim, str) for dim in var.shape)
        else var._replace(shape=tuple(bind_dim(dim, dims) for dim in var.shape))
        for identity, var in program.vars.items()
    }
    return replace(program, vars=bound)


def _told_by_runs(
    program: Program, inputs: Sequence[str], settings: Settings
) -> tuple[str, ...]:
    """Return the dims that no input has, and no setting gives: data decides them."""
    names = free_dims(program, ()) if settings.run else ()
    return tuple(name for name in names if name not in {*inputs, *settings.bounds})


def _check_symbols(program: Program, unknown: tuple[str, ...], settings: Settings) -> None:
    names = free_dims(program, unknown)
    left = [name for name in names if name not in unknown and name not in settings.bounds]
    if left:
        raise SettingsError(
            f"dim {left[0]!r} has no value",
            hint=_for_the_others(program, left),
        )


_BY_DATA = 64
"""What a dim that data decides is offered as."""


def _for_the_others(program: Program, left: Sequence[str]) -> str:
    """Return the options for dims without a number: fixed ones, or one to be looked for."""
    usual = usual_numbers(input_shapes(program))
    fixed = " ".join(dim_option(name, usual.get(name, _BY_DATA)) for name in left)
    sought = f"--dim {quote(f'{left[0]}=?')} looks for it"
    return f"{fixed} gives numbers; {sought}" if len(left) == 1 else f"{fixed} gives numbers"


def _totals(program: Program, plan: Plan, settings: Settings) -> dict[str, int]:
    """Return the whole need as a sum by unit; empty where an input or output has no size."""
    inputs = input_bytes(program, settings.bounds)
    outputs = output_bytes(program, settings.bounds)
    if inputs is None or outputs is None:
        return {}
    weights = {"1": plan.report.memory.weights}
    heights = {arena.unit: arena.height for arena in plan.arenas}
    return dict(sorted(summed(weights, inputs, outputs, heights).items()))


def _at(search: _Search, question: Question, point: Point, seen: Confirmation) -> Point:
    """Return the point that a run has confirmed, which may be below the one predicted."""
    value = seen.dims[question.symbol]
    if value == point.dims[question.symbol]:
        return point
    dims = {**point.dims, question.symbol: value}
    need = search.need(dims)
    return Point(dims, need or point.need, search.need({**dims, question.symbol: value + 1}))
