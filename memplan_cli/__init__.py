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
    from memplan_cli.workflows.certificate import verify_certificate
    from memplan_cli.workflows.diff import diff
    from memplan_cli.workflows.doctor import doctor
    from memplan_cli.workflows.fit import fit
    from memplan_cli.workflows.gate import gate
    from memplan_cli.workflows.load import Decoder, load
    from memplan_cli.workflows.optimize import optimize
    from memplan_cli.workflows.optimized import Optimized
    from memplan_cli.workflows.pack import pack
    from memplan_cli.workflows.report import plan, report
    from memplan_cli.workflows.schema import schema
    from memplan_cli.workflows.serving import soak
    from memplan_cli.workflows.settings import settings as runtime_settings
    from memplan_cli.workflows.simulate import simulate
    from memplan_cli.workflows.sweep import sweep
    from memplan_cli.workflows.train_step import train_step
    from memplan_cli.workflows.validate import validate
    from memplan_cli.workflows.why import why

_MODULES = {
    "Check": "memplan_cli.core.check",
    "Decoder": "memplan_cli.workflows.load",
    "MemParam": "memplan_cli.settings.settings",
    "MemplanError": "memplan_cli.errors",
    "Optimized": "memplan_cli.workflows.optimized",
    "Settings": "memplan_cli.settings.settings",
    "__version__": "memplan_cli.core.version:VERSION",
    "diff": "memplan_cli.workflows.diff",
    "doctor": "memplan_cli.workflows.doctor",
    "fit": "memplan_cli.workflows.fit",
    "soak": "memplan_cli.workflows.serving",
    "gate": "memplan_cli.workflows.gate",
    "load": "memplan_cli.workflows.load",
    "optimize": "memplan_cli.workflows.optimize",
    "pack": "memplan_cli.workflows.pack",
    "plan": "memplan_cli.workflows.report",
    "report": "memplan_cli.workflows.report",
    "runtime_settings": "memplan_cli.workflows.settings:settings",
    "schema": "memplan_cli.workflows.schema",
    "simulate": "memplan_cli.workflows.simulate",
    "sweep": "memplan_cli.workflows.sweep",
    "train_step": "memplan_cli.workflows.train_step",
    "validate": "memplan_cli.workflows.validate",
    "verify_certificate": "memplan_cli.workflows.certificate",
    "why": "memplan_cli.workflows.why",
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
