"""The memory of ONNX models, known before they run and made smaller, with proof.

Functions mean what the commands of their names mean: ``memplan_cli.optimize`` is ``memplan
optimize``. Importing this package imports no ONNX and no runtime.
"""

from __future__ import annotations

from memplan_cli.core.version import VERSION
from memplan_cli.errors import MemplanError
from memplan_cli.settings.settings import MemParam, Settings
from memplan_cli.workflows import (
    Check,
    Optimized,
    doctor,
    load,
    optimize,
    plan,
    report,
    validate,
)

__version__ = VERSION

__all__ = [
    "Check",
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
