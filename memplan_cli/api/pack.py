"""``memplan pack``: pack the buffers of a CSV file into one arena, and write their offsets."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from memplan_cli.api.option_names import accepts_option_names
from memplan_cli.api.output.output_files import refuse_targets
from memplan_cli.core.files import write_files
from memplan_cli.packing import problem_file

if TYPE_CHECKING:
    from memplan_cli.api.request import FilePath
    from memplan_cli.core.progress import Progress
    from memplan_cli.packing.problem_file import PackingResult


@accepts_option_names()
def pack(
    problem: FilePath,
    *,
    capacity: int | None = None,
    time_limit: float | None = None,
    out: FilePath | None = None,
    progress: Progress | None = None,
) -> PackingResult:
    """Pack the buffers of a CSV file; write them with their offsets if all fit.

    Args:
        problem: The file, with the columns ``id,lower,upper,size``.
        capacity: Bytes that must suffice.
        time_limit: Seconds for the search.
        out: The file of the layout.
        progress: Called with the name of each stage.

    Raises:
        MemplanError: the file is no problem, or the result cannot be written.
    """
    problem = Path(problem)
    layout_file = None if out is None else Path(out)
    # The layout may replace the problem: it has the same columns, and one more.
    refuse_targets({"-o": layout_file})
    packed = problem_file.pack(
        problem_file.read_problem(problem),
        capacity=capacity,
        time_limit=time_limit,
        progress=progress,
    )
    # A layout above the capacity is not written: a script could use it as a result.
    if layout_file is not None and packed.passed:
        write_files({layout_file: problem_file.layout_csv(packed).encode()})
    return packed
