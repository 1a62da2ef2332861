"""A model in the opset that has TensorScatter, by ONNX's own converter."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.core.operators import STANDARD_DOMAINS
from memplan_cli.errors import ModelError
from memplan_cli.onnx_io.load import standard_opset

if TYPE_CHECKING:
    from onnx import ModelProto

LEAST = 24
"""The first opset with TensorScatter."""


def converted(model: ModelProto) -> ModelProto:
    """Return a copy of a model in opset `LEAST` or its own, if that is later.

    Raises:
        ModelError: ONNX's converter refuses the model, or leaves a part of it out.
    """
    from onnx import helper, version_converter

    own = standard_opset(model)
    copy = type(model)()
    copy.CopyFrom(model)
    if own >= LEAST:
        return copy
    # Shapes that the file declares wrong would stop the converter, which needs none of them.
    del copy.graph.value_info[:]
    try:
        found = version_converter.convert_version(copy, LEAST)
    except Exception as error:
        raise ModelError(
            f"--kv-cache in-place needs opset {LEAST}, and ONNX cannot convert the model from "
            f"{own}: {_first_line(error)}",
            hint=f"export the model with opset {LEAST}",
        ) from error
    if [v.name for v in found.graph.output] != [v.name for v in model.graph.output]:
        raise ModelError(
            f"ONNX's conversion from opset {own} to {LEAST} renames outputs of the model",
            hint=f"export the model with opset {LEAST}",
        )
    standard = [each for each in found.opset_import if each.domain in STANDARD_DOMAINS]
    found.ir_version = max(model.ir_version, helper.find_min_ir_version_for(standard))
    del found.metadata_props[:]
    found.metadata_props.extend(model.metadata_props)
    return found


def _first_line(error: Exception) -> str:
    lines = [line for line in f"{error}".splitlines() if line.strip()]
    return (lines[-1] if lines else type(error).__name__)[:300]
