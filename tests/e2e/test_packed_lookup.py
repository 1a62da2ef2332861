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

WIDTH = 512
BYTES = WIDTH * WIDTH * 4
AS_WRITTEN = RuntimeSettings(
    session={"graph_optimization_level": "ORT_DISABLE_ALL"},
    session_config={"session.use_device_allocator_for_initializers": "1"},
)


@dataclass(frozen=True)
class Written:
    """A written model, and where its one weight lies in the file beside it, plain and packed."""

    model: Path
    plain: int
    packed: int

    def output(self) -> bytes:
        given = np.random.default_rng(1).standard_normal((4, WIDTH)).astype(np.float32)
        found = load_session(self.model).run(None, {"x": given})[0]
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
    weight = numpy_helper.from_array(random.astype(np.float32), "w")
    edges = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, WIDTH]) for name in "xy"
    ]
    node = helper.make_node("MatMul", ["x", "w"], ["y"], name="n")
    graph = helper.make_graph([node], "product", edges[:1], edges[1:], [weight])
    opset = [helper.make_opsetid("", 17)]
    given, out = tmp_path / "in.onnx", tmp_path / "out.onnx"
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), str(given))
    optimize(given, Settings(target="cpu"), out=out, check=Check("cpu"))
    (tensor,) = onnx.load(str(out), load_external_data=False).graph.initializer
    said = {entry.key: entry.value for entry in tensor.external_data}
    (packed,) = (value for key, value in said.items() if key.startswith("prepacked"))
    return Written(out, int(said["offset"]), int(packed.rpartition("|")[2].split(";")[0]))


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
