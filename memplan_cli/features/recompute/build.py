"""From a schedule with gaps to a program with copies.

An op that reads a value reads its latest copy. Copies are made where they are first read,
just before the consumer, what they need first. A view is copied with its value. Where nothing
reads the first one any more, it goes, and its earliest copy has its name.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from memplan_cli.core.operators import operator
from memplan_cli.core.program import Block, Op, Program, VarId
from memplan_cli.core.symbolic.sizes import size_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from memplan_cli.core.symbolic.sizes import Size
    from memplan_cli.features.recompute.values import Values


@dataclass(frozen=True, slots=True)
class Copied:
    """A program with copies, and what it really does."""

    program: Program
    sizes: Mapping[VarId, Size]
    """Of all planned vars, copies included."""
    places: tuple[int, ...]
    """For each op, its place in the base schedule; a copy has its consumer's."""
    copies: tuple[Op, ...]
    """The ops that run although another one with their source runs too."""
    made: Mapping[int, Collection[int]]
    """For each value, the places at which it is made again, or late."""
    reads: tuple[tuple[int, int], ...]
    """``(value, place)`` of what copies read."""


def build(
    values: Values,
    copies: Sequence[Collection[int]],
    sizes: Mapping[VarId, Size],
    due: Mapping[int, Sequence[VarId]] | None = None,
) -> Copied:
    """Write the copies out.

    Args:
        values: The base program.
        copies: For each value, the places at which it is made again.
        sizes: The planned vars of the base program.
        due: Vars to copy at a place although its op may not read them.
    """
    return _Builder(values, copies, sizes).build(due or {})


class _Builder:
    """Walks the base schedule once and emits each op, and before it the copies it reads."""

    def __init__(
        self, values: Values, copies: Sequence[Collection[int]], sizes: Mapping[VarId, Size]
    ) -> None:
        self._values = values
        self._copies = {value: sorted(times) for value, times in enumerate(copies) if times}
        self._sizes = dict(sizes)
        self._vars = dict(values.program.vars)
        self._made: dict[tuple[VarId, int], VarId] = {}
        self._twins: dict[VarId, VarId] = {}
        self._reads: dict[tuple[int, int], None] = {}
        self._ops: list[tuple[Op, int]] = []
        self._place = 0

    def build(self, due: Mapping[int, Sequence[VarId]]) -> Copied:
        """Return the program; may be called once."""
        program = self._values.program
        for place, op in enumerate(program.body.ops):
            self._place = place
            for var in due.get(place, ()):
                self._at(var, place)
            renamed = {var: self._at(var, place) for var in self._values.flow.reads[place]}
            self._ops.append((_rewired(op, renamed), place))
        made: dict[int, set[int]] = {}
        for var, time in self._made:
            value = self._values.of.get(var, -1)
            if time in self._copies.get(value, ()):
                made.setdefault(value, set()).add(time)
        names = self._without_firsts()
        copies = self._name_copies(names)
        ops = tuple(with_names(op, names) for op, _ in self._ops)
        return Copied(
            program.with_ops(ops, self._vars),
            self._sizes,
            tuple(place for _, place in self._ops),
            tuple(
                op for op, (old, _) in zip(ops, self._ops, strict=True) if id(old) in copies
            ),
            made,
            tuple(self._reads),
        )

    def _at(self, var: VarId, place: int) -> VarId:
        """Return the name under which a var is read at a place, making its copy if due."""
        times = self._copies.get(self._values.of.get(var, -1), [])
        at = bisect_right(times, place)
        if not at:
            return var
        time = times[at - 1]
        if (var, time) not in self._made:
            self._copy(var, time)
        return self._made[var, time]

    def _copy(self, var: VarId, time: int) -> None:
        """Copy the op that makes a var, and first what it reads; chains may be long."""
        stack = [var]
        while stack:
            at = self._values.flow.producer[stack[-1]]
            missing = [v for v in self._values.flow.reads[at] if self._is_due(v, time)]
            if missing:
                stack.extend(missing)
                continue
            if (stack.pop(), time) not in self._made:
                self._emit_copy(at, time)

    def _is_due(self, var: VarId, time: int) -> bool:
        times = self._copies.get(self._values.of.get(var, -1), ())
        return time in times and (var, time) not in self._made

    def _emit_copy(self, at: int, time: int) -> None:
        """Add a copy of an op. It makes an optional output only if that is read again."""
        op = self._values.flow.ops[at]
        optional = operator(op).optional_outputs
        inputs = tuple(self._at(var, time) if var else var for var in op.inputs)
        outputs = tuple(
            self._twin(var, time)
            if var and (at not in optional or self._is_due(var, time))
            else VarId("")
            for at, var in enumerate(op.outputs)
        )
        self._reads.update(
            dict.fromkeys(
                (self._values.of[var], time) for var in op.inputs if var in self._values.of
            )
        )
        copy = op._replace(inputs=inputs, outputs=outputs)
        self._ops.append((copy, self._place))

    def _twin(self, var: VarId, time: int) -> VarId:
        """Return a name for a copy, for now: no name of a model has a zero byte."""
        twin = VarId(f"{var}\0{time}")
        self._twins[twin] = var
        self._made.setdefault((var, time), twin)
        return twin

    def _name_copies(self, names: dict[VarId, VarId]) -> set[int]:
        """Add the copies' own names to ``names``; return the ids of the ops that are copies."""
        used: dict[VarId, int] = {}
        copies: set[int] = set()
        for at, (op, place) in enumerate(self._ops):
            twins = [out for out in op.outputs if out in self._twins]
            if not twins:
                continue
            for twin in twins:
                names[twin] = self._new_name(self._twins[twin], used)
            suffix = names[twins[0]].rpartition("__recompute")[2]
            named = op._replace(name=f"{op.label}__recompute{suffix}")
            outputs = tuple(names.get(out, out) for out in op.outputs)
            named = named._replace(outputs=outputs)
            self._ops[at] = (named, place)
            copies.add(id(named))
        return copies

    def _new_name(self, var: VarId, used: dict[VarId, int]) -> VarId:
        """Add a var for the next copy of one, under the first name that is free."""
        while True:
            number = used[var] = used.get(var, 0) + 1
            twin = VarId(f"{var}__recompute{number if number > 1 else ''}")
            if twin not in self._vars:
                break
        facts = self._vars[var]
        self._vars[twin] = facts._replace(id=twin, name=f"{facts.name}{twin[len(var) :]}")
        size = self._sizes.get(var) or size_of(facts.shape, facts.dtype)
        if size is not None:
            self._sizes[twin] = size
        return twin

    def _without_firsts(self) -> dict[VarId, VarId]:
        """Drop ops that only copies replaced; return the new names of those copies' vars."""
        read: dict[VarId, int] = dict.fromkeys(self._values.program.body.outputs, 1)
        for op, _ in self._ops:
            for var in mentions(op):
                read[var] = read.get(var, 0) + 1
        first: dict[VarId, Op] = {}
        for op, _ in self._ops:
            for out in op.outputs:
                if out in self._twins:
                    first.setdefault(self._twins[out], op)
        names: dict[VarId, VarId] = {}
        kept: list[tuple[Op, int]] = []
        heirs: dict[VarId, Op] = {}
        for op, place in reversed(self._ops):
            outputs = [var for var in op.outputs if var]
            heir = next((first[var] for var in outputs if var in first), None)
            if heir is None or any(map(read.get, outputs)):
                kept.append((op, place))
                continue
            for var in mentions(op):
                read[var] -= 1
            heirs[next(filter(None, heir.outputs))] = op
            names.update(
                (new, old)
                for new, old in zip(heir.outputs, op.outputs, strict=True)
                if new and old
            )
        # What takes an op's place is that op: its name, and outputs that nothing reads.
        self._ops = [
            (op._replace(name=old.name, outputs=old.outputs), place)
            if (old := heirs.get(next(filter(None, op.outputs), VarId("")))) is not None
            else (op, place)
            for op, place in reversed(kept)
        ]
        for new in names:
            del self._twins[new]
        return names


def mentions(op: Op) -> tuple[VarId, ...]:
    """Return the vars that an op reads, subgraphs included."""
    if not op.bodies:
        return tuple(dict.fromkeys(filter(None, op.inputs)))
    inner = (v for body in op.bodies for v in (*body.outputs, *_mentioned_in(body)))
    return tuple(dict.fromkeys((*filter(None, op.inputs), *inner)))


def _mentioned_in(block: Block) -> tuple[VarId, ...]:
    return tuple(var for op in block.ops for var in mentions(op))


def _rewired(op: Op, renamed: Mapping[VarId, VarId]) -> Op:
    if all(old == new for old, new in renamed.items()):
        return op
    return with_names(op, renamed)


def with_names(op: Op, names: Mapping[VarId, VarId]) -> Op:
    """Return an op, subgraphs included, that says another name for some vars."""
    if not op.bodies and not any(var in names for var in op.inputs):
        return op
    return op._replace(
        inputs=tuple(names.get(var, var) for var in op.inputs),
        bodies=tuple(_renamed_block(body, names) for body in op.bodies),
    )


def _renamed_block(block: Block, names: Mapping[VarId, VarId]) -> Block:
    return replace(
        block,
        outputs=tuple(names.get(var, var) for var in block.outputs),
        ops=tuple(with_names(op, names) for op in block.ops),
    )
