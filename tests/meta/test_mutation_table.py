"""Rules of the mutation table are found in the package, by function and kind of change."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

import pytest

from benchmarks.code_changes import (
    Change,
    StaleChangeError,
    always,
    compare,
    drop,
    edit_of,
    never,
    operand,
    replace,
    without,
)
from benchmarks.mutation_rules import RULES, rule
from benchmarks.mutations import stale_rules

if TYPE_CHECKING:
    from pathlib import Path

SOURCE = """
TABLE = {"a": 1, "b": 2}
class Search:
    def lowest(self, values, most=3):
        if not values or self.is_empty:
            return None
        self.count += len(values)
        kept = [value for value in values if value < most]
        return min(max(kept), self.limit)
"""


def changed(tmp_path: Path, name: str, change: Change) -> str:
    """Return the source of a function after a change, as the syntax tree prints it."""
    (tmp_path / "somewhere.py").write_text(SOURCE)
    return ast.unparse(ast.parse(edit_of(tmp_path, name, change).after))


@pytest.mark.parametrize(
    ("name", "change", "line"),
    [
        ("Search.lowest", never("is_empty"), "if not values or False:"),
        ("Search.lowest", never("values is_empty"), "if False:"),
        ("Search.lowest", always("most"), "kept = [value for value in values if True]"),
        ("Search.lowest", drop("count"), "pass"),
        ("Search.lowest", operand("max limit", 1), "return self.limit"),
        ("Search.lowest", compare("", "<="), "kept = [value for value in values if value <= most]"),
        ("Search.lowest", replace("max(kept)", "kept[0]"), "return min(kept[0], self.limit)"),
        ("TABLE", without("b"), "TABLE = {'a': 1}"),
    ],
)  # fmt: skip
def test_each_kind_of_change_edits_the_place_that_its_words_name(
    tmp_path: Path, name: str, change: Change, line: str
) -> None:
    assert line in [each.strip() for each in changed(tmp_path, name, change).splitlines()]


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("Search.highest", never("is_empty")),
        ("Search.lowest", never("is_full")),
        ("Search.lowest", never()),
        ("Search.lowest", drop("")),
    ],
)
def test_a_change_without_one_place_is_stale(
    tmp_path: Path, name: str, change: Change
) -> None:
    with pytest.raises(StaleChangeError, match=name):
        changed(tmp_path, name, change)


def test_every_rule_has_its_function_its_place_and_its_tests() -> None:
    assert stale_rules(RULES) == []


def test_a_rule_whose_function_or_test_is_gone_is_named() -> None:
    lost = stale_rules(
        [
            rule("a first", "no_such_function", never(), "test_liveness"),
            rule("a second", "live_ranges", drop("last final"), "test_no_such_behavior"),
        ]
    )
    assert lost == [
        "a first: the package has no function no_such_function",
        "a second: there is no test test_no_such_behavior",
    ]
