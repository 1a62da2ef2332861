"""The memory of ONNX models, known before they run and made smaller, with proof.

Functions mean what the commands of their names mean: ``memplan_cli.optimize`` is ``memplan
optimize``. Each name is imported when it is asked for: importing this package imports nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from memplan_cli.core.version import VERSION as __version__  # noqa: N811 - a module's own name for it
    from memplan_cli.errors import MemplanError
    from memplan_cli.settings.settings import MemParam, Settings
    from memplan_cli.workflows.candidates import Optimized
    from memplan_cli.workflows.compare import Check
    from memplan_cli.workflows.doctor import doctor
    from memplan_cli.workflows.load import Decoder, load
    from memplan_cli.workflows.optimize import optimize
    from memplan_cli.workflows.report import plan, report
    from memplan_cli.workflows.validate import validate

_MODULES = {
    "Check": "memplan_cli.workflows.compare",
    "Decoder": "memplan_cli.workflows.load",
    "MemParam": "memplan_cli.settings.settings",
    "MemplanError": "memplan_cli.errors",
    "Optimized": "memplan_cli.workflows.candidates",
    "Settings": "memplan_cli.settings.settings",
    "__version__": "memplan_cli.core.version:VERSION",
    "doctor": "memplan_cli.workflows.doctor",
    "load": "memplan_cli.workflows.load",
    "optimize": "memplan_cli.workflows.optimize",
    "plan": "memplan_cli.workflows.report",
    "report": "memplan_cli.workflows.report",
    "validate": "memplan_cli.workflows.validate",
}
"""Name -> the module that has it, and how it is called there if otherwise."""

__all__ = [
    "Check",
    "Decoder",
    "MemParam",
    "MemplanError",
    "Optimized",
    "Settings",
    "__version__",
    "doctor",
    "load",
    "optimize",
    "plan",
    "report",
    "validate",
]


def __getattr__(name: str) -> object:
    """Import what is asked for."""
    from importlib import import_module

    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, there = _MODULES[name].partition(":")
    found: object = getattr(import_module(module), there or name)
    globals()[name] = found  # what is known is not asked for again
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
