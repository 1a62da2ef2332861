"""The description of in-place caches in the metadata of a written model."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from memplan_cli.core.deserialization import MisfitError, from_json
from memplan_cli.core.results.rewrites import CacheSummary
from memplan_cli.core.serialization import to_json
from memplan_cli.errors import ModelError
from memplan_cli.onnx_io.metadata import PREFIX

if TYPE_CHECKING:
    from collections.abc import Mapping

    from onnx import ModelProto, TensorProto

CACHES = f"{PREFIX}caches"
"""The key of the entry, whose value is JSON."""


def caches_note(caches: CacheSummary) -> Mapping[str, str]:
    """Return the metadata entry that describes the caches of a model."""
    return {CACHES: json.dumps(to_json(caches), separators=(",", ":"))}


def position_value(caches: CacheSummary) -> Mapping[str, TensorProto]:
    """Return the value of the graph input with the number of cached tokens, by the input's name.

    It is the number for which the decoding step was planned. Empty if the model has no such input, because
    no cache is updated in place.
    """
    from onnx import TensorProto, helper

    name = caches.position
    if not name:
        return {}
    return {name: helper.make_tensor(name, TensorProto.INT64, [1], [caches.planned_at])}


def has_caches(model: ModelProto) -> bool:
    """Whether the caches of a model were rewritten to buffers."""
    return any(entry.key == CACHES for entry in model.metadata_props)


def recorded_caches(metadata: Mapping[str, str]) -> CacheSummary | None:
    """Return the caches that metadata describes; None if there is no entry.

    Raises:
        ModelError: the entry is invalid, or describes no growing cache. No cache grows along axis 0.
    """
    if CACHES not in metadata:
        return None
    try:
        caches = from_json(CacheSummary, json.loads(metadata[CACHES]), CACHES)
    except (ValueError, RecursionError, MisfitError) as error:
        raise ModelError(f"the model's {CACHES} cannot be read: {error}") from error
    if not caches.capacity or not caches.growing or not all(b.axis for b in caches.growing):
        raise ModelError(f"the model's {CACHES} describe no cache that grows")
    return caches
