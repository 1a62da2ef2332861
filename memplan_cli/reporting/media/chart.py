"""Charts drawn with block characters, for text and Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memplan_cli.reporting.document import Chart

_EIGHTHS = " ▁▂▃▄▅▆▇█"

_ROWS = 4


def chart_lines(chart: Chart, width: int) -> list[str]:
    """Return the lines of a chart of ``width`` characters, the top line first."""
    return bar_lines(sampled_maxima(chart.points, chart.end, width), _ROWS)


def sampled_maxima(points: Sequence[tuple[int, int]], end: int, count: int) -> list[int]:
    """Return the maximum of a step curve in each of ``count`` equal intervals of ``[0, end)``.

    The points are ``(tick, value from this tick on)``, ascending. Maxima keep every peak visible.
    """
    maxima = [0] * count
    # The value of a point holds until the next point. Without points one end remains: not strict.
    next_ticks = [tick for tick, _ in points[1:]] + [end]
    for (tick, value), next_tick in zip(points, next_ticks, strict=False):
        if next_tick <= tick or end <= 0:
            continue
        # The intervals that [tick, next_tick) touches; interval i begins at i * end / count.
        first = tick * count // end
        last = min((next_tick * count - 1) // end, count - 1)
        for column in range(first, last + 1):
            maxima[column] = max(maxima[column], value)
    return maxima


def bar_lines(values: Sequence[int], rows: int) -> list[str]:
    """Return bars as ``rows`` lines of text, the top line first; empty if all values are 0.

    The highest value fills all lines. A line has eight steps, and values above 0 get at least one.
    """
    highest = max(values, default=0)
    if not highest:
        return []
    # Heights in eighths of a line, rounded up: at least 1 for values above 0.
    heights = [-(-value * rows * 8 // highest) for value in values]
    return [
        "".join(_EIGHTHS[min(max(height - 8 * row, 0), 8)] for height in heights).rstrip()
        for row in reversed(range(rows))
    ]
