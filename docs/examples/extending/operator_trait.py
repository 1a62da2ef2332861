"""The plan of a model with an operator that has no row in the registry of operators."""

from __future__ import annotations

from onnx import parser

import memplan_cli

MODEL = parser.parse_model("""
    <ir_version: 10, opset_import: ["": 20, "example": 1]>
    curved (float[64, 256] x) => (float[64, 256] y)
    <float[64, 256] a, float[64, 256] b> {
        a = Exp(x)
        b = example.Snake(a)
        y = Neg(b)
    }
""")


def main() -> None:
    """Print the bytes that a plan of the model needs."""
    print(f"{memplan_cli.plan(MODEL).report.memory.planned} bytes")


if __name__ == "__main__":
    main()
