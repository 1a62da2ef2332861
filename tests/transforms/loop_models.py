"""Models of dynamic axes with long activations, as exporters write them."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper

from transforms.chunk_models import Maker

BOUNDS = {"batch": (1, 16), "seq": (4, 128)}


def _dim(make: Maker, x: str, axis: int) -> str:
    """Read a size off a tensor, as exporters do."""
    return make.node("Gather", make.node("Shape", x), make.constant(np.array([axis])), axis=0)


def _told(make: Maker, x: str, *rest: int) -> str:
    """Return a shape whose first sizes are those of a tensor."""
    known = make.constant(np.array(rest, np.int64))
    return make.node("Concat", _dim(make, x, 0), _dim(make, x, 1), known, axis=0)


def _saved(make: Maker, result: str, opset: int = 20) -> onnx.ModelProto:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", "seq", 16])
    output = helper.make_tensor_value_info(result, TensorProto.FLOAT, None)
    graph = helper.make_graph(make.nodes, "loops", [x], [output], make.weights)
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10
    )
    return onnx.shape_inference.infer_shapes(model, data_prop=True)


def encoder(layers: int = 1) -> onnx.ModelProto:
    """Attention and an MLP, shapes read off tensors in the middle."""
    make, x = Maker(), "x"
    for _ in range(layers):
        q, k, v = (
            make.node(
                "Transpose",
                make.node(
                    "Reshape",
                    make.node("MatMul", x, make.weight(16, 16)),
                    _told(make, x, 2, 8),
                ),
                perm=(0, 2, 1, 3),
            )
            for _ in range(3)
        )
        scores = make.node("MatMul", q, make.node("Transpose", k, perm=(0, 1, 3, 2)))
        mixed = make.node("MatMul", make.node("Softmax", scores, axis=-1), v)
        turned = make.node("Transpose", mixed, perm=(0, 2, 1, 3))
        flat = make.node("Reshape", turned, _told(make, turned, 16))
        x = make.node("Add", x, make.node("MatMul", flat, make.weight(16, 16)))
        wide = make.node("Erf", make.node("MatMul", x, make.weight(16, 64)))
        x = make.node("Add", x, make.node("MatMul", wide, make.weight(64, 16)))
        x = make.node("LayerNormalization", x, make.weight(16), make.weight(16), axis=-1)
    return _saved(make, x)


def exact(kinds: list[str]) -> onnx.ModelProto:
    """Products and moves of small whole numbers, which every order of summing gives alike."""
    make, x, width = Maker(), "x", 16

    def whole(*dims: int) -> str:
        return make.constant(make.rng.integers(-2, 3, dims).astype(np.float32))

    for kind in kinds:
        if kind == "scores":
            turned = make.node("Transpose", x, perm=(0, 2, 1))
            scores = make.node("Relu", make.node("MatMul", x, turned))
            signs = make.node("Sign", make.node("Sub", scores, whole(1)))
            x = make.node("Sign", make.node("MatMul", signs, x))
        elif kind == "wide":
            wide = make.node("Relu", make.node("MatMul", x, whole(width, 4 * width)))
            x = make.node("Sign", make.node("MatMul", wide, whole(4 * width, width)))
        elif kind == "parted":
            shape = _told(make, x, 4, 4)
            parted = make.node("Neg", make.node("Reshape", x, shape))
            x = make.node("Reshape", parted, _told(make, x, 16))
        elif kind == "flat":
            rows = make.constant(np.array([-1, 16], np.int64))
            flat = make.node("Abs", make.node("Reshape", x, rows))
            x = make.node("Sub", make.node("Reshape", flat, _told(make, x, 16)), whole(16))
        else:
            x = make.node("Add", x, make.node("Mul", x, whole(16)))
    return _saved(make, x)
