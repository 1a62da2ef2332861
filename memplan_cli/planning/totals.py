"""Totals: the numbers of the contract, from a program and its buffers.

A number exists only where every size in it is one; where sizes are expressions, the sum
by unit is written out instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.analysis.aliasing import SHARE_VIEWS
from memplan_cli.analysis.storage import result_sizes, storage_of
from memplan_cli.core.problem import Problem, pressure
from memplan_cli.core.program import Origin
from memplan_cli.core.results.report import LiveTensor, Peak
from memplan_cli.core.symbolic.bounds import NO_BOUNDS, at_most
from memplan_cli.core.symbolic.sizes import BITS, size_of, unit_value

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from memplan_cli.core.problem import Buffer, BufferId
    from memplan_cli.core.program import Program, Var, VarId
    from memplan_cli.core.symbolic.bounds import Bounds
    from memplan_cli.core.symbolic.sizes import Size
    from memplan_cli.planning.choosing.allocation import Allocation, Needs

ByUnit = dict[str, int]
"""Coefficients by unit: ``{"1": 64, "batch": 4096}`` is 64 + 4096*batch bytes."""


def by_unit(sizes: Iterable[Size]) -> ByUnit:
    """Add sizes up, unit by unit."""
    total: ByUnit = {}
    numbers = 0
    for size in sizes:
        if not size.symbols:
            numbers += size.coefficient
        elif size.coefficient:
            total[size.unit] = total.get(size.unit, 0) + size.coefficient
    return {**total, "1": numbers} if numbers else total


def summed(*totals: Mapping[str, int]) -> ByUnit:
    """Add sums up that are by unit already."""
    found: ByUnit = {}
    for total in totals:
        for unit, value in total.items():
            found[unit] = found.get(unit, 0) + value
    return found


def number(total: Mapping[str, int] | None) -> int | None:
    """Return a sum as a number, or None where a symbol is in it."""
    if total is None or any(unit != "1" and value for unit, value in total.items()):
        return None
    return total.get("1", 0)


def number_at(total: Mapping[str, int] | None, dims: Mapping[str, int]) -> int | None:
    """Return a sum at numbers for its symbols, or None where one has none."""
    if total is None:
        return None
    try:
        return sum(
            value * (1 if unit == "1" else unit_value(unit, dims))
            for unit, value in total.items()
            if value
        )
    except ValueError:
        return None


def in_bytes(
    units: Mapping[str, Iterable[Buffer]], dims: Mapping[str, int]
) -> tuple[Buffer, ...] | None:
    """Return the buffers of all units with bytes for sizes; None where a symbol has none."""
    try:
        factors = {unit: 1 if unit == "1" else unit_value(unit, dims) for unit in units}
    except ValueError:
        return None
    return tuple(
        buffer if factors[unit] == 1 else buffer._replace(size=buffer.size * factors[unit])
        for unit, buffers in units.items()
        for buffer in buffers
    )


def live_peak_of(buffers: Iterable[Buffer] | None) -> int | None:
    """Return the most bytes live at one tick."""
    if buffers is None:
        return None
    return max((live for _, live in pressure(Problem(tuple(buffers)))), default=0)


def resident_units(
    needs: Needs, bounds: Bounds, donated: Collection[str] = ()
) -> Mapping[str, tuple[Buffer, ...]]:
    """Return what a runtime holds by unit: intermediates, and outputs from their producer on.

    Args:
        needs: The program in its order.
        bounds: Of dims without a number.
        donated: The names of outputs that lie in an input's memory.
    """
    program = needs.program
    results = {
        var: at_most(size, bounds)
        for var, size in result_sizes(program).items()
        if program.vars[var].name not in donated
    }
    sizes = {**needs.sizes, **results}
    return storage_of(program, sizes, needs.pinned, SHARE_VIEWS, needs.timeline)[1]


def expression(total: Mapping[str, int]) -> str:
    """Return a sum as text: ``4096*batch + 64``."""
    parts = [
        f"{value}*{unit}" if unit != "1" else str(value)
        for unit, value in sorted(total.items(), key=lambda item: (item[0] == "1", item[0]))
        if value
    ]
    return " + ".join(parts) or "0"


def weight_bytes(program: Program) -> int:
    """Return the bytes of initializers and Constants whose size is known."""
    return number(by_unit(size for size in _weights(program) if size is not None)) or 0


def weights_are_known(program: Program) -> bool:
    """Whether each initializer and Constant has a known size; strings have none."""
    return None not in _weights(program)


def _weights(program: Program) -> list[Size | None]:
    weights = (v.id for v in program.vars.values() if v.origin is Origin.WEIGHT)
    return _sizes(program, weights)


def input_bytes(program: Program, bounds: Bounds = NO_BOUNDS) -> ByUnit | None:
    """Return the bytes of the graph's inputs, or None where one's size is not known."""
    return _complete(_sizes(program, countable(program, program.body.inputs)), bounds)


def output_bytes(program: Program, bounds: Bounds = NO_BOUNDS) -> ByUnit | None:
    """Return the bytes of what ops make for the graph's outputs; None as for inputs."""
    made = (
        var
        for var in dict.fromkeys(program.body.outputs)
        if program.vars[var].origin is Origin.OP
    )
    return _complete(_sizes(program, countable(program, made)), bounds)


def uncounted(program: Program) -> tuple[Var, ...]:
    """Return the inputs and outputs of types that no shape gives a size: texts, maps."""
    ends = dict.fromkeys((*program.body.inputs, *program.body.outputs))
    counted = set(countable(program, ends))
    return tuple(program.vars[var] for var in ends if var not in counted)


def countable(program: Program, vars_: Iterable[VarId]) -> Iterator[VarId]:
    """Yield the values that have bytes once their shape is known."""
    return (var for var in vars_ if program.vars[var].dtype in (*BITS, "unknown"))


def _sizes(program: Program, vars_: Iterable[VarId]) -> list[Size | None]:
    facts = (program.vars[var] for var in vars_)
    return [size_of(var.shape, var.dtype) for var in facts]


def _complete(sizes: list[Size | None], bounds: Bounds) -> ByUnit | None:
    known = [at_most(size, bounds) for size in sizes if size is not None]
    return by_unit(known) if len(known) == len(sizes) else None


def peak_of(
    needs: Needs, allocation: Allocation, dims: Mapping[str, int] | None = None
) -> Peak | None:
    """Return the first step at which most bytes are live, at ``dims``, and whose they are.

    A buffer goes by the youngest of its vars that is live there.
    """
    buffer_of, units = allocation.storage
    buffers = in_bytes(units, dims or {}) or ()
    top, peak = 0, -1
    for tick, live in pressure(Problem(buffers)):
        if live > top:
            top, peak = live, tick
    if peak < 0:
        return None
    at_peak = {b.id: b.size for b in buffers if b.live.start <= peak < b.live.end and b.size}
    names = _youngest(needs, buffer_of, at_peak, peak)
    tensors = sorted(
        (LiveTensor(names[b], size) for b, size in at_peak.items()), key=_largest_first
    )
    step = next((s for s in needs.timeline.steps if peak in (s.start, s.end)), None)
    return Peak(peak, step.op.label if step else "", tuple(tensors))


def _largest_first(item: tuple[str, int]) -> tuple[int, str]:
    return -item[1], item[0]


def _youngest(
    needs: Needs,
    buffer_of: Mapping[VarId, BufferId],
    buffers: Mapping[BufferId, int],
    tick: int,
) -> dict[BufferId, str]:
    live = needs.live
    names: dict[BufferId, tuple[int, str]] = {}
    for var, buffer in buffer_of.items():
        if buffer not in buffers or var in needs.pinned:
            continue
        start = live[var].start if live[var].start <= tick < live[var].end else -1
        names[buffer] = max(names.get(buffer, (-2, "")), (start, var))
    return {buffer: names[buffer][1] if buffer in names else str(buffer) for buffer in buffers}
