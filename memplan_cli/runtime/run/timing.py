"""Whether one model runs slower than another: by measured times, or estimated from their graphs.

Measured times are compared such that the result holds on a busy machine. Estimates are the same on
every machine: graph optimization saves the bytes that fused ops do not move, the launch of each
removed op, and, by blocked layouts, time of convolutions.
"""

from __future__ import annotations

from statistics import quantiles
from typing import TYPE_CHECKING

from memplan_cli.analysis.cost import FLOPS_PER_BYTE, KERNEL_LAUNCH, node_work
from memplan_cli.core.operators import NCHWC, operator
from memplan_cli.core.program import walk
from memplan_cli.core.results.observations import SLOWEST, TimeRatio, comparable_times
from memplan_cli.core.serialization import to_json
from memplan_cli.core.symbolic.dims import bind_dim
from memplan_cli.runtime.run.run_model import run_model
from memplan_cli.runtime.simulate.trace import tensor_bytes
from memplan_cli.runtime.workers.spec import RunSpec
from memplan_cli.runtime.workers.worker import run_job

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from memplan_cli.core.program import Program
    from memplan_cli.core.results.observations import Peaks
    from memplan_cli.runtime.simulate.predict import ExecutedGraph
    from memplan_cli.runtime.workers.spec import InputSet, SessionSpec

ROUNDS = 5
"""How often two models are timed, in turn."""

_RELEASE_JOB = "memplan_cli.runtime.workers.release_times:run"

_SIGNIFICANT_MILLISECONDS = 1.0
"""Differences of a few runs by less than this are not significant."""

_NOISE_MILLISECONDS = 0.1
"""Difference between two medians of equal short runs on a busy machine."""


def time_ratio(
    before: SessionSpec, after: SessionSpec, inputs: InputSet, timeout: float
) -> TimeRatio | None:
    """Return the ratio of run times ``after / before`` of two sessions that are timed in turn.

    None if a round measured no time, or a time of 0 before.

    Raises:
        RuntimeUnavailableError: a model that has run does not run again.
    """
    ratios = []
    for _ in range(ROUNDS):
        measured_before = _measure_times(before, inputs, timeout)
        measured_after = _measure_times(after, inputs, timeout)
        time_before, time_after = comparable_times(measured_before, measured_after)
        if not time_before or time_after is None:
            return None
        ratios.append(time_after / time_before)
    return _median_ratio(ratios)


def release_time_ratio(
    session: SessionSpec, inputs: InputSet, timeout: float
) -> TimeRatio | None:
    """Return the time of a run that releases the arena, divided by that of a run that keeps it.

    Both are runs of one session, in turn. ``session`` has run options that release the arena. None if the
    runs fail, or are too short for the processor's clock: pairs of runs in which it does not advance have no ratio.
    """
    job = {"session": to_json(session), "inputs": to_json(inputs)}
    outcome = run_job(_RELEASE_JOB, job, timeout=timeout)
    ratios = outcome.result["ratios"] if outcome.ok else []
    return _median_ratio(ratios) if len(ratios) > 1 else None


def _median_ratio(ratios: Sequence[float]) -> TimeRatio:
    """Return the median and quartiles of two or more ratios."""
    low, median, high = quantiles(ratios, n=4, method="inclusive")
    return TimeRatio(round(median, 3), round(low, 3), round(high, 3), len(ratios))


def _measure_times(session: SessionSpec, inputs: InputSet, timeout: float) -> Peaks:
    """Run a session for its times, in a new process."""
    spec = RunSpec(session, (inputs,), ("time",), runs=0)
    record = run_model(spec, timeout=timeout)
    return record.require(f"{session.model} could not be measured").peaks


def is_slower(after: Peaks, before: Peaks) -> bool:
    """Return whether a run takes more than 5 % longer than before; an unknown time counts as 0."""
    old_time, new_time = (time or 0.0 for time in comparable_times(before, after))
    return new_time > max(SLOWEST * old_time, old_time + _NOISE_MILLISECONDS)


def seems_slower(after: Peaks, before: Peaks) -> bool:
    """Return whether a few runs took so much longer than before that it is worth timing them in turn."""
    old_time, new_time = comparable_times(before, after)
    if new_time is None or old_time is None:
        return False
    return new_time > max(SLOWEST * old_time, old_time + _SIGNIFICANT_MILLISECONDS)


def is_slower_unoptimized(
    written: Program, dims: Mapping[str, int], optimized: ExecutedGraph
) -> bool:
    """Return whether ``written`` is estimated to run slower than ``optimized``, which ONNX Runtime makes of it.

    True if optimization would save over 5 % of the work of ``written``, or would speed up convolutions.
    """
    if any(op.domain == NCHWC for _, op in walk(optimized.program.body)):
        return True  # blocked layouts make convolutions up to three times faster
    saved_bytes = _moved_bytes(written, dims) - _moved_bytes(optimized.program, optimized.dims)
    saved_launches = _count_ops(written) - _count_ops(optimized.program)
    saved_work = FLOPS_PER_BYTE * saved_bytes + KERNEL_LAUNCH * saved_launches
    return saved_work > (SLOWEST - 1) * work_of(written, dims)  # `SLOWEST` is 1.05


def work_of(program: Program, dims: Mapping[str, int]) -> int:
    """Return the estimated time of a graph at these dims, in floating-point operations."""
    bound = {
        identity: var._replace(shape=tuple(bind_dim(dim, dims) for dim in var.shape))
        for identity, var in program.vars.items()
        if var.shape is not None
    }
    variables = {**program.vars, **bound}
    return sum(node_work(op, variables) for op in program.body.ops)


def _count_ops(program: Program) -> int:
    return sum(1 for _ in walk(program.body))


def _moved_bytes(program: Program, dims: Mapping[str, int]) -> int:
    """Return the bytes that kernels move: each tensor is written once and read once, views not at all."""
    sizes = tensor_bytes(program, dims)
    written = (
        sum(sizes.get(var, 0) for var in op.outputs)
        for _, op in walk(program.body)
        if not operator(op).is_view
    )
    return 2 * sum(written)
