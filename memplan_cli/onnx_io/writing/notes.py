"""What a plan says at nodes and values of a model, for viewers, as bytes of metadata."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from json.encoder import encode_basestring as quoted
from typing import TYPE_CHECKING

from memplan_cli.analysis.liveness import steps
from memplan_cli.core.results.placements import in_words
from memplan_cli.onnx_io.metadata import PREFIX
from memplan_cli.onnx_io.protobuf import messages
from memplan_cli.onnx_io.types import element_type
from memplan_cli.onnx_io.writing.wire import Entries, Field

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from onnx import GraphProto, ValueInfoProto

    from memplan_cli.analysis.liveness import Step
    from memplan_cli.core.program import Program
    from memplan_cli.core.results.placements import Placement
    from memplan_cli.core.results.plan import Plan

_DRAWN = 5000
"""Nodes of a graph that viewers draw."""


@dataclass(frozen=True, slots=True)
class Notes:
    """A plan, sorted by where it is written down."""

    steps: Mapping[str, Sequence[Step]]
    plan: Plan
    inside: Mapping[str, Sequence[Placement]]
    """The tensors of each block; nothing where they are all at the top."""
    unplanned: AbstractSet[str]
    """What the graph is given and gives: nearly always all that it declares."""
    dying: Mapping[int, Sequence[str]]
    """The names of the tensors that are released after each node, by its last tick."""
    units: Mapping[int, str]
    """What the integers of each arena are multiples of."""
    shapes_hold: bool
    """Whether the shapes are the model's own, and not those of one set of bindings."""

    def entries(self, start: int, end: int, memory: str) -> bytes:
        """Return the notes of an op's node, by its first tick and its last one."""
        step_entry, release_entry, memory_entry = _node_entries()
        entries = step_entry.number(start)
        dying = self.dying.get(end, ())
        if dying:
            entries += release_entry(f"[{', '.join(map(quoted, dying))}]")
        return entries + memory_entry(memory) if memory else entries

    def in_words(self, path: str, nodes: int) -> Mapping[str, str]:
        """Return what is said of each tensor of a block at its node; nothing of large graphs.

        Viewers show what is written at a node, and draw no graph that is larger.
        """
        if nodes > _DRAWN:
            return {}
        return {row.name: in_words(row, self.units) for row in self.tensors(path)}

    def tensors(self, path: str) -> Sequence[Placement]:
        """Return the tensors of a block, in the order of the plan."""
        return self.inside.get(path, ()) if self.inside else self.plan.tensors

    @classmethod
    def of(cls, program: Program, plan: Plan) -> Notes:
        """Sort a plan by block and by the steps of its order."""
        clock = steps(program)
        by_block: dict[str, Sequence[Step]] = {program.body.path: clock}
        inside: dict[str, list[Placement]] = {}
        if any(op.bodies for op in program.body.ops):
            by_path: dict[str, list[Step]] = {}
            for step in clock:
                by_path.setdefault(step.block.path, []).append(step)
            by_block.update(by_path)
            for tensor in plan.tensors:
                inside.setdefault(tensor.block, []).append(tensor)
        bound = ("dims", "shapes", "profile_shapes")
        shapes_hold = not any(plan.settings.get(name) for name in bound)
        ends = {*program.body.inputs, *program.body.outputs}
        unplanned = {program.vars[var].name for var in ends}
        units = {arena.id: arena.unit for arena in plan.arenas}
        dying = {release.step: release.tensors for release in plan.releases}
        return cls(by_block, plan, inside, unplanned, dying, units, shapes_hold)


class Values:
    """The notes of a block's values: each is given once, what is left nobody declares."""

    def __init__(self, notes: Notes, path: str, graph: GraphProto) -> None:
        self._notes, self._is_inside = notes, bool(path)
        self._tensors = notes.tensors(path)
        self._left: dict[str, Placement] | None = None
        ends = {value.name for value in (*graph.input, *graph.output)}
        # A large graph declares nothing else, or nearly everything.
        if path or graph.value_info or not ends <= notes.unplanned:
            self._left = {tensor.name: tensor for tensor in self._tensors}
        self._place = _Places(_place_entries())

    def entries(self, name: str) -> bytes:
        """Return the notes of a value, if it has any that were not given yet."""
        row = self._left.pop(name, None) if self._left else None
        return b"" if row is None else self._place(row)

    def undeclared(self) -> Iterator[bytes]:
        """Yield a ValueInfoProto with notes for each value that was not asked for."""
        types: dict[tuple[str, tuple[int | str, ...]], bytes] = {}
        named = Field(messages().ValueInfoProto.NAME_FIELD_NUMBER)
        for row in self._tensors if self._left is None else self._left.values():
            name, _, dtype, shape, *_ = row
            if self._is_inside and 0 in shape:
                continue  # of a branch that is not taken: its type is the nodes' own
            kind = types.get((dtype, shape))
            if kind is None:
                typed = _typed(dtype, shape, self._notes)
                kind = types[dtype, shape] = typed.SerializeToString()
            yield named(name.encode()) + kind + self._place(row)


def _typed(dtype: str, shape: Sequence[int | str], notes: Notes) -> ValueInfoProto:
    """Return a value without a name, of a tensor's type."""
    value: ValueInfoProto = messages().ValueInfoProto()
    kind = value.type.tensor_type
    kind.elem_type = element_type(dtype)
    kind.shape.SetInParent()
    for dim in shape:
        # A runtime believes what it reads: a batch that was bound for the plan only
        # would be folded into the graph.
        if dim == "?" or not notes.shapes_hold:
            kind.shape.dim.add()
        elif isinstance(dim, int):
            kind.shape.dim.add(dim_value=dim)
        else:
            kind.shape.dim.add(dim_param=dim)
    return value


@cache
def _node_entries() -> tuple[Entries, Entries, Entries]:
    field = messages().NodeProto.METADATA_PROPS_FIELD_NUMBER
    step, release, memory = (
        Entries(field, f"{PREFIX}{key}") for key in ("step", "release", "memory")
    )
    return step, release, memory


@cache
def _place_entries() -> tuple[Entries, ...]:
    field = messages().ValueInfoProto.METADATA_PROPS_FIELD_NUMBER
    keys = ("arena", "offset", "bytes", "first", "last", "alias_of")
    return tuple(Entries(field, f"{PREFIX}{key}") for key in keys)


class _Places:
    """The entries that say where a tensor lies and when."""

    def __init__(self, entries: tuple[Entries, ...]) -> None:
        arena, self._offset, size, self._first, self._last, self._alias = entries
        self._arena, self._size = cache(arena.number), cache(size.number)  # there are few

    def __call__(self, row: Placement) -> bytes:
        _, _, _, _, size, arena, offset, _, first, last, alias_of, _ = row
        entries = (
            self._arena(arena)
            + self._offset.number(offset)
            + self._size(size)
            + self._first.number(first)
            + self._last.number(last)
        )
        return entries if alias_of is None else entries + self._alias(alias_of)
