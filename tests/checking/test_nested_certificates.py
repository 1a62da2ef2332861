"""Certificates of orders of models with subgraphs, against a search of all orders."""

from __future__ import annotations

import random
import re
from copy import deepcopy
from itertools import islice
from typing import TYPE_CHECKING, Any

import onnx
import pytest

from certificate_cases import SAMPLES, Case, case_of, write_text
from memplan_cli import Settings
from memplan_cli.core.results.certificate import REFUSED, VERIFIED
from nested.models import orders, random_model
from nested.search import peak, sizes_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from memplan_cli.core.results.certificate import PartVerdict

    Change = Callable[[dict[str, Any]], object]

MOST_ORDERS = 200

AT_BYTES = Settings(level=1, alignment=1)


def random_nested_case(seed: int, folder: Path) -> tuple[Case, int | None]:
    """Return a random nested model's case, and the least peak of all its orders if few."""
    model = random_model(seed)
    path = folder / "nested.onnx"
    onnx.save(model, path)
    sizes = sizes_of(model)
    tried = []
    for nodes in islice(orders(model.graph), MOST_ORDERS + 1):
        other = type(model.graph)()
        other.CopyFrom(model.graph)
        del other.node[:]
        other.node.extend(nodes)
        tried.append(peak(other, sizes))
    least = min(tried) if len(tried) <= MOST_ORDERS else None
    return case_of(path, AT_BYTES), least


def order_verdict(case: Case, data: dict[str, Any] | None = None) -> PartVerdict:
    return next(part for part in case.verdict(data).parts if part.part == "order")


@pytest.mark.parametrize("seed", range(20))
def test_no_certificate_of_a_nested_program_goes_above_what_an_order_reaches(
    seed: int, tmp_path: Path
) -> None:
    case, least = random_nested_case(seed, tmp_path)
    assert order_verdict(case).status == VERIFIED, order_verdict(case)
    if least is None:  # too many orders to try them all
        return
    above = case.raised("order", least + 1 - case.certificate["order"]["bound"])
    assert order_verdict(above).status == REFUSED
    draw = random.Random(seed)
    for _ in range(20):
        assert order_verdict(above, forged(above.certificate, draw)).status == REFUSED


def forged(data: dict[str, Any], draw: random.Random) -> dict[str, Any]:
    """Raise what subgraphs are said to need, lean on another one, or charge more."""
    data = deepcopy(data)
    proofs = [data["order"], *(block["order"] for block in data.get("blocks", ()))]
    for proof in draw.sample(proofs, draw.randint(1, len(proofs))):
        if proof is not data["order"]:
            proof["bound"] += draw.choice((1, 8, 1000))
        for cut in proof.get("cuts", ()):
            cut["node"] = draw.choice((cut["node"], draw.randrange(6)))
            for dual in cut["duals"]:
                for share in dual["shares"]:
                    share["bytes"] += draw.choice((0, 1, 64))
    if data.get("blocks") and draw.random() < 0.5:
        block = draw.choice(data["blocks"])["block"]
        bound = data["order"]["bound"]
        data["order"] = {"bound": bound, "method": "inside", "inside": block}
    return data


@pytest.fixture(scope="module")
def loop() -> Case:
    return case_of(SAMPLES / "nested_if_loop.onnx")


def test_a_loops_body_is_counted_where_the_loop_runs(loop: Case) -> None:
    assert order_verdict(loop).status == VERIFIED
    blocks = [each["block"] for each in loop.certificate["blocks"]]
    assert blocks[-1] == "last_state/Loop.body"
    assert any(block.startswith("last_state/Loop.body/") for block in blocks[:-1])


def test_without_what_its_subgraphs_need_the_order_is_not_shown(loop: Case) -> None:
    data = deepcopy(loop.certificate)
    del data["blocks"][-1]
    found = order_verdict(loop, data)
    assert found.status == REFUSED
    assert "bytes only" in found.reason


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda d: d["blocks"].append(d["blocks"][0]), "has two proofs"),
        (lambda d: d["blocks"][0].update(block="nowhere"), "the model has no block 'nowhere'"),
        (lambda d: d["blocks"][0].update(block=""), "the model has no block ''"),
        (lambda d: d["blocks"][-1]["order"].update(method="none"), "without a witness"),
        (
            lambda d: d["order"].update(method="inside", inside=d["blocks"][0]["block"]),
            "no proof for a subgraph",
        ),
        (
            lambda d: d["order"].update(method="inside", inside="last_state/Loop.body"),
            "needs .*, not",
        ),
    ],
)
def test_a_forged_proof_of_a_subgraph_is_refused(
    loop: Case,
    change: Change,
    reason: str,
) -> None:
    data = deepcopy(loop.certificate)
    change(data)
    found = order_verdict(loop, data)
    assert found.status == REFUSED
    assert re.search(reason, found.reason), found.reason


def test_subgraphs_without_an_order_that_leans_on_them_are_refused(loop: Case) -> None:
    data = deepcopy(loop.certificate)
    data["order"] = {"bound": data["order"]["bound"], "method": "none", "why": "too long"}
    parts = {part.part: part for part in loop.verdict(data).parts}
    assert (parts["blocks"].status, parts["blocks"].bound) == (REFUSED, 0)
    assert "nothing of the order that relies on it" in parts["blocks"].reason


BRANCHES = """<ir_version: 10, opset_import: ["" : 21, "local" : 1]>
g (bool c, int8[1] x) => (int8[1] y) <int8[1024] a, int8[64] d> {
a = local.F (x)
d = If (c) <then_branch = t () => (int8[64] u) { u = local.F (a) },
            else_branch = e () => (int8[64] v) <int8[1024] w> { w = local.F (x) v = local.F (w) }>
y = local.F (d)
}"""


def test_what_only_one_branch_reads_is_not_counted_beside_what_the_other_one_needs(
    tmp_path: Path,
) -> None:
    """While the second branch runs, what the first one alone read is gone."""
    case = case_of(write_text(BRANCHES, tmp_path / "branches.onnx"), AT_BYTES)
    assert case.plan.report.memory.live_peak == 1024 + 64 + 64
    nothing: dict[str, list[Any]] = {"shares": [], "holds": []}
    (other,) = (each.block for each in case.plan.order if each.block.endswith("else_branch"))
    needs = {"bound": 1088, "method": "cut", "cuts": [{"node": 1, "duals": [nothing]}]}
    data = deepcopy(case.certificate)
    data["blocks"] = [{"block": other, "order": needs}]
    data["order"] |= {"method": "inside", "inside": other, "bound": 1088}
    for emptied in ("cuts", "states", "fusions"):
        data["order"].pop(emptied, None)
    assert order_verdict(case, data).status == VERIFIED  # the branch alone
    both = case.raised("order", 1024 + 1088 - case.certificate["order"]["bound"])
    both.certificate["blocks"] = data["blocks"]
    both.certificate["order"] = needs | {"bound": 1024 + 1088}
    found = order_verdict(both)
    assert (found.status, found.reason) == (
        REFUSED,
        "the cut at 1 shows 1024 bytes only, not 2112",
    )
