"""Plans for all values of the symbols, held against four bindings each.

The sizes of all tensors are worked out anew from the model bound to the numbers of a binding, all
arenas are put one above the other, and the checker of layouts looks for overlaps.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from memplan_cli import api
from memplan_cli.api.models.model_file import ModelFile, plan_model
from memplan_cli.core.problem import Buffer, BufferId, Layout, Problem, violations
from memplan_cli.core.symbolic.bounds import DimRange
from memplan_cli.core.symbolic.dims import bind_dim
from memplan_cli.core.symbolic.sizes import size_of, unit_value
from memplan_cli.onnx_io.load import load_model
from memplan_cli.onnx_io.shapes.bindings import Bindings
from memplan_cli.onnx_io.shapes.reading import read_program
from memplan_cli.onnx_io.traversal import graphs
from memplan_cli.settings.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from onnx import ModelProto

    from memplan_cli.core.results.plan import Plan

SHARED = Path(__file__).parents[2].parent / "shared" / "models"
BINDINGS = 4

Dims = dict[str, int]


@dataclass(frozen=True)
class Case:
    """A model, what its symbols may be, and one binding to compare with a static model."""

    name: str
    ranges: Mapping[str, tuple[int, int]]
    bound: Mapping[str, int]
    derived: str = ""
    """A symbol that is ``new + past``: it cannot be chosen freely."""

    def bindings(self) -> Iterator[Dims]:
        """Yield four bindings: the ends of the ranges, and two drawn between them."""
        draw = random.Random(self.name)
        for at in range(BINDINGS):
            dims = {
                name: low if at == 0 else high if at == 1 else draw.randint(low, high)
                for name, (low, high) in self.ranges.items()
            }
            yield self.complete(dims)

    def complete(self, dims: Mapping[str, int]) -> Dims:
        """Add the derived symbol."""
        return {**dims, self.derived: dims["new"] + dims["past"]} if self.derived else {**dims}


_EXPERTS = {f"u{n}": (0, 256) for n in range(16)}

CASES = (
    Case("bert_base_dyn", {"batch": (1, 64), "seq": (1, 512)}, {"batch": 4, "seq": 128}),
    Case(
        "llama_1b_dyn",
        {"batch": (1, 16), "new": (1, 64), "past": (0, 2048)},
        {"batch": 1, "new": 1, "past": 511},
        "total",
    ),
    Case("resnet50_dynbatch", {"batch": (1, 256)}, {"batch": 8}),
    Case("mobilenetv2_ts", {"batch": (1, 256)}, {"batch": 8}),
    Case("moe_sparse", _EXPERTS, dict.fromkeys(_EXPERTS, 32)),
    Case("loop_greedy_gru", {"steps": (1, 32)}, {"steps": 32}),
    Case("scan_lstm", {}, {}),
    Case("cond_early_exit", {}, {}),
)


def planned(case: Case, dims: Mapping[str, int], model: ModelProto | None = None) -> Plan:
    """Plan a case in the order of its file."""
    path = SHARED / f"{case.name}.onnx"
    settings = Settings(dims=dims, order="keep")
    return plan_model(ModelFile.of(path, model or load_model(path)), settings).plan


def found_wrong(case: Case, plan: Plan, dims: Dims) -> list[str]:
    """Return what is wrong with an unbound plan at one binding; empty if nothing."""
    program = read_program(load_model(SHARED / f"{case.name}.onnx"), Bindings(dims)).program
    wrong, buffers, offsets, base = [], [], {}, 0
    real = {}
    for tensor in plan.tensors:
        var = next(v for v in (program.vars.get(tensor.id),) if v is not None)  # type: ignore[call-overload]
        size = size_of(var.shape, var.dtype)
        factor = unit_value(plan.arenas[tensor.arena].unit, dims)
        if size is None or size.symbols or size.coefficient != tensor.bytes * factor:
            wrong.append(f"{tensor.id} is {size} bytes and planned {tensor.bytes * factor}")
        else:
            real[tensor.id] = size.coefficient
    for arena, (problem, layout) in zip(plan.arenas, plan.problems, strict=True):
        factor = unit_value(arena.unit, dims)
        for buffer in problem.buffers:
            name = BufferId(f"{arena.id}:{buffer.id}")
            buffers.append(Buffer(name, real.get(str(buffer.id), 0), buffer.live))
            offsets[name] = base + layout.offsets[buffer.id] * factor
        base += arena.height * factor
    whole = Layout(offsets, base)
    wrong += [v.reason for v in violations(Problem(tuple(buffers)), whole)]
    return wrong


def static_model(case: Case) -> ModelProto:
    """Return the model with numbers in its inputs and no shape that anything inferred."""
    model = load_model(SHARED / f"{case.name}.onnx")
    dims = case.complete(case.bound)
    values = [*model.graph.input, *model.graph.output]
    for value in values:
        for dim in value.type.tensor_type.shape.dim:
            number = bind_dim(dim.dim_param, dims) if dim.dim_param else None
            if isinstance(number, int):
                dim.dim_value = number
    for graph in graphs(model.graph):
        kept = [v for v in graph.value_info if _depends_on_data(v, case)]
        del graph.value_info[:]
        graph.value_info.extend(kept)
        for value in graph.value_info:
            for dim in value.type.tensor_type.shape.dim:
                if dim.dim_param:
                    dim.dim_value = dims[dim.dim_param]
    return model


def _depends_on_data(value: object, case: Case) -> bool:
    """Whether only the file can say a shape: what an expert is given depends on data."""
    dims = value.type.tensor_type.shape.dim  # type: ignore[attr-defined]
    return case.name == "moe_sparse" and any(dim.dim_param for dim in dims)


pytestmark = pytest.mark.skipif(not SHARED.is_dir(), reason=f"{SHARED} is not there")

every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@every_case
def test_a_plan_for_all_values_is_safe_at_every_binding(case: Case) -> None:
    plan = planned(case, {})
    assert plan.report.coverage == 1.0
    for dims in case.bindings():
        assert found_wrong(case, plan, dims) == []


@every_case
def test_a_bound_model_gives_the_figures_of_a_static_one(case: Case) -> None:
    bound = planned(case, case.complete(case.bound)).report
    static = planned(case, {}, static_model(case)).report
    assert bound.memory == static.memory
    assert bound.memory.total is not None
    assert bound.levels == static.levels


def test_the_check_notices_a_tensor_that_lies_elsewhere() -> None:
    case = CASES[0]
    plan = planned(case, {})
    shared = {t.alias_of for t in plan.tensors if t.alias_of}
    alone = [t for t in plan.tensors if t.id not in shared and not t.alias_of and t.offset]
    chosen = max(alone, key=lambda t: (t.bytes, t.id))
    moved = tuple(t._replace(offset=0) if t.id == chosen.id else t for t in plan.tensors)
    wrong = [found_wrong(case, replace(plan, tensors=moved), dims) for dims in case.bindings()]
    assert all(wrong)


def test_bounds_let_tensors_of_different_symbols_share_memory() -> None:
    path = SHARED / "moe_sparse.onnx"
    dims = {f"u{n}": 256 for n in range(16)}
    apart = planned(CASES[4], {})
    together = api.plan(
        path, Settings(bounds=dict.fromkeys(dims, DimRange(0, 256)), order="keep")
    )
    largest = sum(a.height * (256 if a.unit != "1" else 1) for a in apart.arenas)
    assert together.report.memory.planned is not None
    assert together.report.memory.planned < largest / 10
    assert [arena.unit for arena in together.arenas] == ["1"]
