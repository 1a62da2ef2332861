"""What memplan writes is valid against the schema it publishes, and what is wrong is not."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from memplan_cli.api.schema import SCHEMA_NAMES, schema_text
from memplan_cli.core.serialization import to_json
from memplan_cli.errors import SettingsError
from memplan_cli.planning.plan_file import read_plan
from memplan_cli.reporting.snapshot import baseline_text, snapshot_of
from memplan_cli.settings.keys import KEYS, METRICS
from memplan_cli.settings.sources import read_yaml

ROOT = Path(__file__).parents[2]
PLANS = sorted((ROOT / "tests/golden/renderers/plans").glob("*.json"))


@cache
def validator(name: str) -> Draft202012Validator:
    schema = json.loads(schema_text(name))
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def mistakes(name: str, data: object) -> list[str]:
    return [error.message for error in validator(name).iter_errors(data)]


@pytest.mark.parametrize("path", PLANS, ids=lambda path: path.name.partition(".")[0])
def test_every_plan_report_and_baseline_is_valid(path: Path) -> None:
    plan = read_plan(path)
    assert mistakes("plan", to_json(plan)) == []
    assert mistakes("report", to_json(plan.report)) == []
    baseline = baseline_text({"m.onnx": snapshot_of(plan, "m.onnx", "onnxruntime 1.0")})
    assert mistakes("baseline", json.loads(baseline)) == []


@pytest.mark.parametrize("name", SCHEMA_NAMES)
def test_nothing_at_all_is_no_plan_report_or_baseline(name: str) -> None:
    assert bool(mistakes(name, {})) == (name != "config")
    assert mistakes(name, [])


def test_a_plan_with_a_negative_offset_or_a_missing_part_is_not_valid() -> None:
    data = to_json(read_plan(PLANS[0]))
    data["tensors"][0]["offset"] = -1
    assert mistakes("plan", data)
    del data["tensors"][0]
    del data["report"]["memory"]["planned"]
    assert mistakes("plan", data) == ["'planned' is a required property"]


@pytest.mark.parametrize(
    "path", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda p: p.stem
)
def test_every_shipped_config_is_valid(path: Path) -> None:
    assert mistakes("config", yaml.safe_load(path.read_text())) == []


def test_the_schema_of_settings_has_every_key_and_no_other() -> None:
    schema = json.loads(schema_text("config"))["properties"]
    keys = set()
    for key, value in schema.items():
        inner = value.get("properties")
        keys |= {f"{key}.{name}" for name in inner} if inner else {key}
    assert keys == set(KEYS)


def test_the_schemas_of_settings_and_baselines_have_every_metric() -> None:
    assert mistakes("config", {"gate": {"metric": list(METRICS)}}) == []
    assert mistakes("config", {"gate": {"models": {"a": {"metric": METRICS[-1]}}}}) == []
    baseline = json.loads(baseline_text({"a": snapshot_of(read_plan(PLANS[0]), "a")}))
    baseline["models"]["a"]["metrics"] = dict.fromkeys(METRICS, 1)
    assert mistakes("baseline", baseline) == []


def test_a_report_has_the_process_of_each_side_in_its_schema() -> None:
    size = {"load": 4, "run": 3, "private": 2, "file": 1}
    report = to_json(read_plan(PLANS[0]).report)
    peaks = {"first_run_peak": 1, "steady_peak": 1}
    facts = {"name": "onnxruntime", "version": "1", "provider": "CPU", "settings": None}
    for kind in ("predicted", "observed"):
        for process, valid in ((size, True), (None, True), ({"load": 1}, False), ("4", False)):
            sides = {"original": {**peaks, "process": process}}
            runtime = {**facts, "predicted": None, "observed": None, kind: sides}
            found = mistakes("report", {**report, "runtime": runtime})
            assert (found == []) == valid


@pytest.mark.parametrize(
    "text",
    [
        "levle: 1",
        "level: 3",
        "level: true",
        "alignment: 48",
        "dims: {batch: -1}",
        "mem_param: {exclude_blobs: [a]}",
        "gate: {metric: size}",
        "gate: {models: {a: {max_memry: 1}}}",
        "gate: {max_memory: 256}",
        "gate: {max_increase: 2}",
        "gate: {max_memory: -1}",
        "phase: [train]",
    ],
)
def test_what_the_reader_refuses_the_schema_refuses_too(text: str) -> None:
    with pytest.raises(SettingsError):
        read_yaml(text, "f")
    data: Any = yaml.safe_load(text)
    # JSON has one kind of number: to a schema, true is not 1, but Python thinks it is.
    if data != {"level": True}:
        assert mistakes("config", data)


def test_there_is_no_other_schema() -> None:
    with pytest.raises(SettingsError, match="the schemas are plan, report"):
        schema_text("../plan")


def test_the_report_in_a_plan_is_a_report() -> None:
    inside = json.loads(schema_text("plan"))["$defs"]["Report"]["properties"]
    assert inside == json.loads(schema_text("report"))["properties"]
