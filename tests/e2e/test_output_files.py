"""What an output's files may replace: earlier versions of themselves, and nothing else."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper

from memplan_cli import Check, Settings, api
from memplan_cli.api.optimizing import candidates as targeting
from memplan_cli.api.output.weight_files import NewWeights, own_weights
from memplan_cli.errors import ModelError, SettingsError
from memplan_cli.runtime.graph import offline
from story import GOOD, memplan, write

CPU = Settings(target="cpu")
OWN = "net.onnx.data"
FOREIGN = b"mine\n"


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def with_weights(path: Path, *, data: str = "") -> Path:
    """Write a model of one product, its weights in a file of their own if that is named."""
    drawn = np.random.default_rng(0).standard_normal((64, 96), dtype=np.float32)
    text = """<ir_version: 10, opset_import: ["" : 21]>
        g (float[8,64] x) => (float[8,96] y) { p = MatMul(x, w)  y = Exp(p) }"""
    model = onnx.parser.parse_model(text)
    model.graph.initializer.append(numpy_helper.from_array(drawn, "w"))
    path.parent.mkdir(exist_ok=True)
    if data:
        onnx.save(model, path, save_as_external_data=True, location=data, size_threshold=0)
    else:
        onnx.save(model, path)
    return path


def files() -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in Path().rglob("*") if p.is_file()}


@pytest.mark.parametrize("validate", [True, False])
def test_a_foreign_file_is_not_replaced_by_weights(validate: bool) -> None:  # noqa: FBT001 - what is tried
    with_weights(Path("a.onnx"))
    Path(OWN).write_bytes(FOREIGN)
    before = files()
    words = ("optimize", "a.onnx", "--target", "cpu", "-o", "net.onnx")
    done = memplan(*words, *([] if validate else ["--no-validate"]))
    assert done.exit_code == 2, done.output
    assert f"{OWN} is in the way" in done.stderr
    assert done.stdout == ""
    assert files() == before


def test_a_foreign_file_is_found_before_the_runtime_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def asked(*_: object, **__: object) -> None:
        raise AssertionError("the runtime is asked")

    monkeypatch.setattr(offline, "DumpJob", asked)
    Path(OWN).write_bytes(FOREIGN)
    with pytest.raises(ModelError, match="in the way"):
        api.optimize(with_weights(Path("a.onnx")), CPU, out=Path("net.onnx"), check=None)


@pytest.mark.parametrize("kind", ["a portable output", "no model"])
def test_a_file_that_the_earlier_output_does_not_refer_to_is_foreign(kind: str) -> None:
    with_weights(Path("a.onnx"))
    if kind == "no model":
        Path("net.onnx").write_bytes(b"no model")
    else:
        api.optimize(Path("a.onnx"), out=Path("net.onnx"), check=None)
    Path(OWN).write_bytes(FOREIGN)
    with pytest.raises(ModelError, match="in the way"):
        api.optimize(Path("a.onnx"), CPU, out=Path("net.onnx"), check=None)
    assert Path(OWN).read_bytes() == FOREIGN


def test_the_weights_of_an_earlier_version_go_with_it() -> None:
    model, out = with_weights(Path("a.onnx")), Path("net.onnx")
    api.optimize(model, CPU, out=out, check=None)
    assert own_weights(out) == (OWN,)
    api.optimize(model, CPU, out=out, check=None)
    assert own_weights(out) == (OWN,)
    api.optimize(model, out=out, check=None)
    assert set(files()) == {"a.onnx", "net.onnx", "net.json"}
    api.optimize(model, CPU, out=out, check=None)
    assert set(files()) == {"a.onnx", "net.onnx", "net.json", OWN}


def test_a_new_weight_file_stays_if_it_has_the_name_of_an_earlier_one() -> None:
    Path(OWN).write_bytes(b"earlier")
    with NewWeights(Path("net.onnx"), earlier=(OWN,)) as weights:
        weights.create(OWN, lambda data: data.write(b"new"))
        assert weights.keep() == (Path(OWN),)
    assert files() == {OWN: b"new"}


def test_weights_of_the_source_stay_when_an_output_of_their_name_goes() -> None:
    out = Path("net.onnx")
    api.optimize(with_weights(Path("a.onnx")), CPU, out=out, check=None)
    Path(OWN).unlink()
    source = with_weights(Path("b.onnx"), data=OWN)
    before = Path(OWN).read_bytes()
    api.optimize(source, CPU, out=out, check=None)
    assert Path(OWN).read_bytes() == before
    assert own_weights(out) == ("net.offline.onnx.data",)
    onnx.load(source)


@pytest.mark.parametrize("target", ["portable", "cpu"])
def test_every_file_that_was_written_is_named(target: str) -> None:
    with_weights(Path("here/a.onnx"), data="w.bin")
    Path("there").mkdir()
    words = ("optimize", "here/a.onnx", "-o", "there/net.onnx", "--target", target)
    done = memplan(*words)
    assert done.exit_code == 0, done.output
    data = "net.onnx.data" if target == "cpu" else "w.bin"
    said = f"memplan: wrote there/net.onnx, there/{data} and there/net.json\n"
    assert done.stderr.endswith(said)
    assert {p.name for p in Path("there").iterdir()} == {"net.onnx", data, "net.json"}


def test_what_has_no_weights_of_its_own_is_two_files() -> None:
    write(Path("a.onnx"), GOOD)
    done = memplan("optimize", "a.onnx", "--no-validate")
    assert done.stderr == "memplan: wrote a.memplan.onnx and a.memplan.json\n"


def test_a_plan_is_not_written_over_the_weights_of_the_source() -> None:
    model = with_weights(Path("a.onnx"), data="w.bin")
    before = files()
    with pytest.raises(ModelError, match=r"w\.bin contains weights of"):
        api.optimize(model, CPU, out=Path("n.onnx"), plan_file=Path("w.bin"), check=None)
    assert files() == before


def test_a_target_is_proved_on_no_other_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    def started(*_: object) -> None:
        raise AssertionError("nothing is begun")

    monkeypatch.setattr(targeting.TargetCandidates, "_plan_dump", started)
    model = write(Path("a.onnx"), GOOD)
    with pytest.raises(SettingsError, match="not on cuda"):
        api.optimize(model, CPU, check=Check(provider="cuda"))
    assert set(files()) == {"a.onnx"}
