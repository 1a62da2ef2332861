"""The values of a program: what could be dropped and computed again, and at what cost.

A value is a var of the top block together with all its views. Values are numbered in the order
in which they are made. A place is the index of an op in the top block; an op with subgraphs is
one place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from memplan_cli.analysis.cost import node_work
from memplan_cli.analysis.repetition import repeatable

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from memplan_cli.analysis.aliasing import Aliasing
    from memplan_cli.core.program import Dataflow, Program, VarId
    from memplan_cli.core.symbolic.sizes import Size


ValueNumber = int
"""The number of a value in `Values`."""

Place = int
"""The index of an op in the top block."""


MUST_RUN_ONCE = -1
"""In place of the work of an op that must not run a second time, such as a random one."""


@dataclass(frozen=True, slots=True)
class Values:
    """The values of a program. Tuples are indexed by value.

    A value is a var of the top block together with all its views, named by its number. A place
    is the index of an op in the top block.

    Attributes:
        value_of: the value of each var that an op of the top block makes.
        sizes: bytes; 0 if they are not a number.
        made_at: the place of the producer.
        accesses: the places where the value is made and read, in order.
        inputs: the values that the producer reads.
        work: work of running the producer once more, or `MUST_RUN_ONCE`.
    """

    program: Program
    value_of: Mapping[VarId, ValueNumber]
    sizes: tuple[int, ...]
    made_at: tuple[Place, ...]
    accesses: tuple[tuple[Place, ...], ...]
    inputs: tuple[tuple[ValueNumber, ...], ...]
    work: tuple[int, ...]

    @property
    def dataflow(self) -> Dataflow:
        """The producers and consumers of the top block."""
        return self.program.dataflow

    def can_recompute(self, value: ValueNumber) -> bool:
        """Whether the producer of a value may run more than once."""
        return self.work[value] != MUST_RUN_ONCE


def find_values(
    program: Program,
    sizes: Mapping[VarId, Size],
    pinned: Collection[VarId],
    aliasing: Aliasing,
) -> Values:
    """Group the vars of a program's top block into values: each is a root var and all its views.

    The root is the var that has bytes of its own, and its producer is the producer of the value.
    Graph inputs, graph outputs and ``pinned`` vars always stay in memory, and are no values.
    """
    dataflow = program.dataflow
    kept_vars = frozenset(program.body.outputs) | frozenset(pinned)
    # The root of each var that an op makes. Graph inputs and ``kept_vars`` have none.
    root_of = _view_roots(program, sizes, kept_vars, aliasing)
    roots = [var for var, root in root_of.items() if var == root]
    value_of_root = {root: value for value, root in enumerate(roots)}
    value_of = {var: value_of_root[root] for var, root in root_of.items()}
    made_at = tuple(dataflow.producer[root] for root in roots)
    producers = [dataflow.ops[place] for place in made_at]
    is_repeatable = repeatable(program)
    return Values(
        program=program,
        value_of=value_of,
        sizes=tuple(bytes_of(sizes, root) for root in roots),
        made_at=made_at,
        accesses=_accesses(program, value_of, len(roots)),
        inputs=tuple(_values_of(dataflow.reads[place], value_of) for place in made_at),
        work=tuple(
            node_work(op, program.vars) if is_repeatable[place] else MUST_RUN_ONCE
            for op, place in zip(producers, made_at, strict=True)
        ),
    )


def _values_of(
    variables: Iterable[VarId], value_of: Mapping[VarId, ValueNumber]
) -> tuple[ValueNumber, ...]:
    """Return the values that some vars belong to, each once; vars without a value are left out."""
    return tuple(dict.fromkeys(value_of[var] for var in variables if var in value_of))


def _accesses(
    program: Program, value_of: Mapping[VarId, ValueNumber], count: int
) -> tuple[tuple[Place, ...], ...]:
    """Return for each of ``count`` values the ascending places where it is made and read."""
    accesses: list[dict[Place, None]] = [{} for _ in range(count)]  # ordered sets
    for place, op in enumerate(program.body.ops):
        for var in (*program.dataflow.reads[place], *op.outputs):
            if var in value_of:
                accesses[value_of[var]][place] = None
    return tuple(tuple(places) for places in accesses)


def bytes_of(sizes: Mapping[VarId, Size], var: VarId) -> int:
    """Return the bytes of a var; 0 if they are unknown or depend on a symbol."""
    size = sizes.get(var)
    return 0 if size is None or size.symbols else size.coefficient


def _view_roots(
    program: Program,
    sizes: Mapping[VarId, Size],
    kept_vars: Collection[VarId],
    aliasing: Aliasing,
) -> dict[VarId, VarId]:
    """Map each var that may be dropped to the first var of its chain of views, in the order of ops.

    For ``a -> Reshape -> b -> Reshape -> c`` all three are mapped to ``a``. A view with
    another size than its input, or with an input that is kept, is the first of a chain itself.
    """
    root_of: dict[VarId, VarId] = {}
    for op in program.body.ops:
        for position, var in enumerate(op.outputs):
            if not var or var in kept_vars:
                continue
            root_of[var] = var
            if position == 0 and aliasing.is_view(op):
                base = op.inputs[0]
                if base in root_of and var in sizes and sizes.get(base) == sizes[var]:
                    root_of[var] = root_of[base]
    return root_of
