"""Every hint that a command prints can be copied, and leads further."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.field_hints import Followed, Said, Words, follow
from memplan_cli.cli import main
from shared_models import SHARED
from story import write

MODELS = {
    "named": "m (float[batch,4] x) => (float[batch,4] z) { y = Relu(x) z = Neg(y) }",
    "nameless": 'm (float["?",4,"?"] x) => (float["?",4,"?"] z) { y = Relu(x) z = Neg(y) }',
    "by data": """m (float[n] x) => (float[u,1] z)
        { i = NonZero(x) j = Transpose(i) k = Cast<to = 1>(j) z = Neg(k) }""",
    "fixed by data": """m (float[64] x) => (int64[1,u] z)
        { a = Relu(x) i = NonZero(a) j = Neg(i) z = Neg(j) }""",
    "two inputs": """m (float[batch,"?"] x, float[batch,"past + new"] c, float[new] n) =>
        (float[batch,"?"] z) { y = Relu(x) d = Relu(c) o = Relu(n) z = Neg(y) }""",
}
"""What a model may leave free, by what is odd about it."""

COMMANDS: tuple[Words, ...] = (
    ("report", "MODEL"),
    ("report", "MODEL", "--format", "c-header"),
    ("why", "MODEL"),
    ("gate", "MODEL", "--max-memory", "1TiB"),
    ("gate", "MODEL", "--max-memory", "1TiB", "--metric", "predicted.run"),
    ("gate", "MODEL", "--max-memory", "1TiB", "--no-run"),
    ("gate", "MODEL", "--max-memory", "1TiB", "--metric", "observed.steady_peak"),
    ("report", "MODEL", "--format", "c-header", "--no-run"),
    (
        "optimize",
        "MODEL",
        "-o",
        "o.onnx",
        "--recompute",
        "auto",
        "--budget",
        "50%",
        "--no-run",
    ),
    ("fit", "MODEL", "--memory", "MEMORY", "--dim", "batch=?"),
    ("simulate", "MODEL"),
    ("settings", "MODEL"),
    ("optimize", "MODEL", "--no-validate", "-o", "o.onnx"),
    ("optimize", "MODEL", "-o", "o.onnx", "--recompute", "auto", "--budget", "50%"),
    ("optimize", "MODEL", "-o", "o.onnx", "--validate", "outputs"),
)


def memplan(words: Words) -> Said:
    done = CliRunner().invoke(main, list(words))
    return Said(done.exit_code, done.stdout, done.stderr)


def followed(
    model: Path, commands: tuple[Words, ...] = COMMANDS, memory: str = "1GiB"
) -> list[Followed]:
    found = []
    values = {"MODEL": str(model), "MEMORY": memory}
    for command in commands:
        words = tuple(values.get(word, word) for word in command)
        name = " ".join(command)
        found += follow(model.stem, name, words, memplan(words), memplan)
    return found


def leads_nowhere(found: list[Followed]) -> list[str]:
    return [
        f"{at.outcome}: {at.command} {at.added}: {at.hint}"
        for at in found
        if at.outcome not in ("works", "another message")
    ]


@pytest.mark.parametrize("name", MODELS)
def test_hints_on_what_a_model_leaves_free_lead_further(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model = write(tmp_path / f"{name}.onnx", MODELS[name])
    # Where data decides sizes, `fit` runs the model at each size that it tries: into 1 GiB, 40 sizes fit.
    memory = "64KiB" if name == "by data" else "1GiB"
    assert not leads_nowhere(followed(model, memory=memory))


MESSY = sorted((SHARED / "messy").glob("*.onnx"))


@pytest.mark.parametrize(
    "model",
    [
        *(pytest.param(path, id=path.stem) for path in MESSY[2:3]),
        *(
            pytest.param(path, id=path.stem, marks=pytest.mark.slow)
            for path in MESSY[:2] + MESSY[3:]
        ),
    ],
)
def test_hints_on_models_as_exporters_write_them_lead_further(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    few = (
        ("report", "MODEL", "--no-run"),
        ("report", "MODEL", "--no-run", "--format", "c-header"),
        ("fit", "MODEL", "--memory", "1GiB", "--dim", "size=?", "--no-run"),
    )
    model = Path(shutil.copy(model, tmp_path))
    assert not leads_nowhere(followed(model, few))


@pytest.mark.parametrize(
    "name",
    ["dynamic_batch", "nested_if_loop", pytest.param("train_mlp", marks=pytest.mark.slow)],
)
def test_hints_on_the_samples_lead_further(
    name: str, samples: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model = Path(shutil.copy(samples / f"{name}.onnx", tmp_path))
    assert not leads_nowhere(followed(model))


def test_a_plan_in_another_folder_names_its_model_from_here(
    tmp_path: Path, samples: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("in", "out"):
        Path(folder).mkdir()
    shutil.copy(samples / "branchy_cnn.onnx", "in/m.onnx")
    made = memplan(("optimize", "in/m.onnx", "-o", "out/m.onnx", "--no-validate"))
    shown = memplan(("report", "out/m.json"))
    for said in (made, shown):
        assert said.out.startswith("in/m.onnx -> out/m.onnx ")
        assert said.out.endswith("memplan validate out/m.onnx --original in/m.onnx\n")
    shutil.copy(samples / "tied_head.onnx", "in/m.onnx")
    stale = memplan(("gate", "out/m.json", "--max-memory", "1GiB"))
    assert "`memplan optimize in/m.onnx` makes it again" in stale.err
