"""Names that are no UTF-8 reach us as bytes; a fuzzer found that they broke a sort."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx.parser
import pytest

from memplan_cli.errors import ModelError
from memplan_cli.onnx_io.load import load_model

if TYPE_CHECKING:
    from pathlib import Path

TEXT = """<ir_version: 8, opset_import: ["": 17]>
g (float[2,3] x, bool c) => (float[2,3] y) {
    y = If (c) <then_branch = one () => (float[2,3] a) { a = Relu(x) },
                else_branch = two () => (float[2,3] b) { b = Neg(x) }>
}"""


@pytest.mark.parametrize("name", ["then_branch", "Relu", "one", "a"])
def test_name_that_is_no_utf8_is_refused_wherever_it_stands(tmp_path: Path, name: str) -> None:
    data = onnx.parser.parse_model(TEXT).SerializeToString()
    field = bytes([len(name)]) + name.encode()
    broken = data.replace(field, field[:1] + b"\xe5" + field[2:])
    assert broken != data
    (tmp_path / "m.onnx").write_bytes(broken)
    with pytest.raises(ModelError, match="is not UTF-8"):
        load_model(tmp_path / "m.onnx")
