"""Static analysis and reduction of the memory of ONNX models.

Each function does what the command of the same name does: ``memplan_cli.optimize`` is ``memplan
optimize``. The exception is ``memplan settings``, which is `runtime_settings` here because
``memplan_cli.settings`` is a sub-package. Names are imported on first use, so that importing this
package is fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from memplan_cli.api.decoder import Decoder
    from memplan_cli.api.diff import diff
    from memplan_cli.api.doctor import doctor
    from memplan_cli.api.fit import fit
    from memplan_cli.api.gate import gate
    from memplan_cli.api.optimize import optimize
    from memplan_cli.api.output.optimized import Optimized
    from memplan_cli.api.pack import pack
    from memplan_cli.api.report import plan, report
    from memplan_cli.api.schema import schema
    from memplan_cli.api.settings import settings as runtime_settings
    from memplan_cli.api.simulate import simulate
    from memplan_cli.api.soak import soak
    from memplan_cli.api.sweep import sweep
    from memplan_cli.api.train_step import train_step
    from memplan_cli.api.validate import validate
    from memplan_cli.api.verify_certificate import verify_certificate
    from memplan_cli.api.why import why
    from memplan_cli.core.check import Check
    from memplan_cli.core.version import VERSION as __version__  # noqa: N811 - the usual name in a package
    from memplan_cli.errors import MemplanError
    from memplan_cli.loading import load
    from memplan_cli.settings.settings import MemParam, Settings

_MODULES = {
    "Check": "memplan_cli.core.check",
    "Decoder": "memplan_cli.api.decoder",
    "MemParam": "memplan_cli.settings.settings",
    "MemplanError": "memplan_cli.errors",
    "Optimized": "memplan_cli.api.output.optimized",
    "Settings": "memplan_cli.settings.settings",
    "__version__": "memplan_cli.core.version:VERSION",
    "diff": "memplan_cli.api.diff",
    "doctor": "memplan_cli.api.doctor",
    "fit": "memplan_cli.api.fit",
    "soak": "memplan_cli.api.soak",
    "gate": "memplan_cli.api.gate",
    "load": "memplan_cli.loading",
    "optimize": "memplan_cli.api.optimize",
    "pack": "memplan_cli.api.pack",
    "plan": "memplan_cli.api.report",
    "report": "memplan_cli.api.report",
    "runtime_settings": "memplan_cli.api.settings:settings",
    "schema": "memplan_cli.api.schema",
    "simulate": "memplan_cli.api.simulate",
    "sweep": "memplan_cli.api.sweep",
    "train_step": "memplan_cli.api.train_step",
    "validate": "memplan_cli.api.validate",
    "verify_certificate": "memplan_cli.api.verify_certificate",
    "why": "memplan_cli.api.why",
}
"""Public name -> its module, followed by ``:name`` if it has another name in the module."""

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
    """Import a public name on its first use."""
    from importlib import import_module

    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, name_in_module = _MODULES[name].partition(":")
    value: object = getattr(import_module(module), name_in_module or name)
    globals()[name] = value  # later accesses do not call this function
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
