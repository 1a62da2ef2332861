"""Which verdict counts when fusion depends on the order of the nodes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from memplan_cli.core.bindings import Binding
from memplan_cli.core.check import Check
from memplan_cli.core.results.observations import CPU, UNOPTIMISED, Validation
from memplan_cli.runtime.proofs import compare as comparisons
from memplan_cli.workflows.compare import Compared, compare_models

if TYPE_CHECKING:
    import pytest

    from memplan_cli.runtime.proofs.compare import Comparison

SAME = Validation("passed", CPU, 0.0, bit_identical=True)
OTHER = Validation("failed", CPU, 1e-7, bit_identical=False)
CRASHED = Validation("failed", CPU)


def answer(
    monkeypatch: pytest.MonkeyPatch, optimised: Validation, plain: Validation
) -> Compared:
    def compare(_original: Path, _rewritten: Path, how: Comparison) -> Validation:
        return plain if how.original_settings == UNOPTIMISED else optimised

    monkeypatch.setattr(comparisons, "compare", compare)
    return compare_models(Path("a.onnx"), Path("b.onnx"), Check(), Binding())


def test_equal_bits_under_the_defaults_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    found = answer(monkeypatch, SAME, OTHER)
    assert (found.verdict, found.as_written) == (SAME, False)


def test_bits_that_fusion_changes_are_compared_without_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = answer(monkeypatch, OTHER, SAME)
    assert found.verdict.passed
    assert found.as_written, "the written file is right only as it stands"
    assert "optimisation off" in found.verdict.notes[0]


def test_bits_that_differ_without_fusion_too_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not answer(monkeypatch, OTHER, OTHER).verdict.passed


def test_a_model_that_does_not_run_is_not_excused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not answer(monkeypatch, CRASHED, SAME).verdict.passed
