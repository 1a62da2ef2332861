from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memplan_cli.core.quantities import Increase
from memplan_cli.errors import SettingsError
from memplan_cli.settings.keys import KEYS
from memplan_cli.settings.settings import MemParam, Settings
from memplan_cli.settings.sources import (
    discovered_files,
    load_settings,
    merge_layers,
    read_config,
    read_overrides,
    read_prototxt,
    read_pyproject,
    read_yaml,
)

CONFIGS = Path(__file__).parents[2] / "configs"


def refusal(text: str, read: object = read_yaml) -> SettingsError:
    assert callable(read)
    with pytest.raises(SettingsError) as caught:
        read(text, "f")
    return caught.value


def test_the_example_of_the_contract_is_read() -> None:
    text = """
mem_param:
  optimize_train: true
  optimize_test: false
  exclude_blob: [fc1, "head/*"]
level: 1
skip_grads: true
dims: {batch: 8}
alignment: 64
"""
    assert merge_layers([read_yaml(text, "f")]) == Settings(
        mem_param=MemParam(optimize_test=False, exclude_blob=("fc1", "head/*")),
        level=1,
        skip_grads=True,
        dims={"batch": 8},
        alignment=64,
    )


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n", "mem_param:\n", "{}"])
def test_an_empty_file_sets_nothing(text: str) -> None:
    assert read_yaml(text, "f").values == {}


def test_a_shape_may_hold_symbols_and_nothing_at_all() -> None:
    values = read_yaml("shapes: {past: [1, 0, heads, 64]}", "f").values
    assert values == {"shapes": {"past": (1, 0, "heads", 64)}}
    assert "expected a number from 0" in str(refusal("shapes: {past: [-1]}"))


def test_one_excluded_blob_needs_no_list() -> None:
    assert merge_layers([read_yaml("mem_param: {exclude_blob: fc1}", "f")]).excluded == (
        "fc1",
    )


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("\n levle: 1", "f:2:2: unknown key 'levle'", "did you mean level?"),
        ("exclude_blob: x", "f:1:1: unknown key", "did you mean mem_param.exclude_blob?"),
        ("mem_parm: {}", "f:1:1: unknown key 'mem_parm'", "did you mean mem_param?"),
        (
            "mem_param:\n  optimise_test: true",
            "f:2:3: unknown key 'mem_param.optimise_test'",
            "did you mean optimize_test?",
        ),
        ("zzz: 1", "f:1:1: unknown key 'zzz'", "known keys: alignment"),
        ("level: 1\nlevel: 2", "f:2:1: 'level' was already set at f:1:1", ""),
        ("dims: {n: 1, n: 2}", "f:1:14: 'n' was already set", ""),
        (
            "gate.max_memory: 1kB\ngate: {max_memory: 2kB}",
            "f:2:8: 'max_memory' was already set at f:1:1",
            "",
        ),
        ("level: 3", "f:1:8: level: expected 0, 1 or 2, not 3", ""),
        ("level: true", "f:1:8: level: expected 0, 1 or 2, not true", ""),
        ("level: 1.0", "expected 0, 1 or 2, not 1.0", ""),
        ("level: '1'", "expected 0, 1 or 2, not '1'", ""),
        ("phase: trian", "expected auto, train or test", "did you mean train?"),
        (
            "dims: {batch: -1}",
            "f:1:15: dims.batch: expected a number from 0 to 2^63 - 1, not -1",
            "",
        ),
        ("dims: {batch: 1:30}", "expected a whole number, not '1:30'", ""),
        ("dims: [8]", "f:1:7: dims: expected a table of keys ({name: value}), not a list", ""),
        ("alignment: 48", "f:1:12: alignment: expected a power of two, not 48", ""),
        ("alignment: 9223372036854775808", "expected a number from 1", ""),
        ("time_limit: .nan", "expected seconds above zero", ""),
        ("time_limit: 0", "expected seconds above zero", ""),
        ("expose: maybe", "expected true or false, not 'maybe'", ""),
        (
            "mem_param: {exclude_blob: [12]}",
            "mem_param.exclude_blob: expected a name, not 12",
            "quote it",
        ),
        ("loss: ''", "expected a name, not ''", ""),
        ("shapes: {x: 3}", "expected a list, not 3", ""),
        ("- level", "f:1:1: expected a table of keys ({name: value}), not a list", ""),
        ("level", "expected a table of keys ({name: value}), not 'level'", ""),
        ("[a]: 1", "f:1:1: a key must be a name", ""),
        ("level: [", "f:1:9: not valid YAML", ""),
        ("level: 1\n\tphase: test", "f:2:1: not valid YAML", ""),
        ("level: 1\n--- \nlevel: 2", "f:2:1: not valid YAML", ""),
        ("loss: a\0b", "f:1:8: the character '\\x00' may not be in YAML", ""),
        ("gate: {max_memory: 12 apples}", "'12 apples' has no known unit", "MiB"),
        ("gate: {max_memory: 256}", "f:1:20: gate.max_memory: '256' has no unit", "256MiB"),
        ("gate: {max_increase: 2}", "gate.max_increase: '2' has no unit", "2%, or 2MiB"),
        ("gate: {max_memory: 1.5}", "expected a size such as 512MiB, not 1.5", ""),
        ("gate: {max_memory: true}", "expected a size such as 512MiB, not true", ""),
        ("gate: {models: {a: {max_memry: 1}}}", "'gate.models.a.max_memry'", "max_memory?"),
        ("gate: {metric: planed}", "expected planned, live_peak", "did you mean planned?"),
    ],
)
def test_a_mistake_is_named_with_its_place(text: str, message: str, hint: str) -> None:
    error = refusal(text)
    assert message in str(error)
    assert hint in error.hint


@pytest.mark.parametrize(
    "text",
    [
        "loss: !!python/object/apply:os.system ['true']",
        "loss: !!python/name:os.system",
        "loss: !mine x",
        "dims: !!set {a, b}",
        "dims: !!omap [a: 1]",
        "level: !!int one",
    ],
)
def test_tags_are_no_plain_data(text: str) -> None:
    assert "f:1:" in str(refusal(text))


def test_an_alias_is_followed() -> None:
    text = "gate:\n  models:\n    a: &rules {max_memory: 4KiB}\n    b: *rules"
    rules = {"max_memory": 4096}
    assert read_yaml(text, "f").values == {"gate.models": {"a": rules, "b": rules}}


def test_a_bomb_of_aliases_is_refused_quickly() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 30)]
    assert "do its aliases repeat" in str(refusal("\n".join(lines)))


def test_an_alias_of_itself_is_refused() -> None:
    assert "does an alias contain itself" in str(refusal("loss: &a [*a]"))


def test_deep_nesting_is_refused_without_a_traceback() -> None:
    assert "nested" in str(refusal("[" * 5000))


def test_a_file_too_large_for_settings_is_refused() -> None:
    assert "more than" in str(refusal("#" * 300_000))


def test_keys_are_names_whatever_yaml_makes_of_them() -> None:
    values = read_yaml("dims: {on: 1, 12: 2, null: 3, 2024-01-01: 4}", "f").values
    assert values == {"dims": {"on": 1, "12": 2, "null": 3, "2024-01-01": 4}}


@settings(max_examples=24, deadline=None)
@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=80))
def test_any_text_is_settings_or_a_settings_error(text: str) -> None:
    for read in (read_yaml, read_prototxt, read_pyproject):
        try:
            read(text, "f")
        except SettingsError:
            continue


def test_pyproject_has_a_table_of_its_own() -> None:
    text = '[project]\nname = "x"\n[tool.memplan]\nlevel = 1\nmem_param.exclude_blob = ["a"]\n'
    assert merge_layers([read_pyproject(text, "f")]) == Settings(
        mem_param=MemParam(exclude_blob=("a",)), level=1
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[project]\nx = 1\n[tool.memplan]\nlevel = 1\nlevl = 2", "f:5:1: unknown key 'levl'"),
        ("[tool.memplan]\nlevel = 7", "f:2:1: level: expected 0, 1 or 2, not 7"),
        ("[tool.memplan.mem_param]\n optimize = true", "f:2:2: unknown key"),
        (
            "[tool.memplan.dims]\nbatch = 2020-01-01",
            "f:2:1: dims.batch: expected a whole number",
        ),
        ("[tool]\nmemplan = {levl = 1}", "f"),
        ("[tool.memplan.dims]\n'a.b' = true", "f:2:1: dims.a.b: expected"),
        ("[tool]\nx = [\n['a'],\n]\nmemplan.level = 7", "f:5:1: level: expected"),
        (
            "[tool.memplan]\n[[tool.x]]\nmem_param.levl = 7\n[tool.memplan.mem_param]\nlevl = 7",
            "f:5:1: unknown key",
        ),
        ("[tool.memplan]\nlevel = 1\nlevel = 2", "f:3:"),
        ("[tool.memplan]\nlevel = ", "f:2:9: not valid TOML"),
    ],
)
def test_a_mistake_in_pyproject_is_named_with_its_place(text: str, message: str) -> None:
    assert str(refusal(text, read_pyproject)).startswith(message)


def test_a_pyproject_without_our_table_is_not_judged() -> None:
    assert read_pyproject("[tool.other]\nx = ", "f").values == {}


def test_options_are_checked_like_settings_of_a_file() -> None:
    partial = read_overrides({"level": 1, "loss": None, "exclude": ("a",), "dims": {"n": 2}})
    assert partial.values == {"level": 1, "dims": {"n": 2}, "exclude": ("a",)}
    assert read_overrides({"expose": False, "level": 0}).values == {
        "expose": False,
        "level": 0,
    }
    with pytest.raises(SettingsError, match="--level: expected 0, 1 or 2, not 3"):
        read_overrides({"level": 3})
    with pytest.raises(SettingsError, match="there is no option 'levl'"):
        read_overrides({"levl": 3})
    with pytest.raises(SettingsError, match=r"^--shape: expected a number from 0"):
        read_overrides({"shapes": {"x": [-1, 4]}})
    with pytest.raises(SettingsError, match=r"--mem-param\.optimize-test: expected true"):
        read_overrides({"mem_param.optimize_test": "no"})


def test_options_can_say_everything_that_settings_hold() -> None:
    # `--target` belongs to one command and one machine, inputs to one model: no file decides
    # them for all.
    said = {key.partition(".")[0] for key in KEYS} | {"exclude", "target", "inputs"}
    assert {field.name for field in dataclasses.fields(Settings)} <= said


def test_higher_places_replace_and_exclude_only_adds(tmp_path: Path) -> None:
    folder = tmp_path / "models" / "deep"
    folder.mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text(
        "[tool.memplan]\nlevel = 0\nalignment = 16\nloss = 'a'\n"
        "dims = {batch = 1, seq = 2}\nmem_param = {exclude_blob = ['p'], optimize_test = false}"
    )
    (tmp_path / "models" / "memplan.yaml").write_text(
        "level: 1\nloss: b\nmem_param: {exclude_blob: [m]}\ndims: {seq: 3}"
    )
    config = tmp_path / "own.prototxt"
    config.write_text('mem_param { exclude_blob: "c" }')
    got = load_settings(
        folder / "x.onnx", config, {"level": 2, "exclude": ("o",), "dims": {"batch": 9}}
    )
    assert got == Settings(
        mem_param=MemParam(optimize_test=False, exclude_blob=("c",)),
        level=2,
        exclude=("o",),
        alignment=16,
        loss="b",
        dims={"batch": 9, "seq": 3},
    )
    assert got.excluded == ("c", "o")


def test_only_the_nearest_files_count(tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    for folder in (tmp_path, inner):
        (folder / "memplan.yaml").write_text("level: 1")
        (folder / "pyproject.toml").write_text("")
    assert discovered_files(inner / "x.onnx") == (
        inner / "pyproject.toml",
        inner / "memplan.yaml",
    )
    assert discovered_files(inner) == discovered_files(inner / "x.onnx")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"level: 1\nloss: \xff", ":2:7: not UTF-8 text"),
        (b"loss: a\x00", "may not be in YAML"),
    ],
)
def test_a_settings_file_that_is_no_text_is_refused(
    tmp_path: Path, content: bytes, message: str
) -> None:
    path = tmp_path / "memplan.yaml"
    path.write_bytes(content)
    with pytest.raises(SettingsError) as caught:
        read_config(path)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_byte_order_mark_is_no_content(tmp_path: Path) -> None:
    path = tmp_path / "memplan.yaml"
    path.write_bytes(b"\xef\xbb\xbflevel: 1")
    assert read_config(path).values == {"level": 1}
    net = tmp_path / "net.prototxt"
    net.write_bytes(b"\xef\xbb\xbfmem_param { optimize_test: false }")
    assert read_config(net).values == {"mem_param.optimize_test": False}


def test_a_file_that_cannot_be_settings_is_not_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "net.prototxt"
    with path.open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(SettingsError, match="too many for a settings file"):
        read_config(path)


def test_a_config_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="there is no file"):
        read_config(tmp_path / "none.yaml")
    with pytest.raises(SettingsError, match="is a folder"):
        read_config(tmp_path)


def test_a_gate_has_rules_for_all_models_and_for_some() -> None:
    text = """
gate:
  baseline: b.json
  metric: [planned, total]
  max_increase: 2%
  ratchet: true
  models:
    "det*.onnx": {max_memory: 1KiB, metric: total, max_increase: 0}
"""
    values = read_yaml(text, "f").values
    assert values["gate.metric"] == ("planned", "total")
    models = values["gate.models"]
    assert isinstance(models, dict)
    assert models["det*.onnx"]["max_memory"] == 1024
    assert models["det*.onnx"]["max_increase"] == Increase(size=0)


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_shipped_config_loads_and_says_why(path: Path) -> None:
    merge_layers([read_config(path)])
    assert path.read_text().startswith("# ")


def test_the_default_config_names_every_key_and_changes_nothing() -> None:
    text = (CONFIGS / "default.yaml").read_text()
    assert merge_layers([read_config(CONFIGS / "default.yaml")]) == Settings()
    assert {key for key in KEYS if key.rpartition(".")[2] not in text} <= {
        key for key in KEYS if key.startswith("gate.")
    }
    gate = (CONFIGS / "ci.yaml").read_text()
    assert all(key.rpartition(".")[2] in gate for key in KEYS if key.startswith("gate."))


def test_reading_settings_brings_no_yaml_unless_there_is_some() -> None:
    code = "import sys, memplan_cli.settings.sources as f; print('yaml' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"
