"""Models that ask whether a kernel writes over its operand."""

from __future__ import annotations

from onnx import defs

from benchmarks.in_place_models import ONE_OPS, OneOp
from memplan_cli.core.operators import ONNX


def has_required_attributes(op: OneOp) -> bool:
    if op.domain != ONNX or not defs.has(op.type, op.opset, ""):
        return True
    attributes = defs.get_schema(op.type, op.opset, "").attributes.values()
    return {each.name for each in attributes if each.required} <= op.attributes.keys()


def test_each_probe_has_the_attributes_that_its_operator_requires() -> None:
    assert [op for op in ONE_OPS if not has_required_attributes(op)] == []
