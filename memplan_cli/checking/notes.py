"""Checks of the plan's notes in the metadata of the written model, its nodes and its values."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from memplan_cli.checking.plan_figures import printable
from memplan_cli.core.results.placements import in_words

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from onnx import StringStringEntryProto  # noqa: TID251 - types only; onnx_io makes them

    from memplan_cli.checking.timeline import Block, PlannedModel
    from memplan_cli.core.results.placements import Placement

_PREFIX = "pkg.memplan."
_NODE_KEYS = frozenset({"step", "release", "memory"})
_VALUE_KEYS = frozenset({"arena", "offset", "bytes", "first", "last", "alias_of"})


def check_notes(planned: PlannedModel) -> Iterator[str]:
    """Yield where the notes in the written model differ from the plan.

    The model's note ``notes=plan`` states that nodes and values have no notes.
    """
    yield from _check_model_notes(planned)
    if _notes(planned.model.metadata_props).get("notes") == "plan":
        yield from _check_no_notes(planned)
        return
    releases = {release.step: list(release.tensors) for release in planned.plan.releases}
    for block in planned.timeline.blocks:
        yield from _check_node_notes(block, planned, releases)
    yield from _check_value_notes(planned)


def _notes(entries: Iterable[StringStringEntryProto]) -> dict[str, str]:
    """Return the metadata entries that this program wrote, by their keys without the prefix."""
    return {
        entry.key.removeprefix(_PREFIX): entry.value
        for entry in entries
        if entry.key.startswith(_PREFIX)
    }


def _check_no_notes(planned: PlannedModel) -> Iterator[str]:
    """Yield nodes and values with notes, in a model whose note states that there are none."""
    for block in planned.timeline.blocks:
        graph = block.graph
        for proto in (*graph.node, *graph.value_info, *graph.input, *graph.output):
            if _notes(proto.metadata_props).keys() & (_NODE_KEYS | _VALUE_KEYS):
                yield f"the model has notes on {proto.name[:120]!r}, but states that it has none"


def _check_model_notes(planned: PlannedModel) -> Iterator[str]:
    """Yield where the model's own notes differ: digest, level, totals and donated inputs."""
    notes, plan = _notes(planned.model.metadata_props), planned.plan
    memory = plan.report.memory
    expected: dict[str, object] = {
        "digest": plan.digest,
        "level": plan.report.level,
        "naive": memory.naive,
        "live_peak": memory.live_peak,
        "planned": memory.planned,
        "total": memory.total,
    }
    expected = {name: value for name, value in expected.items() if value is not None}
    pairs = (item.partition("=") for item in notes.get("plan", "").split(","))
    recorded = {name: value for name, _, value in pairs}
    for name in sorted(recorded.keys() | expected.keys()):
        if name not in expected or recorded.get(name) != str(expected[name]):
            yield (
                f"the model's note says that {name[:40]} is {printable(recorded.get(name))}, "
                f"the plan says {printable(expected.get(name))}"
            )
    donated = {(str(name), str(output)) for name, output in plan.report.donated.pairs}
    try:
        noted_pairs = json.loads(notes.get("donated") or "[]")
        is_same = {(str(name), str(output)) for name, output in noted_pairs} == donated
    except (ValueError, TypeError):
        is_same = False
    if not is_same:
        yield "the model's note has other donated inputs than the plan"


def _check_node_notes(
    block: Block, planned: PlannedModel, releases: dict[int, list[str]]
) -> Iterator[str]:
    """Yield where the notes of a block's nodes differ: step, released tensors, memory.

    ``releases`` has the tensors that the plan releases after a tick, by tick. A node that releases
    none has no note ``release``. The note ``memory`` describes the outputs in words. Large graphs
    are written without it.
    """
    units = planned.units
    for node in block.nodes:
        notes = _notes(node.proto.metadata_props)
        if notes.get("step") != str(node.start):
            yield (
                f"the note of node {node.title!r} says step {printable(notes.get('step'))}, it "
                f"runs at {node.start}"
            )
        released = _json_or_text(notes.get("release"))
        expected = releases.get(node.last)  # None, as the note, if nothing is released
        if released != expected:
            text = f"the note of node {node.title!r} releases {released}, the plan releases "
            yield f"{text}{expected}"[:400]
        if "memory" in notes:
            ids = [block.tensor_id(name) for name in node.proto.output if name]
            rows = [planned.tensors[i].placement for i in ids if i in planned.tensors]
            words = "; ".join(in_words(row, units) for row in rows)
            if notes["memory"] != words:
                yield (
                    f"the note of node {node.title!r} describes its memory as "
                    f"{printable(notes['memory'])}, the plan says {printable(words)}"
                )


def _json_or_text(text: str | None) -> object:
    """Return the value of a JSON text, or the text itself if it is not JSON or None."""
    try:
        return None if text is None else json.loads(text)
    except ValueError:
        return text


def _check_value_notes(planned: PlannedModel) -> Iterator[str]:
    """Yield where notes on values differ from the plan, occur twice, or are missing."""
    noted_ids: set[str] = set()
    for block in planned.timeline.blocks:
        graph = block.graph
        for proto in (*graph.value_info, *graph.input, *graph.output):
            all_notes = _notes(proto.metadata_props)
            notes = {key: text for key, text in all_notes.items() if key in _VALUE_KEYS}
            if not notes:
                continue
            tensor_id = block.tensor_id(proto.name)
            tensor = planned.tensors.get(tensor_id)
            if tensor is None or tensor.value.block is not block:
                yield f"the model has notes on {tensor_id[:120]!r}, which the plan does not place"
                continue
            if tensor_id in noted_ids:
                yield f"the model has notes on {tensor_id[:120]!r} twice"
            noted_ids.add(tensor_id)
            expected = _expected_value_notes(tensor.placement)
            keys = notes.keys() | expected.keys()
            if wrong := [key for key in keys if notes.get(key) != expected.get(key)]:
                key = min(wrong)
                yield (
                    f"the note of {tensor_id[:120]!r} says that its {key} is "
                    f"{printable(notes.get(key))}, the plan says {printable(expected.get(key))}"
                )
    for tensor_id, (row, value) in planned.tensors.items():
        # In a branch that is never run, tensors have no bytes, and they are written without notes.
        may_lack_notes = row.bytes == 0 and value.block.parent is not None
        if tensor_id not in noted_ids and not may_lack_notes:
            yield f"the model has no notes on tensor {tensor_id[:120]!r}, which the plan places"


def _expected_value_notes(row: Placement) -> dict[str, str]:
    """Return the notes that the model should have on a tensor."""
    notes = {
        "arena": str(row.arena),
        "offset": str(row.offset),
        "bytes": str(row.bytes),
        "first": str(row.first),
        "last": str(row.last),
    }
    if row.alias_of is not None:
        notes["alias_of"] = row.alias_of
    return notes
