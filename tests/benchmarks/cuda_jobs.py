"""Jobs of `tests.benchmarks.cuda`, each in a process of its own: a CUDA context belongs to one process."""

from __future__ import annotations

import ctypes
import json
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx.parser

from memplan_cli.core.results.observations import CUDA, RuntimeSettings
from memplan_cli.loading.settings import load_cuda_libraries
from memplan_cli.runtime.workers.process_memory import device_bytes_taken, device_use
from memplan_cli.runtime.workers.session import make_session
from memplan_cli.runtime.workers.spec import InputSet, SessionSpec

if TYPE_CHECKING:
    from memplan_cli.core.json_types import Json

HEAD = '<ir_version: 10, opset_import: ["" : 21]>\n'

ONE_KERNEL = {
    "Exp": "g (float[4] x) => (float[4] y) { y = Exp(x) }",
    "MatMul (cuBLAS)": "g (float[64,64] x) => (float[64,64] y) { y = MatMul(x, x) }",
    "Conv (cuDNN)": "g (float[1,4,16,16] x, float[4,4,3,3] w) => (float[1,4,14,14] y) { y = Conv(x, w) }",
}
"""Models whose sessions are created one after the other in one process."""

BLOCKS = (1, 512 << 10, (1 << 20) + 1, 3 << 20, (4 << 20) + 1)
"""Bytes of the blocks that are requested from the device, one after the other."""


def placement(job: Json) -> Json:
    """Job: run a model once; return how many kernels ran on each provider, and the operators on the CPU."""
    spec, feed = SessionSpec.of_job(job), InputSet.of_job(job).draw()
    with tempfile.TemporaryDirectory() as folder:
        profiling = RuntimeSettings(
            session={"enable_profiling": True, "profile_file_prefix": f"{folder}/p"}
        )
        session = spec.updated(profiling).create()
        session.run(None, feed)
        events: Any = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    kernels = [
        (event["args"].get("provider", ""), event["args"]["op_name"])
        for event in events
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time")
    ]
    return {
        "providers": dict(Counter(provider for provider, _ in kernels)),
        "on the CPU": dict(Counter(op for provider, op in kernels if provider != CUDA)),
        "copies": sum(op.startswith("Memcpy") for _, op in kernels),
    }


def context(_: Json) -> Json:
    """Job: return the bytes that this process took on the device after each session of `ONE_KERNEL`."""
    before, taken, sessions = device_use(CUDA), {}, []
    for name, text in ONE_KERNEL.items():
        model = onnx.parser.parse_model(HEAD + text)
        session = make_session(model.SerializeToString(), RuntimeSettings(), CUDA)
        shapes = {value.name: value.shape for value in session.get_inputs()}
        session.run(None, {name: np.ones(dims, np.float32) for name, dims in shapes.items()})
        sessions.append(session)
        taken[name] = device_bytes_taken(before, device_use(CUDA))
    return {"taken": taken}


def rounding(_: Json) -> Json:
    """Job: request `BLOCKS` from the device, and return by how much each lowers its free bytes."""
    load_cuda_libraries()
    runtime = next(filter(None, map(_library, ("libcudart.so.13", "libcudart.so.12"))))
    free, total, address = ctypes.c_size_t(), ctypes.c_size_t(), ctypes.c_void_p()
    runtime.cudaMemGetInfo(ctypes.byref(free), ctypes.byref(total))  # makes the context
    taken = []
    for size in BLOCKS:
        before = free.value
        if error := runtime.cudaMalloc(ctypes.byref(address), ctypes.c_size_t(size)):
            raise OSError(f"cudaMalloc returned {error}")
        runtime.cudaMemGetInfo(ctypes.byref(free), ctypes.byref(total))
        taken.append(before - free.value)
    return {"taken": dict(zip(map(str, BLOCKS), taken, strict=True))}


def _library(name: str) -> Any:  # noqa: ANN401 - functions of C
    try:
        return ctypes.CDLL(name)
    except OSError:
        return None
