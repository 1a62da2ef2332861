"""Two results of a command are compared by their values; what is alike makes one row."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from hypothesis import given
from hypothesis import strategies as st

from benchmarks.same_commands import COMMANDS, QUICK, Extent, cases, subjects
from benchmarks.same_differences import Difference, Explanation, differences, rows

if TYPE_CHECKING:
    from collections.abc import Mapping

PLAN: Mapping[str, Any] = {
    "producer": {"name": "memplan", "version": "0.1.0"},
    "memory": {"planned": 512, "certainty": "exact"},
    "tensors": [
        {"name": "a", "offset": 0, "shape": [2, 3]},
        {"name": "b", "offset": 64, "shape": []},
        {"name": "c", "offset": 128, "shape": None},
    ],
    "unplanned": [{"name": "d", "reason": "its size is not known"}],
    "warnings": [],
    "seconds": 0.25,
}

numbers = st.integers() | st.floats(allow_nan=False) | st.booleans() | st.none()
trees = st.recursive(
    numbers | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from("abcdefgh"), inner, max_size=4)
    ),
    max_leaves=12,
)


def compared(old: object, new: object) -> list[Difference]:
    return differences("m", "report", {"p.json": json.dumps(old)}, {"p.json": json.dumps(new)})


def changed(**changes: object) -> dict[str, Any]:
    return {**json.loads(json.dumps(PLAN)), **changes}


def patterns(found: list[Difference]) -> list[tuple[str, Any, Any]]:
    return [(d.pattern.removeprefix("p.json: "), d.old, d.new) for d in found]


def test_a_changed_number_is_found_with_its_key_and_both_values() -> None:
    found = compared(PLAN, changed(memory={"planned": 448, "certainty": "exact"}))
    assert patterns(found) == [("memory.planned", 512, 448)]
    assert found[0].direction == "lower"
    assert not found[0].words


def test_seconds_and_versions_do_not_differ() -> None:
    other = changed(seconds=9.0, producer={"name": "memplan", "version": "0.2.0"})
    assert compared(PLAN, other) == []
    assert differences("m", "c", {"s": "memplan 0.1.0 ran"}, {"s": "memplan 1.2.3 ran"}) == []


def test_a_field_that_is_new_and_one_that_is_gone_are_differences() -> None:
    found = compared({"a": 1, "gone": 2}, {"a": 1, "new": 3})
    assert patterns(found) == [("gone", 2, "(none)"), ("new", "(none)", 3)]


def test_entries_are_matched_by_name_so_that_one_more_makes_one_set_of_differences() -> None:
    more = [{"name": "z", "offset": 7, "shape": [1]}, *PLAN["tensors"]]
    found = compared(PLAN, changed(tensors=more))
    assert {d.pattern for d in found} == {
        "p.json: tensors.(order)", "p.json: tensors.*.name",
        "p.json: tensors.*.offset", "p.json: tensors.*.shape.*",
    }  # fmt: skip


def test_wording_is_kept_apart_from_values() -> None:
    found = compared(
        PLAN, changed(unplanned=[{"name": "d", "reason": "unknown size"}], warnings=["new"])
    )
    assert {(d.pattern, d.words) for d in found} == {
        ("p.json: unplanned.*.reason", True),
        ("p.json: warnings", True),
        ("p.json: warnings.*", True),
    }


def test_a_number_in_a_sentence_of_a_text_is_a_value_and_the_rest_words() -> None:
    found = differences("m", "c", {"s": "needs 12 bytes"}, {"s": "wants 13 bytes"})
    assert [(d.key[-1], d.old, d.new, d.words) for d in found] == [
        ("numbers", "12", "13", False),
        ("words", "needs # bytes", "wants # bytes", True),
    ]


def test_tables_are_compared_cell_by_cell() -> None:
    old = "id,lower,upper,size\na,0,1,4\nb,1,2,4\n"
    found = differences("m", "c", {"stdout": old}, {"stdout": old.replace("2,4", "3,4")})
    assert [(d.key, d.old, d.new) for d in found] == [
        (("stdout", "[b]", "upper"), "2", "3"),
    ]
    assert found[0].direction == "higher"


def test_a_file_that_is_not_written_any_more_is_a_difference() -> None:
    found = differences("m", "c", {"o.onnx": "{}"}, {"o.onnx": None})
    assert [(d.old, d.new) for d in found] == [("(written)", "(none)")]


@given(tree=trees)
def test_a_document_does_not_differ_from_itself(tree: object) -> None:
    assert compared(tree, tree) == []


@given(tree=trees, value=numbers, other=numbers)
def test_a_value_that_changes_anywhere_is_found(
    tree: object, value: object, other: object
) -> None:
    same = json.dumps(value) == json.dumps(other) or (value == other and value is not None)
    found = compared({"a": [tree, {"x": value}]}, {"a": [tree, {"x": other}]})
    assert bool(found) is not (same and type(value) is type(other))


def test_differences_of_all_models_and_commands_under_one_key_are_one_row() -> None:
    found = [
        Difference(model, command, ("p.json", "tensors", f"[{name}]", "offset"), 64, new)
        for model, command in (("m", "report"), ("n", "report"), ("n", "why"))
        for name, new in (("a", 0), ("b", 128))
    ]
    (row,) = rows(found, ())
    assert row.pattern == "p.json: tensors.*.offset"
    assert row.subjects == ("m", "n")
    assert row.commands == ("report", "why")
    assert row.directions == "3 lower, 3 higher"


def test_an_explanation_holds_for_its_commands_keys_and_directions_only() -> None:
    planned = ("stdout", "memory", "planned")
    meant = Difference("m", "report --level 1", planned, 9, 8)
    others = (
        Difference("n", "report --level 1", planned, 8, 9),
        Difference("m", "report --level 2", planned, 9, 8),
        Difference("m", "report --level 1", ("stdout", "memory", "naive"), 9, 8),
    )
    why = Explanation("report --level 1", "*.planned", "a better order", ("lower",))
    by_reason = {row.reason: row.differences for row in rows([meant, *others], [why])}
    assert by_reason.pop("a better order") == (meant,)
    assert all(not reason for reason in by_reason)


def test_each_case_is_named_once_and_reads_no_path_of_the_machine() -> None:
    wanted = cases(Extent.RUNS)
    assert len({(case.subject, case.command) for case in wanted}) == len(wanted)
    assert not [word for case in wanted for step in case.steps for word in step if "/" in word]


def test_every_command_has_a_quick_model() -> None:
    quick = [subject for subject in subjects() if subject.name in QUICK]
    assert [n for n, command in COMMANDS.items() if not any(map(command.suits, quick))] == []
