"""Random ONNX models with If, Loop and Scan, small enough to try every order and packing."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from itertools import permutations, product
from typing import TYPE_CHECKING

from onnx import TensorProto, helper

if TYPE_CHECKING:
    from collections.abc import Iterator

    from onnx import GraphProto, ModelProto, NodeProto

FLOAT, INT, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL

UNARY = ("Relu", "Sigmoid", "Softmax", "Identity")
KINDS = ("unary", "unary", "unary", "binary", "concat", "sum", "if", "loop", "scan")


@dataclass
class Maker:
    """Draws a model; every choice comes from one seeded generator."""

    rng: random.Random
    room: int
    """Nodes of control flow that may still be made."""
    count: int = 0
    sizes: dict[str, int] = field(default_factory=dict)

    def fresh(self, size: int) -> str:
        name = f"v{self.count}"
        self.count += 1
        self.sizes[name] = size
        return name

    def graph(self, known: list[str], most: int) -> tuple[list[NodeProto], list[str]]:
        """Return a block's nodes, and what they make, in order."""
        seen, made, nodes = [*known], [], []
        for _ in range(self.rng.randint(2, most)):
            node = self.node(seen)
            nodes.append(node)
            made += node.output
            seen += node.output
        return nodes, made

    def pick(self, seen: list[str], size: int = 0) -> str | None:
        fit = [name for name in seen[-5:] if not size or self.sizes[name] == size]
        return self.rng.choice(fit) if fit else None

    def node(self, seen: list[str]) -> NodeProto:
        kind = self.rng.choice(KINDS if self.room > 0 else KINDS[:6])
        source = self.pick(seen)
        assert source is not None
        size = self.sizes[source]
        if kind == "binary":
            other = self.pick(seen, size) or source
            return self.named(self.rng.choice(("Add", "Mul")), [source, other], size)
        if kind == "concat" and size <= 4:
            other = self.pick(seen, size) or source
            return self.named("Concat", [source, other], 2 * size, axis=0)
        if kind == "sum":
            return self.named("ReduceSum", [source], 1, keepdims=1)
        if kind in ("if", "loop", "scan"):
            self.room -= 1
            made: NodeProto = getattr(self, f"_{kind}")(source, seen)
            return made
        return self.named(self.rng.choice(UNARY), [source], size)

    def named(self, kind: str, reads: list[str], size: int, **attributes: object) -> NodeProto:
        made = self.fresh(size)
        return helper.make_node(kind, reads, [made], name=f"n_{made}", **attributes)

    def _if(self, source: str, seen: list[str]) -> NodeProto:
        size = self.sizes[source]
        bodies = {}
        for branch in ("then_branch", "else_branch"):
            nodes, made = self.graph(seen, 3)
            last = next((name for name in reversed(made) if self.sizes[name] == size), None)
            if last is None:
                nodes.append(self.named("Relu", [source], size))
                last = nodes[-1].output[0]
            bodies[branch] = helper.make_graph(nodes, branch, [], [_value(last, size)])
        return self.named("If", ["cond"], size, **bodies)

    def _loop(self, source: str, seen: list[str]) -> NodeProto:
        size = self.sizes[source]
        turn, keep, carried = self.fresh(1), self.fresh(1), self.fresh(size)
        nodes, made = self.graph([*seen, carried], 3)
        last = self.carried(nodes, made, carried, size)
        on = self.fresh(1)
        nodes.append(helper.make_node("Identity", [keep], [on], name=f"n_{on}"))
        given = [_value(turn, None, INT), _value(keep, None, BOOL), _value(carried, size)]
        gives = [_value(on, None, BOOL), _value(last, size)]
        for name in (turn, keep, on):
            del self.sizes[name]
        body = helper.make_graph(nodes, "body", given, gives)
        return self.named("Loop", ["turns", "cond", source], size, body=body)

    def _scan(self, source: str, seen: list[str]) -> NodeProto:
        size = self.sizes[source]
        state, row = self.fresh(size), self.fresh(2)
        nodes, made = self.graph([*seen, row, state], 3)
        last = self.carried(nodes, made, state, size)
        body = helper.make_graph(
            nodes, "body", [_value(state, size), _value(row, 2)], [_value(last, size)]
        )
        return self.named("Scan", [source, "rows"], size, body=body, num_scan_inputs=1)

    def carried(self, nodes: list[NodeProto], made: list[str], given: str, size: int) -> str:
        """Return what goes to the next turn: made by a node of the body."""
        fit = [name for name in made if self.sizes[name] == size]
        if fit:
            return self.rng.choice(fit)
        node = self.named("Identity", [given], size)
        nodes.append(node)
        return str(node.output[0])


def _value(name: str, size: int | None, kind: int = FLOAT):  # type: ignore[no-untyped-def]  # noqa: ANN202
    return helper.make_tensor_value_info(name, kind, [] if size is None else [size])


def random_model(seed: int) -> ModelProto:
    """Return a model with at least one node of control flow."""
    while True:
        rng = random.Random(seed)
        most = rng.choice((3, 4, 5, 6))
        maker = Maker(rng, room=2, sizes={"x": 4, "z": 2})
        nodes, made = maker.graph(["z", "x"], most)
        if any(node.op_type in ("If", "Loop", "Scan") for node in nodes):
            break
        seed += 1_000_003
    results = [made[-1], *(rng.sample(made[:-1], 1) if rng.random() < 0.3 else [])]
    given = [_value("x", 4), _value("z", 2), _value("cond", None, BOOL)]
    given += [helper.make_tensor_value_info("rows", FLOAT, [3, 2])]
    turns = helper.make_tensor("turns", INT, [], [2])
    gives = [_value(name, maker.sizes[name]) for name in dict.fromkeys(results)]
    graph = helper.make_graph(nodes, "nested", given, gives, [turns])
    opsets = [helper.make_opsetid("", 21)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def orders(graph: GraphProto) -> Iterator[list[NodeProto]]:
    """Yield the nodes of a graph in every order, those of each subgraph in every order too."""
    nodes = list(graph.node)
    makes = {name: at for at, node in enumerate(nodes) for name in node.output}
    needs = [{makes[name] for name in _reads(node) if name in makes} for node in nodes]
    variants = [list(_variants(node)) for node in nodes]
    for order in permutations(range(len(nodes))):
        done: set[int] = set()
        for at in order:
            if not needs[at] <= done:
                break
            done.add(at)
        else:
            for chosen in product(*(variants[at] for at in order)):
                yield list(chosen)


def _variants(node: NodeProto) -> Iterator[NodeProto]:
    bodies = [attribute for attribute in node.attribute if attribute.HasField("g")]
    for chosen in product(*(orders(attribute.g) for attribute in bodies)):
        copy = type(node)()
        copy.CopyFrom(node)
        inside = [attribute for attribute in copy.attribute if attribute.HasField("g")]
        for attribute, nodes in zip(inside, chosen, strict=True):
            del attribute.g.node[:]
            attribute.g.node.extend(nodes)
        yield copy


def _reads(node: NodeProto) -> set[str]:
    found = set(node.input)
    for attribute in node.attribute:
        if attribute.HasField("g"):
            found.update(name for inner in attribute.g.node for name in _reads(inner))
            found.update(value.name for value in attribute.g.output)
    return found
