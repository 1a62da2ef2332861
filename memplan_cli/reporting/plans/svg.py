"""The main arena as SVG: addresses over time, and below it the live bytes with the peak marked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from memplan_cli.core.quantities import format_size
from memplan_cli.core.results.bound_plan import with_bound_symbols
from memplan_cli.core.results.timeline import curve, main_arena, occupancies, peak_tick
from memplan_cli.reporting.escape import html, shortened_name
from memplan_cli.reporting.plans.memory import verdict
from memplan_cli.reporting.plans.sections import known_only

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from memplan_cli.core.results.placements import PlannedArena
    from memplan_cli.core.results.plan import Plan
    from memplan_cli.core.results.timeline import Occupancy

_LEFT, _TOP, _WIDTH, _MAP, _GAP, _CURVE = 84, 56, 1080, 420, 40, 120
"""Left and top of the map, its width and height, the gap below it, and the height of the curve."""

_HEIGHT = _TOP + _MAP + _GAP + _CURVE + 40

_LINE, _LETTER, _SHORTEST_NAME = 14, 7.2, 44
"""SVG units of a line of text, of a letter, and of the shortest name that is drawn."""

_STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#222}.s{fill:#667}.t{font-weight:600;font-size:16px}"
    ".f{fill:#f6f7f9;stroke:#c8ccd4}.c{fill:#4c78a8;fill-opacity:.35;stroke:#4c78a8}"
    ".n{fill:#111}.p{stroke:#d6336c;stroke-dasharray:4 3}rect.b{stroke:#fff;stroke-width:.5}"
    "@media(prefers-color-scheme:dark){svg{background:#15171c}text{fill:#e6e8ee}.s{fill:#99a}"
    ".f{fill:#1c1f26;stroke:#3a3f4b}rect.b{stroke:#15171c}}"
)


@dataclass(frozen=True, slots=True)
class _Scale:
    """Conversion of ticks and bytes to SVG coordinates of the map; address 0 is at its bottom.

    Attributes:
        ticks: the last tick of the map.
        bytes: the height of the arena.
    """

    ticks: int
    bytes: int

    def x(self, tick: int) -> float:
        return _LEFT + self.width(tick)

    def width(self, ticks: int) -> float:
        return _WIDTH * ticks / max(self.ticks, 1)

    def y(self, address: int) -> float:
        return _TOP + _MAP - self.height(address)

    def height(self, size: int) -> float:
        return _MAP * size / max(self.bytes, 1)


def render(plan: Plan) -> str:
    """Return a picture of the plan's main arena as SVG."""
    return "".join(_parts(plan))


def hue(number: int) -> int:
    """Return a hue in degrees; consecutive numbers get very different hues."""
    return number * 137 % 360  # about the golden angle, which spreads any count of hues evenly


def _parts(plan: Plan) -> Iterator[str]:
    """Yield the parts of the picture: title, verdict, map and curve; no map if nothing is planned."""
    full_width = _LEFT + _WIDTH + 20
    name = plan.report.model.path or "model"
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {full_width} {_HEIGHT}" '
        f'role="img" aria-label="{html(verdict(plan.report))}">\n<style>{_STYLE}</style>\n'
        f'<text class="t" x="{_LEFT}" y="22">{html(shortened_name(name, 110))}</text>\n'
        f'<text class="s" x="{_LEFT}" y="42">{html(verdict(plan.report))}</text>\n'
    )
    plan = with_bound_symbols(plan)
    arena = main_arena(plan)
    if arena is None or not arena.height:
        yield f'<text x="{_LEFT}" y="80">nothing is planned</text>\n</svg>\n'
        return
    items = [
        item for item in occupancies(plan) if item.tensor.arena == arena.id and item.bytes
    ]
    points = curve(plan, arena)
    scale = _Scale(max(item.last for item in items), arena.height)
    yield _frame(_TOP, _MAP)
    yield from (_rectangle(item, number, scale) for number, item in enumerate(items))
    yield from _names(items, scale)
    yield from _address_labels(arena)
    yield from _curve(points, scale, arena)
    yield from _omissions(plan)
    yield "</svg>\n"


def _frame(top: int, height: int) -> str:
    return f'<rect class="f" x="{_LEFT}" y="{top}" width="{_WIDTH}" height="{height}"/>\n'


def _rectangle(item: Occupancy, number: int, scale: _Scale) -> str:
    """Return the rectangle of a range of bytes over its steps, with a tooltip of up to 4 names.

    ``item.last`` is exclusive; the tooltip names the last step itself. The ``number`` chooses the
    color.
    """
    tensor = item.tensor
    names = ", ".join(shortened_name(member.id, 60) for member in item.members[:4])
    steps = f"steps {item.first} to {item.last - 1}"
    tooltip = f"{names}: {item.bytes} bytes at {tensor.offset}, {steps}"
    return (
        f'<rect class="b" x="{scale.x(item.first):.2f}" '
        f'y="{scale.y(tensor.offset + item.bytes):.2f}" '
        f'width="{scale.width(item.last - item.first):.2f}" '
        f'height="{scale.height(item.bytes):.2f}" '
        f'fill="hsl({hue(number)} 55% 60%)"><title>{html(tooltip)}</title></rect>\n'
    )


def _names(items: Sequence[Occupancy], scale: _Scale) -> Iterator[str]:
    """Yield the name of each tensor whose rectangle is large enough, cut to its width."""
    for item in items:
        width, height = scale.width(item.last - item.first), scale.height(item.bytes)
        if width < _SHORTEST_NAME or height < _LINE:
            continue
        # A margin of 4 on both sides, and the baseline 4 below the middle of the rectangle.
        name = shortened_name(item.tensor.id, int((width - 8) / _LETTER))
        x = scale.x(item.first) + 4
        y = scale.y(item.tensor.offset) - height / 2 + 4
        yield f'<text class="n" x="{x:.2f}" y="{y:.2f}">{html(name)}</text>\n'


def _omissions(plan: Plan) -> Iterator[str]:
    """Yield the note on what is not drawn: unknown sizes and other arenas."""
    notes = [known_only(plan.report)] if plan.report.partial else []
    if len(plan.arenas) > 1:
        notes.append(f"one of {len(plan.arenas)} arenas: a symbol has no number")
    if notes:
        yield f'<text class="s" x="{_LEFT}" y="{_HEIGHT - 4}">{html("; ".join(notes))}</text>\n'


def _address_labels(arena: PlannedArena) -> Iterator[str]:
    """Yield five labels beside the map, from 0 to the arena's height, and the unit if it has one."""
    unit = "" if arena.unit == "1" else f" x {shortened_name(arena.unit, 30)}"
    for quarter in (0, 1, 2, 3, 4):
        y = _TOP + _MAP - _MAP * quarter / 4 + 4
        size = format_size(arena.height * quarter // 4)
        yield f'<text class="s" x="{_LEFT - 6}" y="{y:.0f}" text-anchor="end">{size}</text>\n'
    if unit:
        yield f'<text class="s" x="{_LEFT}" y="{_TOP - 4}">bytes{html(unit)}</text>\n'


def _curve(
    points: tuple[tuple[int, int], ...], scale: _Scale, arena: PlannedArena
) -> Iterator[str]:
    """Yield the step curve of live bytes below the map, and a line through both at the peak.

    The points are ``(tick, live bytes from this tick on)``, ascending; texts call a tick a step. At the last
    point 0 bytes are live. The arena's height is the full height of the curve.
    """
    top = _TOP + _MAP + _GAP
    yield _frame(top, _CURVE)
    base, path, last_tick = top + _CURVE, [], 0
    for tick, size in points:
        path.append(f"H{scale.x(tick):.2f}V{base - _CURVE * size / max(arena.height, 1):.2f}")
        last_tick = tick
    yield f'<path class="c" d="M{_LEFT} {base}{"".join(path)}H{scale.x(last_tick):.2f}V{base}Z"/>\n'
    peak_step, peak_bytes = peak_tick(points), max(size for _, size in points)
    x = f"{scale.x(peak_step):.2f}"
    yield f'<line class="p" x1="{x}" x2="{x}" y1="{_TOP}" y2="{base}"/>\n'
    label = f"most live: {format_size(peak_bytes)} at step {peak_step}"
    yield f'<text class="s" x="{_LEFT}" y="{top - 8}">live bytes; {label}</text>\n'
    yield f'<text class="s" x="{_LEFT}" y="{base + 18}">step 0</text>\n'
    yield (
        f'<text class="s" x="{_LEFT + _WIDTH}" y="{base + 18}" text-anchor="end">'
        f"step {scale.ticks}</text>\n"
    )
