"""The memory of ONNX models, known before they run and made smaller, with proof.

Functions mean what the commands of their names mean: ``memplan_cli.optimize`` is ``memplan
optimize``. Importing this package imports no ONNX and no runtime.
"""

from __future__ import annotations

# A submodule that is imported later would take the place of the function of its name.
import memplan_cli.plan
import memplan_cli.report  # noqa: F401
from memplan_cli.api import doctor, optimize, plan, report, validate
from memplan_cli.comparing import Check
from memplan_cli.errors import MemplanError
from memplan_cli.optimizing import Optimized
from memplan_cli.settings import MemParam, Settings
from memplan_cli.version import VERSION

__version__ = VERSION

__all__ = [
    "Check",
    "MemParam",
    "MemplanError",
    "Optimized",
    "Settings",
    "__version__",
    "doctor",
    "optimize",
    "plan",
    "report",
    "validate",
]
