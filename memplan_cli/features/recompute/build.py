"""Writing of a program with copies of ops, from the places at which values are recomputed.

An op reads the latest copy of a value. A copy is written just before the op that first reads
it, after the copies that it needs itself. If nothing reads the original op any more, the
original is dropped and its first copy gets its name.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from memplan_cli.core.names import FreshNames, node_names, value_names
from memplan_cli.core.operators import operator
from memplan_cli.core.program import Block, Op, Program, VarId
from memplan_cli.core.symbolic.sizes import size_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from memplan_cli.core.symbolic.sizes import Size
    from memplan_cli.features.recompute.values import Place, ValueNumber, Values


class ReadByCopy(NamedTuple):
    """A value that a copy reads, and the copy place (see `_CopyWriter`)."""

    value: ValueNumber
    place: Place


@dataclass(frozen=True, slots=True)
class RecomputedProgram:
    """A program with copies.

    Attributes:
        sizes: the sizes of all planned vars, copies included.
        places: for each op its place in the base program; for a copy that of the op which it
        precedes.
        copies: the ops that run in addition to the original op, or to the first copy if the
        original was dropped.
        originals: for each output of a copy the var of the base program that it computes again.
        recomputed_at: for each value the places before which a copy of it runs; also if the copy
        replaces the original, which so runs later. Values are numbered as in `Values`.
        reads_by_copies: the values that copies read.
    """

    program: Program
    sizes: Mapping[VarId, Size]
    places: tuple[Place, ...]
    copies: tuple[Op, ...]
    originals: Mapping[VarId, VarId]
    recomputed_at: Mapping[ValueNumber, Collection[Place]]
    reads_by_copies: frozenset[ReadByCopy]


def write_copies(
    values: Values,
    recomputed_at: Sequence[Collection[Place]],
    sizes: Mapping[VarId, Size],
) -> RecomputedProgram:
    """Return the base program with copies.

    Args:
        values: the values of the base program.
        recomputed_at: for each value the places from which on ops read a new copy of it. A copy is
            written just before the first op that reads it, and not at all if none does.
        sizes: the sizes of the base program's planned vars.
    """
    return _CopyWriter(values, recomputed_at, sizes).write()


class _PlacedOp(NamedTuple):
    """An op of the program that is written; a copy has the place of the op that it precedes."""

    op: Op
    place: Place


class _CopyWriter:
    """Walks the base program once and emits each op, preceded by the copies that it reads.

    A value is a var with all its views, and a place is the index of an op in the base program. A copy
    of a value has a *copy place*: ops from there on read the copy, until the next copy place of the
    value. The copy is emitted before the first op that reads it, which may come later. Copies have
    provisional names until all ops are emitted, as some of them take the name of an original that is
    dropped.
    """

    def __init__(
        self,
        values: Values,
        recomputed_at: Sequence[Collection[Place]],
        sizes: Mapping[VarId, Size],
    ) -> None:
        """Begin with the vars and sizes of the base program, and no op.

        ``recomputed_at`` has for each value, by its number, the *copy places*. With the copy places 5 and 9, ops 5 to
        8 read one copy of the value, and ops from 9 on another.
        """
        self._values = values
        # By number of a value that is recomputed, its ascending copy places.
        self._recomputed_at = {
            value: sorted(places) for value, places in enumerate(recomputed_at) if places
        }
        # A copy of a var is a new var, and is added to both.
        self._sizes = dict(sizes)  # of planned vars
        self._vars = dict(values.program.vars)  # all
        self._copy_of: dict[
            tuple[VarId, Place], VarId
        ] = {}  # var and copy place -> name of the copy
        self._original_of: dict[VarId, VarId] = {}  # name of a copy -> var
        self._ops: list[_PlacedOp] = []  # of the new program, so far
        self._reads_by_copies: set[ReadByCopy] = set()  # the values that copies of ops read
        self._current_place: Place = 0  # of the op to add next, in the base program

    def write(self) -> RecomputedProgram:
        """Return the program with copies. An instance writes only one program."""
        program = self._values.program
        for place, op in enumerate(program.body.ops):
            self._current_place = place
            self._emit_base_op(op, place)  # after the copies that the op reads
        # A copy of ``x`` has a provisional name so far. If ops read only copies of ``x``, the op that makes ``x``
        # is removed, and its first copy is renamed to ``x``: that op runs later, and not twice.
        name_by_replacement = self._replace_unread_originals()
        # The other copies become ``x__recompute``, ..., and are added to `_vars` and `_sizes`.
        name_by_copy = self._name_copies()
        # Ops still read provisional names, the keys of these two tables.
        final_names = {**name_by_replacement, **name_by_copy}
        ops = tuple(with_names(placed.op, final_names) for placed in self._ops)
        originals = {
            name: self._original_of[provisional] for provisional, name in name_by_copy.items()
        }
        return RecomputedProgram(
            program=program.with_ops(ops, self._vars),
            sizes=self._sizes,
            places=tuple(placed.place for placed in self._ops),
            copies=tuple(op for op in ops if not originals.keys().isdisjoint(op.outputs)),
            originals=originals,
            recomputed_at=self._written_copies(),
            reads_by_copies=frozenset(self._reads_by_copies),
        )

    def _emit_base_op(self, op: Op, place: Place) -> None:
        """Emit the op at a place of the base program, reading the latest copy of each input.

        Copies that are not emitted yet are emitted first. An input that is not recomputed at or before the
        place is read as it is.
        """
        copies: dict[VarId, VarId] = {}
        for var in self._values.dataflow.reads[place]:
            copy = self._ensure_copy(var, place)  # the var itself if it is read as it is
            if copy != var:
                copies[var] = copy
        self._ops.append(_PlacedOp(with_names(op, copies) if copies else op, place))

    def _written_copies(self) -> dict[ValueNumber, set[Place]]:
        """Return for each value the planned copy places (`_recomputed_at`) at which a copy of it was emitted."""
        written_copies: dict[ValueNumber, set[Place]] = {}
        # Each key is an emitted copy: the copied var, and the place from which on ops read the copy.
        for var, copy_place in self._copy_of:
            # A copy of an op makes all its required outputs, planned or not.
            if copy_place in self._copy_places(var):
                written_copies.setdefault(self._values.value_of[var], set()).add(copy_place)
        return written_copies

    def _copy_places(self, var: VarId) -> Sequence[Place]:
        """Return the ascending copy places of a var; none for a var without a value."""
        value = self._values.value_of.get(var)
        return () if value is None else self._recomputed_at.get(value, ())

    def _ensure_copy(self, var: VarId, place: Place) -> VarId:
        """Return the latest copy of a var at a place, or the var itself; emit the copy if it is missing.

        For example, with the copy places 5 and 9, ops 5 to 8 read the first copy, ops from 9 on the second
        copy, and ops 0 to 4 the var itself.
        """
        copy_places = self._copy_places(var)
        earlier_count = bisect_right(copy_places, place)  # copy places up to ``place``
        if not earlier_count:
            return var
        copy_place = copy_places[earlier_count - 1]
        if (var, copy_place) not in self._copy_of:
            self._copy_with_inputs(var, copy_place)
        return self._copy_of[var, copy_place]

    def _copy_with_inputs(self, var: VarId, copy_place: Place) -> None:
        """Emit a copy of a var's producer, after copies of inputs with the same copy place.

        The stack takes the place of recursion, as chains may be longer than Python's limit. A
        var stays on it until all copies that its producer reads are emitted.
        """
        dataflow, stack = self._values.dataflow, [var]
        while stack:
            var = stack[-1]
            producer = dataflow.producer[var]
            reads = dataflow.reads[producer]
            if missing := [read for read in reads if self._is_copy_missing(read, copy_place)]:
                stack.extend(missing)
                continue
            stack.pop()
            if (var, copy_place) not in self._copy_of:  # a var may be on the stack twice
                self._emit_copy(producer, copy_place)

    def _is_copy_missing(self, var: VarId, copy_place: Place) -> bool:
        """Whether a var has this copy place, and its copy is not emitted yet."""
        return copy_place in self._copy_places(var) and (var, copy_place) not in self._copy_of

    def _emit_copy(self, producer: Place, copy_place: Place) -> None:
        """Emit a copy of the op at place ``producer``, right before the op at `_current_place`.

        For example, ops from ``copy_place`` 5 on shall read a copy of op ``producer`` 2, and op 8 is the first that
        reads it. Then the copy is emitted right before op 8.
        """
        op, value_of = self._values.dataflow.ops[producer], self._values.value_of
        optional = operator(op).optional_outputs
        # Emits missing copies of inputs first. The op reads nothing else: ops with subgraphs are never copied.
        inputs = tuple(self._ensure_copy(var, copy_place) if var else var for var in op.inputs)
        outputs: list[VarId] = []
        for position, var in enumerate(op.outputs):
            # An optional output is left out unless its value is planned to be copied for these ops too.
            is_omitted = position in optional and copy_place not in self._copy_places(var)
            has_copy = var and not is_omitted
            outputs.append(self._name_copy(var, copy_place) if has_copy else VarId(""))
        # The `DropSchedule`, which gets these reads, has each copy at its copy place (5), not where it is emitted (8).
        self._reads_by_copies.update(
            ReadByCopy(value_of[var], copy_place) for var in op.inputs if var in value_of
        )
        copy = op._replace(inputs=inputs, outputs=tuple(outputs))
        self._ops.append(_PlacedOp(copy, self._current_place))

    def _name_copy(self, var: VarId, copy_place: Place) -> VarId:
        """Record a copy of a var, and return its name, which is provisional: names of models have no zero byte."""
        copy = VarId(f"{var}\0{copy_place}")
        self._original_of[copy] = var
        self._copy_of[var, copy_place] = copy
        return copy

    def _replace_unread_originals(self) -> dict[VarId, VarId]:
        """Remove from `_ops` each original that has a copy and is read by no op; its first copy gets its name.

        For example, if ``a = f(x)`` at 2 is read by no op, but its copy at 7 is, op 2 is removed, and the copy
        at 7 becomes ``a = f(x)``. The copy's provisional name is removed from `_original_of`.

        Returns:
            The final name of each output of these copies, which is the original's, by its provisional
            name; the caller renames the reads.
        """
        unread = self._unread_originals()
        # An op is found by its first output.
        removed = {_first_output(original) for original, _ in unread}
        original_of_copy = {_first_output(copy): original for original, copy in unread}
        names = {
            provisional: final
            for original, copy in unread
            for provisional, final in zip(copy.outputs, original.outputs, strict=True)
            if provisional and final
        }
        ops: list[_PlacedOp] = []
        for placed in self._ops:
            output = _first_output(placed.op)
            if output in removed:
                continue
            if original := original_of_copy.get(output):
                # With all outputs of the original, also those that no op reads.
                op = placed.op._replace(name=original.name, outputs=original.outputs)
                ops.append(_PlacedOp(op, placed.place))  # where the copy was
            else:
                ops.append(placed)
        self._ops = ops
        for provisional in names:
            del self._original_of[provisional]
        return names

    def _unread_originals(self) -> list[tuple[Op, Op]]:
        """Return each original that no op reads and that has a copy, with its first copy."""
        ops = [placed.op for placed in self._ops]
        reader_counts = Counter(self._values.program.body.outputs)
        reader_counts.update(var for op in ops for var in op.reads)
        first_copy: dict[VarId, Op] = {}  # by the original var
        for op in ops:
            for output in op.outputs:
                if output in self._original_of:
                    first_copy.setdefault(self._original_of[output], op)
        unread: list[tuple[Op, Op]] = []
        # From the last op to the first: a removed op no longer reads its inputs.
        for op in reversed(ops):
            outputs = [var for var in op.outputs if var]
            copy = next((first_copy[var] for var in outputs if var in first_copy), None)
            if copy is not None and not any(reader_counts[var] for var in outputs):
                reader_counts.subtract(op.reads)
                unread.append((op, copy))
        return unread

    def _name_copies(self) -> dict[VarId, VarId]:
        """Name the ops that run again and their outputs ``x__recompute``, ``x__recompute2``, ...

        Replaces the provisional names in `_ops`, and adds a var for each output (`_add_var`).

        Returns:
            The new name of each output, by its provisional name; the caller renames the reads.
        """
        program = self._values.program
        var_names, op_names = (
            FreshNames(taken, separator="", first=2)
            for taken in (value_names(program), node_names(program))
        )
        names: dict[VarId, VarId] = {}
        for index, placed in enumerate(self._ops):
            op = placed.op
            copied_outputs = [output for output in op.outputs if output in self._original_of]
            if not copied_outputs:
                continue
            for output in copied_outputs:
                names[output] = self._add_var(self._original_of[output], var_names)
            # The node gets the suffix of its first output, such as ``__recompute2``.
            first_output = copied_outputs[0]
            suffix = names[first_output].removeprefix(self._original_of[first_output])
            named = op._replace(
                name=op_names.fresh(f"{op.label}{suffix}"),
                outputs=tuple(names.get(output, output) for output in op.outputs),
            )
            self._ops[index] = _PlacedOp(named, placed.place)
        return names

    def _add_var(self, var: VarId, names: FreshNames) -> VarId:
        """Add a var for the next copy of ``var``: ``x__recompute``, ``x__recompute2``, ...

        Shape, dtype and size are those of ``var``.
        """
        copy = VarId(names.fresh(f"{var}__recompute"))
        record = self._vars[var]
        self._vars[copy] = record._replace(id=copy, name=copy)
        size = self._sizes.get(var) or size_of(record.shape, record.dtype)
        if size is not None:
            self._sizes[copy] = size
        return copy


def _first_output(op: Op) -> VarId:
    """Return the first output that an op has; an empty name if it has none."""
    return next(filter(None, op.outputs), VarId(""))


def with_names(op: Op, names: Mapping[VarId, VarId]) -> Op:
    """Return an op that reads ``names[var]`` instead of ``var``, also in its subgraphs."""
    if not op.bodies and not any(var in names for var in op.inputs):
        return op
    return op._replace(
        inputs=tuple(names.get(var, var) for var in op.inputs),
        bodies=tuple(_block_with_names(body, names) for body in op.bodies),
    )


def _block_with_names(block: Block, names: Mapping[VarId, VarId]) -> Block:
    """Return a subgraph that reads and returns ``names[var]`` instead of ``var``."""
    return replace(
        block,
        outputs=tuple(names.get(var, var) for var in block.outputs),
        ops=tuple(with_names(op, names) for op in block.ops),
    )
