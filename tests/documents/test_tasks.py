"""The commands of docs/tasks work as they stand, on small models with the same inputs and dims.

What the pages show was printed for models that packages bring along. Here each command runs
on a stand-in: the exit code is the page's, and what begins a line there begins one here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from documents.task_pages import TASKS, filed, steps
from story import memplan

if TYPE_CHECKING:
    from pathlib import Path

Dims = Sequence[int | str | None]

FIRST = re.compile(
    r"^(process, observed|plan|proved|next|given|pass|FAIL|error|memplan: wrote"
    r"|Trained|Memory to expect|  planned|No single tensor)"
)
"""What begins the lines that every model's output has."""

LEFT_OUT = {"training.md": ("--dim", "Adddetection_dim_0=1")}
"""Words of a page that only the real model has a dim for."""


def model(inputs: dict[str, Dims], outputs: dict[str, Dims], *nodes: str) -> onnx.ModelProto:
    """Return a model of nodes written ``out = Op(in, in)``; w is a weight."""
    made = []
    for text in nodes:
        out, op, given = re.fullmatch(r"(\w+) = (\w+)\((.*)\)", text).groups()  # type: ignore[union-attr]
        attributes = {"axis": 1} if op == "Concat" else {}
        made.append(helper.make_node(op, given.split(", "), [out], name=out, **attributes))

    def values(named: dict[str, Dims]) -> list[onnx.ValueInfoProto]:
        return [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)
            for name, dims in named.items()
        ]

    weights = [numpy_helper.from_array(np.full((1,), 0.5, np.float32), "w")]
    graph = helper.make_graph(made, "g", values(inputs), values(outputs), weights)
    opset = [helper.make_opsetid("", 21)]
    return helper.make_model(graph, opset_imports=opset, ir_version=10)


D0, D1 = "p2o.DynamicDimension.0", "p2o.DynamicDimension.1"
CHAIN = ("a = Exp(x)", "b = Mul(a, w)", "y = Add(b, x)")
MODELS = {
    "rec": model({"x": [D0, 3, None, D1]}, {"y": [D0, 3, None, D1]}, *CHAIN),
    "rec_v5": model(
        {"x": ["d0", 3, 48, "d1"]}, {"y": ["d0", 6, 48, "d1"]},
        "a = Exp(x)", "b = Mul(a, w)", "c = Concat(b, a)", "y = Neg(c)",
    ),
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
MODELS["eeg"].graph.initializer.extend(
    numpy_helper.from_array(np.full((1,), 0.5, np.float32), f"w{i}") for i in range(8)
)


@pytest.mark.parametrize("page", TASKS, ids=lambda page: page.stem)
def test_the_commands_of_a_task_do_what_its_page_says(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, each in MODELS.items():
        onnx.save(each, f"{name}.onnx")
    left_out = LEFT_OUT.get(page.name, ())
    for step in steps(page):
        if filed(step, tmp_path):
            continue
        command, *words = step.words
        assert command == "memplan"
        text = " ".join(words).replace(" ".join(left_out), "")
        done = memplan(*text.split())
        assert done.exit_code == step.code, f"{page.name}:{step.line}\n{done.output}"
        for line in step.printed.splitlines():
            begun = FIRST.match(line)
            if begun:
                assert f"\n{begun[0]}" in f"\n{done.output}", f"{page.name}:{step.line}"


def test_every_task_is_in_the_list_and_has_real_output() -> None:
    listed = (TASKS[0].parent / "index.md").read_text(encoding="utf-8")
    for page in TASKS:
        assert f"({page.name})" in listed
        assert "mended" in page.read_text(encoding="utf-8")
        assert any(step.printed.strip() for step in steps(page))
