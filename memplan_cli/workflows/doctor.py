"""What is installed here and what really works."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from memplan_cli.runtime.doctor import Diagnosis


def doctor() -> Diagnosis:
    """Say what is installed and what really works here."""
    from memplan_cli.runtime.doctor import diagnose

    return diagnose()
