from __future__ import annotations

import onnxruntime
import pytest

from benchmarks.in_place import probe_table
from benchmarks.in_place_models import ONE_OPS, probes
from memplan_cli.core.results.observations import CPU, CUDA
from memplan_cli.runtime.profile import in_place
from memplan_cli.runtime.profile.in_place import load_table, version_warning


def test_each_input_of_each_op_is_asked_about_twice() -> None:
    questions = [(p.op.key, p.position, p.kept) for p in probes()]
    assert ("Add", 0, False) in questions
    assert ("Add", 1, True) in questions
    assert len(questions) > 2 * len(ONE_OPS)


def test_a_probe_with_operands_or_attributes_of_its_own_is_a_model_that_loads() -> None:
    for probe in probes():
        is_own = probe.op.attributes or len(probe.op.operands) > 1
        if is_own and probe.op.opset <= 21:
            onnxruntime.InferenceSession(probe.model, providers=["CPUExecutionProvider"])


@pytest.mark.slow
def test_the_stored_table_is_what_the_runtime_answers() -> None:
    table = probe_table(CPU)
    if version_warning(CPU):
        pytest.skip("another version than the one that was probed")
    stored = load_table(CPU)
    for name in ("alias", "in_place", "allocates"):
        found = {op: tuple(answer) for op, answer in table[name].items()}
        assert found == getattr(stored, name)
    later = {op: tuple(map(tuple, pairs)) for op, pairs in table["later"].items()}
    assert later == stored.later_aliases


@pytest.mark.parametrize("version", load_table(CPU).versions)
def test_a_probed_version_gives_no_warning(
    monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    monkeypatch.setattr(in_place, "runtime_version", lambda: version)
    assert version_warning(CPU) is None


def test_another_version_is_a_warning_that_says_what_may_be_wrong(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(in_place, "runtime_version", lambda: "9.9.9")
    warning = version_warning(CPU)
    assert warning is not None
    assert "9.9.9" in warning
    assert "may be off" in warning


def test_a_provider_never_probed_is_a_warning() -> None:
    if load_table(CUDA).versions:
        pytest.skip("CUDA was probed")
    warning = version_warning(CUDA)
    assert warning is not None
    assert "no in-place table was probed" in warning
