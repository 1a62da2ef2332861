"""An arena has room for the outputs that a caller keeps while the next run executes."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from itertools import takewhile
from typing import TYPE_CHECKING

import onnx
import pytest
from hypothesis import given, settings

from allocation_traces import traces
from builders import parse
from memplan_cli import Check, api
from memplan_cli.runtime.simulate.trace import rounded_up, with_kept_outputs

if TYPE_CHECKING:
    from pathlib import Path

    from memplan_cli.runtime.simulate.trace import AllocationTrace

MiB = 1 << 20

SEGMENTS = """
agraph (float[1,n,1024,1024] x) => (float[1,n,1024,1024] y) {
  a = Exp(x)
  wide = Concat<axis = 1>(a, x, a, x, a, x, a, x)
  best = ReduceMax<keepdims = 1>(wide, axes)
  y = Mul(a, best)
}
"""
"""The output has 4 MiB for each n, and the largest tensor 32 MiB."""

LOOP = """
import sys
import numpy as np
import memplan_cli

def highest():
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))

path, size, is_kept = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "kept"
session = memplan_cli.load(path)
feed = {"x": np.ones((1, size, 1024, 1024), np.float32)}
outputs = None
for _ in range(5):
    if not is_kept:
        outputs = None
    outputs = session.run(None, feed)
print(highest())
"""


def written(folder: Path) -> Path:
    model = parse(SEGMENTS)
    axes = onnx.helper.make_tensor("axes", onnx.TensorProto.INT64, [1], [1])
    model.graph.initializer.append(axes)
    path = folder / "segments.onnx"
    onnx.save(model, path)
    return path


@given(traces())
@settings(max_examples=24)
def test_kept_outputs_are_freed_after_the_next_run(trace: AllocationTrace) -> None:
    at_end = list(takewhile(lambda step: step.is_free, reversed(trace.steps)))
    trace = replace(trace, outputs=len(at_end))
    kept = with_kept_outputs((trace,) * 3)
    outputs = sum(rounded_up(trace.sizes[step.allocation]) for step in at_end)
    assert trace.rounded_peak <= kept.rounded_peak <= trace.rounded_peak + outputs
    frees = [step.allocation for step in kept.steps if step.is_free]
    assert len(frees) == len(set(frees)) == 3 * sum(step.is_free for step in trace.steps)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_process_that_keeps_outputs_needs_little_more_than_these(tmp_path: Path) -> None:
    model, out = written(tmp_path), tmp_path / "out.onnx"
    done = api.optimize(model, out=out, dims={"n": 1}, check=Check(provider="cpu"))
    assert done.passed
    kept, dropped = (
        int(subprocess.check_output([sys.executable, "-c", LOOP, str(out), "1", way]))
        for way in ("kept", "dropped")
    )
    assert kept - dropped < 12 * MiB, "an output has 4 MiB; the largest tensor has 32"
