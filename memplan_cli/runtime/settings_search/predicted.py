"""Settings with the least predicted memory, by simulation of the runtime's planner and arena.

Execution orders, buffer reuse and regions of the arena are tried. With the runtime's memory pattern
the first run requests each tensor, and later runs one block for all tensors. That makes a run of a
millisecond or less 5 to 20 % shorter, so the pattern is used if the arena holds hardly more with it.

The arena has room for one kept set of outputs: callers with ``outputs = session.run(...)`` in a loop keep
the outputs of a run while the next one executes. Without that room, such a caller's arena grows by more
than the outputs, because kept outputs take up the place of a larger tensor.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from memplan_cli.core.one_line import one_line_repr
from memplan_cli.core.program import walk
from memplan_cli.core.results.observations import CPU, Peaks, RuntimeSettings
from memplan_cli.runtime.profile.in_place import version_warning
from memplan_cli.runtime.profile.record import PROFILE
from memplan_cli.runtime.run.timing import work_of
from memplan_cli.runtime.simulate.planner import ORDERS
from memplan_cli.runtime.simulate.predict import (
    ExecutedGraph,
    needs_observation,
    served_runs,
    session_traces,
)
from memplan_cli.runtime.simulate.regions import (
    EXACT,
    LARGEST_REGION,
    OWN_INITIALIZERS,
    ArenaChoice,
    best_arena,
    one_region,
    release_entries,
    shared_region,
)
from memplan_cli.runtime.simulate.trace import (
    UnknownBytesError,
    rounded_up,
    weight_bytes,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from memplan_cli.core.results.observations import Setting
    from memplan_cli.runtime.simulate.execution import SessionTraces

_PATTERN = RuntimeSettings(session={"enable_mem_pattern": True})

_NO_PATTERN = RuntimeSettings(session={"enable_mem_pattern": False})

_MAX_BYTES_FOR_TIME = 1 << 17
"""Additional bytes that an arena may hold for shorter runs: 1.5 % of an empty session, less than the
difference of two measurements of one process."""

_SPARE_BYTES = 4 << 10
"""Bytes by which a region with a pattern is larger than predicted. Kernels may request small workspace that
no rule predicts: other regions have holes between tensors, where it fits."""

_MIN_SAVED_TIME_SHARE = 0.01
"""The share of a run's time that a memory pattern must save to be used."""

_NEAR_LOWEST = 1.05
"""Orders whose peak is within this factor of the lowest are candidates."""

_DEVICE_WORKSPACE = 64 << 20
"""Bytes of the limit of a device's arena beyond weights and tensors: twice the workspace with which
convolutions search for an algorithm (``AlgoSearchWorkspaceSize``, core/providers/cuda/nn/conv_8.h)."""

CONVOLUTION_OPTIONS: Mapping[str, Setting] = {
    "cudnn_conv_algo_search": "HEURISTIC",
    "cudnn_conv_use_max_workspace": "0",
}
"""Options of the CUDA provider for graphs with convolutions: algorithms are chosen without being timed, and a
search that times some nevertheless has 32 MiB."""

_OF_ONE_RUN = (
    "branches, iterations or sizes depend on data: predictions hold for the inputs that were "
    "measured"
)

_UNKNOWN_SIZES = "sizes depend on data: the settings are those that are best on average"

_NO_WORKSPACE = "predicted, not measured: kernels' workspace is not included"


class Rank(NamedTuple):
    """The sort key of settings; lower is better.

    Attributes:
        is_unknown: whether the first-run peak or the bytes of the arena are not predicted.
        size: the first-run peak plus the bytes that the arena holds, without those that it holds only to
            make runs shorter. A figure that is not predicted counts as 0.
    """

    is_unknown: bool
    size: int


@dataclass(frozen=True, slots=True)
class SettingsChoice:
    """Settings, and the memory that a model needs under them.

    Attributes:
        settings: the runtime's own options.
        predicted: by simulation; ``held`` excludes weights.
        observed: in a run; ``held`` includes weights, as in the report. None without a run.
        notes: for the report.
        provider: ONNX Runtime's name of the execution provider.
        bytes_for_speed: bytes that the arena holds only to make runs shorter; not counted in ``rank``.
    """

    settings: RuntimeSettings
    predicted: Peaks
    observed: Peaks | None = None
    notes: tuple[str, ...] = ()
    provider: str = CPU
    bytes_for_speed: int = 0

    __repr__ = one_line_repr

    @property
    def rank(self) -> Rank:
        """The sort key by predicted memory."""
        peak, held = self.predicted.first_run_peak, self.predicted.held
        size = (peak or 0) + (held or 0) - self.bytes_for_speed
        return Rank(peak is None or held is None, size)


def has_unpredictable_order(settings: RuntimeSettings) -> bool:
    """Return whether a session runs an optimized graph in the order by priority.

    That order depends on node indices, which the runtime does not report for an optimized graph.
    """
    return settings.runs_by_priority and not settings.is_unoptimized


def held_without_weights(peaks: Peaks) -> int:
    """Return the observed bytes of an arena, without the weights in it."""
    return (peaks.held or 0) - (peaks.weights or 0)


def peak_plus_arena(peaks: Peaks) -> int:
    """Return the sum of the observed first-run peak and the arena without weights, in bytes."""
    return (peaks.first_run_peak or 0) + held_without_weights(peaks)


def predict_settings(
    executed: ExecutedGraph, base: RuntimeSettings, workspace: Mapping[str, int] | None = None
) -> SettingsChoice:
    """Return the settings of the least predicted memory.

    Combinations of execution order and reuse whose peak is near the lowest are compared, each with
    its best arena. If sizes are unknown, the result is a set of options that is best on average.

    Args:
        executed: the graph that a session runs.
        base: settings to begin with. An execution order in them is kept, and a memory pattern that is off
            stays off. Reuse and the arena are replaced.
        workspace: bytes that kernels request besides their outputs, by node; None if unknown.
    """
    base = base.updated(_kernel_options(executed))
    try:
        choice = _best_choice(executed, base, workspace or {})
    except UnknownBytesError:
        settings = _without_pattern_and_reuse(base).updated(
            RuntimeSettings(arena=EXACT, session_config=OWN_INITIALIZERS)
        )
        return SettingsChoice(
            settings, Peaks(None, None), notes=(_UNKNOWN_SIZES,), provider=executed.provider
        )
    return choice if workspace is not None else replace(choice, notes=(_NO_WORKSPACE,))


def with_limit(choice: SettingsChoice, executed: ExecutedGraph) -> SettingsChoice:
    """Return the choice with an upper limit of its arena on a device; unchanged if the arena is not predicted.

    A run that needs more than the limit fails, instead of taking the device from other processes. The limit has
    room for the weights (core/framework/bfc_arena.cc, ``Reserve`` and ``Extend``), for tensors, for the workspace
    of kernels, which is not predicted and taken to be as large as the tensors, and for `_DEVICE_WORKSPACE`.

    ``gpu_mem_limit`` would limit the provider's own arena, which is not used. Never measured on a device.
    """
    tensors = choice.predicted.held
    if tensors is None:
        return choice
    weights, kernels = weight_bytes(executed.program, executed.dims), tensors
    limit = weights + tensors + kernels + _DEVICE_WORKSPACE
    arena = {**choice.settings.arena, "max_mem": rounded_up(limit)}
    return replace(choice, settings=replace(choice.settings, arena=arena))


def released_between_runs(choice: SettingsChoice) -> SettingsChoice:
    """Return the choice with an arena that is given back to the system after each run.

    Its regions have the sizes of tensors, and what it holds between runs is not predicted.
    """
    run_config = release_entries(choice.provider)
    settings = replace(choice.settings, arena=EXACT, run_config=run_config)
    return replace(choice, settings=settings, predicted=replace(choice.predicted, held=None))


def without_pattern(settings: RuntimeSettings) -> RuntimeSettings:
    """Return settings with the memory pattern off."""
    return settings.updated(_NO_PATTERN)


def without_pattern_if_assumed(
    base: RuntimeSettings, assumed: Collection[str]
) -> RuntimeSettings:
    """Return settings, with the memory pattern off if dims were assumed: runs may have other dims.

    At other dims than those that the arena was sized for, a memory pattern makes the arena hold both
    the tensors of the first run and the block of later runs.
    """
    return without_pattern(base) if assumed else base


def without_pattern_if_recorded(
    base: RuntimeSettings, recorded: RuntimeSettings
) -> RuntimeSettings:
    """Return settings, with the memory pattern off if a written file records that."""
    return base if recorded.session.get("enable_mem_pattern", True) else without_pattern(base)


def prediction_warnings(graph: ExecutedGraph) -> Iterator[str]:
    """Yield reasons why predictions for a graph may be wrong, for the report."""
    if graph.observed:
        yield _OF_ONE_RUN
    other_version = version_warning(graph.provider)
    if other_version:
        yield other_version


def _best_choice(
    executed: ExecutedGraph, base: RuntimeSettings, workspace: Mapping[str, int]
) -> SettingsChoice:
    """Return the best combination of order, reuse and arena among those with a peak near the lowest.

    It has a memory pattern if that pays, unless ``base`` turns the pattern off. ``workspace`` are bytes that kernels
    request besides their outputs, by node.

    Raises:
        UnknownBytesError: a size depends on data.
    """
    variants = [
        (settings, session_traces(executed, settings, workspace))
        for settings in _variants(executed, base)
    ]
    # No variant has a memory pattern, so later runs of a session make the same requests as its first one.
    lowest = min(traces.first.rounded_peak for _, traces in variants)
    # The search of an arena is slow, so that only these variants get one.
    near_lowest = [
        (settings, traces)
        for settings, traces in variants
        if traces.first.rounded_peak <= _NEAR_LOWEST * lowest
    ]
    # Several orders often make the same requests, which need the search only once.
    traces_by_requests = {traces.first: traces for _, traces in near_lowest}
    arenas = {
        requests: best_arena(served_runs(executed, traces))
        for requests, traces in traces_by_requests.items()
    }
    choices = [
        _in_arena(executed, settings, traces, arenas[traces.first])
        for settings, traces in near_lowest
    ]
    choice = min(choices, key=attrgetter("rank", "predicted.first_run_peak"))
    may_have_pattern = base.session.get("enable_mem_pattern", True)
    return _with_pattern(executed, choice, workspace) if may_have_pattern else choice


def _variants(executed: ExecutedGraph, base: RuntimeSettings) -> Iterator[RuntimeSettings]:
    """Yield ``base`` with each execution order to try, with and without reuse, always without memory pattern.

    An order that ``base`` sets is the only one.
    """
    fixed_order = base.session.get("execution_order")
    if fixed_order:
        orders = [str(fixed_order)]
    elif executed.in_run_order:
        # The ops have the order in which DEFAULT runs them. Other orders follow from the indices of nodes, which are
        # unknown for such a graph, so that these orders cannot be simulated.
        orders = ["DEFAULT"]
    else:
        orders = list(ORDERS)
    for order in orders:
        for reuse in (False, True):
            yield _without_pattern_and_reuse(base).updated(
                RuntimeSettings(session={"execution_order": order, "enable_mem_reuse": reuse})
            )


def _without_pattern_and_reuse(base: RuntimeSettings) -> RuntimeSettings:
    """Return settings without memory pattern and reuse."""
    off = {"enable_mem_pattern": False, "enable_mem_reuse": False}
    return base.updated(RuntimeSettings(session=off))


def _kernel_options(executed: ExecutedGraph) -> RuntimeSettings:
    """Return options that bound the workspace of convolutions on a device; empty on the CPU or without convolutions.

    Without these options the first run times all algorithms of cuDNN, each with the workspace that it asks for
    (core/providers/cuda/nn/conv_8.h). How much memory the options save was never measured.
    """
    has_convolution = any("Conv" in op.type for _, op in walk(executed.program.body))
    if executed.provider == CPU or not has_convolution:
        return RuntimeSettings()
    return RuntimeSettings(provider=CONVOLUTION_OPTIONS)


def _in_arena(
    executed: ExecutedGraph,
    settings: RuntimeSettings,
    traces: SessionTraces,
    arena: ArenaChoice,
) -> SettingsChoice:
    """Return the choice of settings with an arena for tensors, and the predicted peaks of the session's runs.

    Weights get memory of their own, so that they do not lie in the arena.
    """
    own_weights = settings.updated(RuntimeSettings(session_config=OWN_INITIALIZERS))
    peaks = Peaks(traces.first_peak, traces.later_peak, held=arena.held)
    return SettingsChoice(
        replace(own_weights, arena=arena.settings), peaks, provider=executed.provider
    )


def _with_pattern(
    executed: ExecutedGraph, choice: SettingsChoice, workspace: Mapping[str, int]
) -> SettingsChoice:
    """Return a choice with a memory pattern if that makes runs shorter and costs hardly any memory, else ``choice``.

    With a pattern the first run requests each tensor, and each later run one block for all tensors. The new arena is
    one region, in which each of these runs fits. ``choice`` has an arena too: ``bytes_for_speed`` are the bytes that
    the new one holds beyond it.
    """
    if executed.provider != CPU:
        return choice  # what a pattern saves was measured on the CPU only
    # If sizes depend on data or there are subgraphs, the block of one run may not fit another run.
    if needs_observation(executed):
        return choice
    settings = choice.settings.updated(_PATTERN)
    traces = session_traces(executed, settings, workspace)
    saved_allocations = len(traces.first.sizes) - len(traces.later.sizes)
    saved_work = PROFILE.arena_call_work * saved_allocations
    if saved_work < _MIN_SAVED_TIME_SHARE * work_of(executed.program, executed.dims):
        return choice
    held_before = choice.predicted.held
    assert held_before is not None  # noqa: S101 - `_in_arena` sets it
    held = _bytes_of_one_region(traces, limit=held_before + _MAX_BYTES_FOR_TIME)
    if held is None:  # more than the limit
        return choice
    with_pattern = _in_arena(executed, settings, traces, ArenaChoice(one_region(held), held))
    # `SettingsChoice.rank` leaves ``bytes_for_speed`` out: a file must not lose to another one by bytes that save time.
    return replace(with_pattern, bytes_for_speed=max(held - held_before, 0))


def _bytes_of_one_region(traces: SessionTraces, limit: int) -> int | None:
    """Return the size of an arena of one region in which the first run and the later ones fit.

    None if the size would exceed ``limit`` or the largest region that settings allow, or if the runs request
    nothing.
    """
    # The requests of the first run and those of later ones, joined. The caller of the runs keeps their outputs.
    requests = traces.runs_with_kept_outputs
    if not 0 < requests.rounded_peak <= limit:
        return None
    fitting = shared_region((requests,), lowest=requests.rounded_peak)
    if fitting is None:
        return None
    region = fitting + _SPARE_BYTES  # for small workspace of kernels
    return region if region <= min(limit, LARGEST_REGION) else None
