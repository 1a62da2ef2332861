"""``import memplan``: everything of ``memplan_cli`` under the name of the command."""

from __future__ import annotations

from memplan_cli import *  # noqa: F403 - what it exports, this exports
from memplan_cli import __all__, __version__

__all__ = [*__all__, "__version__"]  # noqa: PLE0604 - names, all of them
