"""``optimum-cli memplan`` with the real optimum; skipped where that is not installed.

`make test-integrations` makes an environment that has it, and integrations/optimum.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

_MISSING = "optimum or memplan-optimum is not installed: make test-integrations"


def _registered() -> bool:
    try:
        return importlib.util.find_spec("optimum.commands.register.memplan") is not None
    except ImportError:
        return False


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not _registered(), reason=_MISSING),
]


def cli(*words: str) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("optimum-cli")), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_optimum_lists_memplan_and_memplan_its_commands() -> None:
    assert "memplan" in cli("--help").stdout
    assert "optimum-cli memplan optimize --help" in cli("memplan", "--help").stdout.replace(
        "\n", " "
    )
    assert "verify-certificate" in cli("memplan").stdout


def test_a_model_is_optimized_with_the_options_of_memplan(
    samples: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.onnx"
    done = cli(
        *("memplan", "optimize", str(samples / "branchy_cnn.onnx"), "-o", str(out)),
        *("--level", "1", "--validate", "outputs"),
    )
    assert done.returncode == 0, done.stderr
    assert "[ok] The outputs are bit-identical" in done.stdout
    notes = {entry.key: entry.value for entry in onnx.load(out).metadata_props}
    assert "level=1" in notes["pkg.memplan.plan"]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("optimize", "--help"), 0, "optimum-cli memplan optimize"),
        (("optimize", "none.onnx"), 2, "there is no file none.onnx"),
        (("optimise", "none.onnx"), 2, "did you mean 'optimize'?"),
        (("optimize", "--levle", "1", "x.onnx"), 2, "--level"),
    ],
)
def test_messages_and_exit_codes_are_those_of_memplan(
    words: tuple[str, ...], code: int, said: str
) -> None:
    done = cli("memplan", *words)
    assert done.returncode == code
    assert said in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_a_gate_that_fails_is_exit_code_1(samples: Path) -> None:
    model = str(samples / "branchy_cnn.onnx")
    assert cli("memplan", "gate", model, "--max-memory", "1KiB").returncode == 1
    assert cli("memplan", "gate", model, "--max-memory", "1GiB").returncode == 0
