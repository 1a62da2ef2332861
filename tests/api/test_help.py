"""``help(memplan)`` begins with what the package does, an example, and every function."""

from __future__ import annotations

import pydoc
import re
from typing import TYPE_CHECKING

import memplan
import memplan_cli

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_help_lists_every_public_function() -> None:
    listed = set(re.findall(r"^    (\w+)  +", memplan.__doc__ or "", re.MULTILINE))
    functions = {
        name
        for name in (*memplan_cli.__all__, "settings")
        if callable(getattr(memplan, name)) and (name == "Decoder" or name.islower())
    }
    assert listed == functions - {"runtime_settings"}  # the longer name of `settings`
    assert set(memplan_cli.__all__) <= set(dir(memplan))


def test_help_shows_functions_and_no_methods_of_classes() -> None:
    text = pydoc.plain(pydoc.render_doc(memplan))
    assert "\nCLASSES\n" not in text
    assert set(memplan.__all__) >= {"gate", "optimize", "settings"}
    for name in set(memplan.__all__) - {"__version__"}:
        assert re.search(rf"^    {name}\(", text, re.MULTILINE), name
    assert len(text.splitlines()) < 500


def test_example_of_the_help_runs(
    samples: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.onnx").write_bytes((samples / "dynamic_batch.onnx").read_bytes())
    doc = memplan.__doc__ or ""
    example = doc[doc.index("    import memplan") : doc.index("Each function")]
    code = "\n".join(line[4:] for line in example.splitlines())
    exec(code, {})  # noqa: S102
    assert (tmp_path / "model.memplan.onnx").exists()


def test_results_print_as_one_short_line(samples: Path) -> None:
    model, other = samples / "branchy_cnn.onnx", samples / "train_mlp.onnx"
    plan = memplan.plan(model)
    results = [
        plan,
        plan.report,
        memplan.why(plan),
        memplan.why(plan, "b2_relu"),
        memplan.diff(plan, memplan.plan(other)),
        memplan.gate(model, {"max_memory": "1GiB", "metric": "planned"}),
        memplan.sweep([model, other]),
        memplan.simulate(model),
    ]
    for result in results:
        assert "\n" not in repr(result)
        assert len(repr(result)) < 800
