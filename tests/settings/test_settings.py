"""Settings that code makes are judged by the readers of files; paths may be text."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import memplan_cli
from memplan_cli import MemParam, MemplanError, Settings, api
from memplan_cli.api.fit import fit
from memplan_cli.core.symbolic.bounds import DimRange
from memplan_cli.errors import SettingsError
from memplan_cli.settings.keys import KEYS
from memplan_cli.settings.sources import read_overrides
from story import GOOD, write

if TYPE_CHECKING:
    from collections.abc import Mapping


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"level": 7}, "level: expected 0, 1 or 2, not 7"),
        ({"level": True}, "level: expected 0, 1 or 2, not true"),
        ({"level": None}, "level: expected 0, 1 or 2, not nothing"),
        ({"phase": "foo"}, "phase: expected auto, train or test, not 'foo'"),
        ({"order": "foo"}, "order: expected keep or auto, not 'foo'"),
        ({"target": "gpu"}, "target: expected portable, cpu or cuda, not 'gpu'"),
        ({"alignment": 3}, "alignment: expected a power of two, not 3"),
        ({"time_limit": float("inf")}, "time_limit: expected seconds above zero, not inf"),
        ({"time_limit": 10**400}, "time_limit: expected seconds above zero, not 1000"),
        ({"expose": "yes"}, "expose: expected true or false, not 'yes'"),
        ({"dims": {"batch": -1}}, "dims: expected a number from 0 to 2^63 - 1, not -1"),
        ({"dims": [1]}, "dims: expected a table of keys ({name: value}), not a list"),
        ({"bounds": {"batch": (3, 1)}}, "bounds: the range 3..1 is empty"),
        ({"bounds": {"batch": 3}}, "bounds: expected LOW..HIGH, as in 1..64, not 3"),
        (
            {"bounds": {"w": (1, 2, 3, 4)}},
            "bounds: expected LOW..HIGH, as in 1..64, not a list",
        ),
        ({"bounds": {"w": "32..640:0"}}, "bounds: the step of 32..640:0 is 0"),
        ({"bounds": {"w": "1..640:32"}}, "bounds: the range 1..640:32 does not reach 640"),
        ({"bounds": 3}, "bounds: expected a table of keys ({name: value}), not 3"),
        ({"shapes": {"x": 3}}, "shapes: expected a list, not 3"),
        ({"budget": 2.5}, "budget: expected a share up to 100%, not '250.000000%'"),
        ({"budget": float("nan")}, "budget: expected a share up to 100%"),
        ({"exclude": (1,)}, "exclude: expected a name, not 1"),
        ({"exclude": {object()}}, "exclude: expected plain data, not set"),
        ({"loss": 3}, "loss: expected a name, not 3"),
        ({"mem_param": 3}, "mem_param: expected a MemParam, not int"),
    ],
)
def test_what_no_file_may_say_is_refused_with_its_name(
    given: dict[str, Any], said: str
) -> None:
    with pytest.raises(SettingsError) as caught:
        Settings(**given)
    assert str(caught.value).startswith(said)


def test_the_block_of_caffe_is_judged_too() -> None:
    with pytest.raises(
        SettingsError, match=r"mem_param\.optimize_test: expected true or false"
    ):
        MemParam(optimize_test="no")  # type: ignore[arg-type] # the point
    assert MemParam(exclude_blob="fc*").exclude_blob == ("fc*",)  # type: ignore[arg-type] # as a file


@pytest.mark.parametrize(
    ("given", "meaning"),
    [
        ({"exclude": "fc*"}, ("fc*",)),
        ({"exclude": ["a", "b"]}, ("a", "b")),
        ({"bounds": {"batch": "1..8"}}, {"batch": DimRange(1, 8)}),
        ({"bounds": {"batch": (0, 8)}}, {"batch": DimRange(0, 8)}),
        ({"bounds": {"width": "32..640:32"}}, {"width": DimRange(32, 640, 32)}),
        ({"bounds": {"width": (32, 640, 32)}}, {"width": DimRange(32, 640, 32)}),
        ({"budget": "60%"}, 0.6),
        ({"budget": 0.07}, 0.07),
        ({"budget": "1MiB"}, 1 << 20),
        ({"shapes": {"x": [1, "n"]}}, {"x": (1, "n")}),
        ({"time_limit": 3}, 3.0),
        ({"dims": {"batch": 0}}, {"batch": 0}),
        ({"alignment": None}, None),
    ],
)
def test_what_a_file_may_say_means_the_same_in_code(
    given: dict[str, Any], meaning: object
) -> None:
    (name,) = given
    made = getattr(Settings(**given), name)
    assert made == meaning
    assert getattr(Settings(**{name: made}), name) == made


SAMPLES: Mapping[str, object] = {
    "level": 3, "phase": 1, "order": 1, "recompute": 1, "checkpoints": 1, "budget": "x",
    "donate": 1, "skip_grads": 1, "expose": 1, "loss": 1, "dims": 1, "bounds": 1, "shapes": 1,
    "alignment": 3, "time_limit": 0, "run": 1, "allow_partial": 1,
    "fold_constants": 1, "chunk": 1, "external_weights": 1, "notes": 1, "kv_cache": 1, "capacity": 0,
    "best_effort": 1,
}  # fmt: skip


@pytest.mark.parametrize("name", [key for key in KEYS if "." not in key])
def test_an_option_and_code_are_refused_in_the_same_words(name: str) -> None:
    with pytest.raises(SettingsError) as option:
        read_overrides({name: SAMPLES[name]})
    with pytest.raises(SettingsError) as code:
        Settings(**{name: SAMPLES[name]})  # type: ignore[arg-type] # the point
    option_name = {"checkpoints": "checkpoint", "dims": "dim", "shapes": "shape"}.get(
        name, name
    )
    flag = f"--{option_name.replace('_', '-')}"
    assert str(option.value).removeprefix(flag) == str(code.value).removeprefix(name)


def test_paths_may_be_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "a.onnx", GOOD)
    done = memplan_cli.optimize("a.onnx", check=None)
    assert done.model == Path("a.memplan.onnx")
    other = memplan_cli.optimize("a.onnx", out="b.onnx", plan_file="c.json", check=None)
    assert (other.model, other.plan_file) == (Path("b.onnx"), Path("c.json"))
    digest = memplan_cli.plan("a.onnx").digest
    assert memplan_cli.report("a.memplan.json").digest == digest
    assert memplan_cli.report("a.onnx").digest == digest
    assert api.newest_plan(".").name == "a.memplan.json"
    (verdict,) = memplan_cli.gate(("a.onnx",), {"max_memory": 1})
    assert not verdict.passed
    write(tmp_path / "n.onnx", GOOD.replace("[64,256]", "[64,n]"))
    assert fit(Path("n.onnx"), 1 << 30, "n").points


@pytest.mark.parametrize("call", [memplan_cli.plan, memplan_cli.optimize, memplan_cli.report])
@pytest.mark.parametrize("path", ["none.onnx", "", "."])
def test_a_path_that_leads_nowhere_is_an_error_of_ours(call: Any, path: str) -> None:  # noqa: ANN401 - three functions
    with pytest.raises(MemplanError):
        call(path)
