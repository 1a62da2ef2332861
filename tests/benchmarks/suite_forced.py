"""Rewrites that no saving asks for: any valid order, and any copy that is allowed.

Both go through the program that memplan plans and the code that writes models, so that
the rewriting is tried on every operator of the backend suite.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from onnx import helper

from memplan_cli.analysis.aliasing import SHARE_SAFELY
from memplan_cli.core.program import Block, Op, Program, VarId, captures, intermediates
from memplan_cli.core.symbolic.sizes import size_of
from memplan_cli.transforms.rematerialization.build import build
from memplan_cli.transforms.rematerialization.values import find_values, may_run_twice

if TYPE_CHECKING:
    import random

    from onnx import ModelProto


def shuffled(program: Program, rng: random.Random) -> Program:
    """Return the program in a random valid order, bodies too."""
    return replace(program, body=_shuffled(program.body, rng))


def _shuffled(block: Block, rng: random.Random) -> Block:
    ops = [op._replace(bodies=tuple(_shuffled(b, rng) for b in op.bodies)) for op in block.ops]
    maker = {var: at for at, op in enumerate(ops) for var in op.outputs if var}
    waits = [
        {maker[var] for var in _reads(op) if var in maker} - {at} for at, op in enumerate(ops)
    ]
    order: list[int] = []
    left = set(range(len(ops)))
    while left:
        ready = sorted(at for at in left if waits[at].isdisjoint(left))
        order.append(rng.choice(ready))
        left.remove(order[-1])
    return replace(block, ops=tuple(ops[at] for at in order))


def _reads(op: Op) -> set[VarId]:
    return {*op.inputs, *(var for body in op.bodies for var in captures(body))}


@dataclass(frozen=True)
class Copies:
    """A program in which ops run again, and how many do.

    With none, an op may still run later than it did: where only copies are read, the first
    goes, and its earliest copy takes its name.
    """

    program: Program
    count: int
    why_none: str = ""


def read_twice(model: ModelProto) -> ModelProto:
    """Return a model whose outputs are made by an Identity each, and by a second one.

    A graph output is always there and never made again; behind an Identity it is an
    intermediate that two nodes read, and the second of them can ask for a copy. Most of
    the suite's models are one node, whose results are all outputs.
    """
    wider = type(model)()
    wider.CopyFrom(model)
    graph = wider.graph
    given = list(graph.output)
    del graph.output[:]
    for value in given:
        for suffix in ("first", "again"):
            name = f"{value.name}.{suffix}"
            graph.node.append(helper.make_node("Identity", [value.name], [name], name=name))
            output = graph.output.add()
            output.CopyFrom(value)
            output.name = name
    if not any(opset.domain in ("", "ai.onnx") for opset in wider.opset_import):
        wider.opset_import.append(helper.make_opsetid("", 16))
    return wider


def copied(program: Program, rng: random.Random) -> Copies:
    """Make each value that may be made twice again before some of its readers."""
    found = ((var, program.vars[var]) for var in intermediates(program))
    sizes = {var: size_of(facts.shape, facts.dtype) for var, facts in found}
    known = {var: size for var, size in sizes.items() if size is not None}
    values = find_values(program, known, frozenset(), SHARE_SAFELY)
    chosen = [
        _some(reads[1:], rng) if work >= 0 else ()
        for reads, work in zip(values.reads, values.work, strict=True)
    ]
    if not any(chosen):
        return Copies(program, 0, _why_none(program))
    made = build(values, chosen, known)
    return Copies(made.program, len(made.copies))


def _some(reads: tuple[int, ...], rng: random.Random) -> tuple[int, ...]:
    return tuple(at for at in reads if at == reads[-1] or rng.random() < 0.5)


def _why_none(program: Program) -> str:
    ops = [op for op in program.body.ops if op.type != "Identity"]
    for label, kept in (
        ("it draws random numbers", lambda op: op.is_random),
        ("it owns bodies, whose cost is not known", lambda op: op.bodies),
        ("it works on sequences, which may change where they stand",
         lambda op: op.type.startswith("Sequence")),
        ("it may have state, or write over what it reads", lambda op: not may_run_twice(op)),
    ):  # fmt: skip
        if ops and all(kept(op) for op in ops):
            return f"{ops[0].type} never runs twice: {label}"
    return "no node makes a value that may be made twice"
