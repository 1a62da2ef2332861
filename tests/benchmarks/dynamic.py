"""Dynamic and nested models: coverage, figures unbound and bound, every plan checked.

    python -m tests.benchmarks.dynamic [--only TEXT] [--no-table]

An unbound plan is held against ten bindings: the sizes of its tensors are worked out anew
from the model bound to these numbers, all arenas are put one above the other, and the
planner's checker looks for overlaps. A bound plan is held against a static model: the same
graph with numbers in its inputs and every inferred shape thrown away.
"""

from __future__ import annotations

import argparse
import random
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from memplan_cli.core.problem import Buffer, BufferId, Layout, Problem, violations
from memplan_cli.core.symbolic.sizes import size_of, unit_value
from memplan_cli.onnx_io.load import graphs, load_model
from memplan_cli.settings.settings import Settings
from memplan_cli.shapes.bindings import Bindings
from memplan_cli.shapes.reading import read_program
from memplan_cli.workflows.files.model_file import ModelFile, plan_model

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from onnx import ModelProto

    from memplan_cli.core.results.plan import Plan

ROOT = Path(__file__).parents[2]
SHARED = ROOT.parent / "shared" / "models"
TABLE = ROOT / "docs" / "measurements" / "dynamic.md"
BINDINGS = 10

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
        """Yield ten bindings: the ends of the ranges, and eight drawn between them."""
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
    from memplan_cli.core.symbolic.dims import bind_dim

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


def row(case: Case) -> tuple[str, ...]:
    """Return one line of the table, everything in it checked."""
    plan = planned(case, {})
    wrong = [text for dims in case.bindings() for text in found_wrong(case, plan, dims)]
    bound = planned(case, case.complete(case.bound))
    static = planned(replace(case), {}, static_model(case))
    figures = ("weights", "inputs", "outputs", "naive", "live_peak", "planned", "total")
    before, after = bound.report.memory, static.report.memory
    same = all(getattr(before, name) == getattr(after, name) for name in figures)
    units = ", ".join(arena.unit for arena in plan.arenas)
    heights = [arena.height * unit_value(arena.unit, case.complete(case.bound))
               for arena in plan.arenas]  # fmt: skip
    return (
        case.name,
        f"{100 * plan.report.coverage:.0f} %",
        f"{100 * bound.report.coverage:.0f} %",
        f"`{units[:60]}{'...' if len(units) > 60 else ''}`",
        f"{sum(heights):,}",
        f"{before.planned:,}",
        f"{before.live_peak:,}",
        f"{before.total:,}",
        "none" if not wrong else f"{len(wrong)}: {wrong[0]}",
        "equal" if same else "DIFFERENT",
    )


HEADER = (
    "model", "coverage unbound", "bound", "arenas unbound", "one plan for all values, at the binding",
    "planned, bound", "live peak", "total", "wrong at ten bindings", "against static",
)  # fmt: skip


def table(rows: Sequence[tuple[str, ...]]) -> str:
    """Return the page."""
    lines = [" | ".join(HEADER), " | ".join("---" for _ in HEADER)]
    lines += [" | ".join(line) for line in rows]
    bindings = [
        f"`{case.name}`: "
        + ", ".join(f"{n}={v}" for n, v in case.complete(case.bound).items())
        for case in CASES
        if case.bound and case.name != "moe_sparse"
    ]
    return f"""# Dynamic shapes and nested blocks

Made by `python -m tests.benchmarks.dynamic`, level 2, in the order of the file. Bytes.

{chr(10).join(f"| {line} |" for line in lines)}

"Wrong at ten bindings": the ends of each symbol's range and eight drawn bindings; the sizes
of all tensors are worked out anew from the bound model, all arenas are put one above the
other, and the checker looks for overlaps. "Against static": weights, inputs, outputs, naive,
live peak, planned and total of the bound plan and of the same graph with numbers in its
inputs and no inferred shapes.

Bindings: {"; ".join(bindings)}; `moe_sparse`: every expert gets 32 of 256 rows.

Where several symbols make several arenas, one plan for all values costs more than a plan at
the binding: sizes that no expression orders do not share memory. With bounds they do:
`moe_sparse` with `--bounds u0=0..256` and so on for all 16 experts plans
{_bounded():,} bytes for **every** split of the rows.

A name that only inference has for a dim (`unk__0`) is no symbol: nobody could bind it, so the
tensor is unplanned and coverage below 100 %, until `--shape` gives the shape or
`--profile-shapes` observes it. Where the file names the same dim behind a Transpose or another
op that only moves dims, as `u0` behind NonZero in `moe_sparse`, that name is used.
"""


def _bounded() -> int:
    case = next(case for case in CASES if case.name == "moe_sparse")
    path = SHARED / f"{case.name}.onnx"
    settings = Settings(bounds=dict(case.ranges), order="keep")
    height = plan_model(
        ModelFile.of(path, load_model(path)), settings
    ).plan.report.memory.planned
    assert height is not None
    return height


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", metavar="TEXT")
    parser.add_argument("--no-table", action="store_true")
    options = parser.parse_args()
    rows = []
    for case in CASES:
        if options.only in case.name:
            rows.append(row(case))
            print(*rows[-1], sep=" | ", flush=True)
    if not options.no_table and not options.only:
        TABLE.parent.mkdir(parents=True, exist_ok=True)
        TABLE.write_text(table(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
