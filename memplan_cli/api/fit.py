"""``memplan fit``: the largest values of dims with which a model fits a memory size."""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING, Literal, NamedTuple

from memplan_cli.api.fit_needs import ConfirmationRuns, confirm, read_needs
from memplan_cli.api.models.binding import bind, refuse_run
from memplan_cli.api.models.model_file import read_model, refuse_optimize_settings
from memplan_cli.api.models.sources import model_paths
from memplan_cli.api.option_names import accepts_option_names
from memplan_cli.api.request import settings_of
from memplan_cli.errors import SettingsError
from memplan_cli.planning.fit import Fit, Point, Question, frontier
from memplan_cli.runtime.profile.record import PROFILE

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from memplan_cli.api.fit_needs import ModelNeeds
    from memplan_cli.api.models.sources import ModelSource
    from memplan_cli.api.request import FilePath
    from memplan_cli.core.progress import Progress
    from memplan_cli.planning.fit import Confirmation
    from memplan_cli.settings.settings import Settings

OTHER_IMPORTS = 64 << 20
"""Bytes kept for what a process imports besides Python, NumPy and the runtime, unless they are given:
FastAPI, uvicorn, OpenCV and Pillow take 52 MiB together (measured)."""

_MAX_HINT_DIMS = 6
"""Dims that a hint names."""


@accepts_option_names(confirm={"provider": "auto"})
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
        overhead: Bytes of what else the process imports, besides Python and the runtime; None:
            `OTHER_IMPORTS`. If tensors are counted: all bytes besides them; None: those of a process
            with a session of one node.
        of: What has to fit, the predicted process or the planned tensors; ``auto``: the
            process where it can be predicted.
        provider: Where to run the answer; None: nothing is run.
        progress: Called with the name of each stage.
        config: A settings file, in place of ``settings``.
        options: Settings by name, in place of ``settings``: ``dims={"seq": 128}``.

    Raises:
        MemplanError: the model has no such dim, it has a value, or another has none.
    """
    from memplan_cli.runtime.workers.session import resolve_provider

    names = (unknown,) if isinstance(unknown, str) else tuple(unknown)
    memory_bytes = _bytes(memory)
    with model_paths(model) as files:
        path = files.path
        settings = settings_of(path, settings, config, options)
        if provider is not None:
            refuse_run(settings, "--confirm")
        needs = _needs_of(path, settings, names, memory_bytes, of, progress)
        kept = _kept_bytes(needs, overhead)
        question = Question(names[0], {}, memory_bytes, kept.total)
        points = tuple(frontier(needs.at, question, names[1:], needs.guess))
        confirmation = None
        if provider is not None and points:
            runs = ConfirmationRuns(path, resolve_provider(provider), needs.settings)
            if progress:
                progress("running the original")
            confirmation = confirm(question, points[0], runs)
            points = (_confirmed(needs, question, points[0], confirmation), *points[1:])
        result = Fit(
            model=str(path),
            memory=memory_bytes,
            overhead=kept.total,
            other_imports=kept.other_imports,
            margin=PROFILE.process_margin if needs.process else None,
            unknown=names,
            dims=needs.settings.dims,
            points=points,
            least=needs.at(dict.fromkeys(names, 1)),
            expressions=needs.totals,
            plans=len(needs.known),
            confirmed=confirmation,
            of="process" if needs.process else "tensors",
            warnings=needs.notes(points),
        )
        return files.without_folder(result)


def _needs_of(
    path: Path,
    settings: Settings,
    searched_dims: tuple[str, ...],
    memory: int,
    of: str,
    progress: Progress | None,
) -> ModelNeeds:
    """Read a model, and return what computes its memory needs at numbers of the searched dims.

    The model is freed on return: during the search, a large one would be most of the memory of this process.
    ``memory`` is the memory size in bytes, and ``of`` is what has to fit it: ``process``, ``tensors`` or
    ``auto``, as for `fit`.

    Raises:
        MemplanError: the settings contradict the search, or there is no dim to search.
    """
    from memplan_cli.api.models.resolve_sizes import free_dim_names

    _refuse_settings(settings, searched_dims)  # before the model is read, which may take long
    file = read_model(path)
    settings = bind(file.model, settings)
    _refuse_decided(searched_dims, settings)  # again: the data of inputs may decide a dim
    if not searched_dims:
        raise _nothing_to_find(free_dim_names(file.lazy, settings))
    return read_needs(file, settings, searched_dims, memory, of, progress)


class _KeptBytes(NamedTuple):
    """Bytes of the memory size that are kept for what the needs do not count.

    Attributes:
        total: all of them.
        other_imports: those for imports besides Python, NumPy and the runtime; 0 if tensors are
            counted, where no part is known by itself.
    """

    total: int
    other_imports: int


def _kept_bytes(needs: ModelNeeds, overhead: int | str | None) -> _KeptBytes:
    """Return what is kept beside the needs, for the argument ``overhead`` of `fit`.

    A predicted process does not count imports: those of Python, NumPy and the runtime are measured, and
    ``overhead`` is for all others. Beside planned tensors, ``overhead`` is the whole rest of a process.
    """
    if needs.process:
        other_imports = OTHER_IMPORTS if overhead is None else _bytes(overhead)
        return _KeptBytes(PROFILE.imported_process + other_imports, other_imports)
    total = PROFILE.session_process if overhead is None else _bytes(overhead)
    return _KeptBytes(total, other_imports=0)


def _bytes(size: int | str) -> int:
    """Return a number of bytes, parsed if it is text like ``16GiB``."""
    from memplan_cli.core.quantities import parse_size

    return size if isinstance(size, int) else parse_size(size)


def _refuse_settings(settings: Settings, unknown: tuple[str, ...]) -> None:
    """Refuse settings that contradict the search, or that change the model for one size."""
    _refuse_decided(unknown, settings)
    refuse_optimize_settings(settings)
    # ``auto`` changes the model until it meets --budget at one size. Other values, such as
    # checkpoints that the user names, change it in the same way at every size.
    for option, value in (("chunk", settings.chunk), ("recompute", settings.recompute)):
        if value == "auto":
            raise SettingsError(
                f"fit cannot be combined with --{option}, which changes the model for one size",
                hint=f"remove --{option} and --budget",
            )


def _refuse_decided(unknown: tuple[str, ...], settings: Settings) -> None:
    """Refuse to look for a dim that has a number or bounds already."""
    for name in unknown:
        decided = ""
        if name in settings.dims:
            decided = "a number"
        elif name in settings.bounds:
            decided = "bounds"
        if decided:
            raise SettingsError(
                f"--dim {name}=? and the other settings contradict each other: {name!r} has {decided}",
                hint="remove it from the other options or the settings files",
            )


def _nothing_to_find(free_names: tuple[str, ...]) -> SettingsError:
    """Return the error of a call that names no dim; its hint has the free dims."""
    options = " ".join(f"--dim {quote(f'{name}=?')}" for name in free_names[:_MAX_HINT_DIMS])
    return SettingsError(
        "fit needs a dimension to search: --dim NAME=?",
        hint=f"the model allows {options}" if options else "all dims of this model are fixed",
    )


def _confirmed(
    needs: ModelNeeds, question: Question, point: Point, confirmation: Confirmation
) -> Point:
    """Return the point of the value that was run last: the predicted ``point``, or a lower value.

    A point has the bytes that its value needs, and in ``beyond`` those of the next value, which are
    computed again for a lower value. The question's overhead is in ``beyond`` only.
    """
    value = confirmation.dims[question.symbol]
    if value == point.dims[question.symbol]:
        return point
    dims = {**point.dims, question.symbol: value}
    # `Point` is a subclass of `Need`. The predicted point has a larger value, so its need is an upper
    # bound, which is taken if the sizes of the lower value could not be observed.
    need = needs.at(dims) or point
    next_need = needs.at({**dims, question.symbol: value + 1})
    return Point.of(need, dims, next_need, question.overhead)
