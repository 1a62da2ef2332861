"""The page of texts before and after."""

from __future__ import annotations

from pathlib import Path

from benchmarks.same_results import Side
from benchmarks.text_changes import Output, command_lines, page


def test_an_option_that_was_unknown_before_is_listed_and_equal_texts_stand_once() -> None:
    equal = Output(0, ("the same text",))
    before = [equal for _ in command_lines()]
    after = [*before]
    before[0] = Output(2, ("Error: No such option: --new",))
    text = "\n".join(page(Side("abc", Path(), Path()), before, after))
    first, *others = (line for _, line in command_lines())
    assert f"did not exist before:\n  memplan {first}\n\n" in text
    assert text.count("the same text") == len(others) + 1
    assert "2 lines" not in text


def test_a_command_is_left_out_where_a_model_has_no_free_dims() -> None:
    lines = [line for _, line in command_lines()]
    assert not [line for line in lines if line.startswith(("fit branchy", "soak branchy"))]
    assert [line for line in lines if line.startswith("soak")]
