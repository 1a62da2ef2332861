"""A corpus of forged certificates: each is refused, for what it is."""

from __future__ import annotations

import json
import re
from copy import deepcopy
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import pytest
from click.testing import CliRunner

from certificate_cases import SAMPLES, Case, case_of, random_case, random_text, write_text
from memplan_cli import Settings
from memplan_cli.cli import main
from memplan_cli.core.results import certificate as certificates
from memplan_cli.core.results.certificate import (
    NOT_CHECKED,
    REFUSED,
    certificate_from_json,
    read_certificate,
)
from memplan_cli.errors import PlanError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from memplan_cli.core.results.plan import Plan

    Data = dict[str, Any]
    Forge = Callable[[Data], object]


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Case]:
    folder = tmp_path_factory.mktemp("certificates")
    return {
        "cut": random_case(4, 8, folder),
        "pair": random_case(3, 8, folder),
        "search": random_case(12, 8, folder),
        "shapes": random_case(4, 8, folder, level=0),
        "types": random_case(4, 8, folder, level=1),
        "step": case_of(SAMPLES / "train_mlp.onnx", Settings(recompute="auto", budget=1.0)),
    }


def put(way: str, value: object) -> Forge:
    """Return what puts a value at a place, as ``order.cuts.0.node``."""

    def forge(data: Data) -> None:
        *outer, last = (int(key) if key.isdigit() else key for key in way.split("."))
        inner: Any = data
        for key in outer:
            inner = inner[key]
        inner[last] = value

    return forge


def drop(way: str) -> Forge:
    """Return what takes the item at a place out of its list."""

    def forge(data: Data) -> None:
        *outer, last = (int(key) if key.isdigit() else key for key in way.split("."))
        inner: Any = data
        for key in outer:
            inner = inner[key]
        del inner[last]

    return forge


def add(way: str, value: object) -> Forge:
    """Return what adds an item to the list at a place."""

    def forge(data: Data) -> None:
        inner: Any = data
        for key in way.split("."):
            inner = inner[int(key) if key.isdigit() else key]
        inner.append(value)

    return forge


def twice(way: str) -> Forge:
    """Return what repeats the first item of the list at a place."""

    def forge(data: Data) -> None:
        inner: Any = data
        for key in way.split("."):
            inner = inner[int(key) if key.isdigit() else key]
        inner.append(deepcopy(inner[0]))

    return forge


def both(*forges: Forge) -> Forge:
    def forge(data: Data) -> None:
        for each in forges:
            each(data)

    return forge


DUAL = "order.cuts.0.duals.0"
SHARES = f"{DUAL}.shares"


def share(tensor: int, reader: int, much: int) -> Data:
    return {"tensor": tensor, "reader": reader, "bytes": much}


def hold(first: int, second: int, much: int) -> Data:
    return {"first": first, "second": second, "bytes": much}


FORGED: dict[str, tuple[str, Forge, str]] = {
    # What the certificate is about.
    "of another plan": ("cut", put("plan_sha256", "0" * 64), "of another plan"),
    "of another model": ("cut", put("graph_sha256", "a" * 64), "of another model"),
    "order left out": ("cut", put("order", None), "has no proof of it"),
    "a lower bound than the plan's": ("cut", put("order.bound", 1), "for a bound of 1"),
    "a higher bound than the plan's": ("cut", put("order.bound", 10**9), "the plan has"),
    # Cuts.
    "cut at another node": ("cut", put("order.cuts.0.node", 0), "shows|counted already|may have ended|does not read"),
    "cut at no node": ("cut", put("order.cuts.0.node", 99), "no group 99"),
    "cut without charges": ("cut", put(SHARES, []), "shows [0-9]+ bytes only"),
    "one charge less": ("cut", drop(f"{SHARES}.0"), "bytes only"),
    "more charged than there is": ("cut", put(f"{SHARES}.0.bytes", 129), "has 128 bytes"),
    "charged twice": ("cut", twice(SHARES), "has 128 bytes, but its shares are 256"),
    "charged to who does not read it": (
        "cut", put(f"{SHARES}.0.reader", 4), "does not read it",
    ),
    "charged to the step, and may be gone": (
        "cut", put(f"{SHARES}.0.reader", 2), "may have ended",
    ),
    "charged and counted already": ("cut", add(SHARES, share(1, 2, 1)), "counted already"),
    "a tensor that is not there": ("cut", add(SHARES, share(50, 2, 1)), "no tensor 50"),
    "a tensor of another name": ("cut", put("order.tensors.0", "nobody"), "fewer than two groups"),
    "held without need": ("cut", add(f"{DUAL}.holds", hold(7, 0, 5)), "does not need it"),
    "held before who is not there": (
        "cut", add(f"{DUAL}.holds", hold(0, 99, 5)), "holds 0 before 99",
    ),
    "held too much": ("cut", add(f"{DUAL}.holds", hold(0, 7, 999)), "bytes only"),
    "replacing what cannot be": ("cut", put(f"{DUAL}.replaced", 0), "not have one dual for each"),
    "no dual": ("cut", put("order.cuts.0.duals", []), "not have one dual for each"),
    "one order taken for granted": ("cut", put("order.cuts.0.after", 7), "assumes an order"),
    "a cut that is called a pair": ("cut", put("order.method", "pair"), "not 1 cuts"),
    "a cut with states": ("cut", put("order.states", [[]]), "has no states"),
    # Pairs.
    "half a pair": ("pair", drop("order.cuts.1"), "not 1 cuts"),
    "half a pair twice": (
        "pair", both(drop("order.cuts.1"), twice("order.cuts")), "both orders of two nodes",
    ),
    "a pair of one node": ("pair", put("order.cuts.0.before", 6), "both orders|before it"),
    "a pair with who is not there": (
        "pair", put("order.cuts.0.before", 99), "both orders|no group 99",
    ),
    "one order of who is not there taken for granted": (
        "cut", put("order.cuts.0.before", 99), "assumes an order|no group 99",
    ),
    "a pair that says no order": (
        "pair", both(drop("order.cuts.0.before")), "which node of the pair is first",
    ),
    "a pair of which one needs the other": (
        "pair",
        both(put("order.cuts.0.before", 8), put("order.cuts.1.node", 8)),
        "before it and after it|both orders",
    ),
    # Searches.
    "no states": ("search", put("order.states", []), "no states"),
    "states cut off": ("search", lambda d: d["order"]["states"].pop(), "to none|another state"),
    "a move left out": ("search", drop("order.states.1.0"), "no move leads|has no move"),
    "moves left out": ("search", put("order.states.1", []), "has no move|no move leads"),
    "the first state left out": ("search", drop("order.states.0"), "does not begin"),
    "a move back": ("search", put("order.states.2.0.to", 1), "to an earlier state"),
    "a move to another state": ("search", put("order.states.2.0.to", 5), "another state|leads"),
    "a node too early": ("search", put("order.states.1.0.nodes", [5]), "too early"),
    "a node that is not there": ("search", put("order.states.1.0.nodes", [77]), "too early"),
    "a node twice": ("search", put("order.states.1.0.nodes", [0, 0]), "too early"),
    "for free, and it is not": ("search", put("order.states.1.0.free", [3]), "as a free group|takes"),
    "a move of nothing": ("search", put("order.states.1.0.nodes", []), "not one node"),
    "a fusion that is none": (
        "search", put("order.fusions", [{"node": 0, "into": 1, "rule": "late"}]), "other groups wait",
    ),
    "an early fusion that is none": (
        "search", put("order.fusions.0.rule", "early"), "waits for other groups|no group|more",
    ),
    "a fusion of nobody": ("search", put("order.fusions.0.node", 55), "no group 55"),
    "a fusion twice": ("search", twice("order.fusions"), "no group"),
}  # fmt: skip
"""Name -> the honest one, what is done to it, and why it is refused."""


def test_the_corpus_is_no_smaller_than_it_was() -> None:
    assert len(FORGED) >= 47


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_certificate_is_refused(name: str, cases: dict[str, Case]) -> None:
    base, forge, reason = FORGED[name]
    forged = deepcopy(cases[base].certificate)
    forge(forged)
    found = cases[base].verdict(forged)
    reasons = [part.reason for part in found.parts if part.status == REFUSED]
    assert not found.passed
    assert any(re.search(reason, said) for said in reasons), reasons


@pytest.mark.parametrize("base", ["cut", "pair", "search", "shapes", "types", "step"])
def test_an_unchanged_certificate_is_accepted(base: str, cases: dict[str, Case]) -> None:
    assert cases[base].verdict().passed


def test_what_has_no_witness_is_not_said_to_be_shown(cases: dict[str, Case]) -> None:
    forged = deepcopy(cases["cut"].certificate)
    bound = forged["order"]["bound"]
    forged["order"] = {"bound": bound, "method": "none", "why": "by an exhausted search"}
    found = cases["cut"].verdict(forged)
    assert not found.passed
    assert [part.status for part in found.parts if part.part == "order"] == [NOT_CHECKED]


@pytest.mark.parametrize("more", [1, 64, 10**6])
@pytest.mark.parametrize("base", ["cut", "pair", "search", "step"])
def test_a_bound_is_refused_that_the_plan_and_its_certificate_raise_alike(
    base: str, more: int, cases: dict[str, Case]
) -> None:
    part: Literal["order", "recompute"] = (
        "recompute" if cases[base].plan.report.recompute.bound else "order"
    )
    found = cases[base].raised(part, more).verdict()
    assert [each.part for each in found.parts if each.status == REFUSED] == [part]


PLANS: dict[str, tuple[Callable[[Plan], Plan], str]] = {
    "other ticks": (
        lambda plan: replace(plan, tensors=[plan.tensors[0]._replace(last=9), *plan.tensors[1:]]),
        "is live from tick",
    ),
    "other sizes": (
        lambda plan: replace(plan, tensors=[plan.tensors[0]._replace(bytes=1), *plan.tensors[1:]]),
        "bytes in the model",
    ),
    "a tensor that is not there": (
        lambda plan: replace(plan, tensors=[plan.tensors[0]._replace(name="z"), *plan.tensors[1:]]),
        "not a value of the model",
    ),
    "another order": (
        lambda plan: replace(plan, order=(replace(plan.order[0], nodes=plan.order[0].nodes[::-1]),)),
        "before it is defined",
    ),
    "a node twice": (
        lambda plan: replace(
            plan, order=(replace(plan.order[0], nodes=[plan.order[0].nodes[0]] * 9),)
        ),
        "every node once",
    ),
    "a block too many": (
        lambda plan: replace(plan, order=(*plan.order, replace(plan.order[0], block="x"))),
        "too many blocks",
    ),
    "a node of nobody": (
        lambda plan: replace(
            plan, order=(replace(plan.order[0], nodes=["#99", *plan.order[0].nodes[1:]]),)
        ),
        "not a node of the model",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PLANS)
def test_a_plan_that_is_not_the_models_shows_nothing(
    name: str, cases: dict[str, Case]
) -> None:
    change, reason = PLANS[name]
    case = cases["cut"]
    plan = change(case.plan)
    forged = deepcopy(case.certificate)
    forged["plan_sha256"] = plan.digest
    found = replace(case, plan=plan).verdict(forged)
    assert not found.passed
    assert re.search(reason, found.parts[0].reason), found.parts


FILES: dict[str, tuple[Callable[[Data], object], str]] = {
    "another schema": (put("schema", "memplan.plan/1"), "not of schema"),
    "a negative bound": (put("order.bound", -1), "order.bound"),
    "a bound that is a text": (put("order.bound", "640"), "order.bound"),
    "a bound that is a flag": (put("order.bound", value=True), "order.bound"),
    "a fraction": (put("order.bound", 1.5), "order.bound"),
    "no memory of any machine": (put("order.bound", 1 << 63), "order.bound"),
    "a method that is none": (put("order.method", "trust me"), "order.method"),
    "no digest": (put("plan_sha256", "x" * 64), "SHA-256"),
    "a key that is unknown": (put("order.proved", value=True), "proved"),
    "a charge of nothing": (put(f"{SHARES}.0.bytes", 0), "bytes"),
    "a negative charge": (put(f"{SHARES}.0.bytes", -5), "bytes"),
    "a part that is missing": (drop("order"), "order"),
    "a list for an object": (put("order", []), "order"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_another_form_is_refused(name: str, cases: dict[str, Case]) -> None:
    forge, reason = FILES[name]
    data = deepcopy(cases["cut"].certificate)
    forge(data)
    with pytest.raises(PlanError, match=reason):
        certificate_from_json(data)


def test_a_huge_file_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "huge.json"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(PlanError, match="files of its kind have at most"):
        read_certificate(path)
    monkeypatch.setattr(certificates, "MAX_FILE_BYTES", 10)
    path.write_text(" " * 11)
    with pytest.raises(PlanError, match="too large"):
        read_certificate(path)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b"NaN", b"[]"])
def test_what_is_no_json_is_one_message_and_exit_code_2(
    content: bytes, tmp_path: Path
) -> None:
    model = write_text(random_text(4, 8), tmp_path / "net.onnx")
    bad = tmp_path / "bad.json"
    bad.write_bytes(content)
    done = CliRunner().invoke(main, ["verify-certificate", str(model), "x.json", str(bad)])
    assert done.exit_code == 2
    assert done.stderr.startswith("Error: ")
    assert "Traceback" not in done.output


def run(*words: object) -> tuple[int, str]:
    done = CliRunner().invoke(main, list(map(str, words)))
    return done.exit_code, done.output


def test_the_command_says_yes_no_and_that_it_cannot(tmp_path: Path) -> None:
    model = write_text(random_text(4, 8), tmp_path / "net.onnx")
    other = write_text(random_text(5, 8), tmp_path / "other.onnx")
    proof, plan = tmp_path / "proof.json", tmp_path / "net.memplan.json"
    code, said = run("optimize", model, "--no-validate", "--certificate", proof)
    assert code == 0
    assert "proof.json" in said
    for each in (model, tmp_path / "net.memplan.onnx"):
        code, said = run("verify-certificate", each, plan, proof)
        assert (code, "Every bound of the plan is proved." in said) == (0, True)
    code, said = run("verify-certificate", other, plan, proof)
    assert code == 2
    assert "neither the model that was planned" in said.replace("\n", " ")
    data = json.loads(proof.read_text())
    data["order"]["cuts"][0]["node"] = 0
    proof.write_text(json.dumps(data))
    code, said = run("verify-certificate", model, plan, proof, "--format", "json")
    assert code == 1
    assert json.loads(said)["passed"] is False


def test_a_runtimes_graph_has_no_certificate(tmp_path: Path) -> None:
    model = write_text(random_text(4, 8), tmp_path / "net.onnx")
    code, said = run(
        "optimize",
        model,
        "--target",
        "cpu",
        "--no-validate",
        "--certificate",
        tmp_path / "p.json",
    )
    assert code == 2
    assert "it proves bounds of the model's own graph" in said.replace("\n", " ")
    assert not (tmp_path / "p.json").exists()


@pytest.mark.parametrize("base", ["cut", "shapes", "types"])
@pytest.mark.parametrize("more", [1, 64])
def test_the_bound_of_an_arena_is_counted(
    base: str, more: int, cases: dict[str, Case]
) -> None:
    """At level 2 by the bytes live at one tick; at levels 0 and 1 by the slots that tensors need."""
    case = cases[base]
    (arena,) = case.plan.arenas
    raised = replace(arena, lower_bound=arena.lower_bound + more)
    plan = replace(case.plan, arenas=(raised,))
    found = replace(
        case, plan=plan, certificate={**case.certificate, "plan_sha256": plan.digest}
    ).verdict()
    assert [part.part for part in found.parts if part.status == REFUSED] == ["arena 0"]
    assert f"{arena.lower_bound} bytes, not" in found.parts[1].reason
