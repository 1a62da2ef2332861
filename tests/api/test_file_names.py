"""Names of files: what is made of one is read back from it."""

from __future__ import annotations

from pathlib import Path

import pytest

from memplan_cli.api.models.file_names import (
    default_original,
    default_output,
    model_beside,
    plan_beside,
)

PLACE = Path("there")


@pytest.mark.parametrize("name", ["a.onnx", "a.b.onnx", "a.memplan.onnx"])
def test_a_name_that_was_made_is_read_back(name: str) -> None:
    model = PLACE / name
    written = default_output(model)
    assert default_original(written) == model
    assert model_beside(plan_beside(written)) == written


def test_the_names_are_those_that_users_know() -> None:
    written = default_output(PLACE / "a.onnx")
    assert written == PLACE / "a.memplan.onnx"
    assert plan_beside(written) == PLACE / "a.memplan.json"


@pytest.mark.parametrize("name", ["a.onnx", "memplan.onnx", "a.memplan.json"])
def test_another_name_tells_no_original(name: str) -> None:
    assert default_original(PLACE / name) is None
