"""Under which settings a written model is run first."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from builders import parse
from memplan_cli.core.results.observations import Peaks, RuntimeSettings
from memplan_cli.runtime import confirming
from memplan_cli.runtime.confirming import Proof
from memplan_cli.runtime.simulate.trace import weight_bytes
from memplan_cli.runtime.steer import Recommendation
from memplan_cli.shapes.reading import read_program

OFF = RuntimeSettings(session={"graph_optimization_level": "ORT_DISABLE_ALL"})


@pytest.mark.parametrize(
    ("folded", "chosen"),
    [
        pytest.param(0, RuntimeSettings(), id="the lower arena"),
        pytest.param(100, RuntimeSettings(), id="of two that take the same, the quicker"),
        pytest.param(101, OFF, id="constants that the session makes"),
    ],
)
def test_what_a_session_folds_is_held_beside_its_arena(
    monkeypatch: pytest.MonkeyPatch, folded: int, chosen: RuntimeSettings
) -> None:
    nothing: Any = None
    written: Any = SimpleNamespace(as_written=False, offline=False, program=None)
    source: Any = SimpleNamespace(dims={}, executed=None)
    monkeypatch.setattr(confirming, "is_slower_as_written", lambda *_: False)
    optimised = Recommendation(RuntimeSettings(), Peaks(700, 700, held=800))
    as_it_stands = Recommendation(OFF, Peaks(800, 800, held=900))
    monkeypatch.setattr(Proof, "_optimised", lambda _: optimised)
    monkeypatch.setattr(Proof, "_as_it_stands", lambda _: as_it_stands)
    monkeypatch.setattr(Proof, "_folded", lambda _: folded)
    proof = Proof(source, source, written, Path(), nothing)
    assert proof.foreseen().settings == chosen


def test_weights_are_initializers_and_constants_of_a_known_size() -> None:
    model = parse("""g (float[2] x) => (float[4] y) <float[2] w = {1, 2}> {
        c = Constant <value_floats = [1.0, 2.0]> ()
        a = Add (x, w)  y = Concat <axis = 0> (a, c) }""")
    assert weight_bytes(read_program(model).program, {}) == 16
