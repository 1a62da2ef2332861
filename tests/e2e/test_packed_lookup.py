"""What a session makes of weights that were packed beforehand, tried with holes in their file.

The page of whole processes says that plain weights cannot go: a session packs them all the same,
and takes what is in the file where its key is that of what it has packed.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from memplan_cli import Check, Settings, optimize
from memplan_cli.core.results.observations import RuntimeSettings
from memplan_cli.loading.session import load_session
from memplan_cli.onnx_io.writing import columns
from memplan_cli.runtime.run.run_model import process_of_run
from memplan_cli.runtime.workers.spec import RunConditions

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

WIDTH = 512
BYTES = WIDTH * WIDTH * 4
AS_WRITTEN = RuntimeSettings(
    session={"graph_optimization_level": "ORT_DISABLE_ALL"},
    session_config={"session.use_device_allocator_for_initializers": "1"},
)


@dataclass(frozen=True)
class Written:
    """A written model, where its one weight lies in the file beside it, plain and packed, and the packed one's key."""

    model: Path
    plain: int
    packed: int
    key: str

    def output(self, options: ort.SessionOptions | None = None) -> bytes:
        given = np.random.default_rng(1).standard_normal((4, WIDTH)).astype(np.float32)
        found = load_session(self.model, options).run(None, {"x": given})[0]
        return np.asarray(found).tobytes()

    def private(self) -> int:
        found = process_of_run(self.model, AS_WRITTEN, RunConditions())
        assert found is not None
        return found.private

    def put(self, offset: int, data: bytes) -> None:
        with self.model.with_suffix(".onnx.data").open("r+b") as file:
            file.seek(offset)
            file.write(data)


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Written:
    monkeypatch.setattr(columns, "PIECE", BYTES)  # the weight is to be loaded whole
    random = np.random.default_rng(0).standard_normal((WIDTH, WIDTH))
    return written_with(random.astype(np.float32), tmp_path)


def written_with(values: NDArray[np.float32], folder: Path) -> Written:
    """Write a product with this weight for the CPU."""
    weight = numpy_helper.from_array(values, "w")
    edges = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, WIDTH]) for name in "xy"
    ]
    node = helper.make_node("MatMul", ["x", "w"], ["y"], name="n")
    graph = helper.make_graph([node], "product", edges[:1], edges[1:], [weight])
    opset = [helper.make_opsetid("", 17)]
    given, out = folder / "in.onnx", folder / "out.onnx"
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), str(given))
    optimize(given, Settings(target="cpu"), out=out, check=Check("cpu"))
    (tensor,) = onnx.load(str(out), load_external_data=False).graph.initializer
    said = {entry.key: entry.value for entry in tensor.external_data}
    (packed,) = (value for key, value in said.items() if key.startswith("prepacked"))
    key, _, blob = packed.rpartition("|")
    return Written(out, int(said["offset"]), int(blob.split(";")[0]), key)


def test_the_plain_weight_decides_whether_its_packed_copy_is_taken(written: Written) -> None:
    before = written.output()
    written.put(written.plain, bytes(BYTES))
    assert written.output() != before
    assert not any(written.output()), "it is packed anew, from the zeros"


def test_a_packed_copy_is_taken_unread_where_its_key_fits(written: Written) -> None:
    before = written.output()
    written.put(written.packed, bytes(BYTES))
    assert written.output() != before
    assert not any(written.output())


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says what a process takes")
def test_weights_packed_again_are_private_memory(written: Written) -> None:
    before = written.private()
    written.put(written.plain, bytes(BYTES))
    assert written.private() > before + BYTES // 2


def test_other_values_can_stand_for_the_plain_weight_where_they_are_packed_as_the_key_says(
    written: Written, tmp_path: Path
) -> None:
    """The key of a packed copy is a hash of what the kernel packs, and the copy itself is not read.

    So a file would not need its plain weights. Where a kernel packs in another way, or not at all, it
    computes with what is there instead, and no error says so.
    """
    before = written.output()
    # All are NaN, and all differ.
    numbered = np.arange(WIDTH * WIDTH, dtype=np.uint32) | 0x7FC00000
    folder = tmp_path / "other"
    folder.mkdir()
    other = written_with(numbered.view(np.float32).reshape(WIDTH, WIDTH), folder)
    written.put(written.plain, numbered.tobytes())
    model = onnx.load(str(written.model), load_external_data=False)
    for entry in model.graph.initializer[0].external_data:
        entry.value = entry.value.replace(written.key, other.key)
    written.model.write_bytes(model.SerializeToString())
    assert written.output() == before
    unpacked = ort.SessionOptions()
    unpacked.add_session_config_entry("session.disable_prepacking", "1")
    assert np.isnan(np.frombuffer(written.output(unpacked), np.float32)).all()
