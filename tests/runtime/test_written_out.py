"""Operators that the runtime has no kernel for: their nodes run behind all others, and that is said."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx
import pytest

from builders import parse
from memplan_cli.core.bindings import Binding
from memplan_cli.core.check import Check
from memplan_cli.onnx_io.shapes.reading import read_program
from memplan_cli.runtime.run.baseline import BaselineRun
from memplan_cli.runtime.settings_search.written_model import (
    WrittenModel,
    read_baseline_graph,
)
from memplan_cli.runtime.verification.verify import verify

if TYPE_CHECKING:
    from pathlib import Path

    from memplan_cli.runtime.verification.verify import Verification

BRANCHES = 8
MIB = 1 << 20

KINDS = {
    "written out": 'l{n} = NegativeLogLikelihoodLoss<reduction = "sum">(a{n}, t)',
    "a kernel": "l{n} = ReduceSum<keepdims = 0>(a{n})",
}
"""A loss, which ONNX defines by others, and a sum, which the runtime computes itself."""


def proved(tmp_path: Path, kind: str) -> Verification:
    """Prove a model of branches of 1 MiB, one after the other, as it stands."""
    branches = "\n".join(
        f"c{n} = Constant<value_float = {n + 1}.0>()\n a{n} = Mul(x, c{n})\n"
        + KINDS[kind].format(n=n)
        for n in range(BRANCHES)
    )
    losses = ", ".join(f"l{n}" for n in range(BRANCHES))
    text = f"s (float[512, 512] x, int64[512] t) => (float[] y, int64[512] u) {{ {branches}\n"
    model = parse(f"{text} y = Sum({losses})\n u = Identity(t) }}")
    path, other = tmp_path / "a.onnx", tmp_path / "b.onnx"
    for each in (path, other):
        onnx.save(model, each)
    written = WrittenModel(other, read_program(model).program, spoiled_by_optimization=True)
    with BaselineRun(path, model, Check("cpu"), Binding()) as run:
        baseline = run.result()
        return verify(baseline, read_baseline_graph(baseline), written)


@pytest.mark.parametrize("kind", KINDS)
def test_a_peak_of_inlined_functions_is_not_predicted_and_that_is_said(
    tmp_path: Path, kind: str
) -> None:
    found = proved(tmp_path, kind)
    assert found.verdict.bit_identical
    assert found.facts is not None
    predicted, observed = (
        side["optimized"].first_run_peak
        for side in (found.facts.predicted, found.facts.observed)
    )
    assert predicted is not None
    assert observed is not None
    is_inlined = kind == "written out"
    assert (observed > predicted) is is_inlined
    assert (observed > BRANCHES * MIB) is is_inlined
    assert (
        any("nodes that the file does not have" in said for said in found.warnings)
        is is_inlined
    )
