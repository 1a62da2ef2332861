"""A rewrite: an Expand runs again before each reader of its result, so that the result is not kept."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import onnx
from onnx import parser

from memplan_cli.api.models.model_file import read_model, source_of
from memplan_cli.api.rewrites import REWRITES
from memplan_cli.core.program import Op, VarId
from memplan_cli.core.results.rewrites import RecomputeSummary
from memplan_cli.onnx_io.shapes.reading import read_program
from memplan_cli.planning.candidates import in_best_order
from memplan_cli.planning.planner import make_plan
from memplan_cli.settings.settings import Settings

if TYPE_CHECKING:
    from memplan_cli.planning.candidate import Candidate, PlanningTask
    from memplan_cli.planning.planner import PlannedProgram
    from memplan_cli.planning.rewrites import Rewrites

MODEL = parser.parse_model("""
    <ir_version: 10, opset_import: ["": 20]>
    scaled (float[64, 256] x, float[256] scale) => (float[64, 256] y) {
        shape = Constant <value_ints = [64, 256]> ()
        first = Constant <value_ints = [0]> ()
        wide = Expand(scale, shape)
        product = Mul(x, wide)
        joined = Concat <axis = 0> (product, product, product)
        top = ReduceMax (joined, first)
        y = Mul(top, wide)
    }
""")


def expand_again(task: PlanningTask) -> Candidate:
    """Return the program with a copy of an Expand before each further reader of its result."""
    program, sizes = task.program, dict(task.planned_vars.sizes)
    variables = dict(program.vars)
    expands = {op.outputs[0]: op for op in program.body.ops if op.type == "Expand"}
    ops: list[Op] = []
    copies: list[Op] = []
    was_read: set[VarId] = set()
    for op in program.body.ops:
        copy_of: dict[VarId, VarId] = {}
        for var in set(op.inputs) & expands.keys() & sizes.keys() & was_read:
            copy = VarId(f"{var}__recompute{len(copies)}")
            variables[copy] = variables[var]._replace(id=copy, name=copy)
            sizes[copy], copy_of[var] = sizes[var], copy
            # The check of written models accepts copies with this suffix and the same ``source``.
            copies.append(expands[var]._replace(name=copy, outputs=(copy,)))
            ops.append(copies[-1])
        was_read.update(op.inputs)
        ops.append(op._replace(inputs=tuple(copy_of.get(var, var) for var in op.inputs)))
    candidate = in_best_order(task, program.with_ops(ops, variables), sizes)
    return replace(candidate, recompute=RecomputeSummary(nodes=len(copies)))


EXTENDED = replace(REWRITES, recompute={**REWRITES.recompute, "auto": expand_again})


def planned(path: Path, rewrites: Rewrites = EXTENDED) -> PlannedProgram:
    """Plan a model with ``recompute: auto``, which the new rewrite carries out."""
    file = read_model(path)
    program = read_program(file.model).program
    return make_plan(program, Settings(recompute="auto"), source_of(file), rewrites)


def main() -> None:
    """Plan the model without the rewrite and with it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "scaled.onnx"
        onnx.save(MODEL, path)
        report = planned(path).plan.report
        print(f"as given: {report.original_planned} bytes")
        print(f"with {report.recompute.nodes} copy: {report.memory.planned} bytes")


if __name__ == "__main__":
    main()
