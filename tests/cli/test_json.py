"""Whatever a command prints as JSON names its schema, and is valid against it."""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING, Any

import click
import pytest
from click.testing import CliRunner
from jsonschema import Draft202012Validator

from memplan_cli.api.schema import SCHEMA_NAMES, schema_text
from memplan_cli.cli import COMMANDS, main
from memplan_cli.planning.plan_file import read_plan

if TYPE_CHECKING:
    from pathlib import Path

    from click.testing import Result

CNN, TIED, BATCH = "branchy_cnn.onnx", "tied_head.onnx", "dynamic_batch.onnx"

OUTPUTS: dict[str, str] = {
    f"optimize {CNN} -o {{out}}/a.onnx": "report",
    f"optimize {CNN} -o {{out}}/b.onnx --no-validate --print-log": "report",
    f"report {CNN}": "report",
    f"report {BATCH} --dim batch=1,8": "report",
    "report {out}/kept.json": "report",
    "validate {out}/kept.onnx --original {samples}/branchy_cnn.onnx --replay": "validate",
    "validate {out}/kept.onnx --original {samples}/branchy_cnn.onnx --measure": "validate",
    "validate {out}/kept.onnx --original {samples}/train_mlp.onnx": "validate",
    f"fit {BATCH} --memory 1GiB --dim batch=?": "fit",
    f"fit {BATCH} --memory 1GiB --dim batch=? --of tensors": "fit",
    f"fit {BATCH} --memory 1KiB --overhead 1 --dim batch=? --of tensors": "fit",
    f"gate {CNN} --max-memory 1B": "gate",
    f"gate {CNN} --max-memory 1GiB --metric process.run": "gate",
    f"gate {CNN} --baseline {{out}}/base.json --max-increase 1%": "gate",
    f"diff {CNN} {TIED}": "diff",
    f"diff {CNN} {CNN}": "diff",
    f"why {CNN}": "why-peak",
    f"why {BATCH}": "why-peak",
    f"why {CNN} --tensor {{tensor}}": "why-tensor",
    f"why {CNN} --process": "why-process",
    f"settings {CNN}": "settings",
    f"settings {CNN} --measure": "settings",
    f"simulate {CNN}": "simulate",
    f"soak {BATCH} --bounds batch=1..3 --requests 8": "soak",
    f"train-step {CNN} -o {{out}}/s.onnx --loss-fn mse --optimizer adam": "train-step",
    f"train-step {BATCH} -o {{out}}/t.onnx --loss-fn mse --gradients": "train-step",
    "pack {out}/p.csv": "pack",
    "pack {out}/p.csv --capacity 1": "pack",
    f"sweep {CNN} {BATCH} --dim batch=1,2 --jobs 1": "sweep",
    "sweep {out}/broken.onnx --jobs 1": "sweep",
    "doctor": "doctor",
    "doctor {out}/kept.onnx": "doctor",
    f"verify-certificate {CNN} {{out}}/kept.json {{out}}/kept.certificate.json": "verified",
}
"""A command -> the schema of what ``--format json`` prints; samples by their bare names."""


def run(*words: object) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words])


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory, samples: Path) -> Path:
    folder = tmp_path_factory.mktemp("json")
    certificate = folder / "kept.certificate.json"
    kept = run(
        "optimize", samples / CNN, "-o", folder / "kept.onnx", "--no-validate",
        "--certificate", certificate,
    )  # fmt: skip
    assert kept.exit_code == 0, kept.output
    baseline = folder / "base.json"
    recorded = run("gate", samples / CNN, "--baseline", baseline, "--update-baseline")
    assert recorded.exit_code == 0, recorded.output
    (folder / "p.csv").write_text("id,lower,upper,size\na,0,2,8\nb,1,3,8\n")
    (folder / "broken.onnx").write_bytes(b"none")
    return folder


@cache
def validator(name: str) -> Draft202012Validator:
    schema = json.loads(schema_text(name))
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def mistakes(name: str, data: object) -> list[str]:
    return [
        f"{error.json_path}: {error.message[:200]}"
        for error in validator(name).iter_errors(data)
    ]


def words_of(line: str, out: Path, samples: Path) -> list[str]:
    tensor = read_plan(out / "kept.json").tensors[0].id.rpartition("/")[2]
    given = line.format(out=out, samples=samples, tensor=tensor).split()
    return [str(samples / word) if word in (CNN, TIED, BATCH) else word for word in given]


@pytest.mark.parametrize("line", OUTPUTS)
def test_what_a_command_prints_as_json_is_valid_against_its_schema(
    line: str, out: Path, samples: Path
) -> None:
    name = OUTPUTS[line]
    result = run(*words_of(line, out, samples), "--format", "json")
    assert result.exit_code in (0, 1), result.output
    data = json.loads(result.stdout)
    assert data["schema"] == f"memplan.{name}/1"
    if "--print-log" in line:
        data.pop("print_log")
    assert mistakes(name, data) == []


def test_every_command_with_json_is_tried() -> None:
    tried = {line.split()[0] for line in OUTPUTS}
    prints = {name for name in COMMANDS if "json" in _formats(name)}
    assert tried == prints


def _formats(name: str) -> tuple[str, ...]:
    found = main.get_command(click.Context(main), name)
    assert found is not None
    kinds = [param.type for param in found.params if param.name == "form"]
    return tuple(
        word for kind in kinds if isinstance(kind, click.Choice) for word in kind.choices
    )


def test_rows_and_files_of_a_sweep_are_valid_line_by_line(out: Path, samples: Path) -> None:
    result = run("sweep", samples / CNN, out / "broken.onnx", "--jobs", 1, "--format", "jsonl")
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert [row["status"] for row in rows] == ["ok", "failed"]
    assert [mistakes("sweep", row) for row in rows] == [[], []]


def test_files_are_valid_against_their_schemas_too(out: Path) -> None:
    for file, name in {
        "kept.json": "plan", "kept.certificate.json": "certificate", "base.json": "baseline",
    }.items():  # fmt: skip
        assert mistakes(name, json.loads((out / file).read_text())) == []


@pytest.mark.parametrize("name", [name for name in SCHEMA_NAMES if name != "config"])
def test_a_result_with_a_key_that_nobody_knows_or_of_another_version_is_refused(
    name: str, out: Path, samples: Path
) -> None:
    line = next((line for line, kind in OUTPUTS.items() if kind == name), None)
    if line is None or name == "report":  # files, which have tests of their own
        return
    data: dict[str, Any] = json.loads(
        run(*words_of(line, out, samples), "--format", "json").stdout
    )
    assert mistakes(name, data) == []
    assert mistakes(name, {**data, "unknown_key": 1})
    assert mistakes(name, {**data, "schema": f"memplan.{name}/2"})


def test_all_schemas_are_printed_by_name_and_each_alone() -> None:
    result = run("schema", "--all")
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert tuple(found) == SCHEMA_NAMES
    assert {f"memplan.{name}/1" for name in SCHEMA_NAMES} == {
        one["$id"] for one in found.values()
    }
    for name in SCHEMA_NAMES:
        assert json.loads(run("schema", name).stdout) == found[name]


@pytest.mark.parametrize("words", [(), ("plan", "--all"), ("plans",)])
def test_a_schema_is_named_or_all_are_asked_for(words: tuple[str, ...]) -> None:
    result = run("schema", *words)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
