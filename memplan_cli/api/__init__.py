"""The Python API: one module for each command, with the function that does it.

Nothing here prints or exits. A check that fails is a result; what cannot work raises a
`MemplanError`. The functions for planning, verifying and running models are exported here; `diff`,
`fit`, `gate`, `pack`, `soak`, `sweep`, `train_step`, `verify_certificate` and `why` are imported
from their modules. `models` reads, binds and plans models for all commands, `output` writes them,
and `optimizing` has the candidates of `optimize` and their verification.
"""

from __future__ import annotations

from memplan_cli.api.decoder import Decoder
from memplan_cli.api.doctor import doctor
from memplan_cli.api.optimize import optimize
from memplan_cli.api.output.optimized import Optimized
from memplan_cli.api.report import newest_plan, plan, report
from memplan_cli.api.request import Request
from memplan_cli.api.settings import settings
from memplan_cli.api.simulate import simulate
from memplan_cli.api.validate import validate
from memplan_cli.core.check import Check
from memplan_cli.loading import load

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
