"""What a file says of how to run it is found without reading it, and believed with care."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from typing import TYPE_CHECKING

import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memplan_cli.core.results.observations import CPU, CUDA, RuntimeSettings
from memplan_cli.errors import ModelError
from memplan_cli.loading.metadata import scanned_metadata
from memplan_cli.loading.settings import SETTINGS
from memplan_cli.onnx_io.metadata import ORT_CONFIG, is_own
from memplan_cli.onnx_io.settings_metadata import (
    RecordedSettings,
    config_entry,
    recorded_settings,
    settings_entry,
)

if TYPE_CHECKING:
    from pathlib import Path

MINE = RecordedSettings(
    CPU,
    RuntimeSettings(
        session={"enable_mem_pattern": False, "execution_order": "PRIORITY_BASED"},
        session_config={"session.use_device_allocator_for_initializers": "1"},
        arena={"initial_chunk_size_bytes": 4096},
        io_binding={"new.w": "w"},
    ),
)


def test_what_is_appended_is_metadata_of_the_same_model(samples: Path, tmp_path: Path) -> None:
    before = (samples / "branchy_cnn.onnx").read_bytes()
    path = tmp_path / "model.onnx"
    path.write_bytes(before + settings_entry(MINE))
    assert recorded_settings(scanned_metadata(path)) == MINE
    again = onnx.load(path)
    assert again.graph == onnx.load_from_string(before).graph
    assert again.metadata_props[-1].key == SETTINGS


@given(st.dictionaries(st.text(), st.text(), max_size=4), st.binary(max_size=300))
def test_metadata_is_found_wherever_it_stands(
    tmp_path_factory: pytest.TempPathFactory, entries: dict[str, str], raw: bytes
) -> None:
    model = onnx.ModelProto(ir_version=8, doc_string="text")
    model.graph.initializer.add(name="w", data_type=2, raw_data=raw)
    for key, value in entries.items():
        model.metadata_props.add(key=key, value=value)
    path = tmp_path_factory.mktemp("scan") / "model.onnx"
    path.write_bytes(model.SerializeToString())
    assert scanned_metadata(path) == entries


@given(st.binary(max_size=200))
def test_bytes_that_are_no_model_are_refused_or_have_no_settings(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    path = tmp_path_factory.mktemp("scan") / "model.onnx"
    path.write_bytes(data)
    with suppress(ModelError):
        assert SETTINGS not in scanned_metadata(path)


def test_a_file_that_ends_too_early_is_refused(samples: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes((samples / "branchy_cnn.onnx").read_bytes()[:-5])
    with pytest.raises(ModelError, match="ends within"):
        scanned_metadata(path)


def test_a_file_that_ends_within_a_number_of_fixed_size_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(
        bytes([1 << 3 | 1, 0])
    )  # the tag of a number of eight bytes, and one byte of it
    with pytest.raises(ModelError, match="ends after"):
        scanned_metadata(path)


def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"there is no file .*no\.onnx"):
        scanned_metadata(tmp_path / "no.onnx")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "cannot be read"),
        ("[" * 100_000, "cannot be read"),
        ("{}", "cannot be read"),
        (json.dumps({"provider": "Nobody", "settings": {}}), "no provider"),
        (
            json.dumps({"provider": CPU, "settings": {"provider": {"gpu_mem_limit": 1}}}),
            "which has none",
        ),
    ],
)
def test_settings_that_make_no_sense_are_refused(text: str, said: str) -> None:
    with pytest.raises(ModelError, match=said):
        recorded_settings({SETTINGS: text})


@pytest.mark.parametrize(
    ("scope", "option"),
    [
        ("session", "optimized_model_filepath"),
        ("session", "profile_file_prefix"),
        ("session_config", "session.collect_node_memory_stats_to_file"),
        ("arena", "a_library"),
        ("provider", "user_compute_stream"),
        ("run_config", "anything"),
    ],
)
def test_options_that_write_files_or_that_memplan_never_sets_are_refused(
    scope: str, option: str
) -> None:
    text = json.dumps({"provider": CUDA, "settings": {scope: {option: "/etc/passwd"}}})
    with pytest.raises(ModelError, match=f"{option}.*never does"):
        recorded_settings({SETTINGS: text})


@pytest.mark.parametrize(
    ("scope", "option", "value"),
    [
        ("session", "enable_mem_pattern", "no"),
        ("session", "enable_mem_pattern", 1),
        ("session", "execution_order", "__class__"),
        ("session", "graph_optimization_level", 7),
        ("session_config", "session.disable_prepacking", "2"),
        ("session_config", "optimization.disable_specified_optimizers", "x" * 5000),
        ("session_config", "optimization.disable_specified_optimizers", "\x1b[2J"),
        ("arena", "arena_extend_strategy", "kEvil"),
        ("arena", "initial_chunk_size_bytes", 1 << 31),
        ("arena", "initial_chunk_size_bytes", -2),
        ("arena", "max_mem", 1 << 62),
        ("arena", "max_mem", True),
        ("arena", "max_mem", "much"),
        ("arena", "max_mem", "0" * 20 + "9" * 40),
        ("provider", "gpu_mem_limit", "9" * 5000),
        ("run_config", "memory.enable_memory_arena_shrinkage", "cpu:0;/etc"),
    ],
)
def test_values_that_an_option_cannot_have_are_refused(
    scope: str, option: str, value: object
) -> None:
    text = json.dumps({"provider": CUDA, "settings": {scope: {option: value}}})
    with pytest.raises(ModelError, match=f"{option}.*cannot be") as error:
        recorded_settings({SETTINGS: text})
    assert len(str(error.value)) < 400


@pytest.mark.parametrize(
    ("scope", "option", "value"),
    [
        ("arena", "max_mem", -1),
        ("arena", "initial_chunk_size_bytes", (1 << 31) - 1),
        ("provider", "gpu_mem_limit", "4096"),
        ("provider", "use_tf32", 0),
        ("run_config", "memory.enable_memory_arena_shrinkage", "cpu:0;gpu:0"),
        ("session", "execution_order", "MEMORY_EFFICIENT"),
    ],
)
def test_values_that_an_option_can_have_are_believed(
    scope: str, option: str, value: object
) -> None:
    text = json.dumps({"provider": CUDA, "settings": {scope: {option: value}}})
    found = recorded_settings({SETTINGS: text})
    assert found is not None
    assert getattr(found.settings, scope) == {option: value}


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (bytes(100), "no field 0"),
        (b"\x08\x01" * ((1 << 20) + 1), "more than"),
        (b"\x72\x04\x0a\x7fab", "ends within"),
        (b"\x72\x03\x0a\x01a\x72\x02\x09\x00" + bytes(20), "after its message"),
    ],
)
def test_bytes_that_would_take_long_or_lie_about_their_length_are_refused(
    tmp_path: Path, data: bytes, said: str
) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(data)
    with pytest.raises(ModelError, match=said):
        scanned_metadata(path)


def test_what_has_no_end_or_terabytes_of_nothing_is_not_read(tmp_path: Path) -> None:
    pipe, sparse = tmp_path / "pipe.onnx", tmp_path / "sparse.onnx"
    os.mkfifo(pipe)
    with sparse.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(ModelError, match="not a regular file"):
        scanned_metadata(pipe)
    with pytest.raises(ModelError, match="files of its kind have at most"):
        scanned_metadata(sparse)


def test_of_an_entry_that_is_too_long_the_key_alone_is_read(tmp_path: Path) -> None:
    model = onnx.ModelProto(ir_version=8)
    model.metadata_props.add(key="long", value="x" * ((1 << 24) + 1))
    model.metadata_props.add(key="short", value="y")
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    assert scanned_metadata(path) == {"long": "", "short": "y"}


def test_what_the_runtime_can_read_itself_is_carried_in_its_own_entry() -> None:
    model = onnx.ModelProto()
    settings = RuntimeSettings(
        session={
            "graph_optimization_level": "ORT_DISABLE_ALL",
            "execution_mode": "ORT_SEQUENTIAL",
            "enable_mem_pattern": False,
        }
    )
    found = onnx.load_from_string(config_entry(settings, model)).metadata_props
    assert [entry.key for entry in found] == [ORT_CONFIG]
    assert json.loads(found[0].value)["session_options"] == {
        "execution_mode": 0,
        "graph_optimization_level": 0,
    }
    assert is_own(found[0])


def test_nothing_is_carried_where_nothing_can_be_or_somebody_else_wrote_it() -> None:
    model = onnx.ModelProto()
    assert config_entry(MINE.settings, model) == b""
    settings = RuntimeSettings(session={"graph_optimization_level": "ORT_DISABLE_ALL"})
    assert config_entry(settings, model)
    model.metadata_props.add(key=ORT_CONFIG, value='{"session_options":{}}')
    assert config_entry(settings, model) == b""
    assert not is_own(model.metadata_props[0])
