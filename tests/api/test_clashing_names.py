"""Names that a model has already never clash with those of what a rewriter adds to it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import parse
from cache_models import Shape, decoder
from features.chunk_models import Maker, convolutions, segmentation, transformer
from memplan_cli import Settings, api
from memplan_cli.api.train_step import train_step
from memplan_cli.api.verify_certificate import verify_certificate
from memplan_cli.core.check import Check
from memplan_cli.errors import ModelError
from memplan_cli.features.training.losses import LossFunction
from memplan_cli.features.training.optimizers import Optimizer
from memplan_cli.features.training.train_step import Recipe
from memplan_cli.onnx_io.load import load_model
from memplan_cli.onnx_io.traversal import defined, graphs
from memplan_cli.onnx_io.writing.structure import structure_errors
from perceptrons import perceptron

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Array = np.ndarray[Any, Any]

Rewrite = Callable[[Path, Path], object]


@dataclass(frozen=True)
class Rewriter:
    """A command that adds values and nodes to a model, and a small model to which it does."""

    model: Callable[[], onnx.ModelProto]
    rewrite: Rewrite


def optimizing(check: Check | None = None, **options: object) -> Rewrite:
    def rewrite(path: Path, out: Path) -> object:
        return api.optimize(path, Settings(**options), out=out, check=check)  # type: ignore[arg-type]

    return rewrite


def step(path: Path, out: Path) -> object:
    recipe = Recipe(LossFunction("mse", "labels", ""), Optimizer("adam"))
    return train_step(path, out, recipe=recipe, budget=0.8)


def with_branches() -> onnx.ModelProto:
    """Return a graph that reads its first activations again at its end, with an If whose branches have values."""
    return parse("""g (float[64,64] x, bool c) => (float[64,64] y) {
        a = Exp(x)  b = Tanh(a)
        e = If (c) <then_branch = t () => (float[64,64] p) { q = Neg(b)  p = Exp(q) },
                    else_branch = f () => (float[64,64] r) { s = Neg(x)  r = Mul(s, b) }>
        w = Concat <axis = 0> (e, e, e, e)  v = Exp(w)  h = Einsum <equation = "ij->j"> (v)
        k = Add(h, b)  y = Mul(k, a) }""")


def large_products() -> onnx.ModelProto:
    """Return products with operands that are cut into columns, and a constant of one value."""
    make = Maker()
    x = make.node("MatMul", "x", make.weight(512, 1024))
    x = make.node("Where", make.node("Greater", x, make.constant(np.zeros((256, 1024), np.float32))),
                  make.constant(np.ones((256, 1024), np.float32)), x)  # fmt: skip
    x = make.node("Gemm", x, make.weight(1024, 512), make.weight(512))
    return make.model({"x": (256, 512)}, x)


REWRITERS = {
    "chunks": Rewriter(
        partial(transformer, 96, layers=1), optimizing(chunk="auto", budget=0.5)
    ),
    "chunks of rows": Rewriter(convolutions, optimizing(chunk="auto", budget=365_000)),
    "chunks of joined maps": Rewriter(segmentation, optimizing(chunk="auto", budget=0.4)),
    "chunks cut again": Rewriter(
        partial(transformer, 48, layers=1), optimizing(chunk="auto", budget=30_000)
    ),
    "recomputation": Rewriter(with_branches, optimizing(recompute="auto", budget=0.8)),
    "caches in place": Rewriter(
        partial(decoder, Shape(groups=2)), optimizing(kv_cache="in-place", capacity=8)
    ),
    "a training step": Rewriter(partial(perceptron, 8, 64), step),
    "the runtime's graph": Rewriter(
        large_products, optimizing(target="cpu", check=Check("cpu", depth="outputs"))
    ),
    "chunks of the runtime's graph": Rewriter(
        partial(transformer, 96, layers=1),
        optimizing(target="cpu", chunk="auto", budget=66_000),
    ),
}

QUICK = [name for name in REWRITERS if "runtime" not in name]


def rewritten(
    model: onnx.ModelProto, rewriter: Rewriter
) -> tuple[onnx.ModelProto, list[Array]]:
    """Return a model as it was written, and the outputs of the written file."""
    with tempfile.TemporaryDirectory() as folder:
        path, out = Path(folder) / "net.onnx", Path(folder) / "out.onnx"
        onnx.save(model, path)
        rewriter.rewrite(path, out)
        return load_model(out), outputs(out)


def outputs(path: Path) -> list[Array]:
    """Run a file; inputs at the same positions get the same values, whatever their names."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        str(path), options, providers=["CPUExecutionProvider"]
    )
    rng = np.random.default_rng(1)
    feeds = {value.name: drawn(rng, value.type, value.shape) for value in session.get_inputs()}
    return [np.asarray(each) for each in session.run(None, feeds)]


def drawn(rng: np.random.Generator, kind: str, shape: Sequence[int | str]) -> Array:
    dims = [dim if isinstance(dim, int) else 2 for dim in shape]
    if kind == "tensor(float)":
        return rng.standard_normal(dims).astype(np.float32)
    return np.ones(dims, {"tensor(int64)": np.int64, "tensor(bool)": np.bool_}[kind])


def value_names(model: onnx.ModelProto) -> list[str]:
    """Return the values of a model, but for its inputs, which tell the rewriters what they are for."""
    inputs = {value.name for value in model.graph.input}
    outs = {value.name for value in model.graph.output}
    names = dict.fromkeys(name for graph in graphs(model.graph) for name in defined(graph))
    return [name for name in names if name not in inputs | outs]


@cache
def first_result(name: str) -> tuple[onnx.ModelProto, tuple[str, ...], list[Array]]:
    """Return a model, all names that its rewriter adds to it, and the outputs of the written file."""
    model = load(REWRITERS[name].model())
    written, results = rewritten(model, REWRITERS[name])
    nodes = [node.name for graph in graphs(written.graph) for node in graph.node if node.name]
    known = {node.name for graph in graphs(model.graph) for node in graph.node}
    known.update(name for graph in graphs(model.graph) for name in defined(graph))
    added = dict.fromkeys([*value_names(written), *nodes])
    return model, tuple(each for each in added if each not in known), results


def load(model: onnx.ModelProto) -> onnx.ModelProto:
    return onnx.ModelProto.FromString(model.SerializeToString())


def renamed(
    model: onnx.ModelProto, values: Mapping[str, str], nodes: Sequence[str]
) -> onnx.ModelProto:
    """Return a copy in which values have other names, and all nodes these names, one after the other."""
    copy, names = load(model), iter(nodes)
    for graph in graphs(copy.graph):
        for item in (*graph.output, *graph.value_info, *graph.initializer):
            item.name = values.get(item.name, item.name)
        for node in graph.node:
            node.name = next(names, "")
            node.input[:] = [values.get(name, name) for name in node.input]
            node.output[:] = [values.get(name, name) for name in node.output]
    return copy


@st.composite
def clashing(draw: st.DrawFn, name: str) -> onnx.ModelProto:
    """Draw a model some of whose values and nodes have names that its rewriter makes, or each other's."""
    model, added, _ = first_result(name)
    own = value_names(model)
    count = draw(st.integers(1, min(len(own), len(added))))
    values = dict(zip(draw(st.permutations(own)), draw(st.permutations(added)), strict=False))
    values = dict(list(values.items())[:count])
    candidates = [*added, *own, *(value.name for value in model.graph.output)]
    nodes = sum(len(graph.node) for graph in graphs(model.graph))
    empty = draw(st.integers(0, nodes))
    node_names = [*[""] * empty, *draw(st.permutations(candidates))][:nodes]
    return renamed(model, values, draw(st.permutations(node_names)))


def holds(name: str, data: st.DataObject) -> None:
    """Rewrite a drawn model: the result is well formed, loads, and has the outputs of the first result."""
    model = data.draw(clashing(name))
    try:
        written, results = rewritten(model, REWRITERS[name])
    except ModelError as error:
        assert "uses that name" in str(error)  # noqa: PT017 - of a training step, whose names are its interface
        return
    assert tuple(structure_errors(written)) == ()
    _, _, wanted = first_result(name)
    assert [each.tobytes() for each in results] == [each.tobytes() for each in wanted]


def test_no_value_moves_before_a_subgraph_that_uses_its_name(tmp_path: Path) -> None:
    """Before the If, the outer ``q`` would be hidden by the branch's, and need less memory."""
    text = """g (float[64,64] x, bool c) => (float[64,64] y) {
        a = Exp(x)
        b = If (c) <then_branch = t () => (float[64,64] p) { NAME = Neg(x)  p = Exp(NAME) },
                    else_branch = e () => (float[64,64] s) { s = Neg(x) }>
        q = Einsum <equation = "ij->j"> (a)  y = Add(b, q) }"""
    kinds = {}
    for name in ("q", "r"):
        path, out = tmp_path / f"{name}.onnx", tmp_path / f"{name}.memplan.onnx"
        onnx.save(parse(text.replace("NAME", name)), path)
        certificate = tmp_path / f"{name}.json.cert"
        result = api.optimize(path, out=out, check=None, certificate=certificate)
        assert result.plan_file is not None
        assert verify_certificate(path, result.plan_file, certificate).passed
        onnx.checker.check_model(str(out))
        kinds[name] = [node.op_type for node in load_model(out).graph.node]
    assert kinds == {"q": ["If", "Exp", "Einsum", "Add"], "r": ["Exp", "Einsum", "If", "Add"]}


@pytest.mark.parametrize("name", QUICK)
@given(data=st.data())
@settings(max_examples=4)
def test_added_names_are_new(name: str, data: st.DataObject) -> None:
    holds(name, data)


@pytest.mark.parametrize("name", [name for name in REWRITERS if name not in QUICK])
@given(data=st.data())
@settings(max_examples=2)
def test_names_added_to_the_runtimes_graph_are_new(name: str, data: st.DataObject) -> None:
    holds(name, data)
