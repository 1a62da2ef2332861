"""What a written model says of its caches, in its metadata."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from memplan_cli.core.deserialization import MisfitError, from_json
from memplan_cli.core.results.rewrites import Caches
from memplan_cli.core.serialization import to_json
from memplan_cli.errors import ModelError
from memplan_cli.onnx_io.metadata import PREFIX

if TYPE_CHECKING:
    from collections.abc import Mapping

    from onnx import ModelProto, TensorProto

CACHES = f"{PREFIX}caches"
"""The key of the entry, whose value is JSON."""


def caches_note(caches: Caches) -> Mapping[str, str]:
    """Return the metadata that says how the caches of a model are bound."""
    return {CACHES: json.dumps(to_json(caches), separators=(",", ":"))}


def position_value(caches: Caches) -> Mapping[str, TensorProto]:
    """Return the position at which a step was planned, as a value that decides sizes."""
    from onnx import helper

    if not caches.position:
        return {}
    return {caches.position: helper.make_tensor(caches.position, 7, [1], [caches.planned_at])}


def has_caches(model: ModelProto) -> bool:
    """Whether the caches of a file's model were made buffers."""
    return any(entry.key == CACHES for entry in model.metadata_props)


def recorded_caches(metadata: Mapping[str, str]) -> Caches | None:
    """Return what `caches_note` wrote; None where there is nothing.

    Raises:
        ModelError: it cannot be read, or an axis or the capacity cannot be.
    """
    if CACHES not in metadata:
        return None
    try:
        found = from_json(Caches, json.loads(metadata[CACHES]), CACHES)
    except (ValueError, RecursionError, MisfitError) as error:
        raise ModelError(f"the model's {CACHES} cannot be read: {error}") from error
    if not found.capacity or not found.growing or not all(b.axis for b in found.growing):
        raise ModelError(f"the model's {CACHES} describe no cache that grows")
    return found
