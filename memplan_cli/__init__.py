"""The memory of ONNX models, known before they run and made smaller, with proof.

Functions mean what the commands of their names mean: ``memplan_cli.optimize`` is ``memplan
optimize``, but ``memplan settings`` is `runtime_settings` here, where `settings` is a room;
`memplan.settings` is the function too. Each name is imported when it is asked for: importing this package imports nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from memplan_cli.core.check import Check
    from memplan_cli.core.version import VERSION as __version__  # noqa: N811 - a module's own name for it
    from memplan_cli.errors import MemplanError
    from memplan_cli.settings.settings import MemParam, Settings
    from memplan_cli.workflows.api.made import pack, schema, train_step, verify_certificate
    from memplan_cli.workflows.api.many import gate, sweep
    from memplan_cli.workflows.api.plans import diff, optimize, plan, report, why
    from memplan_cli.workflows.api.runs import (
        doctor,
        fit,
        runtime_settings,
        simulate,
        soak,
        validate,
    )
    from memplan_cli.workflows.load import Decoder, load
    from memplan_cli.workflows.optimized import Optimized

_MODULES = {
    "Check": "memplan_cli.core.check",
    "Decoder": "memplan_cli.workflows.load",
    "MemParam": "memplan_cli.settings.settings",
    "MemplanError": "memplan_cli.errors",
    "Optimized": "memplan_cli.workflows.optimized",
    "Settings": "memplan_cli.settings.settings",
    "__version__": "memplan_cli.core.version:VERSION",
    "diff": "memplan_cli.workflows.api.plans",
    "doctor": "memplan_cli.workflows.api.runs",
    "fit": "memplan_cli.workflows.api.runs",
    "soak": "memplan_cli.workflows.api.runs",
    "gate": "memplan_cli.workflows.api.many",
    "load": "memplan_cli.workflows.load",
    "optimize": "memplan_cli.workflows.api.plans",
    "pack": "memplan_cli.workflows.api.made",
    "plan": "memplan_cli.workflows.api.plans",
    "report": "memplan_cli.workflows.api.plans",
    "runtime_settings": "memplan_cli.workflows.api.runs",
    "schema": "memplan_cli.workflows.api.made",
    "simulate": "memplan_cli.workflows.api.runs",
    "sweep": "memplan_cli.workflows.api.many",
    "train_step": "memplan_cli.workflows.api.made",
    "validate": "memplan_cli.workflows.api.runs",
    "verify_certificate": "memplan_cli.workflows.api.made",
    "why": "memplan_cli.workflows.api.plans",
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
    "diff",
    "doctor",
    "fit",
    "gate",
    "load",
    "optimize",
    "pack",
    "plan",
    "report",
    "runtime_settings",
    "schema",
    "simulate",
    "soak",
    "sweep",
    "train_step",
    "validate",
    "verify_certificate",
    "why",
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
