"""The gate over a history: changes to three models, each with the verdict and what it names."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from story import memplan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

pytestmark = pytest.mark.slow

PASS, FAIL, REFUSED = 0, 1, 2


class Graph:
    """A graph that is built node by node, with random weights."""

    def __init__(self, seed: int = 0) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.random = np.random.default_rng(seed)

    def weight(self, name: str, *shape: int) -> str:
        """Add a weight and return its name."""
        array = (self.random.standard_normal(shape) / 8).astype(np.float32)
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def node(self, kind: str, inputs: str, output: str, **attributes: Any) -> str:  # noqa: ANN401
        """Add a node and return its output."""
        node = helper.make_node(kind, inputs.split(), [output], name=f"{output}_node")
        node.attribute.extend(helper.make_attribute(*item) for item in attributes.items())
        self.nodes.append(node)
        return output

    def model(
        self, x: list[int | str], y: list[int | str], opset: int = 17
    ) -> onnx.ModelProto:
        """Return the model, from ``x`` to ``y``."""
        ends = [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
            for name, shape in (("x", x), ("y", y))
        ]
        graph = helper.make_graph(self.nodes, "history", ends[:1], ends[1:], self.weights)
        opsets = [helper.make_opsetid("", opset)]
        return onnx.shape_inference.infer_shapes(
            helper.make_model(graph, opset_imports=opsets, ir_version=8)
        )


def pictures(
    *, wide: int = 32, seed: int = 0, opset: int = 17, longer_skip: bool = False
) -> onnx.ModelProto:
    """Return a convolutional classifier of a batch of pictures, with a skip connection."""
    g, same = Graph(seed), {"pads": [1, 1, 1, 1]}
    g.node("Conv", f"x {g.weight('stem_w', wide, 3, 3, 3)}", "stem", **same)
    g.node("Relu", "stem", "stem_relu")
    g.node("Conv", f"stem_relu {g.weight('side_w', wide, wide, 1, 1)}", "side")
    g.node("Conv", f"stem_relu {g.weight('body_w', wide, wide, 3, 3)}", "body", **same)
    g.node("Relu", "body", "body_relu")
    g.node("Add", "side body_relu", "sum")
    g.node("Conv", f"sum {g.weight('tail_w', 2 * wide, wide, 3, 3)}", "tail", **same)
    g.node("Sigmoid", "tail", "tail_sigmoid")
    last, channels = g.node("Mul", "tail tail_sigmoid", "swish"), 2 * wide
    if longer_skip:
        last, channels = g.node("Concat", "swish stem_relu", "skipped", axis=1), 3 * wide
    g.node("GlobalAveragePool", last, "pooled")
    g.node("Flatten", "pooled", "flat")
    g.node("MatMul", f"flat {g.weight('head_w', channels, 10)}", "y")
    return g.model(["batch", 3, 64, 64], ["batch", 10], opset)


def words(*, inner: int = 512, seed: int = 0, fused: bool = False) -> onnx.ModelProto:
    """Return one transformer block over a batch of sequences."""
    g, width = Graph(seed), 128
    if fused:
        g.node("MatMul", f"x {g.weight('qkv_w', width, 3 * width)}", "qkv")
        split = helper.make_node("Split", ["qkv"], ["q", "k", "v"], name="qkv_node2", axis=2)
        g.nodes.append(split)
        g.weights.append(numpy_helper.from_array(np.full(3, width, np.int64), "thirds"))
        split.input.append("thirds")
    else:
        for name in "qkv":
            g.node("MatMul", f"x {g.weight(f'{name}_w', width, width)}", name)
    g.node("Transpose", "k", "k_t", perm=[0, 2, 1])
    g.node("MatMul", "q k_t", "scores")
    g.node("Softmax", "scores", "attention")
    g.node("MatMul", "attention v", "mixed")
    g.node("Add", "x mixed", "attended")
    g.node("MatMul", f"attended {g.weight('up_w', width, inner)}", "up")
    g.node("Relu", "up", "up_relu")
    g.node("MatMul", f"up_relu {g.weight('down_w', inner, width)}", "down")
    g.node("Add", "attended down", "y")
    return g.model(["batch", "seq", width], ["batch", "seq", width])


def mask(
    *, wide: int = 16, side: int = 128, seed: int = 0, skip: bool = True
) -> onnx.ModelProto:
    """Return a segmentation net with a skip connection around its inner, smaller part."""
    g, same = Graph(seed), {"pads": [1, 1, 1, 1]}
    g.node("Conv", f"x {g.weight('first_w', wide, 4, 3, 3)}", "first", **same)
    g.node("Relu", "first", "outer")
    g.node("MaxPool", "outer", "half", kernel_shape=[2, 2], strides=[2, 2])
    g.node("Conv", f"half {g.weight('inner_w', wide, wide, 3, 3)}", "inner", **same)
    g.node("Relu", "inner", "inner_relu")
    g.node(
        "ConvTranspose",
        f"inner_relu {g.weight('up_w', wide, wide, 2, 2)}",
        "up",
        strides=[2, 2],
    )
    last, channels = "up", wide
    if skip:
        last, channels = g.node("Concat", "outer up", "joined", axis=1), 2 * wide
    g.node("Conv", f"{last} {g.weight('last_w', 2, channels, 3, 3)}", "y", **same)
    return g.model([1, 4, side, side], [1, 2, side, side])


def with_outputs(model: onnx.ModelProto, *names: str) -> onnx.ModelProto:
    """Return the model with some of its intermediates as outputs too."""
    for value in list(model.graph.value_info):
        if value.name in names:
            model.graph.output.append(value)
    return model


def renamed(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with other names of all tensors but its input and output."""
    ends = {value.name for value in (*model.graph.input, *model.graph.output)}
    for node in model.graph.node:
        for names in (node.input, node.output):
            names[:] = [name if name in ends else f"/m/{name}" for name in names]
    for weight in model.graph.initializer:
        weight.name = f"/m/{weight.name}"
    del model.graph.value_info[:]
    return onnx.shape_inference.infer_shapes(model)


def reordered(model: onnx.ModelProto, first: str, second: str) -> onnx.ModelProto:
    """Return the model with two of its nodes swapped."""
    nodes = list(model.graph.node)
    one, other = ([node.output[0] for node in nodes].index(name) for name in (first, second))
    nodes[one], nodes[other] = nodes[other], nodes[one]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return model


def of_another_exporter(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with weights in Constant nodes, other metadata, and names of numbers."""
    constants = [
        helper.make_node("Constant", [], [weight.name], value=weight)
        for weight in model.graph.initializer
    ]
    nodes = [*constants, *model.graph.node]
    for at, node in enumerate(nodes):
        node.name = str(at)
    del model.graph.node[:], model.graph.initializer[:]
    model.graph.node.extend(nodes)
    return described(model)


def described(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with another producer, a text and metadata."""
    model.producer_name, model.producer_version = "exporter", "2.0"
    model.doc_string = model.graph.doc_string = "trained again"
    helper.set_model_props(model, {"trained": "yesterday"})
    return model


def quantised(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with 8-bit weights that a node makes floats of."""
    graph, stored, nodes = model.graph, [], []
    for weight in graph.initializer:
        array = numpy_helper.to_array(weight)
        scale = np.float32(abs(array).max() / 127)
        stored += [
            numpy_helper.from_array((array / scale).astype(np.int8), f"{weight.name}_8"),
            numpy_helper.from_array(scale, f"{weight.name}_scale"),
        ]
        inputs = [f"{weight.name}_8", f"{weight.name}_scale"]
        nodes.append(helper.make_node("DequantizeLinear", inputs, [weight.name]))
    nodes += graph.node
    del graph.initializer[:], graph.node[:]
    graph.initializer.extend(stored)
    graph.node.extend(nodes)
    return model


def with_computed_weights(model: onnx.ModelProto, name: str) -> onnx.ModelProto:
    """Return the model with one weight as a sum of two constants."""
    graph = model.graph
    (weight,) = (w for w in graph.initializer if w.name == name)
    array = numpy_helper.to_array(weight)
    weight.CopyFrom(numpy_helper.from_array(array / 2, f"{name}_half"))
    node = helper.make_node("Add", [f"{name}_half", f"{name}_half"], [name])
    nodes = [node, *graph.node]
    del graph.node[:]
    graph.node.extend(nodes)
    return model


def with_identity(model: onnx.ModelProto, of: str) -> onnx.ModelProto:
    """Return the model with an Identity between a tensor and its readers."""
    nodes = list(model.graph.node)
    at = [node.output[0] for node in nodes].index(of)
    for node in nodes:
        node.input[:] = [f"{of}_copy" if name == of else name for name in node.input]
    nodes.insert(at + 1, helper.make_node("Identity", [of], [f"{of}_copy"], name="copy"))
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return model


def with_unused_node(model: onnx.ModelProto, of: str) -> onnx.ModelProto:
    """Return the model with a node whose result has no reader."""
    model.graph.node.append(helper.make_node("Shape", [of], ["shape_of_it"], name="left_over"))
    return model


def with_other_dim_name(model: onnx.ModelProto, old: str, new: str) -> onnx.ModelProto:
    """Return the model with a symbolic dim renamed."""
    for value in (*model.graph.input, *model.graph.output):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param == old:
                dim.dim_param = new
    del model.graph.value_info[:]
    return onnx.shape_inference.infer_shapes(model)


BASES: Mapping[str, Callable[[], onnx.ModelProto]] = {
    "pictures": pictures,
    "words": words,
    "mask": mask,
}
SIZES: Mapping[str, tuple[str, ...]] = {
    "pictures": ("--dim", "batch=4"),
    "words": ("--dim", "batch=4", "--dim", "seq=128"),
    "mask": (),
}


class Case(NamedTuple):
    """A change to a model and what the gate should say of it.

    Attributes:
        base: the model that is changed.
        what: the change in words.
        model: makes the changed model.
        exit_code: what the gate ends with.
        named: tensors that must be among those that grew, or words of the refusal.
        sizes: the options of the check; None: those of the baseline.
    """

    base: str
    what: str
    model: Callable[[], onnx.ModelProto]
    exit_code: int
    named: tuple[str, ...] = ()
    sizes: tuple[str, ...] | None = None


HISTORY = (
    Case("pictures", "nothing", pictures, PASS),
    Case("pictures", "weights only", lambda: pictures(seed=1), PASS),
    Case("pictures", "tensors renamed", lambda: renamed(pictures()), PASS),
    Case("pictures", "nodes reordered", lambda: reordered(pictures(), "side", "body"), PASS),
    Case("pictures", "another opset", lambda: pictures(opset=13), PASS),
    Case("pictures", "texts and metadata", lambda: described(pictures()), PASS),
    Case("pictures", "an Identity", lambda: with_identity(pictures(), "body_relu"), PASS),
    Case(
        "pictures", "wider layers", lambda: pictures(wide=48), FAIL, ("tail", "tail_sigmoid")
    ),
    Case(
        "pictures", "a longer skip", lambda: pictures(longer_skip=True), FAIL, ("stem_relu",)
    ),
    # The arena has room for one output of 2 MiB that the caller keeps until the next run: a measured
    # process has the same peak with it and without it. It grows by 8.5 MiB with three such outputs.
    Case("pictures", "a debug output", lambda: with_outputs(pictures(), "sum"), PASS),
    Case(
        "pictures",
        "three debug outputs",
        lambda: with_outputs(pictures(), "side", "stem_relu", "sum"),
        FAIL,
        ("side", "stem_relu", "sum"),
    ),
    # Packing is not the same for folded weights: a measured process grows by 4.9 MB too.
    Case("pictures", "quantised weights", lambda: quantised(pictures()), FAIL, ("tail_w_8",)),
    Case(
        "pictures",
        "a larger batch",
        pictures,
        REFUSED,
        ("x=4,3,64,64", "check with x=8,3,64,64", "--dim batch=4"),
        ("--dim", "batch=8"),
    ),
    Case("pictures", "no sizes given", pictures, REFUSED, ("--dim batch=4",), ()),
    Case("words", "nothing", words, PASS),
    Case("words", "weights only", lambda: words(seed=1), PASS),
    Case("words", "tensors renamed", lambda: renamed(words()), PASS),
    Case("words", "another exporter", lambda: of_another_exporter(words()), PASS),
    Case("words", "a node without a reader", lambda: with_unused_node(words(), "up"), PASS),
    Case(
        "words",
        "another name of a dim",
        lambda: with_other_dim_name(words(), "seq", "tokens"),
        PASS,
        sizes=("--dim", "batch=4", "--dim", "tokens=128"),
    ),
    Case("words", "a wider layer", lambda: words(inner=1024), FAIL, ("up_relu", "up_w")),
    Case("words", "three products in one", lambda: words(fused=True), PASS),
    Case(
        "words",
        "quantised weights",
        lambda: quantised(words()),
        REFUSED,
        ("MatMulNBits packs its weights was not measured", "--metric planned"),
    ),
    Case(
        "words",
        "five debug outputs",
        lambda: with_outputs(words(), "q", "k", "scores", "attention", "mixed"),
        FAIL,
        ("q", "k", "scores", "attention", "mixed"),
    ),
    Case(
        "words",
        "longer sequences",
        words,
        REFUSED,
        ("x=4,128,128", "check with x=4,256,128", "--dim seq=128"),
        ("--dim", "batch=4", "--dim", "seq=256"),
    ),
    Case("mask", "nothing", mask, PASS),
    Case("mask", "weights only", lambda: mask(seed=1), PASS),
    Case("mask", "fewer channels", lambda: mask(wide=8), PASS),
    Case("mask", "no skip", lambda: mask(skip=False), PASS),
    Case(
        "mask",
        "constants of one weight not folded",
        lambda: with_computed_weights(mask(), "inner_w"),
        PASS,
    ),
    Case("mask", "more channels", lambda: mask(wide=24), FAIL, ("outer", "joined")),
    Case("mask", "larger pictures", lambda: mask(side=192), FAIL, ("outer", "joined", "x")),
)


@pytest.fixture(scope="module")
def baselines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the baseline of each model."""
    folder = tmp_path_factory.mktemp("baselines")
    for name, build in BASES.items():
        onnx.save(build(), folder / f"{name}.onnx")
        recorded = memplan(
            *("gate", folder / f"{name}.onnx", *SIZES[name]),
            *("--baseline", folder / "base.json", "--update-baseline"),
        )
        assert recorded.exit_code == PASS, recorded.output
    return folder


def grown(document: Mapping[str, Any]) -> set[str]:
    """Return the tensors that a verdict lists with a positive effect."""
    difference = document["models"][0]["difference"]
    lists: Iterable[Any] = (difference["changes"], *difference["interface"].values())
    return {
        change["tensor"] for changes in lists for change in changes if change["effect"] > 0
    }


@pytest.mark.parametrize("case", HISTORY, ids=lambda case: f"{case.base}: {case.what}")
def test_each_change_of_a_history_gets_its_verdict_and_the_tensors_that_grew(
    case: Case, baselines: Path
) -> None:
    model = baselines / f"{case.base}.onnx"
    onnx.save(case.model(), model)
    onnx.checker.check_model(model)
    sizes = SIZES[case.base] if case.sizes is None else case.sizes
    words_ = ("gate", model, *sizes, "--baseline", baselines / "base.json", "--quiet")
    done = memplan(*words_, "--format", "json")
    assert done.exit_code == case.exit_code, memplan(*words_).output
    if case.exit_code == REFUSED:
        assert done.stdout == ""
        assert all(text in done.stderr for text in case.named), done.stderr
        return
    document = json.loads(done.stdout)
    if case.exit_code == FAIL:
        assert set(case.named) <= grown(document)
        text = memplan(*words_).stdout
        assert all(f" {name} " in text for name in case.named), text
