"""``memplan fit``: the largest value of a dim with which a model fits a memory size."""

from __future__ import annotations

from dataclasses import dataclass
from shlex import quote
from typing import TYPE_CHECKING, Literal, NamedTuple

from memplan_cli.api.fit_needs import read_needs
from memplan_cli.api.models.binding import bind, require_runs
from memplan_cli.api.models.model_file import read_model, refuse_optimize_settings
from memplan_cli.api.models.sources import model_paths
from memplan_cli.api.option_names import accepts_option_names
from memplan_cli.api.request import settings_of
from memplan_cli.core.results.observations import CPU, RuntimeSettings
from memplan_cli.errors import RuntimeUnavailableError, SettingsError
from memplan_cli.planning.fit import (
    Confirmation,
    Fit,
    Point,
    Question,
    guess_from_totals,
    largest,
)
from memplan_cli.runtime.profile.record import PROFILE

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from memplan_cli.api.fit_needs import ModelNeeds
    from memplan_cli.api.models.sources import ModelSource
    from memplan_cli.api.request import FilePath
    from memplan_cli.core.progress import Progress
    from memplan_cli.planning.fit import Need, NeedAt
    from memplan_cli.settings.settings import Settings

OTHER_IMPORTS = 64 << 20
"""Bytes kept for what a process imports besides Python, NumPy and the runtime, unless they are given:
FastAPI, uvicorn, OpenCV and Pillow take 52 MiB together (measured)."""

_MAX_HINT_DIMS = 6
"""Dims that a hint names."""

_MAX_CONFIRMING_RUNS = 12
"""After so many runs the search for a value that fits ends, and the last run is the result."""


@accepts_option_names(confirm={"provider": "auto"})
def fit(
    model: ModelSource,
    memory: int | str,
    unknown: str,
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
        unknown: The dim. If it is empty, the error names the dims to choose from.
        settings: What binds the other dims.
        overhead: Bytes of what else the process imports, besides Python and the runtime; None:
            `OTHER_IMPORTS`. If tensors are counted, bytes of everything besides them; None: those
            of a process with a session of one node.
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

    memory_bytes = _bytes(memory)
    with model_paths(model) as files:
        path = files.path
        settings = settings_of(path, settings, config, options)
        if provider is not None:
            require_runs(settings, "--confirm")
        needs = _needs_of(path, settings, unknown, memory_bytes, of, progress)
        other_bytes = _overhead_bytes(overhead, needs)
        # A predicted process does not count the imports of Python, NumPy and the runtime: they are measured.
        measured_imports = PROFILE.imported_process if needs.process else 0
        question = Question(
            unknown, memory=memory_bytes, overhead=measured_imports + other_bytes
        )
        point = largest(needs.at, question, guess_from_totals(needs.totals, question))
        confirmation = None
        if provider is not None and point is not None:
            runs = ConfirmationRuns(path, resolve_provider(provider), needs.settings)
            if progress:
                progress("running the original")
            confirmation = confirm(question, point, runs, needs.at)
            point = _point_of_run(needs, question, point, confirmation.dims[unknown])
        result = Fit(
            model=str(path),
            memory=memory_bytes,
            overhead=question.overhead,
            other_imports=other_bytes if needs.process else 0,
            margin=PROFILE.process_margin if needs.process else None,
            dim=unknown,
            dims=needs.settings.dims,
            point=point,
            least=needs.at(1),
            expressions=needs.totals,
            plans=len(needs.known),
            confirmed=confirmation,
            of="process" if needs.process else "tensors",
            warnings=needs.notes(None if confirmation else point),
        )
        return files.without_temporary_folder(result)


def _needs_of(
    path: Path, settings: Settings, dim: str, memory: int, of: str, progress: Progress | None
) -> ModelNeeds:
    """Read a model, and return what computes its memory needs at values of the searched dim.

    The model is freed on return: during the search, a large one would be most of the memory of this process.
    ``memory`` is the memory size in bytes, and ``of`` is what has to fit it: ``process``, ``tensors`` or
    ``auto``, as for `fit`.

    Raises:
        MemplanError: the settings contradict the search, or there is no dim to search.
    """
    from memplan_cli.api.models.resolve_sizes import free_dim_names

    _refuse_settings(settings)
    _refuse_decided(dim, settings)  # before the model is read, which may take long
    file = read_model(path)
    settings = bind(file.model, settings)
    if not dim:
        raise _nothing_to_find(free_dim_names(file.lazy, settings))
    _refuse_decided(dim, settings)  # again: the data of inputs may have decided the dim
    return read_needs(file, settings, dim, memory, of, progress)


def _overhead_bytes(overhead: int | str | None, needs: ModelNeeds) -> int:
    """Return the bytes that ``overhead`` of `fit` stands for; if it is None, the default for these needs."""
    if overhead is not None:
        return _bytes(overhead)
    if needs.process is None:  # only tensors are counted
        return PROFILE.session_process  # everything else in a process
    return OTHER_IMPORTS  # Python, NumPy and the runtime are counted by the caller


def _bytes(size: int | str) -> int:
    """Return a number of bytes, parsed if it is text like ``16GiB``."""
    from memplan_cli.core.quantities import parse_size

    return size if isinstance(size, int) else parse_size(size)


def _refuse_settings(settings: Settings) -> None:
    """Refuse settings that change the model for one size."""
    refuse_optimize_settings(settings)
    # ``auto`` changes the model until it meets --budget at one size. Other values, such as
    # checkpoints that the user names, change it in the same way at every size.
    for option, value in (("chunk", settings.chunk), ("recompute", settings.recompute)):
        if value == "auto":
            raise SettingsError(
                f"fit cannot be combined with --{option}, which changes the model for one size",
                hint=f"remove --{option} and --budget",
            )


def _refuse_decided(dim: str, settings: Settings) -> None:
    """Refuse to look for a dim that has a number or bounds already."""
    for values, decided in ((settings.dims, "a number"), (settings.bounds, "bounds")):
        if dim in values:
            raise SettingsError(
                f"--dim {dim}=? and the other settings contradict each other: {dim!r} has {decided}",
                hint="remove it from the other options or the settings files",
            )


def _nothing_to_find(free_names: tuple[str, ...]) -> SettingsError:
    """Return the error of a call that names no dim; its hint has the free dims."""
    options = " or ".join(
        f"--dim {quote(f'{name}=?')}" for name in free_names[:_MAX_HINT_DIMS]
    )
    return SettingsError(
        "fit needs a dimension to search: --dim NAME=?",
        hint=f"the model allows {options}" if options else "all dims of this model are fixed",
    )


class TakenMemory(NamedTuple):
    """The bytes that a run took: of the ``process``, or of ONNX Runtime's ``arena``."""

    bytes: int
    of: Literal["process", "arena"]


@dataclass(frozen=True, slots=True)
class ConfirmationRuns:
    """Runs of the unchanged model with ONNX Runtime's defaults; the outputs of the run before are kept.

    Attributes:
        provider: ONNX Runtime's name of the provider.
        settings: numbers of the other dims, and inputs.
    """

    model: Path
    provider: str
    settings: Settings

    def taken(self, dims: Mapping[str, int]) -> TakenMemory:
        """Run the model at a binding with the defaults of a user; return the memory that the run took.

        On the CPU, that is the highest memory of the process, if it is known. Otherwise it is the memory that
        ONNX Runtime's arena held: a process does not show the memory of a device.

        Raises:
            RuntimeUnavailableError: the run fails, or neither memory is known.
        """
        from memplan_cli.core.bindings import Binding
        from memplan_cli.runtime.run.baseline import DEFAULTS
        from memplan_cli.runtime.run.run_model import process_of_run, record_run
        from memplan_cli.runtime.simulate.regions import EXACT_UNSPLIT
        from memplan_cli.runtime.workers.spec import RunConditions

        binding = Binding(dims, self.settings.inputs.feeds or {})
        conditions = RunConditions(self.provider, binding)
        if self.provider == CPU:
            process = process_of_run(self.model, DEFAULTS, conditions, caller="keeps outputs")
            if process is not None:
                return TakenMemory(process.run, "process")
        # Not the default: an arena that grows by powers of two would hold up to twice of what is needed.
        settings = RuntimeSettings(arena=EXACT_UNSPLIT)
        record = record_run(self.model, settings, conditions, "arena", caller="keeps outputs")
        held = record.peaks.held
        if held is None:
            raise RuntimeUnavailableError(
                f"the memory of a run on {self.provider} is not known: it reports no arena"
            )
        return TakenMemory(held, "arena")


def confirm(
    question: Question, point: Point, runs: ConfirmationRuns, need_at: NeedAt
) -> Confirmation:
    """Run the model at the predicted value, then at smaller values until a run fits; return the last run.

    The last run may not fit: no run follows on that of value 1, or after `_MAX_CONFIRMING_RUNS` runs.

    Raises:
        RuntimeUnavailableError: a run fails for another reason than its size.
    """
    value, input_bytes = point.dims[question.dim], point.inputs
    for number in range(1, _MAX_CONFIRMING_RUNS + 1):
        dims = {**runs.settings.dims, question.dim: value}
        taken = runs.taken(dims)
        # The memory that a run takes is measured without the arrays of its inputs.
        without_overhead = taken.bytes + input_bytes
        confirmation = Confirmation(
            dims=dims,
            provider=runs.provider,
            taken=taken.bytes,
            inputs=input_bytes,
            of=taken.of,
            runs=number,
            total=without_overhead + question.overhead,
        )
        if confirmation.total <= question.memory or value == 1:
            break
        # The next value would fit if bytes were proportional to the value. ``question.limit`` is the
        # memory size without the overhead.
        value = max(1, min(value - 1, value * question.limit // without_overhead))
        need = need_at(value)
        # If no run tells the sizes, the inputs of the larger value are an upper bound.
        if need:
            input_bytes = need.inputs
    return confirmation


def _point_of_run(
    needs: ModelNeeds, question: Question, predicted: Point, value: int
) -> Point:
    """Return the bytes that a model needs at ``value``, the value of the asked dim that `confirm` ran last.

    ``predicted`` has the bytes at the predicted value, with which `confirm` began. Later values are smaller.
    """
    if value == predicted.dims[question.dim]:
        return predicted
    need: Need | None = needs.at(value)
    if need is None:  # a run at this value failed
        need = predicted  # the need of a larger value, so an upper bound
    return Point.of(
        need,
        dims={question.dim: value},
        next_need=needs.at(value + 1),  # reported beside the answer, as ``beyond``
        overhead=question.overhead,
    )
