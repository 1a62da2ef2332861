"""Find out which ops the installed runtime computes in place, by running each op alone.

``python -m tests.benchmarks.in_place [cpu|cuda]`` rewrites the table of one provider in
`memplan_cli.runtime.profile`.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections import defaultdict
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memplan_cli.core.deserialization import from_json
from memplan_cli.core.results.observations import RuntimeSettings
from memplan_cli.core.serialization import to_json
from memplan_cli.runtime.profile.in_place import TABLES
from memplan_cli.runtime.workers.session import make_session, resolve_provider
from memplan_cli.runtime.workers.session_profile import read_profile
from memplan_cli.runtime.workers.worker import run_job

from .in_place_models import probes

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from memplan_cli.core.json_types import Json

    from .in_place_models import Probe

_PROBE_JOB = "tests.benchmarks.in_place:run_probes"

_PROFILED_WITHOUT_REUSE = RuntimeSettings(
    session={
        "graph_optimization_level": "ORT_DISABLE_ALL",
        "execution_order": "PRIORITY_BASED",
        "enable_mem_pattern": False,
        "enable_mem_reuse": False,
        "enable_profiling": True,
    }
)
"""With these settings a result shares memory only if its kernel declares that it may. The profile has the
bytes that each kernel requested."""


@dataclass(frozen=True, slots=True)
class OpProbeResult:
    """The bytes that an op requested when its model was run, to be read with its `Probe`.

    Attributes:
        op: as the tables name it.
        position: of the input on which the result may lie.
        input_is_read_again: whether another op reads that input after the op.
        dtype: of that input.
        has_same_dtype: whether the first output has the dtype of the input.
        requested: bytes; 0 if the result was written into the input.
        first_output_bytes: bytes of the first output; 0 without ``later`` outputs.
        later: as `OneOp.later`.
    """

    op: str
    position: int
    input_is_read_again: bool
    dtype: str
    has_same_dtype: bool
    requested: int
    first_output_bytes: int
    later: tuple[tuple[int, int], ...]


def probe_table(provider: str) -> Json:
    """Run every probe on a provider, and return the table for `memplan_cli.runtime.profile`.

    Returns:
        ``versions``: the version of ONNX Runtime, alone.
        ``provider``: ONNX Runtime's name of it.
        ``alias``: by op, the inputs on which its first output lies even if they are read again.
        ``in_place``: by op, the inputs on which its first output lies if they are not read again.
        ``later``: by op, ``[input, output]`` of later outputs that lie on an input.
        ``allocates``: by op of ``in_place``, the dtypes with which it does not work in place.
    """
    answer = run_job(_PROBE_JOB, {"provider": provider}).require("no probe ran")
    results = [from_json(OpProbeResult, item, "the answer") for item in answer["results"]]
    # An op with several probes (Cast to the same and to another size) counts as sharing if one of them
    # requests no memory: element size and shape are compared again when predicting.
    sharing = [result for result in results if result.requested == 0]
    alias = {(result.op, result.position) for result in sharing if result.input_is_read_again}
    in_place = {(result.op, result.position) for result in sharing} - alias
    return {
        "versions": [answer["version"]],
        "provider": provider,
        "alias": _positions_by_op(alias),
        "in_place": _positions_by_op(in_place),
        "later": _later_outputs(results),
        "allocates": _allocating_dtypes(results, {op for op, _ in in_place}),
    }


def _positions_by_op(inputs: Iterable[tuple[str, int]]) -> dict[str, list[int]]:
    positions: dict[str, list[int]] = defaultdict(list)
    for op, position in sorted(inputs):
        positions[op].append(position)
    return dict(positions)


def _later_outputs(results: Sequence[OpProbeResult]) -> dict[str, list[list[int]]]:
    """Return ``[input, output]`` of outputs besides the first that lie on an input, by op.

    The later outputs of an op lie on inputs if it requested memory for its first output only, in every
    probe. Which outputs these may be is the same in all probes of an op.
    """
    requested_first_only: dict[str, list[bool]] = defaultdict(list)
    pairs: dict[str, list[list[int]]] = {}
    for result in results:
        if result.later:
            pairs[result.op] = [list(pair) for pair in result.later]
            is_first_only = result.requested == result.first_output_bytes
            requested_first_only[result.op].append(is_first_only)
    return {
        op: pairs[op] for op, probes in sorted(requested_first_only.items()) if all(probes)
    }


def _allocating_dtypes(
    results: Sequence[OpProbeResult], in_place: Collection[str]
) -> dict[str, list[str]]:
    """Return, for the ops of ``in_place``, the dtypes with which no kernel of theirs works in place.

    Only probes are counted in which the op could work in place: its result has the dtype of the input,
    and the input is not read again.
    """
    is_in_place: dict[tuple[str, str], list[bool]] = defaultdict(list)
    for result in results:
        if result.op in in_place and result.has_same_dtype and not result.input_is_read_again:
            is_in_place[result.op, result.dtype].append(result.requested == 0)
    dtypes: dict[str, list[str]] = defaultdict(list)
    for (op, dtype), answers in sorted(is_in_place.items()):
        if not any(answers):
            dtypes[op].append(dtype)
    return dict(dtypes)


def run_probes(job: Json) -> Json:
    """Job: run every probe, and return ``results`` (`OpProbeResult`) and the runtime's ``version``.

    A probe is a model of one op, which tests whether the result lies on one of the inputs. Probes that do not
    run on the ``provider`` of the job (ONNX Runtime's name) have no result.
    """
    import onnxruntime as ort

    provider = str(job["provider"])
    results = []
    for probe in probes():
        requested = _requested_bytes(probe, provider)
        if requested is None:
            continue
        op, dtype = probe.op, probe.op.operands[probe.position].dtype
        result = OpProbeResult(
            op=op.key,
            position=probe.position,
            input_is_read_again=probe.kept,
            dtype=dtype,
            has_same_dtype=dtype == op.result_dtype,
            requested=requested,
            # The first output of an op with later outputs is float32, with the shape of the first operand.
            first_output_bytes=4 * prod(op.operands[0].shape) if op.later else 0,
            later=op.later,
        )
        results.append(result)
    return {"version": ort.__version__, "results": to_json(results)}


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
            settings = _PROFILED_WITHOUT_REUSE.updated(prefix)
            session = make_session(probe.model, settings, provider)
            session.run(None, feed)
        except Exception:  # noqa: BLE001 - the provider has no kernel for the op, or not for these types
            return None
        events: Any = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    for event in read_profile(events, provider)[0]:
        if event.name == "probe":
            return event.requested - event.requested_before
    return None


def main(provider: str = "cpu") -> Path:
    """Probe one provider, write its table into the package, and return the file.

    If the stored table has the same answers, the installed version is added to its versions.
    """
    table = probe_table(resolve_provider(provider))
    TABLES.mkdir(exist_ok=True)
    path = TABLES / f"{table['provider']}.json"
    stored = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    if stored | {"versions": table["versions"]} == table:
        table["versions"] = list(dict.fromkeys([*stored["versions"], *table["versions"]]))
    path.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
    return path


if __name__ == "__main__":
    main(*sys.argv[1:])
