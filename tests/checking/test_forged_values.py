"""Each value of a plan, a written model and a certificate is checked, or stated to be unchecked."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING
from zlib import crc32

import pytest
from click.testing import CliRunner

from certificate_cases import SAMPLES, Case, random_case
from lies.forged import (
    CERTIFICATE_UNCHECKED,
    Forger,
    certificate_changes,
    files_of,
    is_unchecked,
    unchecked_notes,
    unchecked_tables,
)
from lies.leaves import changes, is_in, plan_schema
from memplan_cli import validate
from memplan_cli.cli import main
from memplan_cli.errors import MemplanError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from lies.leaves import Path as Place

QUICK = (
    "flat",
    "exposed",
    "slots",
    "nested",
    "bounds",
    "recomputed to a share",
    "folded",
    "observed",
    "for the CPU",
)
"""Cases that together have nearly every kind of field; tests.benchmarks.lies tries all values of all cases."""

SLOW = "measured, donated"


def kind(place: Place) -> Place:
    """Return a place with ``*`` for each index, so that all items of a list are of one kind."""
    return tuple("*" if isinstance(key, int) else key for key in place)


@cache
def common_kinds() -> frozenset[Place]:
    """Return the kinds of places in the plan of the first quick case."""
    plan = files_of(QUICK[0]).plan
    return frozenset(kind(place) for place, _ in changes(plan, plan_schema(), rows=1))


def is_drawn(name: str, place: Place) -> bool:
    """Return whether a value is forged here.

    All of the first quick case and of the slow case are. Of the others those are whose kind the
    first case lacks, so each kind of field is forged in a case, and another third of the rest.
    """
    return (
        name in (QUICK[0], SLOW)
        or kind(place) not in common_kinds()
        or crc32(f"{name} {place}".encode()) % 3 == 0
    )


@pytest.mark.parametrize("name", [*QUICK, pytest.param(SLOW, marks=pytest.mark.slow)])
def test_a_forged_value_is_refused_or_stated_to_be_unchecked(
    name: str, tmp_path: Path
) -> None:
    forger = Forger(name, tmp_path)
    assert forger.accepts_plan(forger.files.plan)
    accepted = {
        place
        for place, plan in forger.plan_changes(rows=1)
        if is_drawn(name, place) and forger.accepts_plan(plan)
    }
    plan = forger.files.plan
    assert {place for place in accepted if not is_unchecked(place, plan)} == set()


def test_a_record_of_recomputation_without_the_budget_of_the_settings_is_refused(
    tmp_path: Path,
) -> None:
    forger = Forger("recomputed", tmp_path)
    assert forger.accepts_plan(forger.files.plan)
    report = forger.files.plan["report"]
    forged = {**report, "recompute": {**report["recompute"], "budget": None}}
    assert not forger.accepts_plan({**forger.files.plan, "report": forged})


@pytest.mark.parametrize("name", ["flat", "recomputed", "measured, donated", "for the CPU"])
def test_a_forged_note_in_the_model_is_refused(name: str, tmp_path: Path) -> None:
    forger = Forger(name, tmp_path)
    assert forger.accepts_model(forger.model())
    accepted = {key for key, model in forger.note_changes() if forger.accepts_model(model)}
    assert accepted <= unchecked_notes(forger.files.plan)


@pytest.fixture(scope="module")
def certified(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Case]:
    folder = tmp_path_factory.mktemp("certificates")
    return {
        "pair": random_case(3, 8, folder),
        "search": random_case(12, 8, folder),
        "types": random_case(4, 8, folder, level=1),
    }


@pytest.mark.parametrize("name", ["pair", "search", "types"])
def test_a_forged_value_of_a_certificate_is_refused_or_another_witness(
    name: str, certified: Mapping[str, Case]
) -> None:
    case = certified[name]
    accepted = set()
    for place, forged in certificate_changes(case.certificate):
        try:
            if case.verdict(forged).passed:
                accepted.add(place)
        except MemplanError:
            continue
    assert {place for place in accepted if not is_in(place, CERTIFICATE_UNCHECKED)} == set()


def test_the_verdicts_say_what_is_not_checked(tmp_path: Path) -> None:
    net, proof = tmp_path / "net.onnx", tmp_path / "proof.json"
    net.write_bytes((SAMPLES / "branchy_cnn.onnx").read_bytes())
    command = ["optimize", str(net), "--no-validate", "--certificate", str(proof)]
    assert CliRunner().invoke(main, command).exit_code == 0
    plan = net.with_name("net.memplan.json")
    done = CliRunner().invoke(main, ["verify-certificate", *map(str, (net, plan, proof))])
    said = " ".join(done.stdout.split())
    assert (
        "Not checked: the other numbers of the plan, which memplan validate compares" in said
    )
    (note,) = validate(net.with_name("net.memplan.onnx")).validation.notes
    plan_table, _ = unchecked_tables()
    kinds = [
        kind for kind, paths in plan_table.items() if not any("pkg." in path for path in paths)
    ]
    assert note.partition("(docs/formats.md): ")[2].split("; ") == kinds
