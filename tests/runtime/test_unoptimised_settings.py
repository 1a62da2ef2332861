"""Settings without the runtime's optimisation are taken only where nothing speaks against it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from memplan_cli.core.results.observations import CPU, Peaks, RuntimeSettings, Validation
from memplan_cli.runtime import facts
from memplan_cli.runtime.measuring import timing
from memplan_cli.runtime.measuring.measure import Trial
from memplan_cli.runtime.steer import Recommendation

MODEL = Path("model.onnx")
ON = RuntimeSettings(session={"execution_order": "DEFAULT"})
OFF = RuntimeSettings(session={"graph_optimization_level": "ORT_DISABLE_ALL"})
BEFORE = Recommendation(
    ON, Peaks(1000, 1000), Peaks(1000, 1000, milliseconds=10.0, effort=10.0)
)


@dataclass
class _Runtime:
    """What a runtime would say of the model with its optimisation off."""

    expected: int | None = 600
    measured: int = 600
    effort: float = 10.0
    bits: bool = True

    def install(self, patch: pytest.MonkeyPatch) -> None:
        peaks = Peaks(self.expected, self.expected)
        observed = Peaks(self.measured, self.measured, milliseconds=1.0, effort=self.effort)
        verdict = Validation(
            status="passed" if self.bits else "failed",
            provider=CPU,
            max_abs_diff=0.0 if self.bits else 1e-7,
            bit_identical=self.bits,
        )
        patch.setattr(facts, "offline_program", lambda *_: None)
        patch.setattr(facts, "recommend_unmeasured", lambda *_: Recommendation(OFF, peaks))
        patch.setattr(facts, "recommend", lambda *_: Recommendation(OFF, peaks, observed))
        patch.setattr(facts, "compare", lambda *_: verdict)
        patch.setattr(timing, "measure", self._again)

    def _again(self, _: Path, settings: RuntimeSettings, __: Trial) -> Peaks:
        effort = self.effort if settings == OFF else 10.0
        return Peaks(None, None, milliseconds=1.0, effort=effort)


def _answer(runtime: _Runtime, patch: pytest.MonkeyPatch) -> Recommendation | None:
    runtime.install(patch)
    return facts._unoptimised(MODEL, BEFORE, Trial(provider="cpu"))


def test_less_memory_with_the_same_bits_is_taken_and_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = _answer(_Runtime(), monkeypatch)
    assert found is not None
    assert found.settings == OFF
    assert "bits of the defaults" in found.notes[0]


@pytest.mark.parametrize(
    "against",
    [
        pytest.param({"bits": False}, id="other bits"),
        pytest.param({"effort": 11.0}, id="a tenth slower"),
        pytest.param({"measured": 1000}, id="less was predicted only"),
        pytest.param({"expected": 995}, id="half a per cent is not worth a level"),
        pytest.param({"expected": None}, id="sizes depend on data"),
    ],
)
def test_nothing_is_taken_that_something_speaks_against(
    against: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _answer(replace(_Runtime(), **against), monkeypatch) is None  # type: ignore[arg-type]
