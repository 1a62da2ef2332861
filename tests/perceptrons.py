"""Perceptrons whose activations take more than their weights."""

from __future__ import annotations

import onnx
import onnx.parser

LAYERS = 8


def perceptron(width: int, rows: int) -> onnx.ModelProto:
    """Return layers of one width, on many rows."""
    weights = ", ".join(f"float[{width},{width}] w{n}" for n in range(LAYERS))
    lines, last = [], "x"
    for n in range(LAYERS):
        lines += [f"m{n} = MatMul({last}, w{n})", f"a{n} = Tanh(m{n})"]
        last = f"a{n}"
    text = f"""<ir_version: 10, opset_import: ["" : 21]>
        g (float[{rows},{width}] x) => (float[{rows},{width}] y) <{weights}> {{
        {" ".join(lines)} y = Identity({last}) }}"""
    model = onnx.parser.parse_model(text)
    for n in range(LAYERS):
        values = [((7 * n + at) % 13 - 6) / 20 for at in range(width * width)]
        tensor = onnx.helper.make_tensor(f"w{n}", onnx.TensorProto.FLOAT, [width] * 2, values)
        model.graph.initializer.append(tensor)
    return model
