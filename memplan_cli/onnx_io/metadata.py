"""memplan's own metadata in a model file: its keys, and the entries read and written."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from memplan_cli.errors import ModelError
from memplan_cli.loading.metadata import METADATA
from memplan_cli.loading.settings import RUNTIME
from memplan_cli.onnx_io.wire_format import encoded_entry

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from onnx import ModelProto, StringStringEntryProto

    from memplan_cli.core.check import Reference

PREFIX = "pkg.memplan."
"""The prefix of memplan's keys."""

_DONATED = f"{PREFIX}donated"

FOLDED = f"{PREFIX}folded"
"""The key of a file with folded constants: how many, and the file of their values."""

WEIGHTS = f"{PREFIX}weights"
"""The key of a file whose weights were moved out of it: their bytes, and the file they are in."""

NOTES = f"{PREFIX}notes"
"""The key of a file without notes on its nodes and values; its value is `IN_PLAN`."""

IN_PLAN = "plan"
"""The notes are in the plan file only."""

HARDWARE = f"{PREFIX}hardware"
"""The key of a file whose graph ONNX Runtime optimized: the processor it was optimized on."""

_REFERENCE = f"{PREFIX}reference"
"""The key of a file whose outputs were compared with another run of the original than a default one."""

ORT_CONFIG = "ort_config"
"""The key of the session options that ONNX Runtime reads if ORT_LOAD_CONFIG_FROM_MODEL is 1."""

OWN_CONFIG = '{"made_by":"memplan",'
"""The beginning of the value of `ORT_CONFIG` if memplan wrote it; ONNX Runtime ignores that key."""


def is_own(entry: StringStringEntryProto) -> bool:
    """Whether memplan wrote an entry, so that it may replace or drop it."""
    key, value = str(entry.key), str(entry.value)
    return key.startswith(PREFIX) or (key == ORT_CONFIG and value.startswith(OWN_CONFIG))


def read_notes(model: ModelProto) -> dict[str, str]:
    """Return digest, level and totals of the plan, from ``pkg.memplan.plan``; empty if it is absent."""
    for entry in model.metadata_props:
        if entry.key == f"{PREFIX}plan":
            pairs = (item.partition("=") for item in entry.value.split(","))
            return {key: value for key, _, value in pairs}
    return {}


def donation_note(pairs: Sequence[tuple[str, str]]) -> Mapping[str, str]:
    """Return the metadata entry of donated ``(input, output)`` pairs; empty without pairs."""
    return {_DONATED: json.dumps([list(pair) for pair in pairs])} if pairs else {}


def donated_pairs(model: ModelProto) -> tuple[tuple[str, str], ...]:
    """Return the donated ``(input, output)`` pairs in the metadata of a model.

    Raises:
        ModelError: the entry is invalid, or names an input or output that does not exist.
    """
    text = metadata_of(model).get(_DONATED, "[]")
    try:
        pairs = tuple((str(name), str(output)) for name, output in json.loads(text))
    except (ValueError, TypeError) as error:
        raise ModelError(f"the model's {_DONATED} cannot be read: {error}") from error
    inputs = {value.name for value in model.graph.input}
    outputs = {value.name for value in model.graph.output}
    unknown = [p for p in pairs if p[0] not in inputs or p[1] not in outputs]
    if unknown:
        raise ModelError(f"the model donates {unknown[0]}, and has no such input or output")
    return pairs


def reference_entry(reference: Reference) -> bytes:
    """Return an encoded metadata entry with the reference of a comparison, to be appended to a model."""
    return encoded_entry(METADATA, _REFERENCE, reference)


def recorded_reference(model: ModelProto) -> Reference:
    """Return the run of the original that a written model was compared with, from its metadata.

    Raises:
        ModelError: the entry has another value.
    """
    text = metadata_of(model).get(_REFERENCE, "defaults")
    if text == "defaults":
        return "defaults"
    if text == "unoptimized":
        return "unoptimized"
    raise ModelError(
        f"the model's {_REFERENCE} is {text[:80]!r}, which is neither defaults nor unoptimized"
    )


def metadata_of(model: ModelProto) -> dict[str, str]:
    """Return the entries of a model's own metadata."""
    return {entry.key: entry.value for entry in model.metadata_props}


def is_offline(model: ModelProto) -> bool:
    """Whether ONNX Runtime optimized the graph of a model offline."""
    return RUNTIME in metadata_of(model)


def has_own_weights(model: ModelProto) -> bool:
    """Whether memplan wrote weights of this file: optimized offline, folded, or moved out of it."""
    return any(entry.key in (RUNTIME, FOLDED, WEIGHTS) for entry in model.metadata_props)


def recorded_phases(model: ModelProto) -> dict[str, str]:
    """Return the phase recorded on each node of a training step, by name or ``<operator>#<index>``."""
    phases: dict[str, str] = {}
    for index, node in enumerate(model.graph.node):
        for entry in node.metadata_props:
            if entry.key == f"{PREFIX}phase":
                phases[node.name or f"{node.op_type}#{index}"] = entry.value
    return phases
