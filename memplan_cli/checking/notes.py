"""Checks of the plan's notes in the metadata of the written model, its nodes and its values."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from memplan_cli.checking.plan_figures import Comparison, mismatches, printable
from memplan_cli.core.deserialization import MisfitError, from_json
from memplan_cli.core.results.observations import (
    CPU,
    MODEL_OPTIONS,
    PROVIDERS,
    RuntimeSettings,
)
from memplan_cli.core.results.placements import in_words
from memplan_cli.core.results.rewrites import CacheSummary
from memplan_cli.core.serialization import to_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from onnx import StringStringEntryProto  # noqa: TID251 - types only; onnx_io makes them

    from memplan_cli.checking.timeline import Block, PlannedModel
    from memplan_cli.core.results.placements import Placement

_PREFIX = "pkg.memplan."
_ORT_CONFIG = "ort_config"
_MODEL_KEYS = frozenset((
    "caches", "donated", "folded", "hardware", "notes", "plan", "reference", "runtime", "settings", "weights",
))  # fmt: skip
_NODE_KEYS = frozenset({"step", "release", "memory"})
_VALUE_KEYS = frozenset({"arena", "offset", "bytes", "first", "last", "alias_of"})


def check_notes(planned: PlannedModel) -> Iterator[str]:
    """Yield where the notes in the written model differ from the plan.

    The model's note ``notes=plan`` states that nodes and values have no notes.
    """
    yield from _check_model_keys(planned)
    yield from _check_model_notes(planned)
    yield from mismatches(_compare_rewrite_notes(planned))
    yield from _check_runtime_settings(planned)
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


def _check_model_keys(planned: PlannedModel) -> Iterator[str]:
    """Yield keys in the model's metadata that are not memplan's in spite of its prefix, or occur twice."""
    counts = Counter(entry.key for entry in planned.model.metadata_props)
    for key in sorted(counts):
        own_key = key.removeprefix(_PREFIX)
        if own_key != key and own_key not in _MODEL_KEYS:
            yield f"the model has a note {key[:80]!r}, which memplan does not write"
        elif counts[key] > 1:
            yield f"the model has the entry {key[:80]!r} twice"


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
    items = notes["plan"].split(",") if "plan" in notes else ()
    recorded = {name: value for name, _, value in (item.partition("=") for item in items)}
    for name in sorted(recorded.keys() | expected.keys()):
        if name not in expected or recorded.get(name) != str(expected[name]):
            yield (
                f"the model's note says that {name[:40]} is {printable(recorded.get(name))}, "
                f"the plan says {printable(expected.get(name))}"
            )
    pairs = [list(pair) for pair in plan.report.donated.pairs]
    if _json_or_text(notes.get("donated")) != (pairs or None):
        yield "the model's note has other donated inputs than the plan"


def _compare_rewrite_notes(planned: PlannedModel) -> Iterator[Comparison]:
    """Compare each note of the model on how it was rewritten with the note that belongs to the plan.

    A note is a text in the model's metadata, None if there is nothing to note.
    """
    notes, report = _notes(planned.model.metadata_props), planned.plan.report
    # A run needs the buffers and their capacity. The other fields, which are for reports, are not in the note.
    caches = replace(report.caches, kept=(), bytes=0, before=None, planned_at=0, steps=())
    expected_caches = to_json(caches) if caches != CacheSummary() else None
    yield Comparison("the note on caches", _json_or_text(notes.get("caches")), expected_caches)
    moved = report.external_weights
    expected_weights = f"{moved.bytes} bytes in {moved.file}" if moved.file else None
    yield Comparison("the note on weights", notes.get("weights"), expected_weights)
    # "3 constants", or "3 constants in FILE". The plan does not have the name of the file.
    folded = notes["folded"].partition(" in ")[0] if "folded" in notes else None
    count = len(report.folded.tensors)
    expected_folded = f"{count} constants" if count else None
    yield Comparison("the note on folded constants", folded, expected_folded)
    # Outputs are compared with those of a run of the original: with default settings, or as the note has it.
    reference = report.validation.reference if report.validation else "defaults"
    expected_reference = reference if reference != "defaults" else None
    yield Comparison("the note on the reference", notes.get("reference"), expected_reference)
    # With the setting ``notes=plan`` only the plan describes nodes and values, and the model notes this: "plan".
    expected_place = "plan" if planned.plan.settings.get("notes") == "plan" else None
    yield Comparison("the note on notes", notes.get("notes"), expected_place)
    # This note names the runtime that optimized the graph for a target. A portable graph was not optimized. It can
    # have the note of an original that was written for a target, so nothing is compared.
    runtime = report.runtime
    if runtime is not None and report.target != "portable":
        expected_runtime = f"{runtime.name} {runtime.version} {runtime.provider}"
        yield Comparison("the note on the runtime", notes.get("runtime"), expected_runtime)


def _check_runtime_settings(planned: PlannedModel) -> Iterator[str]:
    """Yield messages about the plan's runtime, and about the note on settings in the model's metadata.

    The note must have the settings in the plan. Without settings in the plan, a model that must run unoptimized
    has a note with settings of its own. `_check_settings_of_model` reports if such a note is missing.
    """
    report, runtime = planned.plan.report, planned.plan.report.runtime
    # The note is a table: {"provider": "CPUExecutionProvider", "settings": {...}}.
    note = _json_or_text(_notes(planned.model.metadata_props).get("settings"))
    if runtime is not None:
        yield from mismatches([Comparison("runtime.name", runtime.name, "onnxruntime")])
    settings: RuntimeSettings | None = None
    if runtime is not None and runtime.settings is not None:
        # The plan has settings, and the note repeats them.
        settings = runtime.settings
        expected = {"provider": runtime.provider, "settings": to_json(settings)}
        yield from mismatches(_compare_noted_settings(note, expected))
    elif isinstance(note, dict) and _must_run_unoptimized(planned):
        # The plan has no settings, because no run measured any. But graph optimization would undo the plan or change
        # outputs, so the written model has a note with settings that disable the optimization.
        try:
            settings = from_json(RuntimeSettings, note.get("settings"), "the note on settings")
        except MisfitError as error:
            yield str(error)[:400]
            return  # without settings to check
        provider = PROVIDERS.get(report.target, CPU)
        recorded = note.get("provider")
        yield from mismatches([Comparison("provider in the model", recorded, provider)])
    elif note is not None:
        yield "the model has a note on settings, and the plan has none"
    yield from _check_settings_of_model(planned, settings)


def _compare_noted_settings(note: object, expected: object) -> Iterator[Comparison]:
    """Compare each entry of the model's note on settings with the expected entry."""
    recorded_entries, expected_entries = _flat(note), _flat(expected)
    for key in sorted(expected_entries.keys() | recorded_entries.keys()):
        name = f"{key[:120]} in the model"
        yield Comparison(name, recorded_entries.get(key), expected_entries.get(key))


def _flat(value: object) -> dict[str, object]:
    """Return nested tables as one table, with keys such as ``settings.session.enable_mem_reuse``."""
    flat: dict[str, object] = {}
    for name, item in value.items() if isinstance(value, dict) else ():
        inner = {f"{name}.{key}": inner for key, inner in _flat(item).items()}
        flat |= inner or {name: item}
    return flat


def _must_run_unoptimized(planned: PlannedModel) -> bool:
    """Return whether ONNX Runtime's graph optimization would undo a plan, or give other outputs."""
    report, validation = planned.plan.report, planned.plan.report.validation
    was_compared_unoptimized = validation and validation.reference == "unoptimized"
    is_optimized_graph = report.target != "portable"  # optimizing it again could change it
    has_copies = report.recompute.nodes or report.chunked.regions  # which would be merged
    # In-place caches are safe in any order of the nodes, other donated pairs in the plan's order only.
    needs_order = not set(report.donated.pairs) <= set(report.caches.donated)
    return bool(was_compared_unoptimized or is_optimized_graph or has_copies or needs_order)


def _check_settings_of_model(
    planned: PlannedModel, settings: RuntimeSettings | None
) -> Iterator[str]:
    """Yield where the settings of a model contradict the plan; None: the model is run with the defaults."""
    is_unoptimized = settings is not None and settings.is_unoptimized
    if _must_run_unoptimized(planned) and not is_unoptimized:
        yield "the settings in the model do not disable graph optimization, which would undo the plan"
    if settings is not None:
        # Output -> the input in whose memory a run stores this output.
        report = planned.plan.report
        binding = {output: donated for donated, output in report.donated.pairs}
        if report.caches.buffers:
            # With caches no other inputs are donated. The donated pairs lack buffers that an operator updates itself.
            binding = {cache.output: cache.input for cache in report.caches.buffers}
        yield from mismatches([Comparison("io_binding", dict(settings.io_binding), binding)])
    yield from _check_config(planned, settings)


def _check_config(planned: PlannedModel, settings: RuntimeSettings | None) -> Iterator[str]:
    """Yield a message if the model's ``ort_config`` is neither that of the original nor that of the settings.

    ``ort_config`` is a metadata entry from which ONNX Runtime reads session options, as numbers.
    """
    metadata = {entry.key: entry.value for entry in planned.model.metadata_props}
    config, original = metadata.get(_ORT_CONFIG), planned.original
    # The original's entry may stay. A missing entry is compared, because the settings may demand one.
    if config is not None and original is not None and config == original.config:
        return
    session = settings.session if settings is not None else {}
    options = {
        name: numbers[session[name]]  # as 0 for "ORT_DISABLE_ALL"
        for name, numbers in MODEL_OPTIONS.items()
        if session.get(name) in numbers
    }
    expected = {"made_by": "memplan", "session_options": options} if options else None
    yield from mismatches([Comparison(_ORT_CONFIG, _json_or_text(config), expected)])


def _check_node_notes(
    block: Block, planned: PlannedModel, releases: dict[int, list[str]]
) -> Iterator[str]:
    """Yield where the notes of a block's nodes differ: step, released tensors, memory.

    ``releases`` has the tensors that the plan releases after a tick, by tick. A node that releases
    none has no note ``release``. The note ``memory`` describes the planned outputs in words. A block has it on
    every node with a planned output, or (as large blocks) on no node.
    """
    units = planned.plan.units
    is_described = any("memory" in _notes(node.proto.metadata_props) for node in block.nodes)
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
        if is_described:
            ids = [block.tensor_id(name) for name in node.proto.output if name]
            rows = [planned.tensors[i].placement for i in ids if i in planned.tensors]
            words = "; ".join(in_words(row, units) for row in rows) or None
            if notes.get("memory") != words:
                yield (
                    f"the note of node {node.title!r} describes its memory as "
                    f"{printable(notes.get('memory'))}, the plan says {printable(words)}"
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
    """Return the notes that the model should have on a tensor: the fields of its placement that are not None."""
    fields = {key: getattr(row, key) for key in _VALUE_KEYS}
    return {key: str(value) for key, value in fields.items() if value is not None}
