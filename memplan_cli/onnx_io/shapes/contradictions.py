"""Declared types that contradict what the nodes make.

What a file declares wins wherever shapes are read, in ONNX's inference too, and a tensor that is
declared too small would get a place too small. So each node is queried once more: given the types
of what it reads, what does it make? Nodes that are alike in all that decides the answer
(operator, attributes, types, the values of shapes) are queried once, so a large network costs
little more than a look at each node. Where a graph computes a shape, the nodes that compute it
are queried along.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, NamedTuple

from memplan_cli.core.operators import ML, ONNX, SHAPE_QUERIES, operator
from memplan_cli.core.program import Origin, VarId
from memplan_cli.onnx_io.shapes.node_query import NodeQuery, contents_of, may_say_shape
from memplan_cli.onnx_io.shapes.onnx_inference import NEED_A_TYPE, answered
from memplan_cli.onnx_io.shapes.subgraphs.results import given_by_bodies
from memplan_cli.onnx_io.shapes.workarounds import is_invented
from memplan_cli.onnx_io.traversal import subgraphs
from memplan_cli.onnx_io.types import UNKNOWN, declared_types, element_type

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence

    from onnx import GraphProto, ModelProto, NodeProto

    from memplan_cli.core.program import Block, Dim, Op, Program, Shape, Var
    from memplan_cli.onnx_io.shapes.node_query import Content
    from memplan_cli.onnx_io.types import DeclaredType

    Queried = tuple[Op, NodeProto]

_LONGEST = 80
"""Characters of a name in a message."""

_MOST_DIMS = 12
"""Dims of a shape in a message."""


class Contradiction(NamedTuple):
    """A value that the program holds to be of another type than its node makes."""

    var: Var
    made: str

    def __str__(self) -> str:
        where = f" in {_short(self.var.block)}" if self.var.block else ""
        declared = _formatted((self.var.dtype, self.var.shape))
        return f"{_short(self.var.name)}{where} is declared {declared}, its node makes {self.made}"


def contradictions(model: ModelProto, program: Program) -> tuple[Contradiction, ...]:
    """Return the results that are surely of another type than the program holds them to be.

    Surely: another dtype, rank or number, or a number where the size is free. A node that
    inference has no answer for contradicts nobody. What has subgraphs is compared with what
    they give; a Constant's tensor says itself what it is.
    """
    likeness = _Likeness.of(model.graph, program)
    alike: dict[Hashable, Queried] = {}
    for graph, block in likeness.blocks:
        for key, op in likeness.keyed(block):
            if key not in alike:
                alike[key] = op, graph.node[op.source]
    wrong = _denied(model, likeness, alike)
    nested = [op for _, block in likeness.blocks for op in block.ops if op.bodies]
    return (
        *_of_control_flow(nested, program.vars),
        *(_of_nodes(likeness, wrong) if wrong else ()),
    )


def _of_nodes(
    likeness: _Likeness, wrong: Mapping[Hashable, Sequence[tuple[int, str]]]
) -> Iterator[Contradiction]:
    for _, block in likeness.blocks:
        for key, op in likeness.keyed(block):
            for at, made in wrong.get(key, ()):
                yield Contradiction(likeness.known[op.outputs[at]], made)


def _of_control_flow(
    nodes: Iterable[Op], known: Mapping[VarId, Var]
) -> Iterator[Contradiction]:
    for op in nodes:
        for var, given in zip(op.outputs, given_by_bodies(op, known), strict=False):
            made = _instead(op, known, var, given) if var else ""
            if made:
                yield Contradiction(known[var], made)


def _blocks(graph: GraphProto, block: Block) -> Iterator[tuple[GraphProto, Block]]:
    """Yield every block with its graph, control-flow nodes before their subgraphs."""
    waiting = [(graph, block)]
    for graph, block in waiting:  # noqa: PLR1704 - each in its turn, the first included
        yield graph, block
        for op in block.ops:
            if op.bodies:
                inner = (body for _, body in subgraphs(graph.node[op.source]))
                waiting.extend(zip(inner, op.bodies, strict=True))


@dataclass(frozen=True, slots=True)
class _Likeness:
    """Which ops are alike in all that decides the types of their results?"""

    blocks: Sequence[tuple[GraphProto, Block]]
    known: Mapping[VarId, Var]
    contents: Mapping[VarId, Content]
    kinds: Mapping[VarId, int]
    """A number for each var; vars of one type have one number."""

    @classmethod
    def of(cls, graph: GraphProto, program: Program) -> _Likeness:
        numbers: dict[tuple[str, Shape | None], int] = {}
        kinds, weights = {VarId(""): -1}, []
        for var in program.vars.values():
            name, dtype, shape, origin, _, _ = var
            kinds[name] = numbers.setdefault((dtype, shape), len(numbers))
            if origin is Origin.WEIGHT:
                weights.append(var)
        blocks = list(_blocks(graph, program.body))
        return cls(blocks, program.vars, contents_of(blocks, weights), kinds)

    def keyed(self, block: Block) -> Iterator[tuple[Hashable, Op]]:
        """Yield each op that inference can answer for, after what it shares with its like."""
        kind_of = self.kinds.__getitem__
        for op in block.ops:
            _, kind, inputs, outputs, bodies, domain, _, attributes = op
            if bodies or domain not in (ONNX, ML):
                continue
            key: tuple[Hashable, ...]
            key = (kind, domain, *map(kind_of, inputs), None, *map(kind_of, outputs))
            if attributes:
                key = (*key, *attributes.items())
            first = operator(op).shape_from
            if first is not None:
                if kind == "Constant":
                    continue
                key = (*key, *map(self._said, inputs[first:]))
                if kind == "ConstantOfShape":  # ops do not carry the tensor with its dtype
                    key = (*key, *outputs)
            yield key, op

    def sayers(self, op: Op) -> Iterator[VarId]:
        """Yield the inputs of an op that say a shape and are computed."""
        first = operator(op).shape_from
        return filter(self.is_computed, op.inputs[first:] if first is not None else ())

    def _said(self, var: VarId) -> Hashable:
        """Return the values of what may be a shape; a computed one is like no other."""
        if var in self.contents:
            return self.contents[var].value
        return var if self.is_computed(var) else None

    def is_computed(self, var: VarId) -> bool:
        """Whether a var may be a shape that an op computes."""
        if not var:
            return False
        facts = self.known[var]
        return facts.origin is Origin.OP and may_say_shape(facts)


def _denied(
    model: ModelProto, likeness: _Likeness, alike: Mapping[Hashable, Queried]
) -> dict[Hashable, list[tuple[int, str]]]:
    """Ask one op of each kind; return the positions of outputs, and what is made there."""
    known = likeness.known
    query = NodeQuery(model, known, likeness.contents)
    chain = _chain(likeness, (op for op, _ in alike.values()))
    for op, node in chain:
        query.chain(node, op)
    computed = {var for op, _ in chain for var in op.outputs}
    names: dict[Hashable, list[str]] = {}
    for key, (op, node) in alike.items():
        first = op.inputs[0] if op.inputs else VarId("")
        # What must have a type gets one only if it is declared: no answer may be empty.
        typed = first and first not in computed and element_type(known[first].dtype)
        if typed or op.type not in NEED_A_TYPE:
            names[key] = query.add(node, op)
    answer = answered(query.data())
    types = declared_types(answer.graph) if answer is not None else {}
    wrong: dict[Hashable, list[tuple[int, str]]] = {}
    for key, results in names.items():
        op, _ = alike[key]
        for at, (var, name) in enumerate(zip(op.outputs, results, strict=True)):
            made = _instead(op, known, var, types.get(name, UNKNOWN)) if var else ""
            if made:
                wrong.setdefault(key, []).append((at, made))
    return wrong


def _chain(likeness: _Likeness, queried: Iterable[Op]) -> list[Queried]:
    """Return the ops that compute what others read as a shape, producers first."""
    waiting = [var for op in queried for var in likeness.sayers(op)]
    if not waiting:
        return []
    producer: dict[VarId, int] = {}
    places: list[Queried] = []
    for graph, block in likeness.blocks:
        for op in block.ops:
            if not op.bodies and not op.domain and op.type not in NEED_A_TYPE:
                producer.update(dict.fromkeys(op.outputs, len(places)))
                places.append((op, graph.node[op.source]))
    found: set[int] = set()
    while waiting:
        at = producer.get(waiting.pop())
        if at is None or at in found:
            continue
        found.add(at)
        op, _ = places[at]
        if op.type not in SHAPE_QUERIES:
            waiting.extend(var for var in op.inputs if likeness.is_computed(var))
    return [places[at] for at in sorted(found)]


def _instead(op: Op, known: Mapping[VarId, Var], var: VarId, made: DeclaredType) -> str:
    """Return in words what an op makes, where that is not what the var is declared to be."""
    declared = known[var]
    dtype, shape = made
    if UNKNOWN[0] not in (dtype, declared.dtype) and dtype != declared.dtype:
        return _formatted(made)
    if declared.shape is None:
        return ""
    if shape is not None and (
        len(shape) != len(declared.shape) or any(map(_differs, declared.shape, shape))
    ):
        return _formatted(made)
    if op.type == "Reshape":
        given, taken = _elements(known[op.inputs[0]].shape), _elements(declared.shape)
        if given is not None and taken is not None and given != taken:
            return f"{given} elements of {declared.dtype}"
    return ""


def _differs(declared: Dim, made: Dim) -> bool:
    """Whether a dim is surely another one; a name says nothing against a name."""
    if not isinstance(declared, int) or declared < 0:
        return False
    if isinstance(made, str):
        return not is_invented(made)
    return made is not None and made >= 0 and made != declared


def _elements(shape: Shape | None) -> int | None:
    sizes = [dim for dim in shape or () if isinstance(dim, int) and dim >= 0]
    return prod(sizes) if shape is not None and len(sizes) == len(shape) else None


def _formatted(facts: DeclaredType) -> str:
    dtype, shape = facts
    if shape is None:
        return f"{dtype} of some rank"
    dims = [_word(dim) for dim in shape[:_MOST_DIMS]]
    return f"{dtype}[{','.join(dims)}{', ..' if len(shape) > _MOST_DIMS else ''}]"


def _word(dim: Dim) -> str:
    text = "?" if dim is None else str(dim)
    text = text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
    return text if text.isprintable() else repr(text)


def _short(name: str) -> str:
    return repr(name if len(name) <= _LONGEST else f"{name[: _LONGEST - 3]}...")
