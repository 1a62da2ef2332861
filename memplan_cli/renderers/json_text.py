"""The report as JSON: the contract's layout, plain ASCII, nothing else."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from memplan_cli.print_log import print_log

if TYPE_CHECKING:
    from memplan_cli.plan import Plan


def render(plan: Plan) -> str:
    """Return the report of a plan as JSON."""
    return json.dumps(plan.report.to_json(), indent=2, ensure_ascii=True) + "\n"


def render_logged(plan: Plan) -> str:
    """Return the report with the lines of ``--print-log`` as one more key."""
    data = {**plan.report.to_json(), "print_log": list(print_log(plan))}
    return json.dumps(data, indent=2, ensure_ascii=True) + "\n"
