"""Two results of a command are compared by their values; what is alike makes one row."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.same_commands import COMMANDS, QUICK, Extent, cases, subjects
from benchmarks.same_differences import Difference, Explanation, differences, folded, rows
from benchmarks.same_results import Comparison, page

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


def test_the_order_of_an_objects_keys_does_not_matter() -> None:
    assert compared(PLAN, dict(reversed(list(PLAN.items())))) == []


def test_a_field_that_is_new_and_one_that_is_gone_are_differences() -> None:
    found = compared({"a": 1, "gone": 2}, {"a": 1, "new": 3})
    assert patterns(found) == [("gone", 2, "(none)"), ("new", "(none)", 3)]


def test_a_null_is_not_a_field_that_is_missing() -> None:
    assert patterns(compared({"a": None, "b": 1}, {"b": 1})) == [("a", None, "(none)")]


def test_true_is_not_one() -> None:
    assert len(compared({"a": True}, {"a": 1})) == 1


def test_an_empty_list_is_not_a_missing_one() -> None:
    assert len(compared({"a": []}, {"a": [1]})) == 2
    assert len(compared({"a": [], "b": 1}, {"b": 1})) == 1
    assert len(compared({"a": []}, {"a": {}})) == 1


def test_entries_are_matched_by_name_so_that_one_more_makes_one_set_of_differences() -> None:
    more = [{"name": "z", "offset": 7, "shape": [1]}, *PLAN["tensors"]]
    found = compared(PLAN, changed(tensors=more))
    assert {d.pattern for d in found} == {
        "p.json: tensors.(order)", "p.json: tensors.*.name",
        "p.json: tensors.*.offset", "p.json: tensors.*.shape.*",
    }  # fmt: skip


def test_another_order_of_the_same_entries_is_one_difference() -> None:
    found = compared(PLAN, changed(tensors=PLAN["tensors"][::-1]))
    assert [d.pattern for d in found] == ["p.json: tensors.(order)"]


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


def test_other_wording_with_the_same_numbers_has_no_difference_of_values() -> None:
    found = differences("m", "c", {"s": "1 of 2\nnodes"}, {"s": "2 nodes,\n1 chosen"})
    assert [d.words for d in found] == [True]


def test_lines_that_only_change_places_are_a_difference() -> None:
    found = differences("m", "c", {"s": "a\nb"}, {"s": "b\na"})
    assert [d.pattern for d in found] == ["s: lines.(order)"]


def test_numbers_that_change_places_between_lines_are_a_difference() -> None:
    old = "#define A 1\n#define B 2\n"
    found = differences("m", "c", {"s": old}, {"s": "#define A 2\n#define B 1\n"})
    assert [(d.old, d.words) for d in found] == [("#define A 1 / #define B 2", False)]


def test_a_number_is_found_although_other_lines_have_new_words() -> None:
    found = differences("m", "c", {"s": "peak 1\nsaved 3"}, {"s": "peak 2\ngain 3"})
    assert [(d.old, d.new) for d in found if not d.words] == [("peak 1", "peak 2")]


def test_a_number_among_wordings_is_a_value() -> None:
    found = compared({"notes": {"count": 1}}, {"notes": {"count": 2}})
    assert [d.words for d in found] == [False]


def test_numbers_in_what_goes_to_stderr_are_words() -> None:
    found = differences("m", "c", {"stderr": "12 left"}, {"stderr": "13 left to do"})
    assert [d.words for d in found] == [True]


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


def test_folding_keeps_one_of_each_direction_and_all_counts() -> None:
    found = [
        Difference("m", "report", ("p.json", "tensors", f"[{place}]", "offset"), 5, place)
        for place in (1, 2, 8)
    ]
    few = folded(found)
    assert [(d.new, d.count) for d in few] == [(1, 2), (8, 1)]
    (row,) = rows(few, ())
    assert (row.count, row.directions) == (3, "2 lower, 1 higher")


def test_other_keys_and_documents_are_other_rows() -> None:
    found = [
        Difference("m", "report", ("stdout", "a"), 1, 2),
        Difference("m", "report", ("stdout", "b"), 1, 2),
        Difference("m", "report", ("p.json", "a"), 1, 2),
    ]
    assert len(rows(found, ())) == 3


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


def test_an_option_that_help_does_not_name_any_more_is_no_matter_of_words() -> None:
    old = "--order [keep|auto]  Reorder.\n--level N  One.\n"
    found = differences("m", "c", {"s": old}, {"s": old.replace("|auto", "|best")})
    assert [(d.pattern, d.old, d.new, d.words) for d in found][:1] == [
        ("s: options", "[keep|auto]", "[keep|best]", False)
    ]
    found = differences("m", "c", {"s": old}, {"s": old.replace("--order", "order")})
    assert [(d.old, d.new) for d in found if not d.words] == [("--order", "(none)")]


@pytest.mark.parametrize(("words", "counted"), [(True, "0 not explained"), (False, "1 not")])
def test_the_page_counts_values_that_nobody_explained(*, words: bool, counted: str) -> None:
    found = (Difference("m", "report", ("stdout", "a"), "x | y", "z", words),)
    said = Comparison(3, 2, ("m: slow (new)",), found)
    text = page("old", "new", Extent.QUICK, said, rows(found, ()))
    assert "3 commands compared, 2 identical, 1 differ" in text
    assert f"of which {counted}" in text
    assert "x \\| y" in text
    assert "m: slow (new)" in text


def test_each_case_is_named_once_and_reads_no_path_of_the_machine() -> None:
    wanted = cases(Extent.RUNS)
    assert len({(case.subject, case.command) for case in wanted}) == len(wanted)
    assert not [word for case in wanted for step in case.steps for word in step if "/" in word]


def test_every_command_has_a_quick_model() -> None:
    quick = [subject for subject in subjects() if subject.name in QUICK]
    assert [n for n, command in COMMANDS.items() if not any(map(command.suits, quick))] == []


def test_more_is_run_the_wider_the_extent() -> None:
    few, most, every = (cases(extent) for extent in (Extent.QUICK, Extent.ALL, Extent.RUNS))
    assert len(few) < len(most) < len(every)
    assert set(few) <= set(most) <= set(every)
