"""Weights beside a model stay beside it, wherever it goes."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest

from builders import parse
from memplan_cli import api
from memplan_cli.errors import ModelError
from memplan_cli.onnx_io.weights import external_data
from memplan_cli.onnx_io.weights.external_data import (
    check_external,
    copy_along,
    create,
    delete_replaced,
    external_tensors,
    holds_data_of,
    locations,
    missing,
    remove,
)

if TYPE_CHECKING:
    from pathlib import Path
from typing import Literal

DATA = np.arange(4, dtype=np.float32).tobytes()


def data_files(model: onnx.ModelProto) -> tuple[str, ...]:
    return locations(external_tensors(model))


def model_with(*places: str, body: str = "") -> Any:  # noqa: ANN401 - onnx has no types
    """Return a model with one weight for each place, and one of a body's if that is given."""
    model = parse("""g (bool c, float[4] x) => (float[4] z) {
        h = Exp(x)
        y = If (c) <then_branch = p () => (float[4] r) { r = Neg(h) },
                    else_branch = q () => (float[4] s) { s = Exp(h) }>
        z = Neg(y) }""")
    for number, place in enumerate(places):
        external(model.graph.initializer.add(), f"w{number}", place)
    if body:
        inner = next(a.g for a in model.graph.node[1].attribute if a.name == "then_branch")
        external(inner.initializer.add(), "inner", body)
    return model


def external(tensor: Any, name: str, place: str) -> None:  # noqa: ANN401 - onnx has no types
    tensor.name, tensor.data_type, tensor.dims[:] = name, 1, [4]
    tensor.data_location = tensor.EXTERNAL
    for key, value in (("location", place), ("offset", "0"), ("length", "16")):
        entry = tensor.external_data.add()
        entry.key, entry.value = key, value


def saved(folder: Path, model: Any, *data: str) -> Path:  # noqa: ANN401 - onnx has no types
    path = folder / "model.onnx"
    folder.mkdir(exist_ok=True)
    path.write_bytes(model.SerializeToString())
    for name in data:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(DATA)
    return path


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def test_each_file_is_named_once_those_of_bodies_too() -> None:
    model = model_with("a.bin", "sub/b.bin", "a.bin", body="c.bin")
    assert data_files(model) == ("a.bin", "sub/b.bin", "c.bin")


def test_files_of_sparse_constants_are_named() -> None:
    model = parse("g () => (float[8] y) { y = Constant() }")
    sparse = onnx.SparseTensorProto(dims=[8])
    external(sparse.values, "values", "values.bin")
    external(sparse.indices, "indices", "indices.bin")
    model.graph.node[0].attribute.append(onnx.helper.make_attribute("sparse_value", sparse))
    assert data_files(model) == ("values.bin", "indices.bin")


def test_a_file_that_does_not_exist_holds_no_data(tmp_path: Path) -> None:
    path = saved(tmp_path, model_with("sub/a.bin"), "sub/a.bin")
    assert holds_data_of(path, tmp_path / "sub" / "a.bin")
    assert not holds_data_of(path, tmp_path / "a.bin")


def test_a_file_holds_the_data_that_a_link_of_another_name_leads_to(tmp_path: Path) -> None:
    path = saved(tmp_path, model_with("a.bin"), "a.bin")
    (tmp_path / "a.bin").rename(tmp_path / "data.bin")
    (tmp_path / "a.bin").symlink_to("data.bin")
    assert holds_data_of(path, tmp_path / "data.bin")


@pytest.mark.parametrize(
    "place", ["../a.bin", "/etc/passwd", "sub/../../a.bin", "", "C:\\a.bin", "..\\a.bin"]
)
def test_a_place_outside_the_models_folder_is_refused(place: str) -> None:
    with pytest.raises(ModelError, match="not inside the model's folder"):
        data_files(model_with(place))


def test_missing_data_files_are_named(tmp_path: Path) -> None:
    saved(tmp_path, model := model_with("a.bin", "b.bin"), "a.bin")
    assert missing(data_files(model), tmp_path) == ("b.bin",)


def test_data_goes_along_into_another_folder(tmp_path: Path) -> None:
    model = model_with("a.bin", "sub/b.bin")
    saved(tmp_path / "here", model, "a.bin", "sub/b.bin")
    (tmp_path / "there").mkdir()
    created = copy_along(data_files(model), tmp_path / "here", tmp_path / "there")
    assert files(tmp_path / "there") == {"a.bin", "sub", "sub/b.bin"}
    assert (tmp_path / "there" / "sub" / "b.bin").read_bytes() == DATA
    assert not (tmp_path / "there" / "a.bin").is_symlink()
    remove(created)
    assert files(tmp_path / "there") == set()


def test_nothing_is_copied_into_the_same_folder(tmp_path: Path) -> None:
    saved(tmp_path, model := model_with("a.bin"), "a.bin")
    assert copy_along(data_files(model), tmp_path, tmp_path) == ()
    assert copy_along(data_files(model), tmp_path, tmp_path / ".." / tmp_path.name) == ()


@pytest.mark.parametrize("earlier", [b"earlier", DATA])
def test_data_of_an_earlier_version_is_put_back_or_let_go(
    tmp_path: Path, earlier: bytes
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    saved(here, model := model_with("a.bin"), "a.bin")
    saved(there, model)
    for end, left in ((remove, earlier), (delete_replaced, DATA)):
        (there / "a.bin").write_bytes(earlier)
        created = copy_along(data_files(model), here, there, own=("a.bin",))
        assert (there / "a.bin").read_bytes() == DATA
        end(created)
        assert files(there) - {"model.onnx"} == {"a.bin"}
        assert (there / "a.bin").read_bytes() == left


def test_data_of_an_earlier_version_is_put_back_where_copying_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    saved(here, model := model_with("a.bin"), "a.bin")
    saved(there, model)
    (there / "a.bin").write_bytes(b"earlier")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(external_data, "_clone", full)
    with pytest.raises(ModelError, match="No space left"):
        copy_along(data_files(model), here, there, own=("a.bin",))
    assert files(there) - {"model.onnx"} == {"a.bin"}
    assert (there / "a.bin").read_bytes() == b"earlier"


@pytest.mark.parametrize("own", [("a.bin",), ()], ids=["earlier version", "foreign file"])
def test_a_file_stays_if_the_new_one_cannot_get_its_name(
    own: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "a.bin"
    place.write_bytes(b"before")
    rename = type(place).replace

    def refuse(path: Path, target: Path) -> Path:
        if path.suffix == ".tmp":
            raise OSError(1, "Operation not permitted")
        return rename(path, target)

    monkeypatch.setattr(type(place), "replace", refuse)
    with pytest.raises(ModelError, match="not permitted"):
        create(place, lambda _: None, own)
    assert files(tmp_path) == {"a.bin"}
    assert place.read_bytes() == b"before"


def test_equal_data_that_is_there_already_is_left_alone(tmp_path: Path) -> None:
    saved(tmp_path / "here", model := model_with("a.bin"), "a.bin")
    saved(tmp_path / "there", model, "a.bin")
    assert copy_along(data_files(model), tmp_path / "here", tmp_path / "there") == ()


def test_other_data_of_that_name_is_never_overwritten(tmp_path: Path) -> None:
    saved(tmp_path / "here", model := model_with("a.bin", "b.bin"), "a.bin", "b.bin")
    saved(tmp_path / "there", model)
    (tmp_path / "there" / "b.bin").write_bytes(b"precious")
    with pytest.raises(ModelError, match=r"b\.bin is in the way"):
        copy_along(data_files(model), tmp_path / "here", tmp_path / "there")
    assert (tmp_path / "there" / "b.bin").read_bytes() == b"precious"
    assert not (tmp_path / "there" / "a.bin").exists(), "what was copied is taken back"


def test_data_that_cannot_be_read_is_a_refusal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def deny(*_: object, **__: object) -> bool:
        raise PermissionError(13, "Permission denied")

    saved(tmp_path / "here", model := model_with("a.bin"), "a.bin")
    saved(tmp_path / "there", model, "a.bin")
    monkeypatch.setattr("filecmp.cmp", deny)
    with pytest.raises(
        ModelError, match=r"here/a\.bin cannot be copied to .*there/a\.bin: Permission denied"
    ):
        copy_along(data_files(model), tmp_path / "here", tmp_path / "there")


def test_an_optimized_model_beside_its_source_shares_the_data(tmp_path: Path) -> None:
    path = saved(tmp_path, model_with("a.bin"), "a.bin")
    api.optimize(path, check=None)
    assert files(tmp_path) == {
        "model.onnx", "a.bin", "model.memplan.onnx", "model.memplan.json",
    }  # fmt: skip
    written = onnx.load(tmp_path / "model.memplan.onnx", load_external_data=False)
    assert data_files(written) == ("a.bin",)


def test_an_optimized_model_in_another_folder_finds_its_data(tmp_path: Path) -> None:
    path = saved(tmp_path / "here", model_with("sub/a.bin"), "sub/a.bin")
    (tmp_path / "there").mkdir()
    done = api.optimize(path, out=tmp_path / "there" / "m.onnx", check=None)
    loaded = onnx.load(tmp_path / "there" / "m.onnx")
    assert loaded.graph.initializer[0].raw_data == DATA
    sizes = done.plan.report.files
    data = len(DATA)
    assert sizes.original == path.stat().st_size + data
    assert sizes.written == (tmp_path / "there" / "m.onnx").stat().st_size + data


def test_data_that_is_missing_is_said_and_planning_works(tmp_path: Path) -> None:
    path = saved(tmp_path, model_with("gone.bin"))
    done = api.optimize(path, check=None)
    assert done.model is not None
    assert any("gone.bin" in warning for warning in done.plan.report.warnings)


def test_links_in_a_circle_are_data_that_is_missing(tmp_path: Path) -> None:
    path = saved(tmp_path / "m", model_with("a.bin"))
    (path.parent / "a.bin").symlink_to("a.bin")
    done = api.optimize(path, check=None)
    assert done.model is not None
    assert any("a.bin" in warning for warning in done.plan.report.warnings)


def test_links_to_a_model_and_its_data_stand_in_any_folder_if_both_lead_to_one(
    tmp_path: Path,
) -> None:
    tensors = list(external_tensors(model := model_with("a.bin")))
    path, folder = saved(tmp_path / "blobs", model, "a.bin"), tmp_path / "snapshot"
    folder.mkdir()
    for name in ("model.onnx", "a.bin"):
        (folder / name).symlink_to(path.parent / name)
    check_external(tensors, folder / "model.onnx")
    (folder / "copied.onnx").write_bytes(path.read_bytes())
    with pytest.raises(ModelError, match="a link out of the model's folder"):
        check_external(tensors, folder / "copied.onnx")


@pytest.mark.parametrize("option", ["out", "plan_file"])
def test_the_models_weights_are_never_overwritten(
    option: Literal["out", "plan_file"], tmp_path: Path
) -> None:
    path = saved(tmp_path, model_with("a.bin"), "a.bin")
    chosen = {"out": None, "plan_file": None, option: tmp_path / "a.bin"}
    out, plan_file = chosen["out"], chosen["plan_file"]
    with pytest.raises(ModelError, match=r"a\.bin contains weights"):
        api.optimize(path, check=None, out=out, plan_file=plan_file)
    assert (tmp_path / "a.bin").read_bytes() == DATA
    assert files(tmp_path) == {"model.onnx", "a.bin"}


def test_a_model_is_not_written_over_the_copy_of_its_weights(tmp_path: Path) -> None:
    path = saved(tmp_path / "here", model_with("a.bin"), "a.bin")
    (tmp_path / "there").mkdir()
    with pytest.raises(ModelError, match=r"a\.bin contains weights"):
        api.optimize(path, out=tmp_path / "there" / "a.bin", check=None)
    assert files(tmp_path / "there") == set()


def test_a_failure_after_the_copy_takes_the_copy_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object) -> None:
        raise ModelError("no")

    path = saved(tmp_path / "here", model_with("sub/a.bin"), "sub/a.bin")
    (tmp_path / "there").mkdir()
    monkeypatch.setattr("memplan_cli.api.output.rewriting.write_files", fail)
    with pytest.raises(ModelError, match=r"^no$"):
        api.optimize(path, out=tmp_path / "there" / "m.onnx", check=None)
    assert files(tmp_path / "there") == set()


def test_a_folder_is_removed_if_the_next_one_in_it_cannot_be_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = tmp_path / "source" / "outer" / "inner" / "w"
    weights.parent.mkdir(parents=True)
    weights.write_bytes(b"1")
    target = tmp_path / "target"
    target.mkdir()
    create_folder = os.mkdir

    def fail_inside(path: Path, mode: int = 0o777) -> None:
        if path.name == "inner" and path.parent.exists():
            raise OSError(errno.ENOSPC, "No space left on device")
        create_folder(path, mode)

    monkeypatch.setattr(os, "mkdir", fail_inside)
    with pytest.raises(ModelError, match="No space left"):
        copy_along(["outer/inner/w"], tmp_path / "source", target)
    assert not list(target.iterdir())
