"""``import memplan``: everything of ``memplan_cli`` under the name of the command.

Here `settings` is what the command of that name does; there a room is called so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import memplan_cli

if TYPE_CHECKING:
    from memplan_cli import *  # noqa: F403 - what it exports, this exports
    from memplan_cli import runtime_settings as settings

_NAMES = {"settings": "runtime_settings"}
"""Name -> what it is called there, where otherwise."""

__all__ = [*memplan_cli.__all__, "settings"]  # noqa: PLE0604 - names, all of them


def __getattr__(name: str) -> object:
    """Import what is asked for."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(memplan_cli, _NAMES.get(name, name))
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
