"""Weights of subgraphs are mapped from their file."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from memplan_cli import Check, api
from memplan_cli.settings.settings import Settings

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has /proc")

HIDDEN = 256


def resident(path: Path) -> int:
    """Return the bytes of a file that lie in this process."""
    text = Path("/proc/self/smaps").read_text(encoding="utf-8")
    pattern = rf"{re.escape(str(path))}\n(?:[A-Z].*\n)*?Rss: +(\d+) kB"
    return sum(1024 * int(found) for found in re.findall(pattern, text))


SHOW = """
import sys
from pathlib import Path
import numpy as np
import memplan
from runtime.test_mapped_pages import resident
model = Path(sys.argv[1])
session = memplan.load(model)
outputs = session.run(None, {"x": np.ones((1, 1, 256), np.float32), "go": np.array(True)})
print(resident(Path(f"{model}.data")))
"""


def recurrent(depth: int) -> onnx.ModelProto:
    """Return a GRU whose weights are its own branch's, so many branches deep."""
    rng = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(
            rng.uniform(-0.1, 0.1, (1, 3 * HIDDEN, HIDDEN)).astype(np.float32), name
        )
        for name in ("W", "R")
    ]
    result = helper.make_tensor_value_info("y0", TensorProto.FLOAT, [1, 1, HIDDEN])
    node = helper.make_node("GRU", ["x", "W", "R"], ["", "y0"], hidden_size=HIDDEN)
    for level in range(1, depth + 1):
        then = helper.make_graph([node], f"t{level}", [], [result], weights)
        other = helper.make_tensor_value_info(f"e{level}", TensorProto.FLOAT, [1, 1, HIDDEN])
        copy = helper.make_node("Identity", ["x"], [other.name])
        els = helper.make_graph([copy], f"e{level}", [], [other])
        result = helper.make_tensor_value_info(f"y{level}", TensorProto.FLOAT, [1, 1, HIDDEN])
        node = helper.make_node("If", ["go"], [result.name], then_branch=then, else_branch=els)
        weights = []
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1, HIDDEN])
    go = helper.make_tensor_value_info("go", TensorProto.BOOL, [])
    graph = helper.make_graph([node], "g", [given, go], [result])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("depth", [1, 2])
def test_a_subgraphs_weights_are_mapped(tmp_path: Path, depth: int) -> None:
    model, out = tmp_path / "m.onnx", tmp_path / "out.onnx"
    onnx.save(recurrent(depth), model)
    done = api.optimize(model, Settings(target="cpu"), out=out, check=Check("cpu"))
    assert done.passed
    run = subprocess.run(
        [sys.executable, "-c", SHOW, str(out)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    packed = 2 * 3 * HIDDEN * HIDDEN * 4
    # Loading reads the unpacked weights too; the system may evict their pages.
    assert packed <= int(run.stdout) < 2.5 * packed
