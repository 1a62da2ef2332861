"""A model converted to 16-bit floats: what stayed at 32 is listed, the largest first."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx
import onnx.parser
import pytest

from memplan_cli import Settings, api
from memplan_cli.reporting.document import Name, Paragraph, Table
from memplan_cli.reporting.plans.formats import render
from memplan_cli.reporting.plans.sections import float32_section

if TYPE_CHECKING:
    from pathlib import Path

MIXED = """<ir_version: 10, opset_import: ["" : 21]>
net (float16[batch,64] x) => (float16[batch,64] y) {
    h = Relu(x)
    w = Cast<to = 1>(h)
    s = Softmax(w)
    p = Cast<to = 10>(s)
    c = Constant<value = float[4] {1, 2, 3, 4}>()
    f = Neg(c)
    i = Cast<to = 7>(f)
    k = ReduceMax<keepdims = 0>(i)
    o = Cast<to = 10>(k)
    y = Add(p, o)
}"""


def shown(text: str, folder: Path, **dims: int) -> str:
    path = folder / "net.onnx"
    onnx.save(onnx.parser.parse_model(text), path)
    plan = api.plan(path, Settings(dims=dims))
    blocks = tuple(float32_section(plan, 9))
    assert ("Not at 16 bits" in render(plan, "text", detail="details")) == bool(blocks)
    lines = []
    for block in blocks:
        if isinstance(block, Paragraph):
            lines.append(block.text)
        elif isinstance(block, Table):
            cells = ([c.text if isinstance(c, Name) else c for c in r] for r in block.rows)
            lines += [" ".join(map(str, row)) for row in cells]
    return "\n".join(map(str, lines))


def test_what_stays_at_32_bits_is_listed_with_its_unit(tmp_path: Path) -> None:
    assert shown(MIXED, tmp_path) == (
        "3 tensors, 512 B x batch + 16 B without reuse, stay float32 beside 16-bit floats\n"
        "w 256 B x batch [batch,64]\n"
        "s 256 B x batch [batch,64]\n"
        "f 16 B [4]"
    )
    assert shown(MIXED, tmp_path, batch=2).startswith("3 tensors, 1.02 KiB without reuse")


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(MIXED.replace("float16", "float").replace("to = 10", "to = 1"), id="32"),
        pytest.param(
            MIXED.replace("<to = 1>", "<to = 11>").replace("= float[", "= double["), id="64"
        ),
    ],
)
def test_models_without_both_widths_say_nothing(text: str, tmp_path: Path) -> None:
    assert shown(text, tmp_path) == ""
