"""The text of a fit: the terms of a need, where there are any."""

from __future__ import annotations

import pytest

from memplan_cli.planning.fit import Fit, Need, Point
from memplan_cli.reporting.commands.fit import FIT

SMALL, LARGE = (
    Point.of(Need(1, 2, 3, n), {"n": n, "m": 9 - n}, Need(1, 2, 3, n + 1), 0) for n in (4, 5)
)


@pytest.mark.parametrize(
    ("points", "overhead", "terms"),
    [
        ((SMALL, LARGE), 0, ""),
        ((SMALL, LARGE), 64, "Each need includes 64 B for everything else (--overhead)."),
        (
            (SMALL,),
            0,
            "Of it 1 B for weights, 2 B for inputs, 3 B for outputs, 4 B for the planned",
        ),
        ((), 0, ""),
    ],
)
def test_the_terms_of_a_need_are_a_sentence_or_left_out(
    points: tuple[Point, ...], overhead: int, terms: str
) -> None:
    fit = Fit("a.onnx", 100, overhead, 0, None, ("n", "m"), {}, points, None)
    text = " ".join(FIT["text"](fit).split())
    assert terms in text
    assert ("Of it" in text or "Each need" in text) == bool(terms)
