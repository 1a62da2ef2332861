"""Buffers of a CSV file packed into one arena, and written with their offsets."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from memplan_cli.core.files import write_files
from memplan_cli.packing import problem_file
from memplan_cli.workflows.files.output_files import refuse_targets

if TYPE_CHECKING:
    from memplan_cli.core.progress import Progress
    from memplan_cli.packing.problem_file import Packed
    from memplan_cli.workflows.request import FilePath


@dataclass(frozen=True, slots=True)
class PackingGoal:
    """When a layout is good enough: bytes that it may take, seconds for the search."""

    capacity: int | None = None
    time_limit: float | None = None


def pack(
    problem: FilePath,
    goal: PackingGoal | None = None,
    *,
    out: FilePath | None = None,
    progress: Progress | None = None,
) -> Packed:
    """Pack the buffers of a CSV file; write them with their offsets if all fit.

    Raises:
        MemplanError: the file is no problem, or the result cannot be written.
    """
    goal = goal or PackingGoal()
    target = None if out is None else Path(out)
    refuse_targets({"-o": target})
    packed = problem_file.pack(
        problem_file.read_problem(Path(problem)),
        capacity=goal.capacity,
        time_limit=goal.time_limit,
        progress=progress,
    )
    # A layout that was not good enough is no result: a script must not take it for one.
    if target is not None and packed.passed:
        write_files({target: problem_file.layout_csv(packed).encode()})
    return packed
