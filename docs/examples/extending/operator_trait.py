"""The plan of a model with an operator whose result is not written over its input."""

from __future__ import annotations

from onnx import parser

import memplan_cli

MODEL = parser.parse_model("""
    <ir_version: 10, opset_import: ["": 20]>
    normalized (float[64, 256] x) => (float[64, 256] y) {
        a = Exp(x)
        b = LpNormalization(a)
        y = Neg(b)
    }
""")


def main() -> None:
    """Print the bytes that a plan of the model needs."""
    print(f"{memplan_cli.plan(MODEL).report.memory.planned} bytes")


if __name__ == "__main__":
    main()
