"""One model with a body, planned at each level."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from builders import plan_of_text
from memplan_cli.settings.settings import Settings

if TYPE_CHECKING:
    from memplan_cli.core.results.plan import Plan

TEXT = """g (float[8,8] x, bool c) => (float[8,8] z) {
    a = MatMul(x, x) b = Exp(a) d = MatMul(b, b) e = MatMul(d, b) f = MatMul(e, e)
    [pick] y = If (c) <then_branch = t () => (float[8,8] one) { one = MatMul(f, d) },
                       else_branch = s () => (float[8,8] two) { two = MatMul(d, f) }>
    z = Neg(y)
}"""
PLANS = [plan_of_text(TEXT, Settings(level=level, exclude=("f",))) for level in (0, 1, 2)]
LEVEL2 = PLANS[2]


def of(plan: Plan) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(plan.dumps())
    return found


def tensor(data: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(t for t in data["tensors"] if t["name"] == name)
    return found
