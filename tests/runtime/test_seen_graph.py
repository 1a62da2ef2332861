"""The graph that a session ran, read from a graph that another session of the same file wrote."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx.parser
from onnx import numpy_helper

from memplan_cli.onnx_io.shapes.reading import read_program
from memplan_cli.runtime.graph.recorded import graph_of_run
from memplan_cli.runtime.run.run_model import RunRecord
from memplan_cli.runtime.simulate.predict import ExecutedGraph, predict_peaks
from memplan_cli.runtime.workers.session_profile import Kernel
from memplan_cli.runtime.workers.spec import RunSpec, SessionSpec

if TYPE_CHECKING:
    from pathlib import Path

WRITTEN = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 21]>
g (float[n] x, float[m] y, bool[k] keep) => (float[a] p, float[b] q) {
 [first] u = Compress (x, keep)
 [second] v = Compress (y, keep)
 [layout_token_1] s = Identity (u)
 [layout_token_2] t = Identity (v)
 [third] p = Exp (s)
 [fourth] q = Exp (t)
}""")


def kernel(name: str, read: list[int], wrote: int) -> Kernel:
    return Kernel(name, [("float", [size]) for size in read], [("float", [wrote])], 0)


def seen(path: Path, *kernels: Kernel) -> RunRecord:
    path.write_bytes(WRITTEN.SerializeToString())
    nobody_knows: dict[str, Any] = {"p": ("float32", (None,))}
    spec = RunSpec(SessionSpec(path), (), ("kernels", "graph"), graph=path)
    return RunRecord(spec, kernels=(kernels,), shapes=nobody_knows)


def test_the_name_of_a_kernel_says_which_node_it_ran(tmp_path: Path) -> None:
    found = seen(
        tmp_path / "graph.onnx",
        kernel("layout_token_1", [8], 8),
        kernel("layout_token_2", [512], 512),
    )
    observed = graph_of_run(found, {"n": 8, "m": 512}).observed
    assert observed is not None
    assert {str(var): w[0].bytes for var, w in observed.written.items()} == {
        "s": 32,
        "t": 2048,
    }


CONSTANTS = """<ir_version: 10, opset_import: ["" : 21]>
g (float[4] x) => (float[4] y) {
 w = Constant <value_floats = [1.0, 2.0, 3.0, 4.0]> ()
 a = Add (x, w)
 b = Exp (a)
 y = Mul (b, w)
}"""


def test_constants_are_initializers_of_the_runtime_and_no_tensors_of_a_run() -> None:
    """PaddlePaddle writes all weights so: a file that runs as it stands holds none of them."""
    model = onnx.parser.parse_model(CONSTANTS)
    with_nodes = ExecutedGraph(read_program(model).program)
    (weight,) = (node for node in model.graph.node if node.op_type == "Constant")
    values = numpy_helper.from_array(np.array([1, 2, 3, 4], np.float32), "w")
    model.graph.node.remove(weight)
    model.graph.initializer.append(values)
    found = predict_peaks(with_nodes)
    assert found.first_run_peak
    assert found == predict_peaks(ExecutedGraph(read_program(model).program))
