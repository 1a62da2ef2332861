"""What is installed here and what really works."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.api.files.sources import on_files

if TYPE_CHECKING:
    from memplan_cli.api.files.sources import ModelSource
    from memplan_cli.runtime.doctor import Diagnosis


def doctor(file: ModelSource | None = None) -> Diagnosis:
    """Say what is installed and what really works here.

    Args:
        file: A model: what it was made for, and what of that is lost here.

    Raises:
        ModelError: It cannot be read.
    """
    from memplan_cli.runtime.doctor import diagnose

    return diagnose(None) if file is None else on_files((file,), diagnose)
