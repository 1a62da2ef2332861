"""What is installed here and what really works."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from memplan_cli.runtime.doctor import Diagnosis
    from memplan_cli.workflows.request import FilePath


def doctor(file: FilePath | None = None) -> Diagnosis:
    """Say what is installed and what really works here.

    Args:
        file: A model: what it was made for, and what of that is lost here.

    Raises:
        ModelError: It cannot be read.
    """
    from memplan_cli.runtime.doctor import diagnose

    return diagnose(Path(file) if file is not None else None)
