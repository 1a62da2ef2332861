"""A large model is let go of and parsed again; its file must still be the same."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from builders import parse
from memplan_cli.api.models.model_file import ModelFile, plan_model, read_model
from memplan_cli.errors import ModelError
from memplan_cli.onnx_io import load as lazy_model
from memplan_cli.onnx_io.load import LazyModel, lazy, load_again
from memplan_cli.onnx_io.writing.write import written_model
from memplan_cli.settings.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path

    from onnx import ModelProto

TEXT = "g (float[4] x) => (float[4] z) { a = Neg(x) b = Exp(a) z = Neg(b) }"


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    path.write_bytes(parse(TEXT).SerializeToString())
    return path


@pytest.fixture
def _all_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lazy_model, "LARGE", 0)


@pytest.mark.usefixtures("_all_is_large")
def test_a_model_that_was_let_go_of_is_parsed_again(saved: Path) -> None:
    file = read_model(saved)
    before = file.model
    file.lazy.release()
    assert file.model is not before
    assert file.model == before
    assert file.model is file.model


def test_a_small_model_stays(saved: Path) -> None:
    file = read_model(saved)
    before = file.model
    file.lazy.release()
    assert file.model is before


@pytest.mark.usefixtures("_all_is_large")
def test_a_model_without_a_file_stays() -> None:
    model = parse(TEXT)
    kept = lazy(model)
    kept.release()
    assert kept.model is model
    assert lazy(kept) is kept


@pytest.mark.usefixtures("_all_is_large")
def test_planning_lets_go_of_a_large_model_and_writes_the_same(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed = []

    def again(path: Path) -> ModelProto:
        parsed.append(path)
        return load_again(path)

    monkeypatch.setattr(lazy_model, "load_again", again)
    file = read_model(saved)
    planned = plan_model(file, Settings())
    assert parsed == [saved], "inference had the memory of the first"
    got = b"".join(written_model(file.model, planned.program, planned.plan))
    assert parsed == [saved, saved], "and planning that of the second"
    whole = ModelFile(saved, LazyModel(parse(TEXT)))
    other = plan_model(whole, Settings())
    assert got == b"".join(written_model(whole.model, other.program, other.plan))


@pytest.mark.usefixtures("_all_is_large")
def test_a_file_that_changed_meanwhile_is_refused(saved: Path) -> None:
    file = read_model(saved)
    file.lazy.release()
    saved.write_bytes(parse(TEXT.replace("Exp", "Abs")).SerializeToString())
    os.utime(saved, ns=(0, 0))  # a clock may be too coarse to tell
    with pytest.raises(ModelError, match="changed while it was planned"):
        _ = file.model


@pytest.mark.usefixtures("_all_is_large")
def test_a_file_that_went_away_meanwhile_is_named(saved: Path) -> None:
    file = read_model(saved)
    file.lazy.release()
    saved.unlink()
    with pytest.raises(ModelError, match="there is no file"):
        _ = file.model
