"""Networks of int8 for microcontrollers in chunks: peak bytes and multiply-accumulates against msf-CNN's.

`tests.benchmarks.chunking` runs them with its other models.

The networks are the layers that msf-CNN lists (arXiv 2505.11483; analysis_optimization.py of its repository
TinyPART/msf-CNN): inverted bottlenecks without their skips, with the same multiply-accumulates as its results
count. A pooling over the image follows, as it is computed on the device. Weights are seeded.

Guards the claims of docs/measurements/chunking.md: which of msf-CNN's peak bytes are met with at most its
multiply-accumulates, and with the same bits.
"""

from __future__ import annotations

import time
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from memplan_cli import Settings, api
from memplan_cli.core.check import Check

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


class _Layer(NamedTuple):
    """A convolution with a square kernel."""

    channels: int
    kernel: int = 1
    stride: int = 1
    pad: int = 0
    groups: int = 1


def _network(first: list[_Layer], *blocks: tuple[int, int, int, int]) -> list[_Layer]:
    """Return the first layers, and blocks of (channels, expansion, kernel, stride).

    A block expands its channels, convolves each by itself, and projects them.
    """
    layers = list(first)
    for channels, expansion, kernel, stride in blocks:
        wide = expansion * layers[-1].channels
        each = _Layer(wide, kernel, stride, kernel // 2, wide)
        layers += [_Layer(wide), each, _Layer(channels)]
    return layers


_STEM = [_Layer(16, 3, 2, 1), _Layer(16, 3, 1, 1, 16), _Layer(8)]

_MOBILENET = [
    *_network(
        [_Layer(11, 3, 2, 1)],
        (5, 1, 3, 1),
        (8, 6, 3, 2), (8, 6, 3, 1),
        (11, 6, 3, 2), (11, 6, 3, 1), (11, 6, 3, 1),
        (22, 6, 3, 2), (22, 6, 3, 1), (22, 6, 3, 1), (22, 6, 3, 1),
        (33, 6, 3, 1), (33, 6, 3, 1), (33, 6, 3, 1),
        (56, 6, 3, 2), (56, 6, 3, 1), (56, 6, 3, 1), (112, 6, 3, 1),
    ),
    _Layer(448),
]  # fmt: skip

_MCUNET = _network(
    _STEM,
    (16, 3, 7, 2), (16, 5, 3, 1), (16, 5, 7, 1), (16, 4, 5, 1),
    (24, 5, 5, 2), (24, 5, 5, 1), (24, 5, 5, 1),
    (40, 5, 3, 2), (40, 6, 7, 1), (40, 4, 5, 1), (48, 5, 5, 1), (48, 5, 7, 1), (48, 5, 3, 1),
    (96, 6, 3, 2), (96, 5, 7, 1), (96, 4, 3, 1), (160, 5, 7, 1),
)  # fmt: skip

_WAKE_WORDS = _network(
    _STEM,
    (16, 6, 3, 2), (16, 3, 3, 1), (16, 3, 3, 1),
    (24, 3, 7, 2), (24, 6, 3, 1), (24, 5, 5, 1),
    (40, 6, 7, 2), (40, 6, 7, 1), (48, 6, 3, 1), (48, 4, 3, 1),
    (96, 5, 5, 2), (96, 5, 3, 1), (96, 4, 3, 1), (160, 3, 7, 1),
)  # fmt: skip


class _Network(NamedTuple):
    """A network, with what msf-CNN found of it.

    Attributes:
        size: rows and columns of the image.
        anchors: pairs of multiply-accumulates against layer by layer, and the peak bytes with them.
    """

    layers: list[_Layer]
    size: int
    anchors: tuple[tuple[float, int], ...]


NETWORKS: Mapping[str, _Network] = {
    "mobilenet_v2_w035_int8": _Network(
        _MOBILENET, 144, ((1.00, 181_440), (1.30, 21_389), (1.68, 8_560))
    ),
    "mcunet_320kb_int8": _Network(_MCUNET, 176, ((2.02, 63_456), (2.69, 51_164))),
    "mcunet_v2_vww_int8": _Network(_WAKE_WORDS, 80, ((1.96, 15_368),)),
}

HEADS = (
    "network", "image", "msf-CNN bytes", "MACs", "peak before", "peak after", "MACs after", "bound",
    "regions", "bits", "seconds",
)  # fmt: skip


def write_network(path: Path, layers: list[_Layer], size: int) -> None:
    """Write the network as QLinearConvs of uint8 and int8, with a pooling over the image behind them."""
    rng, nodes = np.random.default_rng(0), list[onnx.NodeProto]()
    weights = list[onnx.TensorProto]()

    def constant(values: Any) -> str:  # noqa: ANN401 - numpy's arrays and scalars
        name = f"w{len(weights)}"
        weights.append(numpy_helper.from_array(np.asarray(values), name))
        return name

    scale, zero_point = constant(np.float32(1 / 64)), constant(np.uint8(128))
    weight_zero_point = constant(np.int8(0))
    var, channels = "image", 3
    for number, layer in enumerate(layers):
        dims = (layer.channels, channels // layer.groups, layer.kernel, layer.kernel)
        # The results have about the spread of the inputs.
        weight_scale = constant(np.float32(0.012 / np.sqrt(prod(dims[1:]))))
        weight = constant(rng.integers(-127, 128, dims, np.int8))
        bias = constant(rng.integers(-9, 9, layer.channels, np.int32))
        inputs = (
            var,
            scale,
            zero_point,
            weight,
            weight_scale,
            weight_zero_point,
            scale,
            zero_point,
            bias,
        )
        var, channels = f"conv_{number}", layer.channels
        nodes.append(
            helper.make_node(
                "QLinearConv", inputs, [var], f"n_{var}", group=layer.groups, pads=(layer.pad,) * 4,
                kernel_shape=dims[2:], strides=(layer.stride,) * 2,
            )
        )  # fmt: skip
    nodes.append(
        helper.make_node(
            "QLinearGlobalAveragePool", [var, scale, zero_point, scale, zero_point], ["pooled"],
            "n_pooled", domain="com.microsoft",
        )
    )  # fmt: skip
    image = helper.make_tensor_value_info("image", TensorProto.UINT8, (1, 3, size, size))
    pooled = helper.make_tensor_value_info("pooled", TensorProto.UINT8, (1, channels, 1, 1))
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph(nodes, path.stem, [image], [pooled], weights)
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)


def multiply_accumulates(path: Path) -> int:
    """Return the multiply-accumulates of a file's QLinearConvs."""
    graph = onnx.shape_inference.infer_shapes(onnx.load(path)).graph
    values = (*graph.value_info, *graph.output)
    elements = {
        value.name: prod(dim.dim_value for dim in value.type.tensor_type.shape.dim)
        for value in values
    }
    weights = {weight.name: weight.dims for weight in graph.initializer}
    return sum(
        elements[node.output[0]] * prod(weights[node.input[3]][1:])
        for node in graph.node
        if node.op_type == "QLinearConv"
    )


def network_rows(folder: Path, name: str) -> list[str]:
    """Return a row of the table for each of msf-CNN's results, whose bytes are the budget."""
    network, path = NETWORKS[name], folder / "network.onnx"
    write_network(path, network.layers, network.size)
    rows = []
    for factor, limit in network.anchors:
        began = time.perf_counter()
        settings = Settings(chunk="auto", budget=limit, best_effort=True)
        report = api.optimize(path, settings, check=Check(timeout=3600)).plan.report
        seconds = time.perf_counter() - began
        written = path.with_suffix(".memplan.onnx")
        after = multiply_accumulates(written) / multiply_accumulates(path)
        is_equal = report.validation is not None and report.validation.bit_identical
        cells = (
            name, str(network.size), f"{limit:,}", f"{factor:.2f}", f"{report.original_live_peak:,}",
            f"{report.memory.resident:,}", f"{after:.2f}", f"{report.chunked.bound:,}",
            str(len(report.chunked.regions)), "equal" if is_equal else "other", f"{seconds:.0f}",
        )  # fmt: skip
        rows.append(f"| {' | '.join(cells)} |")
    return rows
