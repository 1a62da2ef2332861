"""A plan file that reports other numbers than its tensors come to is refused in words."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from builders import plan_of_text
from memplan_cli.core.symbolic.bounds import DimRange
from memplan_cli.errors import PlanError
from memplan_cli.planning.plan_file import read_plan
from memplan_cli.settings.settings import MemParam, Settings

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from memplan_cli.settings.choices import Level

    Change = Callable[[dict[str, Any]], object]

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
    with pytest.raises(PlanError, match=rf"a\.memplan\.json: {name} is recorded as 1, "):
        read(tmp_path, said(name, 1), settings=Settings(level=level))


def test_a_level_that_is_not_what_is_planned_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="the bytes of level 2 is recorded as 7"):
        read(tmp_path, lambda data: data["report"]["levels"].update({"2": 7}))


@pytest.mark.parametrize("change", [{"shape": [8, 9]}, {"dtype": "double"}, {"shape": []}])
def test_a_tensor_that_takes_more_or_less_than_its_place_is_refused(
    change: dict[str, object], tmp_path: Path
) -> None:
    with pytest.raises(PlanError, match="'a' is recorded with 256"):
        read(tmp_path, lambda data: data["tensors"][0].update(change))


def made_small(data: dict[str, Any]) -> None:
    """Say that everything takes 5 bytes, of a unit that no shape has."""
    data["arenas"][0]["unit"] = "batch"
    memory = data["report"]["memory"]
    memory.update(planned=5, live_peak=5, naive=5)
    memory["total"] = memory["weights"] + memory["inputs"] + memory["outputs"] + 5


@pytest.mark.parametrize("text", [TEXT, SYMBOLIC])
def test_a_unit_that_no_shape_has_hides_no_number(text: str, tmp_path: Path) -> None:
    unit = "batch*seq" if text == SYMBOLIC else "batch"
    with pytest.raises(PlanError, match="'a' is recorded with"):
        read(tmp_path, lambda data: data["arenas"][0].update(unit=unit), text)
    with pytest.raises(PlanError, match="'a' is recorded with"):
        read(tmp_path, made_small)


@pytest.mark.parametrize("name", ["naive", "planned", "total", "live_peak"])
def test_a_number_of_what_is_a_symbol_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=rf"{name} is recorded as 1, it is nothing"):
        read(tmp_path, said(name, 1), SYMBOLIC)
    with pytest.raises(PlanError, match=f"{name} is recorded as nothing, it is "):
        read(tmp_path, lambda data: data["report"]["memory"].update({name: None}))


def in_report(*keys: str | int, to: object) -> Change:
    def change(data: dict[str, Any]) -> None:
        *way, last = keys
        inner: Any = data["report"]
        for key in way:
            inner = inner[key]
        inner[last] = to

    return change


def in_arena(**facts: object) -> Change:
    return lambda data: data["arenas"][0].update(facts)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (in_arena(lower_bound=1), "lower_bound of arena 0 is recorded as 1, "),
        (lambda data: data["report"].update(coverage=0.5, partial=True), "coverage is recorded as 0.5, it is 1.0"),
        (in_report("model", "intermediates", to=9), "coverage is recorded as 1.0"),
        (in_report("model", "nodes", to=4), "nodes is recorded as 4, it is 5"),
        (in_report("model", "blocks", to=2), "blocks is recorded as 2, it is 1"),
        (in_report("phases", "forward", to=4), "nodes of all phases is recorded as 4"),
        (in_report("reuses", to=9), "reuses is recorded as 9, it is 1"),
        (in_report("level", to=1), "the report's level is recorded as 1"),
        (in_report("donated", "bytes", to=8), "donated bytes of no pairs is recorded as 8"),
        (in_report("levels", "1", to=1), "the bytes of level 1 is recorded as 1, "),
        (in_report("levels", "0", to=10**6), "the bytes of level 0 is recorded as 1000000, "),
        (in_report("levels", "0", to=512), "the bytes of level 0 is recorded as 512, "),
        (in_report("memory", "order_bound", to=10**6), "order_bound of a proved order is recorded "),
        (in_report("memory", "order_bound", to=1), "order_bound of a proved order is recorded "),
        (in_report("memory", "order_bound", to=None), "order_bound of a proved order is recorded"),
        (lambda data: data["arenas"].append({**data["arenas"][0], "id": 1}), "number of arenas"),
        (lambda data: data["model"].update(sha256="f" * 64), "model.sha256"),
        (
            lambda data: data["unplanned"].append({"name": "q", "reason": "no"}),
            "unplanned: ",
        ),
    ],
)  # fmt: skip
def test_wrong_figures_of_a_plan_file_are_refused(
    change: Change, named: str, tmp_path: Path
) -> None:
    with pytest.raises(PlanError, match=named):
        read(tmp_path, change, settings=Settings(order="auto"))


def test_expressions_are_counted_again_too(tmp_path: Path) -> None:
    for name in ("naive", "planned", "level 2", "live_peak"):
        with pytest.raises(PlanError, match=f"{name} in symbols is recorded as"):
            read(tmp_path, in_report("symbolic", name, to="2*batch"), SYMBOLIC)


def test_a_total_of_symbols_is_added_up_again(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="total in symbols is recorded as"):
        read(tmp_path, in_report("symbolic", "total", to="2*batch"), SYMBOLIC)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"total": 9}, "total at batch=2 is recorded as 9"),
        ({"live_peak": 10**6}, "live_peak at 2 is recorded as 1000000"),
        ({"planned": 10**6, "total": None, "inputs": None}, "planned at 2 is recorded as"),
        ({"order_bound": 10**6}, "order_bound at 2 is recorded as 1000000"),
        (
            {"live_peak": None, "foldable": 1},
            "foldable is recorded as 1, and the plan allows 0",
        ),
    ],
)
def test_the_row_of_a_binding_adds_up(
    change: dict[str, int | None], named: str, tmp_path: Path
) -> None:
    text = SYMBOLIC.replace("MatMul", "Add")
    alone = json.loads(plan_of_text(text.replace("batch", "2")).dumps())
    row = {"dims": {"batch": 2}, "memory": alone["report"]["memory"]}
    bounds = Settings(bounds={"batch": DimRange(1, 3)})
    read(tmp_path, in_report("profiles", to=[row]), text, bounds)
    row["memory"] |= change
    with pytest.raises(PlanError, match=named):
        read(tmp_path, in_report("profiles", to=[row]), text, bounds)


@pytest.mark.parametrize("level", [0, 1])
def test_a_slot_is_handed_on_as_the_level_says(level: Level, tmp_path: Path) -> None:
    def change(data: dict[str, Any]) -> None:
        first, other = data["tensors"][:2]
        other["slot"] = first["slot"]

    with pytest.raises(PlanError, match=f"which level {level} does not allow"):
        read(tmp_path, change, settings=Settings(level=level))
    with pytest.raises(PlanError, match="has no slot at level"):
        read(
            tmp_path,
            lambda data: [tensor.update(slot=None) for tensor in data["tensors"]],
            settings=Settings(level=level),
        )


@pytest.mark.parametrize("level", [0, 1])
def test_the_bound_of_slots_is_counted_again(level: Level, tmp_path: Path) -> None:
    settings = Settings(level=level)
    with pytest.raises(PlanError, match="slot_bound is recorded as 1, it is 768"):
        read(tmp_path, in_report("slot_bound", to=1), settings=settings)
    with pytest.raises(PlanError, match="lower_bound of arena 0 is recorded as 10000, "):
        read(tmp_path, in_arena(lower_bound=10_000), settings=settings)
    with pytest.raises(PlanError, match="slot_bound is recorded as 768, it is nothing"):
        read(tmp_path, in_report("slot_bound", to=768))


def test_a_model_that_is_left_as_it_is_takes_what_its_tensors_do(tmp_path: Path) -> None:
    apart = Settings(mem_param=MemParam(optimize_test=False))
    read(tmp_path, lambda _: None, settings=apart)
    with pytest.raises(PlanError, match="planned of a model left as it is is recorded as"):
        read(
            tmp_path,
            lambda data: (
                data["settings"]["mem_param"].update(optimize_test=False)
                or data["arenas"][0].update(lower_bound=0)
            ),
        )


@pytest.mark.parametrize("bounds", [{"batch": "3..1"}, {"batch": 3}, [], "batch"])
def test_bounds_that_are_none_are_refused(bounds: object, tmp_path: Path) -> None:
    settings = Settings(bounds={"batch": DimRange(1, 3)})
    with pytest.raises(PlanError, match=r"hold no bounds|is recorded with"):
        read(
            tmp_path,
            lambda data: data["settings"].update(bounds=bounds),
            SYMBOLIC,
            settings,
        )


def test_symbolic_figures_are_accepted(tmp_path: Path) -> None:
    read(tmp_path, lambda _: None, SYMBOLIC)
    read(tmp_path, lambda _: None, SYMBOLIC, Settings(dims={"batch": 3}))
    read(tmp_path, lambda _: None, SYMBOLIC, Settings(bounds={"batch": DimRange(1, 3)}))
