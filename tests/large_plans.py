"""Plans of many tensors, for what must stay quick: names, shapes and sizes as varied as real ones."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from memplan_cli.core.results.placements import ArenaFacts, BlockOrder, Placement
from memplan_cli.planning.checking.plan_file import read_plan

if TYPE_CHECKING:
    from memplan_cli.core.results.plan import Plan

_PLAN = Path(__file__).parent / "golden" / "renderers" / "plans" / "branchy.memplan.json"

_WORDS = (
    "wave", "net", "block", "attention", "mlp", "norm", "proj", "conv", "gate", "mix",
)  # fmt: skip


def large(count: int) -> Plan:
    """Return a plan of this many tensors, five levels of modules deep."""
    chance = random.Random(7)
    names = [
        "/".join(
            [
                "",
                *(f"{chance.choice(_WORDS)}_{chance.randrange(40)}" for _ in range(4)),
                str(n),
            ]
        )
        for n in range(count)
    ]
    tensors = tuple(
        Placement(
            f"{name}_output_0", "", chance.choice(["float32", "int64"]),
            (chance.randrange(9), n), 64 * n, 0,
            chance.randrange(1 << 30), None, n, n + chance.randrange(1, 60),
        )
        for n, name in enumerate(names)
    )  # fmt: skip
    order = (BlockOrder("", tuple(f"{name}/Node" for name in names)),)
    arena = ArenaFacts(0, "1", 1 << 31, 1 << 31, 64)
    return replace(read_plan(_PLAN), tensors=tensors, arenas=(arena,), order=order)
