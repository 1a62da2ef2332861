"""Tiny models written by exporters, each function run in an environment that has them.

    python field_exporters.py FOLDER NAME..

A file that stands alone: it is run by the Python of the exporters' environment, which
has no memplan. Each exporter writes into FOLDER and says on stdout what it
leaves out and why.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Case = tuple[Any, tuple[Any, ...], dict[str, Any]]
    """A module, what it is traced with, and which dims of that are free."""

RNG = np.random.default_rng(7)


def sklearn_models(folder: Path) -> None:
    from skl2onnx import to_onnx
    from sklearn.ensemble import GradientBoostingClassifier, RandomForestClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.neural_network import MLPRegressor
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    x = RNG.normal(size=(80, 6)).astype(np.float32)
    y = (x[:, 0] + x[:, 1] > 0).astype(np.int64)
    estimators: Mapping[str, tuple[Any, dict[str, Any]]] = {
        "logistic_zipmap": (make_pipeline(StandardScaler(), LogisticRegression()), {}),
        "forest": (RandomForestClassifier(8, max_depth=4, random_state=0), {"zipmap": False}),
        "boosting": (GradientBoostingClassifier(n_estimators=5), {"zipmap": False}),
        "mlp": (MLPRegressor(hidden_layer_sizes=(16, 8), max_iter=50), {}),
    }
    for name, (estimator, options) in estimators.items():
        estimator.fit(x, y)
        told = {id(estimator): options} if options else None
        model = to_onnx(estimator, x[:1], options=told)
        onnx.save(model, folder / f"skl2onnx_{name}.onnx")


def spox_models(folder: Path) -> None:
    import spox
    import spox.opset.ai.onnx.v18 as op

    x = spox.argument(spox.Tensor(np.float32, ("batch", "features")))
    weight = op.const(RNG.normal(size=(1, 32)).astype(np.float32))
    rows = op.gather(op.shape(x), op.const(np.int64(0)))
    steps = op.cast(
        op.range(op.const(np.int64(0)), rows, op.const(np.int64(1))), to=np.float32
    )
    shifted = op.add(x, op.unsqueeze(steps, op.const(np.array([1], dtype=np.int64))))
    wide = op.mul(op.reduce_sum(shifted, op.const(np.array([1], np.int64))), weight)
    onnx.save(spox.build({"x": x}, {"y": op.relu(wide)}), folder / "spox_range.onnx")

    flag = spox.argument(spox.Tensor(np.bool_, ()))
    (either,) = op.if_(
        flag,
        then_branch=lambda: [op.concat([x, x], axis=0)],
        else_branch=lambda: [op.exp(x)],
    )
    onnx.save(spox.build({"x": x, "flag": flag}, {"y": either}), folder / "spox_if.onnx")

    (looped,) = op.loop(
        op.const(np.int64(4)),
        v_initial=[x],
        body=lambda _i, _go, kept: [
            op.const(np.ones((), np.bool_)),
            op.tanh(op.add(kept, kept)),
        ],
    )
    onnx.save(spox.build({"x": x}, {"y": looped}), folder / "spox_loop.onnx")


def _float_network(folder: Path) -> Path:
    """Write a small network of convolutions and a dense layer, to be quantized."""
    text = """<ir_version: 9, opset_import: ["" : 17]>
    net (float[batch,3,32,32] x) => (float[batch,10] y) {
        a = Conv<kernel_shape = [3,3], pads = [1,1,1,1]>(x, w0)
        b = Relu(a)
        c = Conv<kernel_shape = [3,3], strides = [2,2], pads = [1,1,1,1]>(b, w1)
        d = Relu(c)
        e = GlobalAveragePool(d)
        f = Flatten(e)
        y = MatMul(f, w2)
    }"""
    model = onnx.parser.parse_model(text)
    for name, shape in {"w0": (16, 3, 3, 3), "w1": (32, 16, 3, 3), "w2": (32, 10)}.items():
        data = RNG.normal(size=shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(data, name))
    path = folder / "float.tmp"
    onnx.save(model, path)
    return path


def quantized_models(folder: Path) -> None:
    from onnxruntime.quantization import (
        CalibrationDataReader,
        QuantFormat,
        quantize_dynamic,
        quantize_static,
    )

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.left = 4

        def get_next(self) -> dict[str, Any] | None:
            self.left -= 1
            shape = (1, 3, 32, 32)
            return {"x": RNG.normal(size=shape).astype(np.float32)} if self.left >= 0 else None

    network = _float_network(folder)
    for name, form in (("qdq", QuantFormat.QDQ), ("qoperator", QuantFormat.QOperator)):
        quantize_static(network, folder / f"quantize_{name}.onnx", Reader(), quant_format=form)
    quantize_dynamic(network, folder / "quantize_dynamic.onnx")
    network.unlink()


def torch_models(folder: Path) -> None:
    import torch
    from torch import nn

    class Masked(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(100, 32)
            self.layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
            self.head = nn.Linear(32, 100)

        def forward(self, ids: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
            padding = torch.arange(ids.shape[1])[None, :] >= lengths[:, None]
            return self.head(self.layer(self.embed(ids), src_key_padding_mask=padding))

    class Pyramid(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.down = nn.Conv2d(3, 8, 3, stride=2, padding=1)
            self.mix = nn.Conv2d(11, 4, 3, padding=1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            low = torch.relu(self.down(x))
            up = nn.functional.interpolate(low, size=x.shape[2:], mode="bilinear")
            return self.mix(torch.cat([up, x], 1))

    class Recurrent(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(16, 24, batch_first=True, bidirectional=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.lstm(x)[0].mean(1)

    ids, lengths = torch.ones(2, 12, dtype=torch.int64), torch.tensor([12, 5])
    image, series = torch.randn(2, 3, 48, 64), torch.randn(2, 12, 16)
    batch, wide = {0: "batch"}, {0: "batch", 2: "height", 3: "width"}
    cases: Mapping[str, Case] = {
        "masked": (Masked(), (ids, lengths), {"ids": {**batch, 1: "seq"}, "lengths": batch}),
        "pyramid": (Pyramid(), (image,), {"x": wide}),
        "lstm": (Recurrent(), (series,), {"x": {**batch, 1: "time"}}),
    }
    _export(folder, cases)


def torch_loops(folder: Path) -> None:
    import torch
    from torch import nn

    class Cells(nn.Module):  # type: ignore[misc]
        """A loop over time that exporters write out."""

        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.LSTMCell(32, 64), nn.LSTMCell(64, 64)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            low = high = (x.new_zeros(x.shape[0], 64), x.new_zeros(x.shape[0], 64))
            made = []
            for step in range(x.shape[1]):
                low = self.first(x[:, step], low)
                high = self.second(low[0], high)
                made.append(high[0])
            return torch.stack(made, 1)

    class Decoder(nn.Module):  # type: ignore[misc]
        """A decoder that attends to its input and reads what it said last."""

        def __init__(self) -> None:
            super().__init__()
            self.cell, self.said = nn.GRUCell(32 + 48, 48), nn.Linear(48, 32)
            self.keys = nn.Linear(32, 48)

        def forward(self, memory: torch.Tensor) -> torch.Tensor:
            keys, word = self.keys(memory), memory[:, 0]
            state = torch.tanh(keys[:, 0])
            words = []
            for _ in range(40):
                weights = torch.softmax((keys * state[:, None]).sum(-1), 1)
                seen = (weights[:, :, None] * keys).sum(1)
                state = self.cell(torch.cat([word, seen], 1), state)
                word = self.said(state)
                words.append(word)
            return torch.stack(words, 1)

    steps, batch = torch.randn(2, 48, 32), {0: "batch"}
    cases: Mapping[str, Case] = {
        "cells": (Cells(), (steps,), {"x": batch}),
        "decoder": (Decoder(), (steps,), {"memory": {**batch, 1: "time"}}),
    }
    _export(folder, cases)


def _export(folder: Path, cases: Mapping[str, Case]) -> None:
    """Write each module by both of PyTorch's exporters."""
    import torch

    for name, (module, inputs, axes) in cases.items():
        for exporter, dynamo in (("ts", False), ("dynamo", True)):
            shapes = (
                {"dynamic_shapes": tuple(dict.fromkeys(axis, torch.export.Dim.AUTO)
                                         for axis in axes.values())}
                if dynamo else {"dynamic_axes": axes}
            )  # fmt: skip
            path = folder / f"torch_{name}_{exporter}.onnx"
            try:
                torch.onnx.export(
                    module.eval(), inputs, str(path), input_names=list(axes),
                    dynamo=dynamo, opset_version=18, external_data=False, **shapes,
                )  # fmt: skip
            except Exception as error:  # noqa: BLE001 - one exporter's word, not the end
                print(
                    f"left out: {path.stem}: {' '.join(str(error).split())[:200]}", flush=True
                )


EXPORTERS: Mapping[str, Callable[[Path], None]] = {
    "skl2onnx": sklearn_models,
    "spox": spox_models,
    "quantize": quantized_models,
    "torch": torch_models,
    "torch_loops": torch_loops,
}


def main() -> None:
    folder = Path(sys.argv[1])
    for name in sys.argv[2:]:
        try:
            EXPORTERS[name](folder)
        except Exception as error:  # noqa: BLE001 - the others go on
            print(
                f"left out: {name}: {type(error).__name__}: {' '.join(str(error).split())[:200]}"
            )


if __name__ == "__main__":
    main()
