"""The commands of README and the tutorials run as written, and print what the pages show.

The outputs in the pages are those of real models (`page_outputs`). Here each command runs on a small
stand-in: its exit code is the page's, and its output has the same kinds of lines.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from documents.page_outputs import PAGES_WITH_OUTPUTS, TUTORIALS, prepare_files, steps
from documents.pages import ROOT
from story import memplan

if TYPE_CHECKING:
    from pathlib import Path

Dims = Sequence[int | str | None]

LINE_BEGINNINGS = re.compile(
    r"^(Process memory|whole process|  interpreter|  inputs and kept|  model, while|model, while|private|mapped"
    r"|files on disk|time of a run|Intermediates|without reuse|in the order of|as planned"
    r"|\[ok\]|\[failed\]|Run it:|A plain InferenceSession|memplan: wrote|Trained|Memory of the training step"
    r"|  intermediates, planned|No single tensor)"
)
"""Beginnings of lines that the output for every model has."""

OMITTED_OPTIONS = {"training.md": ("--dim", "Adddetection_dim_0=1")}
"""Options of a page that apply to the real model only, by page."""


def model(inputs: dict[str, Dims], outputs: dict[str, Dims], *nodes: str) -> onnx.ModelProto:
    """Return a model of nodes written ``out = Op(in, in)``; ``w`` is a weight of one element."""
    proto_nodes = []
    for text in nodes:
        output, operator, operands = re.fullmatch(r"(\w+) = (\w+)\((.*)\)", text).groups()  # type: ignore[union-attr]
        node = helper.make_node(operator, operands.split(", "), [output], name=output)
        proto_nodes.append(node)

    def values(named: dict[str, Dims]) -> list[onnx.ValueInfoProto]:
        return [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)
            for name, dims in named.items()
        ]

    weights = [numpy_helper.from_array(np.full((1,), 0.5, np.float32), "w")]
    graph = helper.make_graph(proto_nodes, "g", values(inputs), values(outputs), weights)
    opset = [helper.make_opsetid("", 21)]
    return helper.make_model(graph, opset_imports=opset, ir_version=10)


D0, D1 = "p2o.DynamicDimension.0", "p2o.DynamicDimension.1"
CHAIN = ("a = Exp(x)", "b = Mul(a, w)", "y = Add(b, x)")
MODELS = {
    "rec": model({"x": [D0, 3, None, D1]}, {"y": [D0, 3, None, D1]}, *CHAIN),
    "ocr": model({"x": [1, 1, 64, "image_width"]}, {"y": [1, 1, 64, "image_width"]}, *CHAIN),
    "cls": model(
        {"x": [None, 3, None, None]}, {"y": [None, 3, None, None], "z": [None, 3, None, None]},
        *CHAIN, "z = Sub(a, y)",
    ),
    "eeg": model(
        {"x": ["batch_size", 4096]}, {"y": ["batch_size", 4096]},
        *(f"h{i} = Sigmoid(m{i})" if j else f"m{i} = Mul({f'h{i - 1}' if i else 'x'}, w{i})"
          for i in range(8) for j in range(2)),
        "y = Mul(h7, w)",
    ),
}  # fmt: skip
MODELS["resnet50"] = MODELS["branchy_cnn"] = model(
    {"x": [1, 3, 64, 64]}, {"y": [1, 3, 64, 64]}, *CHAIN
)
MODELS["eeg"].graph.initializer.extend(
    numpy_helper.from_array(np.full((1,), 0.5, np.float32), f"w{i}") for i in range(8)
)


@pytest.mark.parametrize("page", PAGES_WITH_OUTPUTS, ids=lambda page: page.stem)
def test_the_commands_of_a_page_have_the_results_that_it_shows(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, proto in MODELS.items():
        onnx.save(proto, f"{name}.onnx")
    shutil.copytree(ROOT / "sample_models", "sample_models")
    omitted = OMITTED_OPTIONS.get(page.name, ())
    for step in steps(page):
        if prepare_files(step, tmp_path):
            continue
        command, *words = step.words
        assert command == "memplan"
        text = " ".join(words).replace(" ".join(omitted), "")
        result = memplan(*text.split())
        assert result.exit_code == step.code, f"{page.name}:{step.line}\n{result.output}"
        for line in step.output.text.splitlines() if step.output else ():
            beginning = LINE_BEGINNINGS.match(line)
            if beginning:
                assert f"\n{beginning[0]}" in f"\n{result.output}", f"{page.name}:{step.line}"


def test_every_tutorial_is_in_the_list_and_has_real_output() -> None:
    listed = (TUTORIALS[0].parent / "index.md").read_text(encoding="utf-8")
    for page in TUTORIALS:
        assert f"({page.name})" in listed
        assert any(step.output and step.output.text.strip() for step in steps(page))
