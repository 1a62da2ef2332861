"""Results as JSON, plain ASCII, nothing else; the report in the contract's layout."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from memplan_cli.core.serialization import to_json
from memplan_cli.planning.print_log import print_log

if TYPE_CHECKING:
    from memplan_cli.core.results.plan import Plan
    from memplan_cli.core.serialization import Json


def document(content: Json) -> str:
    """Return JSON for people and programs alike: indented, a newline at its end."""
    return json.dumps(content, indent=2, ensure_ascii=True) + "\n"


def render(plan: Plan) -> str:
    """Return the report of a plan as JSON."""
    return document(to_json(plan.report))


def render_logged(plan: Plan) -> str:
    """Return the report with the lines of ``--print-log`` as one more key."""
    return document({**to_json(plan.report), "print_log": list(print_log(plan))})
