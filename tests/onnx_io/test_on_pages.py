"""External data lies on pages of its own, with the same bytes and packed blobs."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memplan_cli.errors import ModelError
from memplan_cli.onnx_io.weights.prepacked import Blob, packed_blobs, write_on_pages
from memplan_cli.onnx_io.weights.tensor_data import (
    LARGE_BOUNDARY,
    LARGE_BYTES,
    PAGE,
    DataFile,
)
from reproductions import reproduce

if TYPE_CHECKING:
    from pathlib import Path


def model_of(folder: Path, weights: list[bytes], packed: dict[int, list[bytes]]) -> Any:  # noqa: ANN401 - onnx has no types
    """Return a model whose weights, and packed blobs behind them, are in a file unaligned."""
    model = onnx.ModelProto()
    written = b""
    for number, data in enumerate(weights):
        tensor = model.graph.initializer.add(name=f"w{number}", data_type=2, dims=[len(data)])
        tensor.data_location = tensor.EXTERNAL
        entries = {
            "location": "all.data",
            "offset": str(len(written)),
            "length": str(len(data)),
        }
        written += data
        parts = []
        for blob in packed.get(number, []):
            parts.append(f"{len(written)};{len(blob)};7")
            written += blob
        if parts:
            entries["prepacked_0"] = "|".join(["MatMul+123", *parts])
        for key, value in entries.items():
            tensor.external_data.add(key=key, value=value)
    (folder / "all.data").write_bytes(written)
    return model


def bytes_of(folder: Path, blob: Blob) -> bytes:
    data = (folder / blob.location).read_bytes()
    return data[blob.offset : blob.offset + blob.length]


def own(tensor: Any) -> Blob:  # noqa: ANN401 - onnx has no types
    entries = {e.key: e.value for e in tensor.external_data}
    return Blob(entries["location"], int(entries["offset"]), int(entries["length"]))


blobs = st.binary(min_size=1, max_size=40)


@given(st.lists(blobs, min_size=1, max_size=5), st.data())
def test_every_blob_keeps_its_bytes_on_a_page_of_its_own(
    tmp_path_factory: pytest.TempPathFactory, weights: list[bytes], data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("pages")
    packed = {n: data.draw(st.lists(blobs, max_size=2)) for n in range(len(weights))}
    model = model_of(folder, weights, packed)
    write_on_pages(model, folder / "all.data")
    for number, tensor in enumerate(model.graph.initializer):
        assert bytes_of(folder, own(tensor)) == weights[number]
        keys = [e.value.split("|")[0] for e in tensor.external_data if e.key == "prepacked_0"]
        assert keys == ["MatMul+123"] * bool(packed[number])
        found = list(packed_blobs(tensor))
        assert [bytes_of(folder, blob) for blob in found] == packed[number]
        assert all(blob.offset % PAGE == 0 for blob in (own(tensor), *found))


def test_equal_blobs_are_stored_once(tmp_path: Path) -> None:
    model = model_of(tmp_path, [b"same", b"else", b"same"], {1: [b"same"]})
    write_on_pages(model, tmp_path / "all.data")
    first, second, third = model.graph.initializer
    (packed,) = packed_blobs(second)
    assert own(first) == own(third) == packed != own(second)
    assert (tmp_path / "all.data").stat().st_size == PAGE + 4


def test_large_blobs_start_where_other_systems_map_them(tmp_path: Path) -> None:
    large, small = LARGE_BYTES + 4, 2000
    sizes = [small, large, small + 1, large + 1, small + 2, 64 * LARGE_BYTES]
    model = model_of(tmp_path, [bytes([n]) * size for n, size in enumerate(sizes)], {})
    write_on_pages(model, tmp_path / "all.data")
    offsets = [own(tensor).offset for tensor in model.graph.initializer]
    assert all(offsets[n] % LARGE_BOUNDARY == 0 for n in (1, 3, 5))
    assert all(offset % PAGE == 0 for offset in offsets)
    assert (tmp_path / "all.data").stat().st_size < 1.01 * sum(sizes)
    for number, tensor in enumerate(model.graph.initializer):
        assert bytes_of(tmp_path, own(tensor)) == bytes([number]) * sizes[number]


def test_a_large_array_in_a_data_file_starts_on_a_multiple_of_64_kib(tmp_path: Path) -> None:
    tensors = [onnx.TensorProto(), onnx.TensorProto(), onnx.TensorProto()]
    with (tmp_path / "d").open("wb") as file:
        for tensor, size in zip(tensors, (2000, LARGE_BYTES, 2000), strict=True):
            DataFile("d", file).store(tensor, np.zeros(size, np.uint8))
    offsets = [own(tensor).offset for tensor in tensors]
    assert offsets == [0, LARGE_BOUNDARY, LARGE_BOUNDARY + LARGE_BYTES]


def test_what_follows_a_packed_blobs_length_is_kept(tmp_path: Path) -> None:
    model = model_of(tmp_path, [b"weight"], {0: [b"one", b"other"]})
    write_on_pages(model, tmp_path / "all.data")
    entries = {e.key: e.value for e in model.graph.initializer[0].external_data}
    assert entries["prepacked_0"] == "MatMul+123|4096;3;7|8192;5;7"


@pytest.mark.parametrize(
    ("key", "value"),
    [("offset", "-1"), ("length", "1e3"), ("prepacked_0", "k|x;1;0"), ("prepacked_0", "k|1")],
)
def test_entries_that_make_no_sense_are_refused(tmp_path: Path, key: str, value: str) -> None:
    model = model_of(tmp_path, [b"weight"], {0: [b"one"]})
    next(e for e in model.graph.initializer[0].external_data if e.key == key).value = value
    with pytest.raises(ModelError, match="number"):
        write_on_pages(model, tmp_path / "all.data")


def test_data_that_ends_too_early_is_refused_and_nothing_is_left(tmp_path: Path) -> None:
    model = model_of(tmp_path, [b"weight"], {})
    (tmp_path / "all.data").write_bytes(b"wei")
    with pytest.raises(ModelError, match="ends 3 bytes before"):
        write_on_pages(model, tmp_path / "all.data")
    assert [path.name for path in tmp_path.iterdir()] == ["all.data"]
    assert (tmp_path / "all.data").read_bytes() == b"wei"


def test_the_reproduction_crashes_the_runtime_and_runs_on_pages(tmp_path: Path) -> None:
    done = reproduce("unaligned_packed_weights.py", tmp_path)
    assert "loaded" in done.stdout
    if "ran" in done.stdout:
        pytest.skip("this runtime and processor read unaligned blobs")
    model = onnx.load(tmp_path / "packed.onnx", load_external_data=False)
    assert any(any(packed_blobs(t)) for t in model.graph.initializer)
    write_on_pages(model, tmp_path / "packed.onnx.data")
    (tmp_path / "packed.onnx").write_bytes(model.SerializeToString())
    assert np.array_equal(ran(tmp_path, "packed.onnx"), ran(tmp_path, "plain.onnx"))


RUN = """
import sys, numpy as np, onnxruntime as ort
session = ort.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
feed = {"a": np.ones(33, np.float32), "x": np.ones((4, 96), np.float32)}
np.save("out.npy", session.run(["y"], feed)[0])
"""


def ran(folder: Path, name: str) -> Any:  # noqa: ANN401 - an array
    subprocess.run([sys.executable, "-c", RUN, name], cwd=folder, check=True)
    return np.load(folder / "out.npy")


@pytest.mark.skipif(sys.platform != "linux", reason="the highest resident size is Linux's")
def test_the_reproduction_shows_that_a_loop_holds_what_it_packs(tmp_path: Path) -> None:
    done = reproduce("weights_of_subgraphs.py", tmp_path)
    assert done.returncode == 0, done.stderr
    main, loop = (int(line.split()[-2]) for line in done.stdout.splitlines())
    if loop < main + 20:
        pytest.skip("this runtime gives weights of subgraphs back one by one")
    assert loop - main >= 40
