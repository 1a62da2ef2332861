"""Find out which ops the installed runtime computes in place, by running each op alone.

``python -m memplan_cli.runtime.probe [cpu|cuda]`` rewrites the table of one provider in
`memplan_cli.runtime.profile`.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections import defaultdict
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memplan_cli.core.results.observations import RuntimeSettings
from memplan_cli.runtime.profile.in_place import TABLES
from memplan_cli.runtime.workers.session import make_session, resolve_provider
from memplan_cli.runtime.workers.session_profile import read_profile
from memplan_cli.runtime.workers.worker import run_job

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from memplan_cli.core.json_types import Json
    from memplan_cli.onnx_io.runs.inplace_probes import Probe

_PROBE_JOB = "memplan_cli.runtime.probe:run_probes"

_NO_REUSE = RuntimeSettings(
    session={
        "graph_optimization_level": "ORT_DISABLE_ALL",
        "execution_order": "PRIORITY_BASED",
        "enable_mem_pattern": False,
        "enable_mem_reuse": False,
        "enable_profiling": True,
    }
)
"""With these settings a result shares memory only if its kernel declares that it may."""


def probe_table(provider: str) -> Json:
    """Run every probe on a provider, and return the table for `memplan_cli.runtime.profile`."""
    result = run_job(_PROBE_JOB, {"provider": provider}).require("no probe ran")
    answers: list[Json] = result["answers"]
    requests: dict[tuple[str, int, bool], list[int]] = defaultdict(list)
    for answer in answers:
        if answer["bytes"] is not None:
            key = (answer["op"], answer["position"], answer["kept"])
            requests[key].append(answer["bytes"])
    alias: dict[str, list[int]] = defaultdict(list)
    in_place: dict[str, list[int]] = defaultdict(list)
    # An op that requests nothing writes into the input: as an alias if the input is kept, since it is
    # read again, else in place.
    # An op with several probes (Cast to the same and to another size) counts as in place if one
    # of them is: element size and shape are compared again when predicting.
    for (op, position, kept), sizes in sorted(requests.items()):
        if 0 in sizes:
            (alias if kept else in_place)[op].append(position)
    only_in_place = {
        op: [position for position in positions if position not in alias.get(op, ())]
        for op, positions in in_place.items()
    }
    only_in_place = {op: positions for op, positions in only_in_place.items() if positions}
    answered = {op for op, _, _ in requests}
    return {
        "version": result["version"],
        "provider": provider,
        "probed": sorted(answered),
        "silent": sorted({answer["op"] for answer in answers} - answered),
        "alias": dict(sorted(alias.items())),
        "in_place": dict(sorted(only_in_place.items())),
        "later": _later_outputs(answers),
        "allocates": _allocating_dtypes(answers, only_in_place),
    }


def _later_outputs(answers: Sequence[Json]) -> dict[str, list[list[int]]]:
    """Return ``[input, output]`` of outputs besides the first that lie on an input, by op.

    An op has such outputs if it requested just the bytes of its first output in every probe.
    """
    needs_first_only: dict[str, list[bool]] = defaultdict(list)
    pairs = {answer["op"]: answer["later"] for answer in answers if answer["later"]}
    for answer in answers:
        if answer["later"] and answer["bytes"] is not None:
            needs_first_only[answer["op"]].append(answer["bytes"] == answer["first"])
    return {op: pairs[op] for op, probes in sorted(needs_first_only.items()) if all(probes)}


def _allocating_dtypes(
    answers: Sequence[Json], in_place: Collection[str]
) -> dict[str, list[str]]:
    """Return, for the ops of ``in_place``, the dtypes with which no kernel of theirs works in place."""
    shares_memory: dict[tuple[str, str], list[bool]] = defaultdict(list)
    for answer in answers:
        if answer["bytes"] is not None and answer["alike"] and not answer["kept"]:
            shares_memory[answer["op"], answer["dtype"]].append(not answer["bytes"])
    dtypes: dict[str, list[str]] = defaultdict(list)
    for (op, dtype), probes in sorted(shares_memory.items()):
        if op in in_place and not any(probes):
            dtypes[op].append(dtype)
    return dict(dtypes)


def run_probes(job: Json) -> Json:
    """Job: run every probe, and return the bytes that each op requested.

    Args:
        job: ``provider`` is ONNX Runtime's name of it.

    Returns:
        ``answers`` has for each probe: the op and the ``position`` of the input on which its
        result may lie; ``kept``: whether that input is read again; ``bytes``: what the op
        requested, None if it does not run; ``first``: bytes of its first output; ``later``: as
        `OneOp.later`; ``dtype`` of the input; ``alike``: whether the result has this dtype too.
    """
    import onnxruntime as ort

    from memplan_cli.onnx_io.runs.inplace_probes import probes

    provider = str(job["provider"])
    answers = []
    for probe in probes():
        operand = probe.op.operands[probe.position]
        answer = {
            "op": probe.op.key,
            "position": probe.position,
            "kept": probe.kept,
            # Of a float32 output with the shape of the first operand, as ops with later outputs have.
            "first": 4 * prod(probe.op.operands[0].shape),
            "later": probe.op.later,
            "dtype": operand.dtype,
            "alike": operand.dtype == probe.op.result,
            "bytes": _requested_bytes(probe, provider),
        }
        answers.append(answer)
    return {"version": ort.__version__, "answers": answers}


def _requested_bytes(probe: Probe, provider: str) -> int | None:
    """Run a probe, and return the bytes that its op requested; None if it does not run."""
    import numpy as np

    feed = {
        f"x{index}": np.ones(operand.shape, operand.dtype)
        for index, operand in enumerate(probe.op.operands)
        if operand.values is None
    }
    with tempfile.TemporaryDirectory(prefix="memplan-probe-") as folder:
        prefix = RuntimeSettings(session={"profile_file_prefix": f"{folder}/p"})
        try:
            session = make_session(probe.model, _NO_REUSE.updated(prefix), provider)
            session.run(None, feed)
        except Exception:  # noqa: BLE001 - the provider has no kernel for the op
            return None
        events: Any = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    for event in read_profile(events)[0]:
        if event.name == "probe" and event.provider == provider:
            return event.requested - event.requested_before
    return None


def main(provider: str = "cpu") -> Path:
    """Probe one provider, write its table into the package, and return the file."""
    table = probe_table(resolve_provider(provider))
    TABLES.mkdir(exist_ok=True)
    path = TABLES / f"{table['provider']}.json"
    path.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
    return path


if __name__ == "__main__":
    main(*sys.argv[1:])
