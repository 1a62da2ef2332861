"""One module for each thing that a user can ask for; the Python API.

Nothing here prints or exits. A check that fails is a result; what cannot work raises a
`MemplanError`. What plans, proves and runs models is re-exported; `diff`, `fit`, `gate`, `pack`,
`sweeping`, `train_step` and `why` are imported as modules, by those who use them.
"""

from __future__ import annotations

from memplan_cli.api.doctor import doctor
from memplan_cli.api.load import Decoder, load
from memplan_cli.api.optimize import optimize
from memplan_cli.api.optimized import Optimized
from memplan_cli.api.report import newest_plan, plan, report
from memplan_cli.api.request import Request
from memplan_cli.api.settings import settings
from memplan_cli.api.simulate import simulate
from memplan_cli.api.validate import validate
from memplan_cli.core.check import Check

__all__ = [
    "Check",
    "Decoder",
    "Optimized",
    "Request",
    "doctor",
    "load",
    "newest_plan",
    "optimize",
    "plan",
    "report",
    "settings",
    "simulate",
    "validate",
]
