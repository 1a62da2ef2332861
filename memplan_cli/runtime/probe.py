"""A probe of the installed runtime: which ops it runs in place, found by running each.

``python -m memplan_cli.runtime.probe [cpu|cuda]`` rewrites the table of one provider in
`memplan_cli.runtime.profile`.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from memplan_cli.runtime.profile.in_place import TABLES
from memplan_cli.runtime.workers.session import resolve_provider
from memplan_cli.runtime.workers.worker import run_job

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from pathlib import Path


def probe_table(provider: str) -> dict[str, Any]:
    """Ask the runtime about every op and return the table as JSON."""
    result: dict[str, Any] = run_job("inplace", {"provider": provider}).require("no probe ran")
    requested: dict[tuple[str, int, bool], list[int]] = defaultdict(list)
    for answer in result["answers"]:
        if answer["bytes"] is not None:
            key = (answer["op"], answer["position"], answer["kept"])
            requested[key].append(answer["bytes"])
    alias: dict[str, list[int]] = defaultdict(list)
    in_place: dict[str, list[int]] = defaultdict(list)
    # An op with several probes (Cast to the same and to another size) counts as in place
    # where any of them is: element size and shape are compared again when predicting.
    for op, position, kept in sorted(requested):
        if kept and 0 in requested[op, position, kept]:
            alias[op].append(position)
        elif not kept and 0 in requested[op, position, kept]:
            in_place[op].append(position)
    only = {op: [p for p in at if p not in alias.get(op, ())] for op, at in in_place.items()}
    return {
        "version": result["version"],
        "provider": provider,
        "probed": sorted({op for op, _, _ in requested}),
        "silent": sorted(
            {a["op"] for a in result["answers"]} - {op for op, _, _ in requested}
        ),
        "alias": dict(sorted(alias.items())),
        "in_place": {op: at for op, at in sorted(only.items()) if at},
        "later": _later(result["answers"]),
        "allocates": _exceptions(result["answers"], {op for op, at in only.items() if at}),
    }


def _later(answers: Sequence[Any]) -> dict[str, list[list[int]]]:
    """Return the pairs of ops that asked for no more than their first output, ever."""
    requested: dict[str, list[bool]] = defaultdict(list)
    pairs = {answer["op"]: answer["later"] for answer in answers if answer["later"]}
    for answer in answers:
        if answer["later"] and answer["bytes"] is not None:
            requested[answer["op"]].append(answer["bytes"] == answer["first"])
    return {op: pairs[op] for op, found in sorted(requested.items()) if all(found)}


def _exceptions(answers: Sequence[Any], in_place: Collection[str]) -> dict[str, list[str]]:
    """Return the dtypes in which ops that write in place were never seen to."""
    seen: dict[tuple[str, str], list[bool]] = defaultdict(list)
    for answer in answers:
        if answer["bytes"] is not None and answer["alike"] and not answer["kept"]:
            seen[answer["op"], answer["dtype"]].append(not answer["bytes"])
    found: dict[str, list[str]] = defaultdict(list)
    for (op, dtype), shared in sorted(seen.items()):
        if op in in_place and not any(shared):
            found[op].append(dtype)
    return dict(found)


def main(wanted: str = "cpu") -> Path:
    """Probe one provider and store its table in the package."""
    table = probe_table(resolve_provider(wanted))
    TABLES.mkdir(exist_ok=True)
    path = TABLES / f"{table['provider']}.json"
    path.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
    return path


if __name__ == "__main__":
    main(*sys.argv[1:])
