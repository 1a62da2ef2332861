"""The text of a fit: the terms of a need, where there are any."""

from __future__ import annotations

import pytest

from memplan_cli.planning.fit import Fit, Need, Point
from memplan_cli.reporting.commands.fit import FIT

POINT = Point.of(Need(1, 2, 3, 4), {"n": 4}, Need(1, 2, 3, 5), 0)


@pytest.mark.parametrize(
    ("point", "overhead", "terms"),
    [
        (
            POINT,
            0,
            "Of it 1 B for weights, 2 B for inputs, 3 B for outputs, 4 B for the planned",
        ),
        (POINT, 64, "intermediates, 64 B for everything else (--overhead)."),
        (None, 64, ""),
    ],
)
def test_the_terms_of_a_need_are_a_sentence_or_left_out(
    point: Point | None, overhead: int, terms: str
) -> None:
    fit = Fit("a.onnx", 100, overhead, 0, None, "n", {}, point, None)
    text = " ".join(FIT["text"](fit).split())
    assert terms in text
    assert ("Of it" in text) == bool(terms)
