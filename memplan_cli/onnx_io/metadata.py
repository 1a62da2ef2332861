"""memplan's own metadata in a model file, read and written."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from memplan_cli.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from onnx import ModelProto, StringStringEntryProto

PREFIX = "pkg.memplan."
"""Every key that memplan writes begins so."""

_DONATED = f"{PREFIX}donated"

RUNTIME = f"{PREFIX}runtime"
"""Of a file that holds a runtime's own optimised graph: which runtime."""

FOLDED = f"{PREFIX}folded"
"""Of a file with constant expressions folded: how many, and the file of their values."""

WEIGHTS = f"{PREFIX}weights"
"""Of a file whose weights lay in it before: how many bytes, and the file that they are in."""

NOTES = f"{PREFIX}notes"
"""Of a file without notes on its nodes and values: where they are instead."""

IN_PLAN = "plan"

HARDWARE = f"{PREFIX}hardware"
"""Of such a file: which processor it was made on."""


ORT_CONFIG = "ort_config"
"""Session options that ONNX Runtime itself reads where ORT_LOAD_CONFIG_FROM_MODEL is 1."""

OWN_CONFIG = '{"made_by":"memplan",'
"""How the value of `ORT_CONFIG` begins where memplan wrote it; the runtime ignores the key."""


def is_own(entry: StringStringEntryProto) -> bool:
    """Whether memplan wrote an entry: one that it may replace or drop."""
    key, value = str(entry.key), str(entry.value)
    return key.startswith(PREFIX) or (key == ORT_CONFIG and value.startswith(OWN_CONFIG))


def read_notes(model: ModelProto) -> dict[str, str]:
    """Return what ``pkg.memplan.plan`` says: digest, level, totals; empty if it is absent."""
    for entry in model.metadata_props:
        if entry.key == f"{PREFIX}plan":
            pairs = (item.partition("=") for item in entry.value.split(","))
            return {key: value for key, _, value in pairs}
    return {}


def donation_note(pairs: Sequence[tuple[str, str]]) -> Mapping[str, str]:
    """Return the metadata that says which output may lie where an input was."""
    return {_DONATED: json.dumps([list(pair) for pair in pairs])} if pairs else {}


def donated_pairs(model: ModelProto) -> tuple[tuple[str, str], ...]:
    """Return what `donation_note` wrote: ``(input, output)``.

    Raises:
        ModelError: it is there and cannot be read, or names what the graph does not have.
    """
    given = {value.name for value in model.graph.input}
    made = {value.name for value in model.graph.output}
    for entry in model.metadata_props:
        if entry.key != _DONATED:
            continue
        try:
            pairs = tuple((str(one), str(other)) for one, other in json.loads(entry.value))
        except (ValueError, TypeError) as error:
            raise ModelError(f"the model's {_DONATED} cannot be read: {error}") from error
        strange = [p for p in pairs if p[0] not in given or p[1] not in made]
        if strange:
            raise ModelError(
                f"the model donates {strange[0]}, and has no such input or output"
            )
        return pairs
    return ()


def metadata_of(model: ModelProto) -> dict[str, str]:
    """Return the entries of a model's own metadata."""
    return {entry.key: entry.value for entry in model.metadata_props}


def is_offline(model: ModelProto) -> bool:
    """Whether the file holds a graph that a runtime has optimised for itself."""
    return any(entry.key == RUNTIME for entry in model.metadata_props)


def has_own_weights(model: ModelProto) -> bool:
    """Whether weights came with the file: a runtime's graph, folded ones, or moved outside."""
    return any(entry.key in (RUNTIME, FOLDED, WEIGHTS) for entry in model.metadata_props)


def recorded_phases(model: ModelProto) -> dict[str, str]:
    """Return the phase that the maker of a training step wrote on its nodes, by label."""
    found: dict[str, str] = {}
    for index, node in enumerate(model.graph.node):
        for entry in node.metadata_props:
            if entry.key == f"{PREFIX}phase":
                found[node.name or f"{node.op_type}#{index}"] = entry.value
    return found
