"""A shape rule: MaxUnpool with an output shape as its third input."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onnx import parser, shape_inference

from memplan_cli.onnx_io.shapes.interpret import RULES, interpret
from memplan_cli.onnx_io.shapes.lattice import shape_in

if TYPE_CHECKING:
    from onnx import NodeProto

    from memplan_cli.core.program import Shape
    from memplan_cli.onnx_io.shapes.symbolic.values import Values

MODEL = parser.parse_model("""
    <ir_version: 9, opset_import: ["": 18]>
    unpooled (float[batch, 3, 8, 8] image, float[batch, 3, 4, 4] pooled,
              int64[batch, 3, 4, 4] places) => (float[n, c, h, w] y) {
        shape = Shape(image)
        large = MaxUnpool <kernel_shape = [2, 2], strides = [2, 2]> (pooled, places, shape)
        y = Relu(large)
    }
""")


def max_unpool(values: Values, node: NodeProto) -> Shape | None:
    """Return the value of the third input, which is the output shape; None if it is unknown."""
    return values.input_dims(node, 2)


EXTENDED = {**RULES, "MaxUnpool": max_unpool}


def main() -> None:
    """Print the shape of a tensor without the rule and with it."""
    inferred = shape_inference.infer_shapes(MODEL, data_prop=True)
    for title, rules in (("without", RULES), ("with", EXTENDED)):
        proto = interpret(inferred, rules=rules).types.get("large")
        print(f"{title} the rule: {'unknown' if proto is None else shape_in(proto)}")


if __name__ == "__main__":
    main()
