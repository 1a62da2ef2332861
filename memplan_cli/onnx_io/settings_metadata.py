"""ONNX Runtime's settings in the metadata of a model file, with which the file runs as planned."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from memplan_cli.core.results.observations import MODEL_OPTIONS, RuntimeSettings
from memplan_cli.core.serialization import to_json
from memplan_cli.loading.metadata import METADATA
from memplan_cli.loading.settings import SETTINGS, file_settings
from memplan_cli.onnx_io.metadata import ORT_CONFIG, OWN_CONFIG, is_own
from memplan_cli.onnx_io.wire_format import encoded_entry

if TYPE_CHECKING:
    from collections.abc import Mapping

    from onnx import ModelProto


@dataclass(frozen=True, slots=True)
class RecordedSettings:
    """The settings of one execution provider.

    Attributes:
        provider: ONNX Runtime's name of the provider.
        settings: the settings, in ONNX Runtime's own names.
    """

    provider: str
    settings: RuntimeSettings


def settings_entry(recorded: RecordedSettings) -> bytes:
    """Return an encoded metadata entry with settings, to be appended to the bytes of a model.

    Protobuf merges messages of one type that follow each other.
    """
    text = json.dumps(to_json(recorded), separators=(",", ":"))
    return encoded_entry(METADATA, SETTINGS, text)


def config_entry(settings: RuntimeSettings, model: ModelProto) -> bytes:
    """Return an encoded metadata entry with the options in `MODEL_OPTIONS`; empty if none is set.

    ONNX Runtime reads these from a model, and then ignores all session options of its caller. It reads
    the first entry only, so the result is also empty if the model has an entry of another program.
    """
    options = {
        name: MODEL_OPTIONS[name][value]
        for name, value in sorted(settings.session.items())
        if name in MODEL_OPTIONS and value in MODEL_OPTIONS[name]
    }
    has_other_entry = any(e.key == ORT_CONFIG and not is_own(e) for e in model.metadata_props)
    if has_other_entry or not options:
        return b""
    text = json.dumps({"session_options": options}, separators=(",", ":"))
    # `is_own` recognizes the entry by its beginning: ``{"made_by":"memplan",`` in place of ``{``.
    return encoded_entry(METADATA, ORT_CONFIG, OWN_CONFIG + text.removeprefix("{"))


def recorded_settings(metadata: Mapping[str, str]) -> RecordedSettings | None:
    """Return the settings in a model's metadata; None if there are none.

    Raises:
        ModelError: the entry is invalid, or has an option or value that memplan never writes.
    """
    settings = file_settings(metadata)
    if settings is None:
        return None
    # The scopes ("session", "arena", ..) are the fields of `RuntimeSettings`.
    return RecordedSettings(settings.execution_provider, RuntimeSettings(**settings.scopes))
