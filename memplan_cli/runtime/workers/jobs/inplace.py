"""Run one-op models and see whether the op asked for memory."""

from __future__ import annotations

import json
import tempfile
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from memplan_cli.core.results.observations import RuntimeSettings
from memplan_cli.onnx_io.runs.inplace_probes import Probe, probes
from memplan_cli.runtime.workers.profile import read_profile
from memplan_cli.runtime.workers.session import make_session

if TYPE_CHECKING:
    from memplan_cli.runtime.workers.worker import Json

_PLAIN = RuntimeSettings(
    session={
        "graph_optimization_level": "ORT_DISABLE_ALL",
        "execution_order": "PRIORITY_BASED",
        "enable_mem_pattern": False,
        "enable_mem_reuse": False,
        "enable_profiling": True,
    }
)
"""Neither the pattern nor the freelist: what is left is the kernel's own declaration."""


def run(job: Json) -> Json:
    """Return for each probe what the op asked for; None where it does not run."""
    import onnxruntime as ort

    provider = str(job["provider"])
    answers = [
        {
            "op": probe.op.key,
            "position": probe.position,
            "kept": probe.kept,
            "first": 4 * prod(probe.op.operands[0].shape),
            "later": probe.op.later,
            "dtype": probe.op.operands[probe.position].dtype,
            "alike": probe.op.operands[probe.position].dtype == probe.op.result,
            "bytes": _asked_for(probe, provider),
        }
        for probe in probes()
    ]
    return {"version": ort.__version__, "answers": answers}


def _asked_for(probe: Probe, provider: str) -> int | None:
    feed = {
        f"x{index}": np.ones(operand.shape, operand.dtype)
        for index, operand in enumerate(probe.op.operands)
        if operand.values is None
    }
    with tempfile.TemporaryDirectory(prefix="memplan-probe-") as folder:
        prefix = RuntimeSettings(session={"profile_file_prefix": f"{folder}/p"})
        try:
            session = make_session(probe.model, _PLAIN.updated(prefix), provider)
            session.run(None, feed)
        except Exception:  # noqa: BLE001 - the provider has no such kernel: no answer
            return None
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    for event in read_profile(events).runs[0]:
        if event.name == "probe" and event.provider == provider:
            return event.requested - event.requested_before
    return None
