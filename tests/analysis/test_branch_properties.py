"""Branches that share with their If: never more bytes, never a clobbered read, any order."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

from builders import plan_program, var_sizes
from memplan_cli.analysis.aliasing import SHARE_SAFELY, Aliasing, share_storage
from memplan_cli.analysis.liveness import duration
from memplan_cli.analysis.storage import live_peak, storage_of
from memplan_cli.core.program import walk
from memplan_cli.ordering.best_order import best_order
from memplan_cli.planning.allocation import Needs, allocate
from memplan_cli.planning.plan_file import checked_plan
from memplan_cli.settings.settings import Settings
from ordering.test_order_nested import Maker, all_blocks
from programs import as_read, random_program
from replay import replay, spans_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memplan_cli.core.program import Origin, Program, VarId

APART = replace(SHARE_SAFELY, branches=frozenset())
"""Level 2 as it would be if branches had memory of their own."""


@cache
def sharing_programs(count: int) -> tuple[tuple[int, Program], ...]:
    """Return the first random programs in which branches share with their If."""
    found: list[tuple[int, Program]] = []
    seed = 0
    while len(found) < count:
        made = random_program(seed)
        if any(op.type == "If" for _, op in walk(made.body)):
            sizes = var_sizes(made)
            if share_storage(made, sizes) != share_storage(made, sizes, APART):
                found.append((seed, made))
        seed += 1
    return tuple(found)


def curve(made: Program, aliasing: Aliasing) -> list[int]:
    """Return the bytes live at each tick."""
    _, units = storage_of(made, var_sizes(made), (), aliasing)
    live = [0] * (duration(made) + 1)
    for buffer in units.get("1", ()):
        for tick in range(*buffer.live):
            live[tick] += buffer.size
    return live


def test_sharing_takes_no_more_at_any_tick_and_often_less_at_the_peak() -> None:
    lower = 0
    for seed, made in sharing_programs(120):
        together, apart = curve(made, SHARE_SAFELY), curve(made, APART)
        assert all(one <= other for one, other in zip(together, apart, strict=True)), seed
        lower += max(together) < max(apart)
    assert lower > 15


def test_no_read_is_clobbered_where_branches_share() -> None:
    for seed, made in sharing_programs(60):
        needs = Needs(made, var_sizes(made))
        replay(made, spans_of(allocate(needs, 2), needs), seed)


class _Even(Maker):
    """Programs whose vars have mostly one size, so that most branches share."""

    def var(self, name: str, origin: Origin, path: str, size: int = 0) -> VarId:
        return super().var(name, origin, path, size or self.draw.choice((2, 2, 2, 8)))


def test_bounds_hold_against_every_order_where_branches_share() -> None:
    compared = proved = 0
    for seed in range(80):
        maker = _Even(seed)
        made = maker.program()
        sizes = maker.sizes
        if share_storage(made, sizes) == share_storage(made, sizes, APART):
            continue
        found = best_order(made, sizes)
        peak = live_peak(found.program, sizes)
        assert peak == found.peaks[found.chosen] <= live_peak(made, sizes), seed
        peaks = list(_peaks(made, maker))
        assert found.bound is not None, seed
        assert found.bound <= min(peaks), seed
        assert not found.proved or peak <= min(peaks), seed
        compared, proved = compared + 1, proved + found.proved
    assert compared > 20
    assert proved > 5


def _peaks(made: Program, maker: Maker) -> Iterator[int]:
    for count, body in enumerate(all_blocks(made.body)):
        if count == 400:
            return
        yield live_peak(replace(made, body=body), maker.sizes)


def test_plan_files_of_nested_programs_are_taken() -> None:
    for _, made in sharing_programs(25):
        plan = plan_program(as_read(made), Settings())
        assert checked_plan(json.loads(plan.dumps())).digest == plan.digest
