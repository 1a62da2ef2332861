"""Sums of bytes over symbolic sizes: the totals of a plan, its peak, and their expressions.

A size is a coefficient times a *unit*, a product of symbolic dims: ``4096*batch``. The unit of sizes
without symbols is ``"1"``. A sum is kept by unit. It is a number only if every symbol in it has one;
else it is reported as an expression.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING

from memplan_cli.analysis.aliasing import SHARE_VIEWS
from memplan_cli.analysis.storage import result_sizes, storage_of
from memplan_cli.core.problem import Problem, lower_bound, pressure
from memplan_cli.core.program import Origin
from memplan_cli.core.results.report import LiveTensor, Peak
from memplan_cli.core.symbolic.bounds import NO_BOUNDS, DimRange, largest_size, range_of
from memplan_cli.core.symbolic.dims import parse_dim
from memplan_cli.core.symbolic.polynomials import (
    add_polynomials,
    multiply_polynomials,
    parse_call,
    symbol_names,
)
from memplan_cli.core.symbolic.sizes import BITS, size_of, unit_value

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from memplan_cli.core.problem import Buffer, BufferId
    from memplan_cli.core.program import Program, Var, VarId
    from memplan_cli.core.symbolic.bounds import Bounds
    from memplan_cli.core.symbolic.polynomials import Polynomial
    from memplan_cli.core.symbolic.sizes import Size
    from memplan_cli.planning.allocation import Allocation, Needs

LARGEST_DIM = 2**31 - 1
"""No dim of a real run is above this."""

ByUnit = dict[str, int]
"""Coefficients by unit: ``{"1": 64, "batch": 4096}`` is ``4096*batch + 64`` bytes."""


def by_unit(sizes: Iterable[Size]) -> ByUnit:
    """Return the sum of sizes as coefficients by unit; units without bytes are left out.

    ``4096*batch``, ``4096*batch`` and ``64`` give ``{"batch": 8192, "1": 64}``.
    """
    total: ByUnit = {}
    without_symbols = 0
    for size in sizes:
        if not size.symbols:
            without_symbols += size.coefficient
        elif size.coefficient:
            total[size.unit] = total.get(size.unit, 0) + size.coefficient
    return {**total, "1": without_symbols} if without_symbols else total


def summed(*totals: Mapping[str, int]) -> ByUnit:
    """Return the sum of several sums by unit: their coefficients are added unit by unit."""
    result: ByUnit = {}
    for total in totals:
        for unit, value in total.items():
            result[unit] = result.get(unit, 0) + value
    return result


def number(total: Mapping[str, int] | None) -> int | None:
    """Return a sum by unit as a number of bytes; None if it has a symbol, or is None itself.

    Only the unit ``"1"`` has no symbol.
    """
    if total is None or any(unit != "1" and value for unit, value in total.items()):
        return None
    return total.get("1", 0)


def number_at(total: Mapping[str, int] | None, dims: Mapping[str, int]) -> int | None:
    """Return the bytes of a sum by unit at some dims; None if ``total`` is, or a symbol has no number.

    ``{"1": 64, "batch*seq": 4}`` at batch 2 and seq 8 is 128.
    """
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


def expression(total: Mapping[str, int]) -> str:
    """Return a sum by unit as text, the part without symbols last: ``4096*batch + 64``."""
    parts = [
        f"{value}*{unit}" if unit != "1" else str(value)
        for unit, value in sorted(total.items(), key=lambda item: (item[0] == "1", item[0]))
        if value
    ]
    return " + ".join(parts) or "0"


def weight_bytes(program: Program) -> int:
    """Return the bytes of initializers and Constant outputs of known size."""
    return number(by_unit(size for size in _weight_sizes(program) if size is not None)) or 0


def weights_are_known(program: Program) -> bool:
    """Whether every initializer and Constant output has a known size; strings have none."""
    return None not in _weight_sizes(program)


def _weight_sizes(program: Program) -> list[Size | None]:
    """Return the size of each initializer and Constant output; None where it is unknown."""
    weights = (var.id for var in program.vars.values() if var.origin is Origin.WEIGHT)
    return _sizes(program, weights)


def input_bytes(program: Program, bounds: Bounds = NO_BOUNDS) -> ByUnit | None:
    """Return the bytes of the graph's inputs; None if the size of one is unknown."""
    return _sum_if_known(_sizes(program, countable(program, program.body.inputs)), bounds)


def output_bytes(program: Program, bounds: Bounds = NO_BOUNDS) -> ByUnit | None:
    """Return the bytes of the graph outputs that ops compute, by unit; None if a size is unknown.

    Outputs that are inputs or weights too are left out. Sizes are the largest within ``bounds``.
    """
    distinct = dict.fromkeys(program.body.outputs)
    computed = (var for var in distinct if program.vars[var].origin is Origin.OP)
    tensors = countable(program, computed)  # strings, sequences and maps have no bytes
    return _sum_if_known(_sizes(program, tensors), bounds)


def countable(program: Program, vars_: Iterable[VarId]) -> Iterator[VarId]:
    """Yield the vars that have a size in bytes once their shape is known.

    A var of unknown dtype is one of them: it may turn out to be a tensor.
    """
    return (var for var in vars_ if program.vars[var].dtype in (*BITS, "unknown"))


def uncounted(program: Program) -> tuple[Var, ...]:
    """Return the graph inputs and outputs of types without a size: strings, sequences, maps."""
    interface = dict.fromkeys((*program.body.inputs, *program.body.outputs))
    counted = set(countable(program, interface))
    return tuple(program.vars[var] for var in interface if var not in counted)


def _sizes(program: Program, identities: Iterable[VarId]) -> list[Size | None]:
    """Return the size of each var; None where it is unknown."""
    vars_ = (program.vars[identity] for identity in identities)
    return [size_of(var.shape, var.dtype) for var in vars_]


def _sum_if_known(sizes: list[Size | None], bounds: Bounds) -> ByUnit | None:
    """Return the sum by unit of the largest sizes within bounds; None if a size is unknown."""
    known_sizes = [largest_size(size, bounds) for size in sizes if size is not None]
    return by_unit(known_sizes) if len(known_sizes) == len(sizes) else None


def in_bytes(
    buffers_by_unit: Mapping[str, Iterable[Buffer]], dims: Mapping[str, int]
) -> tuple[Buffer, ...] | None:
    """Return buffers with sizes in bytes at some dims; None if a symbol has no number in ``dims``.

    In ``buffers_by_unit``, the size of a buffer is the coefficient of its unit.
    """
    try:
        factors = {
            unit: 1 if unit == "1" else unit_value(unit, dims) for unit in buffers_by_unit
        }
    except ValueError:
        return None
    return tuple(
        buffer if factors[unit] == 1 else buffer._replace(size=buffer.size * factors[unit])
        for unit, buffers in buffers_by_unit.items()
        for buffer in buffers
    )


def live_peak_of(buffers: Iterable[Buffer] | None) -> int | None:
    """Return the most bytes live at one tick; None for None."""
    if buffers is None:
        return None
    return lower_bound(Problem(tuple(buffers)))


def resident_buffers_by_unit(
    needs: Needs, bounds: Bounds, donated: Collection[str]
) -> Mapping[str, tuple[Buffer, ...]]:
    """Return the buffers of intermediates and graph outputs, which a runtime holds, by unit.

    A unit is a product of symbolic dims, or ``"1"``; a buffer's size is the coefficient of its unit.
    An output is live from its producer to the end of the run. Only views share bytes.

    ``donated`` outputs lie in the memory of an input, which is not counted here, and are left out.
    """
    program = needs.program
    # The sizes in ``needs`` are the largest within the bounds already.
    results = {
        var: largest_size(size, bounds)
        for var, size in result_sizes(program).items()
        if program.vars[var].name not in donated
    }
    sizes = {**needs.sizes, **results}
    storage = storage_of(program, sizes, needs.pinned, SHARE_VIEWS, needs.timeline)
    return storage.buffers_by_unit


def peak_of(
    needs: Needs, allocation: Allocation, dims: Mapping[str, int] | None = None
) -> Peak | None:
    """Return the first tick at which most bytes are live, and the tensors that are live there.

    A buffer that several tensors share has one entry, named after the tensor that started last.

    None if no bytes are live, or if a size has a symbol without a number in ``dims``.
    """
    storage = allocation.storage
    buffers = in_bytes(storage.buffers_by_unit, dims or {}) or ()
    peak_bytes, peak_tick = 0, -1
    for tick, live in pressure(Problem(buffers)):
        if live > peak_bytes:
            peak_bytes, peak_tick = live, tick
    if peak_tick < 0:
        return None
    live_sizes = {
        buffer.id: buffer.size
        for buffer in buffers
        if buffer.live.start <= peak_tick < buffer.live.end and buffer.size
    }
    names = _youngest_tensors(needs, storage.buffer_of, live_sizes, peak_tick)
    tensors = sorted(
        (LiveTensor(name=names[buffer], bytes=size) for buffer, size in live_sizes.items()),
        key=lambda tensor: (-tensor.bytes, tensor.name),
    )
    # An op with subgraphs runs at its first and its last tick; between them, the ops inside run.
    running = next(
        (step.op for step in needs.timeline.steps if peak_tick in (step.start, step.end)), None
    )
    return Peak(step=peak_tick, node=running.label if running else "", tensors=tuple(tensors))


def _youngest_tensors(
    needs: Needs,
    buffer_of: Mapping[VarId, BufferId],
    buffers: Collection[BufferId],
    tick: int,
) -> dict[BufferId, str]:
    """Return a name for each of the ``buffers``: of its tensors that are live at a tick, the youngest.

    The youngest tensor is the one that started last; of several, the last one by name. If none is live
    at the tick, it is the last one by name of all. A buffer without an unpinned tensor has its own id.
    """

    def start_and_name(var: VarId) -> tuple[int, str]:
        live = needs.live[var]
        is_live = live.start <= tick < live.end
        return (live.start if is_live else -1, var)  # live tensors come after all others

    tensors_of: dict[BufferId, list[VarId]] = {buffer: [] for buffer in buffers}
    for var, buffer in buffer_of.items():
        if buffer in tensors_of and var not in needs.pinned:
            tensors_of[buffer].append(var)
    return {
        buffer: max(tensors, key=start_and_name) if tensors else str(buffer)
        for buffer, tensors in tensors_of.items()
    }


MOST_SUMS = 4
"""An expression of a peak is the maximum of at most so many sums: more tell a reader nothing."""

_MOST_COMPARED = 64
"""At most so many sums are compared in pairs, which takes the square of their number."""


def live_peak_text(buffers_by_unit: Mapping[str, tuple[Buffer, ...]]) -> str | None:
    """Return the most bytes live at one tick, for all dims of 1 or more, as an expression.

    The live bytes of each tick are a sum by unit. A sum that is never above another one, for
    any dims, is dropped, and the peak is the maximum of the remaining sums.

    In ``buffers_by_unit``, the size of a buffer is the coefficient of its unit.

    Returns:
        ``32768*batch``, or ``max(4096*batch, 64*seq + 8)``; None if more than `MOST_SUMS`
        sums remain, or more than can be compared in pairs.
    """
    # First by the cheap comparison of coefficients: a sum can only cover those with a smaller total of them.
    candidates: list[ByUnit] = []
    for live_bytes in _largest_first(_live_sums(buffers_by_unit)):
        if not any(_covers(other, live_bytes) for other in candidates):
            candidates.append(live_bytes)
        if len(candidates) > _MOST_COMPARED:
            return None
    # Then by proofs, in which a sum may be above one with a larger total.
    maxima: list[ByUnit] = []
    for live_bytes in candidates:
        if not any(is_at_least(other, live_bytes) for other in maxima):
            maxima = [other for other in maxima if not is_at_least(live_bytes, other)]
            maxima.append(live_bytes)
    if len(maxima) > MOST_SUMS:
        return None
    texts = sorted(map(expression, maxima))
    if not texts:
        return "0"
    return texts[0] if len(texts) == 1 else f"max({', '.join(texts)})"


def _live_sums(buffers_by_unit: Mapping[str, tuple[Buffer, ...]]) -> Iterator[ByUnit]:
    """Yield the live bytes at each tick at which they change, as a sum by unit."""
    changes = sorted(
        (tick, unit, live)
        for unit, buffers in buffers_by_unit.items()
        for tick, live in pressure(Problem(buffers))
    )
    live_bytes: ByUnit = {}
    for _, changes_of_tick in groupby(changes, key=itemgetter(0)):
        live_bytes.update((unit, live) for _, unit, live in changes_of_tick)
        yield {unit: live for unit, live in live_bytes.items() if live}


def _largest_first(sums: Iterable[ByUnit]) -> list[ByUnit]:
    """Return each different sum once, by falling total of its coefficients."""
    unique = {tuple(sorted(total.items())): total for total in sums}
    keys = sorted(unique, key=lambda key: (-sum(value for _, value in key), key))
    return [unique[key] for key in keys]


def _covers(larger: Mapping[str, int], smaller: Mapping[str, int]) -> bool:
    """Whether each coefficient of the second sum is at most that of the first.

    The first is then at least the second, for all dims.
    """
    return all(larger.get(unit, 0) >= value for unit, value in smaller.items())


def is_at_least(larger: Mapping[str, int], smaller: Mapping[str, int]) -> bool:
    """Whether the first sum is proved to be at least the second, for all dims of 1 or more.

    A sum has the positive coefficient of each unit, an expression: ``8*n*m`` and ``5*n + 3*min(n, 4)`` are
    ``{"n*m": 8}`` and ``{"n": 5, "min(n, 4)": 3}``. The proof that the first is at least the second:

    1. In units of the second sum alone, ``min`` is replaced by an argument. That makes the second sum
       larger: ``5*n + 3*n``.
    2. The difference is ``8*n*m - 8*n``.
    3. Each symbol is written as its least value 1 plus a rest that is not negative, again called ``n`` and
       ``m``: ``8*(n + 1)*(m + 1) - 8*(n + 1)``, that is ``8*n*m + 8*m``.
    4. No coefficient is negative, so the difference is not. If one is, the result is False: no proof.
    """
    if _covers(larger, smaller):
        return True
    # A unit of both sums is added or subtracted, depending on its coefficients. So no ``min`` in it is
    # replaced, because a larger unit could make the difference larger.
    in_larger = {unit: value - smaller.get(unit, 0) for unit, value in larger.items()}
    only_in_smaller = {unit: value for unit, value in smaller.items() if unit not in larger}
    try:
        # A polynomial has the factor of each product of atoms: ``8*n*m`` is ``{("n", "m"): 8}``.
        minuend = _polynomial(in_larger)
        subtrahend = _with_fewer_minima(_polynomial(only_in_smaller))
        difference = add_polynomials([minuend, multiply_polynomials([subtrahend], -1)])
        # Each atom is replaced by its least value plus the rest.
        shifted = add_polynomials(
            multiply_polynomials([_shifted(atom) for atom in monomial], factor)
            for monomial, factor in difference.items()
        )
    except ValueError:  # the polynomial has too many terms
        return False
    return all(coefficient >= 0 for coefficient in shifted.values())


def _polynomial(total: Mapping[str, int]) -> Polynomial:
    """Return a sum by unit as a polynomial of its symbols."""
    return add_polynomials(
        multiply_polynomials([parse_dim(unit)], value) for unit, value in total.items()
    )


def _with_fewer_minima(polynomial: Polynomial) -> Polynomial:
    """Return a polynomial that is never below the given one, with fewer ``min(...)`` calls.

    A minimum is at most each of its arguments, so a term such as ``8*min(n, 4)*m`` becomes ``8*n*m``.
    A term with a negative factor, or with an atom that may be negative, could become smaller: it is
    kept with its minima.
    """
    terms: list[Polynomial] = []
    for monomial, factor in polynomial.items():
        grows_with_atoms = factor > 0 and all(_least(atom) >= 0 for atom in monomial)
        if grows_with_atoms:
            arguments = [_argument_of_minimum(atom) for atom in monomial]
            terms.append(multiply_polynomials(arguments, factor))
        else:
            terms.append({monomial: factor})
    return add_polynomials(terms)


def _argument_of_minimum(atom: str) -> Polynomial:
    """Return the argument of ``min(...)`` with most symbols; another atom is returned as it is."""
    name, arguments = parse_call(atom) or ("", ())
    if name != "min":
        return {(atom,): 1}
    return max(arguments, key=lambda argument: len(symbol_names(argument)))


@lru_cache(maxsize=1 << 12)
def _shifted(atom: str) -> Polynomial:
    """Return an atom, a symbol or call, as its least value plus a rest that is not negative.

    The rest is written as the atom itself: ``n`` becomes ``n + 1``.
    """
    low = _least(atom)
    return {(atom,): 1, (): low} if low else {(atom,): 1}


@lru_cache(maxsize=1 << 12)
def _least(atom: str) -> int:
    """Return a lower bound of a symbol or call, for dims of 1 or more."""
    polynomial: Polynomial = {(atom,): 1}
    any_size = DimRange(1, LARGEST_DIM)
    return range_of(polynomial, dict.fromkeys(symbol_names(polynomial), any_size))[0]
