"""Models that are run and compared in tests."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from memplan_cli.core.bindings import Binding
from memplan_cli.core.check import Check
from memplan_cli.runtime.settings_search.written_model import WrittenModel
from memplan_cli.runtime.verification.verify import compare_models

if TYPE_CHECKING:
    from pathlib import Path

    from memplan_cli.core.results.observations import Validation

ON_CPU = Check("cpu")
UNBOUND = Binding()


def compared(
    original: Path, written: Path, check: Check = ON_CPU, binding: Binding = UNBOUND
) -> Validation:
    """Return the verdict on a written model."""
    outputs_only = replace(check, depth="outputs")
    return compare_models(original, WrittenModel(written), outputs_only, binding).verdict
