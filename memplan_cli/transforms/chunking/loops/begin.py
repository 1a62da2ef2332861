"""A program as loops begin with it: shapes are worked out from those of the inputs.

Exporters read shapes off tensors in the middle, which would have to be there whole for that
alone: ``Shape(hidden) -> Gather -> Concat -> Reshape``. Where the sizes of a tensor follow from
those of the inputs, its shape is written from these, and so is what a Reshape is told.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from memplan_cli.core.program import Origin, Program, Var, VarId, captures
from memplan_cli.transforms.chunking.loops.blocks import without_unread
from memplan_cli.transforms.chunking.loops.sized import shape_input
from memplan_cli.transforms.chunking.loops.values import is_told, sources
from memplan_cli.transforms.chunking.loops.write import Looped

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan_cli.core.program import Op, Shape


def begun(program: Program) -> Looped:
    """Return a program without loops whose shapes are told by its inputs where they can be."""
    told = sources(program)
    captured = {var for op in program.body.ops for body in op.bodies for var in captures(body)}
    stays = {*captured, *program.body.outputs}
    shapes: dict[Shape, VarId] = {}
    instead: dict[VarId, VarId] = {}
    vars_ = dict(program.vars)
    for op in program.body.ops:
        dims = _dims_read(op, program, told)
        if dims is None or op.outputs[0] in stays:
            continue
        if dims not in shapes:
            shapes[dims] = _new(vars_, f"loop_shape_of_{len(shapes)}", len(dims))
        instead[op.outputs[0]] = shapes[dims]
    ops = []
    for op in program.body.ops:
        inputs = [instead.get(var, var) for var in op.inputs]
        dims = _dims_told(op, program, told)
        if dims is not None:
            if dims not in shapes:
                shapes[dims] = _new(vars_, f"loop_shape_of_{len(shapes)}", len(dims))
            inputs[shape_input(op) or 0] = shapes[dims]
        ops.append(op._replace(inputs=tuple(inputs)))
    if not shapes:
        return Looped(program)
    body = replace(program.body, ops=tuple(ops))
    return Looped(without_unread(replace(program, body=body, vars=vars_), program), (), shapes)


def _dims_read(op: Op, program: Program, told: Mapping[str, object]) -> Shape | None:
    """Return the shape that an op reads off a tensor that another one makes, if inputs tell it."""
    if op.type != "Shape" or op.domain:
        return None
    read = program.vars[op.inputs[0]]
    if read.origin is not Origin.OP or read.shape is None or not is_told(read.shape, told):
        return None
    start, end = op.attributes.get("start", 0), op.attributes.get("end", len(read.shape))
    if not isinstance(start, int) or not isinstance(end, int):
        return None
    return read.shape[start:end] or None


def _dims_told(op: Op, program: Program, told: Mapping[str, object]) -> Shape | None:
    """Return the shape of what an op makes that reads it from another op, if inputs tell it."""
    told_by = shape_input(op)
    if told_by is None:
        return None
    made = program.vars[op.outputs[0]].shape
    if program.vars[op.inputs[told_by]].origin is not Origin.OP or not made:
        return None
    return made if is_told(made, told) else None


def _new(vars_: dict[VarId, Var], name: str, length: int) -> VarId:
    while name in vars_:
        name += "_"
    identity = VarId(name)
    vars_[identity] = Var(identity, "int64", (length,), Origin.OP, name)
    return identity
