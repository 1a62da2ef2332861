"""A plan file that reports other numbers than its tensors come to is refused in words."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from builders import plan_of_text
from memplan_cli.errors import PlanError
from memplan_cli.plan_file import read_plan
from memplan_cli.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from memplan_cli.settings import Level

    Change = Callable[[dict[str, Any]], None]

TEXT = """g (float[8,8] x) => (float[8,8] z) {
    a = MatMul(x, x) b = Exp(a) d = MatMul(b, b) e = MatMul(d, b) z = MatMul(e, d)
}"""
SYMBOLIC = TEXT.replace("8,8", "batch,8").replace("MatMul(x, x)", "Neg(x)")


def read(
    tmp_path: Path, change: Change, text: str = TEXT, settings: Settings | None = None
) -> None:
    data = json.loads(plan_of_text(text, settings or Settings()).dumps())
    change(data)
    path = tmp_path / "a.memplan.json"
    path.write_text(json.dumps(data), encoding="utf-8")
    read_plan(path)


def said(name: str, value: int) -> Change:
    def change(data: dict[str, Any]) -> None:
        data["report"]["memory"][name] = value

    return change


@pytest.mark.parametrize("level", [0, 1, 2])
@pytest.mark.parametrize("name", ["naive", "planned", "total", "live_peak"])
def test_a_total_that_the_tensors_do_not_come_to_is_refused(
    name: str, level: Level, tmp_path: Path
) -> None:
    with pytest.raises(PlanError, match=rf"a\.memplan\.json: {name} is said to be 1, "):
        read(tmp_path, said(name, 1), settings=Settings(level=level))


def test_a_level_that_is_not_what_is_planned_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="the bytes of level 2 is said to be 7"):
        read(tmp_path, lambda data: data["report"]["levels"].update({"2": 7}))


@pytest.mark.parametrize("change", [{"shape": [8, 9]}, {"dtype": "double"}, {"shape": []}])
def test_a_tensor_that_takes_more_or_less_than_its_place_is_refused(
    change: dict[str, object], tmp_path: Path
) -> None:
    with pytest.raises(PlanError, match=r"'a' is said to take 256 bytes|no type with a size"):
        read(tmp_path, lambda data: data["tensors"][0].update(change))


def test_what_stays_a_symbol_is_left_alone(tmp_path: Path) -> None:
    read(tmp_path, lambda _: None, SYMBOLIC)
    read(tmp_path, lambda _: None, SYMBOLIC, Settings(dims={"batch": 3}))
    read(tmp_path, lambda _: None, SYMBOLIC, Settings(bounds={"batch": (1, 3)}))
