"""Every command plans by what nodes make, whatever a file declares, and says so."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from story import memplan, write

if TYPE_CHECKING:
    from pathlib import Path

BODY = "{ a = Relu(x) b = Exp(a) c = Add(a, b) y = Neg(c) }"
HONEST = f"g (float[batch,256] x) => (float[batch,256] y) {BODY}"
LYING = HONEST.replace("y) {", "y) <float[1,16] a, float[1,16] b, float[1,16] c> {")
SAID = "wrong declarations in the model are ignored: 'a' is declared float32[1,16]"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "honest.onnx", HONEST)
    write(tmp_path / "lying.onnx", LYING)
    return tmp_path


@pytest.mark.parametrize(
    "words",
    [
        ("report", "MODEL", "--dim", "batch=8"),
        ("optimize", "MODEL", "--dim", "batch=8", "--no-validate", "-o", "out.onnx"),
        ("why", "MODEL", "--dim", "batch=8"),
        ("fit", "MODEL", "--memory", "1MiB", "--dim", "batch=?", "--of", "tensors"),
        ("gate", "MODEL", "--dim", "batch=8", "--max-memory", "16KiB", "--metric", "planned"),
        ("simulate", "MODEL", "--dim", "batch=8", "--allocator", "bfc"),
        ("sweep", "MODEL", "--dim", "batch=8"),
    ],
    ids=lambda words: words[0],
)
def test_the_numbers_are_those_of_the_honest_model(words: tuple[str, ...]) -> None:
    said = []
    for name in ("honest", "lying"):
        done = memplan(
            *(w.replace("MODEL", f"{name}.onnx") for w in words), "--format", "json"
        )
        said.append((done.exit_code, json.loads(done.stdout), done.stderr + done.stdout))
    (honest_code, honest, before), (lying_code, lying, after) = said
    assert honest_code == lying_code
    foreseen, foreseen_of_lies = honest.pop("runtime", None), lying.pop("runtime", None)
    if words[0] == "report":
        assert _tensors(foreseen) == _tensors(foreseen_of_lies)
    # A file with false declarations has other bytes than one without.
    assert (honest.pop("files", None) is None) == (lying.pop("files", None) is None)
    assert _numbers(honest) == _numbers(lying)
    assert SAID not in before
    # A sweep's rows have no room for warnings; its numbers are right all the same.
    assert (SAID in after) == (words[0] != "sweep")


def test_a_gate_does_not_pass_by_a_lie() -> None:
    words = ("--dim", "batch=8", "--max-memory", "8KiB", "--metric", "planned")
    assert memplan("gate", "honest.onnx", *words).exit_code == 1
    assert memplan("gate", "lying.onnx", *words).exit_code == 1


def test_a_difference_between_both_is_none() -> None:
    done = memplan("diff", "honest.onnx", "lying.onnx", "--dim", "batch=8")
    assert f"warning: lying.onnx: {SAID}" in done.stderr
    assert "warning: honest.onnx" not in done.stderr
    assert memplan("diff", "honest.onnx", "lying.onnx", "-q").stderr == ""


def _tensors(runtime: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what is predicted but for the process, no two of which are alike."""
    sides = runtime["predicted"].values()
    return [{name: size for name, size in side.items() if name != "process"} for side in sides]


def _numbers(value: object) -> list[int]:
    if isinstance(value, dict):
        return [n for key in sorted(value) for n in _numbers(value[key])]
    if isinstance(value, list):
        return [n for item in value for n in _numbers(item)]
    return [value] if isinstance(value, int) else []
