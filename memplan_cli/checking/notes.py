"""What a written model says of its plan in its metadata, held against the plan."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from memplan_cli.core.results.placements import in_words

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from onnx import StringStringEntryProto  # noqa: TID251 - types only; onnx_io makes them

    from memplan_cli.checking.clock import Region
    from memplan_cli.checking.rows import Placed
    from memplan_cli.checking.subject import Subject
    from memplan_cli.core.results.placements import Placement

_PREFIX = "pkg.memplan."
_OF_NODES = ("step", "release", "memory")
_OF_VALUES = ("arena", "offset", "bytes", "first", "last", "alias_of")


def check_notes(subject: Subject, placed: Placed) -> Iterator[str]:
    """Yield where the metadata of the model, its nodes or its values is not the plan's."""
    yield from _of_model(subject)
    if read(subject.model.metadata_props).get("notes") == "plan":
        yield from _of_none(subject)
        return
    said = {release.step: list(release.tensors) for release in subject.plan.releases}
    noted: set[str] = set()
    units = {arena.id: arena.unit for arena in subject.plan.arenas}
    for region in subject.clock.regions:
        yield from _of_nodes(region, said)
        yield from _of_memory(region, placed, units)
        yield from _of_values(region, placed, noted)
    for identity, (row, value) in placed.rows.items():
        # What no run enters has no bytes, and is written as it was.
        entered = row.bytes or value.region.parent is None
        if identity not in noted and entered:
            yield f"the model has no notes on tensor {identity[:120]!r}, which the plan places"


def read(entries: Iterable[StringStringEntryProto]) -> dict[str, str]:
    """Return the plan's own entries of some metadata, without their prefix."""
    found = {}
    for entry in entries:
        key = entry.key
        if key.startswith(_PREFIX):
            found[key[len(_PREFIX) :]] = entry.value
    return found


def _of_none(subject: Subject) -> Iterator[str]:
    """Yield what has notes in a model that says that its plan alone has them."""
    for region in subject.clock.regions:
        graph = region.graph
        for each in (*graph.node, *graph.value_info, *graph.input, *graph.output):
            if read(each.metadata_props).keys() & {*_OF_NODES, *_OF_VALUES}:
                yield f"the model has notes on {each.name[:120]!r}, and says that it has none"


def _of_model(subject: Subject) -> Iterator[str]:
    entries, plan = read(subject.model.metadata_props), subject.plan
    pairs = (item.partition("=") for item in entries.get("plan", "").split(","))
    said = {key: value for key, _, value in pairs}
    memory = plan.report.memory
    wanted: dict[str, object] = {"digest": plan.digest, "level": plan.report.level}
    totals = {
        "naive": memory.naive,
        "live_peak": memory.live_peak,
        "planned": memory.planned,
        "total": memory.total,
    }
    wanted |= {name: size for name, size in totals.items() if size is not None}
    for name in sorted(said.keys() | wanted.keys()):
        one, other = said.get(name), wanted.get(name)
        if one is None or other is None or one != str(other):
            yield (
                f"the model's note says that {name[:40]} is {_word(one)}, the plan says "
                f"{_word(other)}"
            )
    donated = {(str(one), str(other)) for one, other in plan.report.donated.pairs}
    if _pairs(entries.get("donated")) != donated:
        yield "the model's note says that other outputs take inputs' memory than the plan does"


def _word(said: object) -> str:
    """Return what was said, as text that no terminal takes for more."""
    text = "nothing" if said is None else str(said)[:80]
    return text if text.isprintable() else repr(text)


def _pairs(text: str | None) -> object:
    try:
        return {(str(one), str(other)) for one, other in json.loads(text or "[]")}
    except (ValueError, TypeError):
        return text


def _of_nodes(region: Region, releases: Mapping[int, list[str]]) -> Iterator[str]:
    for node in region.nodes:
        said = read(node.proto.metadata_props)
        who = (node.proto.name or node.proto.op_type)[:120]
        if said.get("step") != str(node.start):
            yield (
                f"the note of node {who!r} says step {_word(said.get('step'))}, it runs at "
                f"{node.start}"
            )
        wanted = releases.get(node.end)
        given = _names(said.get("release"))
        if given != wanted:
            yield f"the note of node {who!r} releases {given}, the plan releases {wanted}"[
                :400
            ]


def _of_memory(region: Region, placed: Placed, units: Mapping[int, str]) -> Iterator[str]:
    """Yield where the words at a node are not the plan's; large graphs have none."""
    start = f"{region.path}/" if region.path else ""
    for node in region.nodes:
        said = read(node.proto.metadata_props).get("memory")
        if said is None:
            continue
        known = [placed.rows.get(start + name) for name in node.proto.output if name]
        wanted = "; ".join(in_words(found[0], units) for found in known if found)
        if said != wanted:
            who = (node.proto.name or node.proto.op_type)[:120]
            yield (
                f"the note of node {who!r} says of its memory {_word(said)}, the plan says "
                f"{_word(wanted)}"
            )


def _names(text: str | None) -> object:
    try:
        return None if text is None else json.loads(text)
    except ValueError:
        return text


def _of_values(region: Region, placed: Placed, noted: set[str]) -> Iterator[str]:
    start = f"{region.path}/" if region.path else ""
    graph, rows = region.graph, placed.rows
    for group in (graph.value_info, graph.input, graph.output):
        for value in group:
            if not value.metadata_props:
                continue
            said = {
                key: text
                for key, text in read(value.metadata_props).items()
                if key in _OF_VALUES
            }
            if not said:
                continue
            identity = start + value.name
            known = rows.get(identity)
            if known is None or known[1].region is not region:
                yield f"the model has notes on {identity[:120]!r}, which the plan does not place"
                continue
            if identity in noted:
                yield f"the model has notes on {identity[:120]!r} twice"
            noted.add(identity)
            if said != (wanted := _wanted(known[0])):
                key = min(
                    k for k in said.keys() | wanted.keys() if said.get(k) != wanted.get(k)
                )
                yield (
                    f"the note of {identity[:120]!r} says that its {key} is "
                    f"{_word(said.get(key))}, the plan says {_word(wanted.get(key))}"
                )


def _wanted(row: Placement) -> dict[str, str]:
    wanted = {
        "arena": str(row.arena),
        "offset": str(row.offset),
        "bytes": str(row.bytes),
        "first": str(row.first),
        "last": str(row.last),
    }
    if row.alias_of is not None:
        wanted["alias_of"] = row.alias_of
    return wanted
