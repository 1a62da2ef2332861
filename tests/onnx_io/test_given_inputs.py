"""Inputs in files: what each format says, what is refused, and that nothing else happens."""

from __future__ import annotations

import io
import json
import os
import pickle
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx.parser
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.lib import format as npy
from onnx import TensorProto, helper, numpy_helper

from builders import parse
from memplan_cli.core.bindings import Feed, Inputs
from memplan_cli.errors import SettingsError
from memplan_cli.onnx_io.runs import input_files
from memplan_cli.onnx_io.runs.given_inputs import not_taken, read_given
from memplan_cli.onnx_io.runs.random_inputs import feed_specs
from memplan_cli.runtime.workers.inputs import draw

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from onnx import ModelProto

NET = """
    <ir_version: 8, opset_import: ["" : 17]>
    net (int64[batch, seq] ids, float[batch, 3] x, string[n] words) => (float[batch, 3] y)
    { y = Relu(x) }
"""


@pytest.fixture
def net() -> ModelProto:
    return onnx.parser.parse_model(NET)


def fed(inputs: Inputs, model: ModelProto) -> dict[str, Any]:
    """Return what a run would get for each input that was given."""
    feeds = read_given(inputs, model)
    return {s.name: draw(s) for s in feed_specs(model, {}, feeds) if s.name in feeds}


def refused(inputs: Inputs, model: ModelProto, *words: str) -> None:
    with pytest.raises(SettingsError) as error:
        read_given(inputs, model)
    message = f"{error.value.message} {error.value.hint}"
    assert "\n" not in message
    for word in words:
        assert word in message


def saved(tmp_path: Path, **arrays: object) -> Inputs:
    path = tmp_path / "inputs.npz"
    np.savez(path, **arrays)  # type: ignore[arg-type] # names, no flags
    return Inputs((str(path),))


IDS = np.arange(10).reshape(2, 5)


def test_arrays_of_an_npz_are_fed_as_they_are(net: ModelProto, tmp_path: Path) -> None:
    got = fed(saved(tmp_path, ids=IDS, words=np.array(["a", "bc"])), net)
    assert got["ids"].dtype == np.int64
    assert np.array_equal(got["ids"], IDS)
    assert got["words"].tolist() == ["a", "bc"]


@pytest.mark.parametrize("name", ["BFLOAT16", "FLOAT4E2M1", "FLOAT8E4M3FN", "INT4", "UINT2"])
def test_a_file_keeps_only_the_width_of_a_dtype_that_numpy_lacks(
    name: str, tmp_path: Path
) -> None:
    number = TensorProto.DataType.Value(name)
    x = helper.make_tensor_value_info("x", number, [2])
    model = helper.make_model(helper.make_graph([], "g", [x], [x]))
    array = np.array([1, 0], helper.tensor_dtype_to_np_dtype(number))
    feed = read_given(saved(tmp_path, x=array), model)["x"]
    assert np.load(feed.files[0]).tobytes() == array.tobytes()
    refused(saved(tmp_path, x=np.zeros(2, "V4")), model, "the input is")
    refused(saved(tmp_path, x=np.zeros(2, "u1")), model, "the input is")


def test_the_folder_of_arrays_goes_when_nobody_has_it(net: ModelProto, tmp_path: Path) -> None:
    feed = read_given(saved(tmp_path, ids=IDS), net)["ids"]
    file = Path(feed.files[0])
    assert file.exists()
    del feed
    assert not file.exists()


def test_pickled_objects_are_refused_and_never_unpickled(
    net: ModelProto, tmp_path: Path
) -> None:
    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(tmp_path / "sprung"),)

    trap = np.empty(1, dtype=object)
    trap[0] = Trap()
    refused(saved(tmp_path, ids=trap), net, "pickled", "never unpickled")
    path = tmp_path / "whole.npz"
    path.write_bytes(pickle.dumps(Trap()))
    refused(Inputs((str(path),)), net, "cannot be read")
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"idz": IDS}, ("no input 'idz'", "did you mean 'ids'")),
        ({"q": IDS}, ("no input 'q'", "'ids', 'x', 'words'")),
        ({"ids": IDS.astype(np.int32)}, ("is int32, and the input is int64",)),
        ({"ids": IDS[0]}, ("has 1 dims, and the input has 2",)),
        ({"x": np.zeros((2, 4), np.float32)}, ("has 4 where the input is fixed to 3",)),
        ({"x": np.zeros((2, 3), "datetime64[s]")}, ("no input of a model can be",)),
    ],
)
def test_an_input_that_does_not_fit_is_refused_by_name(
    net: ModelProto, tmp_path: Path, arrays: dict[str, Any], words: tuple[str, ...]
) -> None:
    refused(saved(tmp_path, **arrays), net, *words)


def header_of(shape: tuple[int, ...]) -> bytes:
    text = f"{{'descr': '<i8', 'fortran_order': False, 'shape': {shape}}}"
    text += " " * (63 - (len(text) + 10) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


def test_a_header_that_says_more_than_is_there_is_refused(
    net: ModelProto, tmp_path: Path
) -> None:
    path = tmp_path / "inputs.npz"
    for shape, words in (((1 << 20, 5), "has 16"), ((1 << 40, 5), "more than inputs may")):
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("ids.npy", header_of(shape) + b"\0" * 16)
        refused(Inputs((str(path),)), net, words)


def test_an_archive_that_would_fill_a_disk_is_refused(
    net: ModelProto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "bomb.npz"
    np.savez_compressed(path, ids=np.zeros((1 << 10, 1 << 8), np.int64))
    assert path.stat().st_size < 1 << 16
    monkeypatch.setattr(input_files, "LARGEST", 1 << 20)
    refused(Inputs((str(path),)), net, "more than inputs may have")


def test_all_inputs_together_have_a_limit(
    net: ModelProto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(input_files, "LARGEST", 1 << 10)
    both = {"ids": np.zeros((10, 10), np.int64), "x": np.zeros((30, 3), np.float32)}
    refused(saved(tmp_path, **both), net, "more than inputs may have")


def written_pb(folder: Path, *arrays: tuple[str, Any]) -> Inputs:
    folder.mkdir()
    for number, (name, array) in enumerate(arrays):
        tensor = numpy_helper.from_array(np.asarray(array), name)
        (folder / f"input_{number}.pb").write_bytes(tensor.SerializeToString())
    return Inputs((str(folder),))


def test_tensors_of_a_folder_go_by_name_else_by_number(
    net: ModelProto, tmp_path: Path
) -> None:
    x = np.ones((2, 3), np.float32)
    got = fed(written_pb(tmp_path / "named", ("x", x), ("ids", IDS)), net)
    assert np.array_equal(got["x"], x)
    assert np.array_equal(got["ids"], IDS)
    got = fed(written_pb(tmp_path / "plain", ("", IDS), ("", x)), net)
    assert np.array_equal(got["x"], x)


def test_folders_that_hold_no_inputs_are_refused(net: ModelProto, tmp_path: Path) -> None:
    written_pb(tmp_path / "test_data_set_0", ("ids", IDS))
    refused(Inputs((str(tmp_path),)), net, "no input_*.pb", "test_data_set_0")
    many = written_pb(tmp_path / "many", *[("z", np.float32(1))] * 4)
    refused(many, net, "float32, and the input is int64")
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "input_0.pb").write_bytes(b"no tensor")
    refused(Inputs((str(broken),)), net)
    outside = helper.make_tensor("ids", 7, [2, 5], IDS.tobytes(), raw=True)
    outside.data_location = 1
    outside.external_data.add(key="location", value="/etc/hostname")
    (broken / "input_0.pb").write_bytes(outside.SerializeToString())
    refused(Inputs((str(broken),)), net, "another file, which is not read")


def as_json(tmp_path: Path, document: object) -> Inputs:
    path = tmp_path / "inputs.json"
    path.write_text(json.dumps(document))
    return Inputs((str(path),))


def test_json_says_shapes_values_and_ranges(net: ModelProto, tmp_path: Path) -> None:
    entries = {
        "ids": {"shape": [2, 64], "dtype": "int64", "low": 5, "high": 9},
        "x": {"shape": [2, 3], "dtype": "float32", "value": 0.5},
        "words": {"value": ["a", "b"]},
    }
    for document in (entries, {"inputs": entries, "dynamic": {"batch": 1}}):
        got = fed(as_json(tmp_path, document), net)
        assert (got["ids"].min(), got["ids"].max()) == (5, 8)
        assert got["x"].tolist() == [[0.5] * 3] * 2
        assert got["x"].dtype == np.float32
        assert got["words"].tolist() == ["a", "b"]


def test_one_value_in_json_fills_an_input_of_any_shape(
    net: ModelProto, tmp_path: Path
) -> None:
    got = fed(as_json(tmp_path, {"ids": {"value": 7}, "x": {"value": 0.5}}), net)
    assert (got["ids"].tolist(), got["x"].tolist()) == ([[7]], [[0.5] * 3])


def test_json_draws_as_the_model_collection_says(net: ModelProto, tmp_path: Path) -> None:
    def drawn(gen: str) -> NDArray[Any]:
        entry = {"shape": [4, 6], "dtype": "int64", "gen": gen}
        return np.asarray(fed(as_json(tmp_path, {"inputs": {"ids": entry}}), net)["ids"])

    assert (drawn("ones") == 1).all()
    assert (drawn("const 7") == 7).all()
    assert set(drawn("randint 3 5").flat) == {3, 4}
    assert (drawn("normal 0") == 0).all()


def test_floats_are_drawn_between_ends_beyond_64_bits(tmp_path: Path) -> None:
    model = parse("g (float[9] x) => (float[9] y) { y = Neg(x) }")
    entry = {"shape": [9], "low": 2**70, "high": 2**71}
    drawn = np.asarray(fed(as_json(tmp_path, {"x": entry}), model)["x"])
    assert ((drawn >= 2**70) & (drawn <= 2**71)).all()


def test_json_for_a_model_with_an_input_called_inputs(tmp_path: Path) -> None:
    model = parse("g (float[2] inputs, float[2] x) => (float[2] y) { y = Add(inputs, x) }")
    entry = {"shape": [2], "value": [1, 2]}
    for document in ({"x": entry}, {"inputs": entry, "x": entry}, {"inputs": {"value": 3}}):
        assert set(fed(as_json(tmp_path, document), model)) == set(document)


def test_json_without_values_gives_the_shape_alone(net: ModelProto, tmp_path: Path) -> None:
    feeds = read_given(as_json(tmp_path, {"ids": {"shape": [3, 9], "dtype": "int64"}}), net)
    assert feeds == {"ids": Feed((3, 9))}


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"shape": [2, 5], "dtype": "int32"}, "is int32"),
        ({"shape": [2, 5], "dtype": "int32", "value": 3}, "is int32"),
        ({"shape": [2, 5], "valeu": 3}, "unknown key 'valeu'"),
        ({"shape": [2, 5], "value": [1, 2, 3]}, "3 values for shape"),
        ({"shape": [2, 5], "value": 0.5}, "cannot hold"),
        ({"shape": [2, 5], "value": 2**63}, "cannot hold"),
        ({"shape": [2, 5], "value": {"a": 1}}, "not a number"),
        ({"shape": [2, -5]}, "a shape is a list of numbers"),
        ({"shape": [2**40, 2**40]}, "more than inputs may have"),
        ({"shape": [2, 5], "low": 5, "high": 5}, "drawn from low up to high"),
        ({"shape": [2, 5], "low": 0, "high": 10**400}, "drawn from low up to high"),
        ({"shape": [2, 5], "low": 0.5, "high": 10**400}, "drawn from low up to high"),
        ({"shape": [2, 5], "gen": "sorcery"}, "is not a known generator"),
        ({"shape": [2, 5], "gen": "const x"}, "is not a known generator"),
        ({"shape": [2, 5], "gen": "zeros 1"}, "is not a known generator"),
        ({"shape": [2, 5], "value": [[1], [2, 3]]}, "not a number"),
        ({}, "neither a shape nor a value"),
        ([1, 2], "not a table"),
    ],
)
def test_json_that_says_no_input_is_refused(
    net: ModelProto, tmp_path: Path, entry: object, words: str
) -> None:
    refused(as_json(tmp_path, {"ids": entry}), net, words)


def test_values_by_name_take_the_form_of_their_input(net: ModelProto) -> None:
    got = fed(Inputs(values={"ids": [1, 2, 3], "words": "hello"}), net)
    assert got["ids"].tolist() == [[1, 2, 3]]
    assert got["ids"].dtype == np.int64
    assert got["words"].tolist() == ["hello"] * len(got["words"])
    refused(Inputs(values={"x": ["a", "b", "c"]}), net, "is str")
    refused(Inputs(values={"ids": np.float32(1)}), net, "is float32")


def test_nested_tuples_are_lists(net: ModelProto) -> None:
    model = parse("g (string[2,2] words) => (string[2,2] y) { y = Identity(words) }")
    got = fed(Inputs(values={"words": (("a", "b"), ("c", "d"))}), model)
    assert got["words"].tolist() == [["a", "b"], ["c", "d"]]
    refused(Inputs(values={"ids": ((1,), (2, 3))}), net, "not a number")


def test_one_input_is_given_once(net: ModelProto, tmp_path: Path) -> None:
    both = Inputs(saved(tmp_path, ids=IDS).files, {"ids": 1})
    refused(both, net, "given twice")


def test_other_files_are_no_inputs(net: ModelProto, tmp_path: Path) -> None:
    refused(Inputs((str(tmp_path / "none.npz"),)), net, "there is no file")
    other = tmp_path / "inputs.csv"
    other.write_text("1,2")
    refused(Inputs((str(other),)), net, "not a file of inputs", ".npz")
    pipe = tmp_path / "pipe.npz"
    os.mkfifo(pipe)
    refused(Inputs((str(pipe),)), net, "not a regular file")


QUIET = settings(
    max_examples=24, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@QUIET
@given(st.binary(max_size=300), st.sampled_from([".npz", ".json"]))
def test_junk_gives_one_message(
    net: ModelProto, tmp_path: Path, data: bytes, suffix: str
) -> None:
    path = tmp_path / f"junk{suffix}"
    path.write_bytes(data)
    try:
        read_given(Inputs((str(path),)), net)
    except SettingsError as error:
        assert "\n" not in error.message  # noqa: PT017 - junk may be right by chance


@QUIET
@given(st.binary(max_size=200), st.integers(0, 127))
def test_a_member_that_is_broken_gives_one_message(
    net: ModelProto, tmp_path: Path, data: bytes, cut: int
) -> None:
    whole = io.BytesIO()
    np.save(whole, IDS)
    path = tmp_path / "junk.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("ids.npy", whole.getvalue()[:cut] + data)
    try:
        read_given(Inputs((str(path),)), net)
    except SettingsError as error:
        assert "\n" not in error.message  # noqa: PT017 - junk may be right by chance


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=6,
)


@QUIET
@given(
    st.dictionaries(
        st.sampled_from(["ids", "x", "words", "z"]),
        st.dictionaries(
            st.sampled_from(["shape", "dtype", "value", "low", "high", "gen"]), json_values
        )
        | json_values,
    )
)
def test_any_json_is_read_or_refused(
    net: ModelProto, tmp_path: Path, document: dict[str, Any]
) -> None:
    try:
        read_given(as_json(tmp_path, document), net)
    except SettingsError as error:
        assert "\n" not in error.message  # noqa: PT017 - junk may be right by chance


@pytest.mark.parametrize("dtype", [1e16, "2000000000f4", "f4,f4", None])
def test_a_type_that_is_none_is_refused(
    net: ModelProto, tmp_path: Path, dtype: object
) -> None:
    with pytest.raises(SettingsError):
        read_given(as_json(tmp_path, {"ids": {"shape": [2], "value": 1, "dtype": dtype}}), net)


def test_no_array_is_loaded_before_all_are_judged(
    net: ModelProto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def loaded(*_: object, **__: object) -> None:
        raise AssertionError("it was loaded")

    given = saved(tmp_path, ids=IDS, x=np.zeros((2, 3), np.int8))
    monkeypatch.setattr(npy, "read_array", loaded)
    refused(given, net, "int8", "float32")


def test_inputs_that_are_too_large_together_are_refused_before_they_are_loaded(
    net: ModelProto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "i.npz"
    ids, x = np.zeros((1000, 100), np.int64), np.zeros((1000, 3), np.float32)
    np.savez_compressed(path, ids=ids, x=x)
    monkeypatch.setattr(input_files, "LARGEST", ids.nbytes + 20)
    refused(Inputs((str(path),)), net, "more than inputs")


@pytest.mark.parametrize(
    ("declared", "value"),
    [
        ("optional(float[2])", np.array([1, -1], np.float32)),
        ("optional(seq(float[2]))", [np.array([1, -1], np.float32)] * 2),
    ],
)
def test_an_optional_is_read_from_the_message_that_onnx_writes(
    declared: str,
    value: Any,  # noqa: ANN401
    tmp_path: Path,
) -> None:
    model = parse(f"g ({declared} x) => (y) {{ y = OptionalHasElement(x) }}")
    message = numpy_helper.from_optional(value, "x")
    (tmp_path / "input_0.pb").write_bytes(message.SerializeToString())
    got = fed(Inputs((str(tmp_path),)), model)["x"]
    assert np.array_equal(np.array(got), np.array(value))


def test_an_optional_without_a_value_is_refused(tmp_path: Path) -> None:
    model = parse("g (optional(float[2]) x) => (y) { y = OptionalHasElement(x) }")
    (tmp_path / "input_0.pb").write_bytes(onnx.OptionalProto(name="x").SerializeToString())
    refused(Inputs((str(tmp_path),)), model, "no optional with a value")


@pytest.mark.parametrize("values", [[1, -1], [0, 0]])
def test_a_sequence_of_sequences_is_refused(values: list[float], tmp_path: Path) -> None:
    model = parse("g (seq(float[2]) x) => (y) { y = Identity(x) }")
    message = numpy_helper.from_list([[np.array(values, np.float32)]])
    (tmp_path / "input_0.pb").write_bytes(message.SerializeToString())
    refused(Inputs((str(tmp_path),)), model, "a sequence whose elements are not tensors")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"dims": [-2, 3], "raw_data": bytes(24)}, "negative dim"),
        ({"dims": [1 << 40, 3], "raw_data": bytes(24)}, "more than inputs"),
        ({"dims": [2, 3], "raw_data": bytes(24), "float_data": [1.0] * 6}, "twice"),
    ],
)
def test_tensors_that_lie_are_refused(
    net: ModelProto, tmp_path: Path, fields: dict[str, Any], said: str
) -> None:
    tensor = onnx.TensorProto(name="x", data_type=onnx.TensorProto.FLOAT, **fields)
    (tmp_path / "input_0.pb").write_bytes(tensor.SerializeToString())
    refused(Inputs((str(tmp_path),)), net, said)


def test_a_tensor_of_terabytes_of_nothing_is_not_read(net: ModelProto, tmp_path: Path) -> None:
    with (tmp_path / "input_0.pb").open("wb") as file:
        file.truncate(1 << 40)
    refused(Inputs((str(tmp_path),)), net, "files of its kind have at most")


def test_json_that_says_a_thing_twice_is_refused(net: ModelProto, tmp_path: Path) -> None:
    path = tmp_path / "i.json"
    path.write_text('{"x": {"shape": [2, 3], "shape": [4, 3]}}')
    refused(Inputs((str(path),)), net, "'shape'", "twice")


@pytest.mark.parametrize("entry", [{"value": 1}, {"low": 0, "high": 1}, {"gen": "zeros"}])
def test_values_that_would_take_more_bytes_than_inputs_may_are_refused(
    net: ModelProto, tmp_path: Path, entry: dict[str, Any]
) -> None:
    refused(
        as_json(tmp_path, {"x": {"shape": [1 << 30, 3], **entry}}), net, "more than inputs"
    )


def test_a_constant_without_its_value_is_refused(net: ModelProto, tmp_path: Path) -> None:
    refused(
        as_json(tmp_path, {"x": {"shape": [2, 3], "gen": "const"}}),
        net,
        "is not a known generator",
    )


@pytest.mark.parametrize("text", ["\ud800", "a\0"])
def test_text_that_no_run_can_be_given_is_refused(
    net: ModelProto, tmp_path: Path, text: str
) -> None:
    refused(as_json(tmp_path, {"words": {"value": [text]}}), net, "not a text that a run")
    refused(Inputs(values={"words": [text]}), net)


@pytest.mark.parametrize("values", [[1, 100], [1.5, 2]])
def test_int4_input_is_given_exact_values(values: list[float]) -> None:
    model = parse("net (int4[2] x) => (float[2] y) { y = Cast <to = 1> (x) }")
    refused(Inputs(values={"x": values}), model, "int4 cannot hold")
    feeds = read_given(Inputs(values={"x": [-8, 7]}), model)
    assert len(feeds["x"].files) == 1


def test_a_file_may_have_the_most_bytes_but_not_one_more(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    path.write_bytes(b"12345")
    assert input_files._read_at_most(path, 5) == b"12345"
    with pytest.raises(SettingsError, match="has more than 4 bytes"):
        input_files._read_at_most(path, 4)


def test_given_names_that_a_model_does_not_take_are_told_once(
    tmp_path: Path, net: ModelProto
) -> None:
    files = saved(tmp_path, ids=np.zeros((1, 1), np.int64), other=np.zeros(1)).files
    inputs = Inputs(files, {"x": "1", "other": "2", "more": "3"})
    assert not_taken(inputs, net) == ("other", "more")


@pytest.mark.parametrize(
    ("shape", "kind"), [("[1]", "values"), ("", "values"), ("[2]", "mask")]
)
def test_only_a_single_number_gets_the_constant_that_it_is_compared_with(
    shape: str, kind: str
) -> None:
    text = f"g (int64{shape} rate) => (y) <int64[1] c = {{8000}}> {{ y = Equal(rate, c) }}"
    (spec,) = feed_specs(parse(text), {})
    assert spec.kind == kind
