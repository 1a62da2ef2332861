"""Values of a schedule: their producers, reads, and the cost of recomputing them.

A value is a var with all its views. Times are places in the top block's schedule; a
control-flow op is one place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from memplan_cli.analysis.cost import node_work
from memplan_cli.analysis.repetition import repeatable
from memplan_cli.core.operators import operator

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from memplan_cli.analysis.aliasing import Aliasing
    from memplan_cli.core.program import Dataflow, Op, Program, VarId
    from memplan_cli.core.symbolic.sizes import Size


@dataclass(frozen=True, slots=True)
class Values:
    """What a program makes, numbered; sizes in bytes, costs in units of work."""

    program: Program
    of: Mapping[VarId, int]
    """The value of each var that an op makes and that must be live to be read."""
    size: tuple[int, ...]
    made: tuple[int, ...]
    """When each value's producer runs."""
    reads: tuple[tuple[int, ...], ...]
    """When each value is made and read, in order."""
    needs: tuple[tuple[int, ...], ...]
    """The values that each value's producer reads."""
    work: tuple[int, ...]
    """To run the producer once more; -1 where it must never run twice."""
    alone: tuple[bool, ...]
    """Whether the producer makes nothing else."""
    beside: tuple[int, ...]
    """Bytes of the producer's other results, which a copy makes too, if it must."""

    @property
    def flow(self) -> Dataflow:
        """The producers and consumers of the top block."""
        return self.program.dataflow


def find_values(
    program: Program,
    sizes: Mapping[VarId, Size],
    pinned: Collection[VarId],
    aliasing: Aliasing,
) -> Values:
    """Number the values of a program's top block, in the order in which they are made.

    What the graph is given or gives, and what is pinned, is always there and is no value.
    """
    flow = program.dataflow
    kept_vars = frozenset(program.body.outputs) | frozenset(pinned)
    roots = _roots(program, sizes, kept_vars, aliasing)
    number: dict[VarId, int] = {}
    for op in program.body.ops:
        for var in op.outputs:
            if roots.get(var) == var:
                number[var] = len(number)
    of = {var: number[root] for var, root in roots.items()}
    reads: list[dict[int, None]] = [{flow.producer[var]: None} for var in number]
    for at, op in enumerate(program.body.ops):
        for var in (*flow.reads[at], *op.outputs):
            if var in of:
                reads[of[var]][at] = None
    made = tuple(flow.producer[var] for var in number)
    again = repeatable(program)
    alone = (sum(map(bool, flow.ops[at].outputs)) == 1 for at in made)
    beside = (_beside(flow.ops[at], var, sizes) for var, at in zip(number, made, strict=True))
    return Values(
        program=program,
        of=of,
        size=tuple(
            sizes[var].coefficient if _is_number(sizes.get(var)) else 0 for var in number
        ),
        made=made,
        reads=tuple(tuple(times) for times in reads),
        needs=tuple(
            tuple(dict.fromkeys(of[v] for v in flow.reads[at] if v in of)) for at in made
        ),
        work=tuple(node_work(flow.ops[at], program.vars) if again[at] else -1 for at in made),
        alone=tuple(alone),
        beside=tuple(beside),
    )


def _is_number(size: Size | None) -> bool:
    return size is not None and not size.symbols


def _roots(
    program: Program,
    sizes: Mapping[VarId, Size],
    kept_vars: Collection[VarId],
    aliasing: Aliasing,
) -> dict[VarId, VarId]:
    """Map each var that an op of the top block makes to the oldest var of its bytes."""
    roots: dict[VarId, VarId] = {}
    for op in program.body.ops:
        for at, var in enumerate(op.outputs):
            if not var or var in kept_vars:
                continue
            base = op.inputs[0] if at == 0 and aliasing.is_view(op) else None
            same = base in roots and var in sizes and sizes.get(base) == sizes[var]
            roots[var] = roots[base] if same and base is not None else var
    return roots


def _beside(op: Op, var: VarId, sizes: Mapping[VarId, Size]) -> int:
    optional = operator(op).optional_outputs
    return sum(
        sizes[other].coefficient
        for at, other in enumerate(op.outputs)
        if at not in optional and other != var and _is_number(sizes.get(other))
    )
