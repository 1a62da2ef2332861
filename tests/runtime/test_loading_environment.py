"""What `memplan.load` does beside options, and the environment with which other programs have it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from memplan_cli.core.results.observations import CPU, CUDA, RuntimeSettings
from memplan_cli.loading.heap import LOADING_ENVIRONMENT
from memplan_cli.reporting.snippets import (
    c_snippet,
    cpp_snippet,
    settings_json,
    settings_snippet,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

WIDTH, LAYERS = 1500, 3

PROGRAM = """
import numpy
import onnxruntime
import memplan_cli
import memplan_cli.loading.session

def anonymous():
    status = dict(line.split(":", 1) for line in open("/proc/self/status") if ":" in line)
    return 1024 * int(status["RssAnon"].split()[0])

image = numpy.ones(30 << 20, numpy.uint8)
del image  # from now on, glibc takes blocks of up to 30 MiB from the heap
before = anonymous()
{create}
print(anonymous() - before)
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Return layers of which each is transposed and packed while the session is created."""
    path = tmp_path / "layers.onnx"
    weights = [
        numpy_helper.from_array(np.full((WIDTH, WIDTH), n, np.float32), f"w{n}")
        for n in range(LAYERS)
    ]
    nodes = [
        node
        for n in range(LAYERS)
        for node in (
            helper.make_node("Transpose", [f"w{n}"], [f"t{n}"], perm=[1, 0]),
            helper.make_node("MatMul", [f"x{n}", f"t{n}"], [f"x{n + 1}"]),
        )
    ]
    ends = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", WIDTH])
        for name in ("x0", f"x{LAYERS}")
    )
    given, made = ([end] for end in ends)
    graph = helper.make_graph(nodes, "layers", given, made, weights)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(proto, path, save_as_external_data=True)
    return path


def anonymous_bytes(create: str, environment: Mapping[str, str]) -> int:
    """Return the anonymous bytes that code takes in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(create=create)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **environment},
    )
    return int(done.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="glibc")
def test_the_settings_code_takes_as_little_as_load_with_the_environment_it_names(
    model: Path,
) -> None:
    code = settings_snippet(RuntimeSettings(), str(model))
    by_load = anonymous_bytes(f"session = memplan_cli.load({str(model)!r})", {})
    alone = anonymous_bytes(code, {})
    assert anonymous_bytes(code, LOADING_ENVIRONMENT) < by_load + 1_000_000
    assert alone > by_load + 8_000_000


def test_every_settings_file_names_what_load_does_beside_options() -> None:
    variables = "MALLOC_MMAP_THRESHOLD_=131072 MALLOC_TRIM_THRESHOLD_=262144"
    for snippet in (settings_snippet, c_snippet, cpp_snippet):
        assert variables in snippet(RuntimeSettings(), "m.onnx", CPU)
        assert "MALLOC" not in snippet(RuntimeSettings(), "m.onnx", CUDA)
    assert "mallopt(M_MMAP_THRESHOLD, 131072)" in c_snippet(RuntimeSettings(), "m.onnx", CPU)
    written = json.loads(settings_json(RuntimeSettings(), CPU))
    assert written["environment"] == LOADING_ENVIRONMENT
    assert json.loads(settings_json(RuntimeSettings(), CUDA))["environment"] == {}
