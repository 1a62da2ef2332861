"""Shapes of every model of the onnx package's backend suite, held against the suite's answers.

    python -m tests.benchmarks.suite_shapes [--only TEXT] [--no-table]

What a model declares of its results is taken away. Each is inferred three times: with names
for the dims of its inputs, with the inputs' sizes, and with the values of small inputs too. Each
result that the suite has an answer for is known (every dim of its, at these sizes), not wholly
known, or wrong.
"""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import numpy_helper

from memplan_cli.core.symbolic.dims import bind_dim
from memplan_cli.errors import MemplanError
from memplan_cli.shapes.bindings import Bindings
from memplan_cli.shapes.reading import read_checked

from .suite_cases import Case, cases, names

if TYPE_CHECKING:
    from collections.abc import Mapping

PAGE = Path(__file__).parents[2] / "docs" / "measurements" / "suite_shapes.md"

KNOWN, OPEN, WRONG, REFUSED = VERDICTS = ("known", "not wholly known", "wrong", "refused")

SMALL = 1024


def undeclared(case: Case, *, free: bool) -> tuple[onnx.ModelProto, dict[str, int]]:
    """Return a model that says nothing of its results; its inputs' dims are names, or sizes."""
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    del model.graph.value_info[:]
    for value in model.graph.output:
        value.ClearField("type")
    dims: dict[str, int] = {}
    weights = {tensor.name for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in weights]
    for value, given in zip(inputs, case.inputs, strict=False):
        if value.type.WhichOneof("value") != "tensor_type" or not hasattr(given, "shape"):
            continue
        value.type.tensor_type.ClearField("shape")
        value.type.tensor_type.shape.SetInParent()
        for size in given.shape:
            dim = value.type.tensor_type.shape.dim.add()
            if free and size > 1:
                dim.dim_param = f"d{size}"
                dims[dim.dim_param] = size
            else:
                dim.dim_value = size
    return model, dims


def values_of(case: Case) -> dict[str, onnx.TensorProto]:
    """Return the small inputs of a case."""
    weights = {tensor.name for tensor in case.model.graph.initializer}
    inputs = [value.name for value in case.model.graph.input if value.name not in weights]
    return {
        name: numpy_helper.from_array(np.asarray(given))
        for name, given in zip(inputs, case.inputs, strict=False)
        if isinstance(given, np.ndarray | np.generic)
        and given.size <= SMALL
        and given.dtype.kind in "biufO"
    }


def judged(case: Case, values: Mapping[str, onnx.TensorProto], *, free: bool) -> Counter[str]:
    """Count the results of a case by what is said of them."""
    model, dims = undeclared(case, free=free)
    found: Counter[str] = Counter()
    try:
        program = read_checked(model, Bindings(values=values)).program
    except MemplanError as error:
        print(f"{case.name}: {str(error)[:150]}", flush=True)
        return Counter({REFUSED: len(case.expected)})
    results = [program.vars[var] for var in program.body.outputs]
    for var, answer in zip(results, case.expected, strict=False):
        if not isinstance(answer, np.ndarray | np.generic):
            continue
        verdict = verdict_of(var.shape, answer.shape, dims)
        if verdict == WRONG:
            print(f"{case.name}: {var.name} {var.shape} is {answer.shape}", flush=True)
        found[verdict] += 1
    return found


def verdict_of(shape: Any, real: tuple[int, ...], dims: Mapping[str, int]) -> str:  # noqa: ANN401 - dims, or None
    """Hold a shape against that of an answer."""
    if shape is None:
        return OPEN
    bound = [bind_dim(dim, dims) for dim in shape]
    if len(bound) != len(real):
        return WRONG
    pairs = list(zip(bound, real, strict=True))
    if any(isinstance(dim, int) and dim != size for dim, size in pairs):
        return WRONG
    return KNOWN if all(dim == size for dim, size in pairs) else OPEN


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="")
    parser.add_argument("--no-table", action="store_true")
    asked = parser.parse_args()
    wanted = [name for name in names() if asked.only in name]
    rows: dict[str, Counter[str]] = {}
    for case in cases(wanted):
        small = values_of(case)
        for name, free, values in (
            ("names for dims", True, {}),
            ("sizes", False, {}),
            ("sizes and small values", False, small),
        ):
            rows.setdefault(name, Counter()).update(judged(case, values, free=free))
    lines = [
        "# Shapes of the ONNX backend suite",
        "",
        f"Made by `python -m tests.benchmarks.suite_shapes` with onnx {onnx.__version__}: results of",
        f"{len(wanted):,} models whose declarations were taken away, against the suite's answers. Values of",
        f"inputs of up to {SMALL:,} elements are given in the last row; what is left open there is data.",
        "",
        "| known of inputs | " + " | ".join(VERDICTS) + " |",
        "|---|" + "---:|" * len(VERDICTS),
    ]
    for name, found in rows.items():
        lines.append(f"| {name} | " + " | ".join(str(found[v]) for v in VERDICTS) + " |")
    print("\n".join(lines))
    if not asked.no_table and not asked.only:
        PAGE.write_text("\n".join(lines) + "\n")
    return int(any(found[WRONG] for found in rows.values()))


if __name__ == "__main__":
    raise SystemExit(main())
