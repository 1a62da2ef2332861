"""The plan on the time line of chrome://tracing and Perfetto: one tick is one microsecond."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from memplan_cli.core.results.timeline import curve, moments, occupancies
from memplan_cli.reporting.escape import per_unit, terminal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memplan_cli.core.json_types import Json
    from memplan_cli.core.results.plan import Plan

_NODES, _TENSORS = 0, 1
"""The two "processes" that viewers show one below the other."""


def render(plan: Plan) -> str:
    """Return the trace as JSON, one event a line."""
    lines = ",\n".join(json.dumps(event, ensure_ascii=True) for event in _events(plan))
    return f'{{"displayTimeUnit":"ms","traceEvents":[\n{lines}\n]}}\n'


def _events(plan: Plan) -> Iterator[Json]:
    yield _name(_NODES, "nodes, one tick each")
    yield _name(_TENSORS, "tensors")
    for moment in moments(plan):
        yield {
            "name": terminal(moment.label),
            "ph": "X",
            "ts": moment.start,
            "dur": moment.end + 1 - moment.start,
            "pid": _NODES,
            "tid": 0,
        }
    for number, item in enumerate(occupancies(plan)):
        shared = {
            "name": terminal(item.tensor.id),
            "cat": "tensor",
            "id": number,
            "pid": _TENSORS,
            "tid": item.tensor.arena,
        }
        facts = {
            "bytes": item.bytes,
            "offset": item.tensor.offset,
            "tensors": [terminal(tensor.id) for tensor in item.members],
        }
        yield {**shared, "ph": "b", "ts": item.first, "args": facts}
        yield {**shared, "ph": "e", "ts": item.last}
    for arena in plan.arenas:
        for tick, size in curve(plan, arena):
            yield {
                "name": f"live bytes{per_unit(arena.unit)}",
                "ph": "C",
                "ts": tick,
                "pid": _NODES,
                "args": {"live": size},
            }


def _name(process: int, name: str) -> Json:
    return {"name": "process_name", "ph": "M", "pid": process, "args": {"name": name}}
