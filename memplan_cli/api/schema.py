"""The JSON schemas of the files and results of memplan, generated from their classes."""

from __future__ import annotations

import json
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from memplan_cli.core.json_schema import FILE_KEYS, RESULT_KEYS, document_schema
from memplan_cli.errors import SettingsError
from memplan_cli.reporting.media import json_text
from memplan_cli.settings.schema import settings_schema

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan_cli.core.json_types import Json


class _Document(NamedTuple):
    """A file, or the result of a command.

    Attributes:
        title: the title of its schema.
        classes: the classes of its content, one of which applies, as ``module:Class``.
        is_read: whether memplan reads it again, so that unknown keys are errors.
    """

    title: str
    classes: tuple[str, ...]
    is_read: bool = False


_DOCUMENTS: Mapping[str, _Document | None] = {
    "plan": _Document(
        "Everything decided about one model; steps are half-open [first, last)",
        ("core.results.plan:Plan",),
        is_read=True,
    ),
    "report": _Document(
        "The numbers of a plan; sizes are bytes, null is unknown",
        ("core.results.report:Report",),
        is_read=True,
    ),
    "config": None,
    "baseline": _Document(
        "The accepted numbers of each model",
        ("reporting.snapshot:Baseline",),
        is_read=True,
    ),
    "certificate": _Document(
        "Proofs of the bounds of one plan",
        ("core.results.certificate:Certificate",),
        is_read=True,
    ),
    "diff": _Document(
        "The changes from one model or plan to another",
        ("reporting.commands.diff:Difference",),
    ),
    "doctor": _Document(
        "Installed packages, and the providers that work", ("runtime.doctor:Diagnosis",)
    ),
    "fit": _Document(
        "The largest values of dimensions that fit a memory size", ("planning.fit:Fit",)
    ),
    "gate": _Document("The verdicts of a gate", ("reporting.commands.gate:GateVerdicts",)),
    "pack": _Document(
        "Buffers packed into one arena", ("packing.problem_file:PackingResult",)
    ),
    "settings": _Document(
        "Runtime options for a model; sizes are bytes, null is unknown",
        ("reporting.commands.settings:ModelSettings",),
    ),
    "simulate": _Document(
        "The memory of dynamic allocators for one run",
        ("runtime.simulate.allocators:AllocatorComparison",),
    ),
    "soak": _Document(
        "The memory of a process over many requests of changing size",
        ("features.serving.soak:Soak",),
    ),
    "sweep": _Document(
        "Rows of a sweep, in a table or one by one",
        ("reporting.commands.sweep:Row", "reporting.commands.sweep:SweepTable"),
        is_read=True,
    ),
    "train-step": _Document(
        "A training step that was made from a model",
        ("features.training.report:WrittenStep",),
    ),
    "validate": _Document(
        "The verdict on a written model and its original",
        ("reporting.commands.validate:ValidationResult",),
    ),
    "verified": _Document(
        "The verdicts on the parts of a certificate",
        ("core.results.certificate:CertificateVerdict",),
    ),
    "why-peak": _Document(
        "The tensors that need the memory at the peak",
        ("reporting.commands.why:PeakExplanation",),
    ),
    "why-process": _Document(
        "The predicted memory of a process, divided by purpose",
        ("reporting.commands.why_process:ProcessBreakdown",),
    ),
    "why-tensor": _Document(
        "The lifetime of one tensor, and what else uses its memory",
        ("reporting.commands.why:TensorExplanation",),
    ),
}
"""The name of each schema, and its document; files come first, then what commands print.

The schema of ``config`` is made from the table of options instead.
"""

SCHEMA_NAMES = tuple(_DOCUMENTS)


def schema(name: str) -> dict[str, Any]:
    """Return the JSON schema of a file or of a result of memplan.

    Raises:
        SettingsError: the name is none of `SCHEMA_NAMES`.
    """
    content: dict[str, Any] = json.loads(schema_text(name))
    return content


def schema_of(name: str) -> Json:
    """Return the JSON schema of a file or a result, made from the classes of its content.

    Raises:
        SettingsError: the name is none of `SCHEMA_NAMES`.
    """
    if name not in SCHEMA_NAMES:
        raise SettingsError(
            f"{name!r} is not a schema: the schemas are {', '.join(SCHEMA_NAMES)}"
        )
    document = _DOCUMENTS[name]
    if document is None:  # the settings file, which has no class
        return settings_schema()
    return document_schema(
        f"memplan.{name}/1",
        document.title,
        tuple(map(_import_class, document.classes)),
        FILE_KEYS if document.is_read else RESULT_KEYS,  # whether unknown keys are errors
    )


def _import_class(path: str) -> type:
    module, _, name = path.partition(":")
    imported: type = getattr(import_module(f"memplan_cli.{module}"), name)
    return imported


def schema_text(name: str) -> str:
    """Return a JSON schema as text, as `schema_of` does."""
    return json_text(schema_of(name))


def all_schemas_text() -> str:
    """Return all schemas by name, as the text of one JSON object."""
    return json_text({name: schema_of(name) for name in SCHEMA_NAMES})
