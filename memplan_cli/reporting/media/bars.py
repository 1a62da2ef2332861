"""Charts drawn with block characters: a picture that fits in a log."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memplan_cli.reporting.document import Chart

_EIGHTHS = " ▁▂▃▄▅▆▇█"

_ROWS = 4


def drawn(chart: Chart, width: int) -> list[str]:
    """Return a chart's lines, the top one first."""
    return bars(sampled(chart.points, chart.end, width), _ROWS)


def sampled(points: Sequence[tuple[int, int]], end: int, count: int) -> list[int]:
    """Return the most bytes live in each of ``count`` equal stretches of ``[0, end)``.

    A stretch shows its maximum, so that no peak is lost between samples.
    """
    columns = [0] * count
    followers = [tick for tick, _ in points[1:]] + [end]
    for (tick, size), until in zip(points, followers, strict=False):
        if until <= tick or end <= 0:
            continue
        for column in range(tick * count // end, min((until * count - 1) // end + 1, count)):
            columns[column] = max(columns[column], size)
    return columns


def bars(columns: Sequence[int], rows: int) -> list[str]:
    """Return lines, the top one first; what is not zero shows at least a sliver."""
    highest = max(columns, default=0)
    if not highest:
        return []
    heights = [max(-(-size * rows * 8 // highest), 1 if size else 0) for size in columns]
    return [
        "".join(_EIGHTHS[min(max(height - 8 * row, 0), 8)] for height in heights).rstrip()
        for row in reversed(range(rows))
    ]
