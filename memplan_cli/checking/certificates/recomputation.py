"""Bounds that hold whatever nodes are run again: what one needs, or what a kept value keeps out.

A value is made, and kept until a node reads it. Whatever else that node reads has to be there
too: it was live while the value was made, or was made since, beside it. What does not fit
beside it cannot have been. So while the value is made, all ways from what cannot be made to
what is read have something live on them: as much, at least, as flows along these ways where
no more flows through a value than its bytes.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from memplan_cli.checking.certificates.graph import reads
from memplan_cli.checking.certificates.operators import OPTIONAL_RESULTS
from memplan_cli.checking.certificates.refused import refuse_unless
from memplan_cli.checking.operators import REPEATING, SAME_BYTES

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from memplan_cli.checking.certificates.tensors import Tensor
    from memplan_cli.checking.clock import Clock, Node
    from memplan_cli.core.results.certificate import RecomputeProof, Way

_COPY = re.compile(r"__recompute\d*$")


@dataclass(slots=True)
class _Values:
    """The values of the outermost block without the copies of nodes, each by its oldest name.

    Attributes:
        nodes: The nodes that are no copies, by their first result.
        of: The value whose bytes each name shows.
        maker: The node that makes each value.
        always: The bytes that are live at every step.
    """

    tensors: Mapping[str, Tensor]
    overwrites: Mapping[str, tuple[int, ...]]
    nodes: dict[str, Node] = field(default_factory=dict)
    of: dict[str, str] = field(default_factory=dict)
    maker: dict[str, Node] = field(default_factory=dict)
    always: int = 0
    names: dict[str, str] = field(default_factory=dict)
    """The name of what each copy's result is a copy of."""

    def size(self, value: str) -> int:
        """Return a value's bytes; of one that the plan does not place, none."""
        tensor = self.tensors.get(value)
        return tensor.size.coefficient if tensor is not None and not tensor.size.symbols else 0

    def reads(self, node: Node) -> set[str]:
        """Return the values that a node reads, subgraphs included."""
        return {self.of[name] for name in self._read_names(node) if name in self.of}

    def _read_names(self, node: Node) -> Iterator[str]:
        for value in reads(node):
            yield self.names.get(value.identity, value.identity)

    def makes(self, node: Node) -> set[str]:
        """Return the values that a node makes, or makes views of."""
        made = (value.identity for value in node.outputs if value is not None)
        return {self.of[name] for name in made if name in self.of}

    def touched(self, node: Node) -> set[str]:
        """Return the values that have to be live at a node's step."""
        # What a branch reads can be gone when the node's results are made.
        return self.reads(node) | (set() if _runs_one(node) else self.makes(node))

    def touched_again(self, value: str) -> set[str]:
        """Return those of a copy that makes a value, and no result besides that it need not."""
        node = self.maker[value]
        touched = self.touched(node)
        if node.proto.op_type not in OPTIONAL_RESULTS:
            return touched
        first = node.outputs[0]
        kept = {value, self.of.get(first.identity, "") if first is not None else ""}
        return touched - (self.makes(node) - kept)

    def takes(self, node: Node, there: Collection[str]) -> int:
        """Return the bytes of some values, less what a node may write over another."""
        return sum(map(self.size, there)) - self._overwritten(node)

    def _overwritten(self, node: Node) -> int:
        result = node.outputs[0] if node.outputs else None
        if (
            result is None
            or result.identity not in self.of
            or result.identity not in self.tensors
        ):
            return 0
        size = self.tensors[result.identity].size
        for at in self.overwrites.get(node.kind, ()):
            value = node.inputs[at] if at < len(node.inputs) else None
            name = "" if value is None else self.names.get(value.identity, value.identity)
            if name in self.of and name in self.tensors and self.tensors[name].size == size:
                return 0 if size.symbols else size.coefficient
        return 0


def check_recomputation(
    clock: Clock,
    tensors: Mapping[str, Tensor],
    overwrites: Mapping[str, tuple[int, ...]],
    proof: RecomputeProof,
) -> None:
    """Refuse a proof that does not show a bound for all orders with whatever copies.

    Raises:
        RefusedError: with the reason.
    """
    values = _read(clock, tensors, overwrites)
    if proof.method == "step":
        node = values.nodes.get(proof.node)
        refuse_unless(node is not None, f"no node makes {proof.node[:120]!r} first")
        assert node is not None  # noqa: S101 - for the type checker
        found = values.always + values.takes(node, values.touched(node))
        refuse_unless(
            found >= proof.bound,
            f"the node that makes {proof.node[:120]!r} needs {found} bytes, not {proof.bound}",
        )
        return
    _Kept(values, proof.kept, proof.bound - 1 - values.always).check(proof.ways)


def _read(
    clock: Clock, tensors: Mapping[str, Tensor], overwrites: Mapping[str, tuple[int, ...]]
) -> _Values:
    values = _Values(tensors, overwrites)
    kept = {value.identity for value in clock.top.outputs}
    kept |= {name for name, tensor in tensors.items() if tensor.row.pinned is not None}
    values.always = sum(
        tensor.size.coefficient for tensor in tensors.values() if tensor.row.pinned is not None
    )
    made: dict[str, Node] = {}
    for node in clock.top.nodes:
        twin = _twin(node, made, values)
        if twin is not None:
            continue
        results = [value for value in node.outputs if value is not None]
        if results:
            values.nodes[results[0].identity] = node
        for value in results:
            made[value.identity] = node
            if value.identity not in kept:
                root = _viewed(node, value.identity, values) or value.identity
                values.of[value.identity] = root
                values.maker.setdefault(root, node)
    return values


def _twin(node: Node, made: Mapping[str, Node], values: _Values) -> Node | None:
    """Return the node of which another one is a copy, and note the names of its results."""
    pairs = {
        value.identity: _COPY.sub("", value.identity)
        for value in node.outputs
        if value is not None and _COPY.search(value.identity)
    }
    twins = [made[name] for name in pairs.values() if name in made]
    if len(twins) != len(pairs) or not twins or any(twin is not twins[0] for twin in twins):
        return None
    twin = twins[0]
    read = [
        None if v is None else values.names.get(v.identity, v.identity) for v in node.inputs
    ]
    wanted = [
        None if v is None else values.names.get(v.identity, v.identity) for v in twin.inputs
    ]
    same = (
        (node.proto.op_type, node.proto.domain) == (twin.proto.op_type, twin.proto.domain)
        and read == wanted
        and not node.bodies
        and [a.SerializeToString() for a in node.proto.attribute]
        == [a.SerializeToString() for a in twin.proto.attribute]
    )
    if not same:
        return None
    values.names.update(pairs)
    return twin


def _viewed(node: Node, name: str, values: _Values) -> str | None:
    """Return the value that a result shows, if it is a view."""
    if not values.overwrites or node.kind not in SAME_BYTES or not node.inputs:
        return None
    first, base = node.outputs[0], node.inputs[0]
    if first is None or first.identity != name or base is None:
        return None
    source = values.names.get(base.identity, base.identity)
    tensors = values.tensors
    same = source in tensors and name in tensors and tensors[source].size == tensors[name].size
    return values.of.get(source) if same else None


def _runs_one(node: Node) -> bool:
    return bool(node.bodies) and node.proto.op_type not in REPEATING


class _Kept:
    """A value that is kept from a run of its maker until a reader runs, in so much room."""

    def __init__(self, values: _Values, kept: str, room: int) -> None:
        refuse_unless(kept in values.maker, f"{kept[:120]!r} is no value that could be kept")
        self._values, self._kept, self._room = values, kept, room
        self._node = values.maker[kept]
        refuse_unless(not _runs_one(self._node), f"{kept[:120]!r} is made by a branch")

    def check(self, ways: Sequence[Way]) -> None:
        """Refuse ways that leave a case out, or need no more than there is room."""
        values = self._values
        whole, less = values.touched(self._node), values.touched_again(self._kept)
        readers = [
            name
            for name, node in values.nodes.items()
            if self._kept in values.reads(node) and self._kept not in values.makes(node)
        ]
        refuse_unless(readers, f"nothing reads {self._kept[:120]!r}")
        cases = [False] if whole == less else [False, True]
        wanted = sorted((name, alone) for alone in cases for name in readers)
        said = sorted((way.reader, way.alone) for way in ways)
        refuse_unless(
            said == wanted, f"there is not one way for each reader of {self._kept[:120]!r}"
        )
        for way in ways:
            free = less if way.alone else whole
            found = values.takes(self._node, free) + self._flow(way, free)
            refuse_unless(
                found > self._room,
                f"while {self._kept[:120]!r} is made for {way.reader[:120]!r}, {found} bytes "
                f"are needed, and there is room for {self._room}",
            )

    def _flow(self, way: Way, free: Collection[str]) -> int:
        """Return what reaches the reader, if no value lets more through than its bytes."""
        values = self._values
        comes: defaultdict[str, int] = defaultdict(int)
        goes: defaultdict[str, int] = defaultdict(int)
        wanted, arrived = values.reads(values.nodes[way.reader]), 0
        for value, made, much in way.passages:
            name = f"{value[:120]!r}"
            refuse_unless(value in values.maker, f"{name} is no value that something passes")
            refuse_unless(value not in free, f"{name} is there already, and something passes")
            goes[value] += much
            if not made:
                refuse_unless(value in wanted, f"{name} is not read by {way.reader[:120]!r}")
                arrived += much
                continue
            refuse_unless(
                made in values.maker and made not in free,
                f"{made[:120]!r} is not made of {name}",
            )
            needs = values.reads(values.maker[made])
            refuse_unless(value in needs, f"{made[:120]!r} is not made of {name}")
            comes[made] += much
        for value, much in goes.items():
            refuse_unless(
                much <= values.size(value),
                f"{much} bytes pass {value[:120]!r}, which has {values.size(value)}",
            )
            refuse_unless(
                much <= comes[value] or self._is_kept_out(value),
                f"{value[:120]!r} could be made beside {self._kept[:120]!r}, and passes more than "
                "comes to it",
            )
        return arrived

    def _is_kept_out(self, value: str) -> bool:
        """Whether a value cannot be made while the kept one is there."""
        values, node = self._values, self._values.maker[value]
        beside = 0 if self._kept in values.touched(node) else values.size(self._kept)
        return values.takes(node, values.touched_again(value)) + beside > self._room
