"""Names that are no UTF-8 reach us as bytes; a fuzzer found that they broke a sort."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx.parser
import pytest

from memplan_cli.errors import ModelError
from memplan_cli.onnx_io.load import load_model

if TYPE_CHECKING:
    from pathlib import Path

TEXT = """<ir_version: 10, opset_import: ["": 17], metadata_props: ["owner": "me"]>
graph_a (float[2,3] x, bool c, float[batch,3] given, seq(float[items]) s) => (float[2,3] y)
<float[1] weight = {1}, float[2,late] between> {
    [node_a] between = Mul(given, weight)
    y = If (c) <then_branch = one () => (float[2,3] a) { a = Relu(x) },
                else_branch = two () => (float[2,3] b) { b = Neg(x) }>
}"""

NAMES = [
    "graph_a", "owner", "given", "batch", "weight", "between", "late", "node_a",
    "then_branch", "Relu", "one", "a", "items",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_name_that_is_no_utf8_is_refused_wherever_it_stands(tmp_path: Path, name: str) -> None:
    data = onnx.parser.parse_model(TEXT).SerializeToString()
    field = bytes([len(name)]) + name.encode()
    broken = data.replace(field, field[:1] + b"\xe5" + field[2:])
    assert broken != data
    (tmp_path / "m.onnx").write_bytes(broken)
    with pytest.raises(ModelError, match="is not UTF-8"):
        load_model(tmp_path / "m.onnx")


def test_file_of_sparse_indices_that_is_no_utf8_is_refused(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(TEXT)
    location = model.graph.sparse_initializer.add().indices.external_data.add()
    location.key, location.value = "location", "indices.bin"
    broken = model.SerializeToString().replace(b"indices.bin", b"indices.\xe5in")
    (tmp_path / "m.onnx").write_bytes(broken)
    with pytest.raises(ModelError, match="is not UTF-8"):
        load_model(tmp_path / "m.onnx")
