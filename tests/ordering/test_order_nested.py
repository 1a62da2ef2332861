"""Orders of programs with bodies, against every order of every block, on random programs."""

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations, product
from math import prod

import onnx
import onnx.parser

from memplan_cli.analysis.storage import live_peak
from memplan_cli.core.program import (
    Block,
    Op,
    Origin,
    Program,
    Var,
    VarId,
    blocks,
    captures,
    walk,
)
from memplan_cli.core.symbolic.sizes import Size
from memplan_cli.onnx_io.shapes.reading import read_program
from memplan_cli.ordering.best_order import best_order

_TYPES = ("Relu", "Add", "Identity", "Conv", "Conv", "Loop", "If")


class Maker:
    """Makes a random program with bodies up to two levels deep."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.vars: dict[VarId, Var] = {}
        self.sizes: dict[VarId, Size] = {}

    def program(self) -> Program:
        given = self.var("x", Origin.INPUT, "")
        del self.sizes[given]
        body = self.block("", (given,), (given,), 4, 0)
        for var in body.outputs:
            self.sizes.pop(var, None)
        return Program("nested", body, self.vars)

    def var(self, name: str, origin: Origin, path: str, size: int = 0) -> VarId:
        identity = VarId(f"{path}/{name}" if path else name)
        size = size or self.draw.choice((1, 2, 4, 8))
        self.vars[identity] = Var(identity, "uint8", (size,), origin, name, path)
        self.sizes[identity] = Size(size)
        return identity

    def block(
        self,
        path: str,
        inputs: tuple[VarId, ...],
        known: tuple[VarId, ...],
        most: int,
        deep: int,
    ) -> Block:
        seen = [*known, *inputs]
        ops = []
        for index in range(self.draw.randint(2, most)):
            kind = self.draw.choice(_TYPES if deep < 2 else _TYPES[:-2])
            count = 2 if kind == "Add" else 1
            reads = tuple(self.draw.choice(seen[-4:]) for _ in range(count))
            bodies = self.bodies(kind, f"{path}/{kind}{index}", tuple(seen), deep)
            same = self.sizes.get(reads[0], Size(0)).coefficient
            size = same if self.draw.random() < 0.6 else 0
            # No two values have one name: a subgraph that uses the name of an outer value fixes orders.
            out = self.var(f"v{len(self.vars)}", Origin.OP, path, size)
            ops.append(Op(f"{kind}{index}", kind, reads, (out,), bodies, source=index))
            seen.append(out)
        made = [var for op in ops for var in op.outputs]
        return Block(inputs, (self.draw.choice(made),), tuple(ops), path)

    def bodies(
        self, kind: str, path: str, known: tuple[VarId, ...], deep: int
    ) -> tuple[Block, ...]:
        if kind == "Loop":
            carried = self.var("c", Origin.BODY_INPUT, f"{path}.body")
            return (self.block(f"{path}.body", (carried,), known, 3, deep + 1),)
        if kind == "If":
            names = (f"{path}.then", f"{path}.else")
            return tuple(self.block(name, (), known, 2, deep + 1) for name in names)
        return ()


def reads(op: Op) -> set[VarId]:
    return {*op.inputs, *(var for body in op.bodies for var in captures(body))}


def all_blocks(block: Block) -> Iterator[Block]:
    """Yield a block in every order of its ops and of all bodies below."""
    variants = [
        [op._replace(bodies=bodies) for bodies in product(*map(all_blocks, op.bodies))]
        for op in block.ops
    ]
    made = {var for op in block.ops for var in op.outputs}
    for order in permutations(range(len(block.ops))):
        known: set[VarId] = set()
        for index in order:
            if not (reads(block.ops[index]) & made) <= known:
                break
            known.update(block.ops[index].outputs)
        else:
            for ops in product(*(variants[index] for index in order)):
                yield replace(block, ops=ops)


def runs(block: Block, known: frozenset[VarId]) -> bool:
    """Whether every op of a block, and below, finds what it reads."""
    made = set(known) | set(block.inputs)
    for op in block.ops:
        if not set(op.inputs) <= made:
            return False
        if not all(runs(body, frozenset(made)) for body in op.bodies):
            return False
        made.update(op.outputs)
    return set(block.outputs) <= made


def test_nested_programs_are_never_worse_and_bounds_hold() -> None:
    proved = 0
    for seed in range(60):
        maker = Maker(seed)
        program = maker.program()
        found = best_order(program, maker.sizes)
        peak = live_peak(found.program, maker.sizes)
        assert peak == found.peaks[found.chosen], seed
        assert peak <= live_peak(program, maker.sizes), seed
        assert {b.path for b in blocks(found.program.body)} == {
            b.path for b in blocks(program.body)
        }, seed
        assert sorted(op.outputs for _, op in walk(found.program.body)) == sorted(
            op.outputs for _, op in walk(program.body)
        ), seed
        assert runs(found.program.body, frozenset()), seed
        peaks = []
        for body in all_blocks(program.body):
            peaks.append(live_peak(replace(program, body=body), maker.sizes))
            if len(peaks) > 400:
                break
        else:
            assert found.bound is not None, seed
            assert found.bound <= min(peaks), seed
            assert not found.proved or peak == min(peaks), seed
            proved += found.proved
    assert proved >= 20


def test_subgraphs_keep_the_files_order_where_no_peak_is_in_one() -> None:
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 21]>
        g (float[4] x, int64 n, bool go) => (float[1] y) {
          z = Loop (n, go, x) <body = l (int64 i, bool k, float[4] now) => (bool o, float[1] m)
            { o = Identity(k)
              w = Concat<axis = 0>(now, now, now)  v = Concat<axis = 0>(now, now)
              s = ReduceMax(w)  t = ReduceMin(v)  m = Add(s, t) }>
          wide = Concat<axis = 0>(z, z, z, z, z, z, z, z)
          also = Concat<axis = 0>(x, x, x, x, x, x, x, x)
          one = ReduceMax(wide)  two = ReduceMax(also)  y = Add(one, two) }""")
    program = read_program(model).program
    made = [var for var in program.vars.values() if var.origin is Origin.OP and var.id != "y"]
    known = {var.id: [dim for dim in var.shape or () if isinstance(dim, int)] for var in made}
    sizes = {var: Size(prod(dims)) for var, dims in known.items()}
    found = best_order(program, sizes)
    assert found.chosen != "file"
    assert found.program.body.ops != program.body.ops
    loops = [op for way in (program, found.program) for op in way.body.ops if op.bodies]
    assert loops[0] == loops[1]
