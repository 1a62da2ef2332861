"""The text of a validation: each check and each note stands in it once, with its own result."""

from __future__ import annotations

from dataclasses import replace

import pytest

from builders import plan_of_text
from memplan_cli.core.results.observations import CPU, Difference, Validation
from memplan_cli.core.results.report import Proof
from memplan_cli.reporting import document as doc
from memplan_cli.reporting.commands.validate import VALIDATE, validation_document
from memplan_cli.reporting.plans.runtime import reason_not_written

MATCHES = (
    "the plan matches the model: 3 nodes and 2 tensors; not checked (docs/formats.md): texts"
)
DIFFERENCE = Difference("y", 4, 0.5, 4)


def blocks_of(validation: Validation) -> tuple[doc.Block, ...]:
    return validation_document(Proof(validation)).blocks


def text_of(validation: Validation) -> str:
    return " ".join(VALIDATE["text"](Proof(validation)).split())


def test_a_failed_validation_has_each_note_once_and_only_its_reasons_as_failed_checks() -> (
    None
):
    failed = Validation(
        "failed",
        CPU,
        max_abs_diff=0.5,
        bit_identical=False,
        replay="passed",
        differences=(DIFFERENCE,),
        notes=("a run takes 2 times as long", "replay: all 2 tensors were placed", MATCHES),
    )
    checks = [block for block in blocks_of(failed) if isinstance(block, doc.Check)]
    assert [check.passed for check in checks] == [False, True, True]
    assert doc.Note("note", "a run takes 2 times as long") in blocks_of(failed)
    assert text_of(failed).count("all 2 tensors were placed") == 1


def test_a_model_that_did_not_run_fails_with_the_reason() -> None:
    broken = Validation("failed", CPU, bit_identical=False, notes=("it does not run", MATCHES))
    assert blocks_of(broken)[:2] == (
        doc.Check("It does not run.", passed=False),
        doc.Check("The plan matches the model: 3 nodes and 2 tensors."),
    )


def test_each_error_of_a_plan_is_a_failed_check() -> None:
    notes = ("plan: y has another size", "plan: z is missing; not checked further")
    assert blocks_of(Validation("failed", CPU, notes=notes)) == (
        doc.Check("Plan: y has another size.", passed=False),
        doc.Check("Plan: z is missing; not checked further.", passed=False),
    )


def test_a_note_with_the_same_words_as_the_limits_of_the_check_is_kept_whole() -> None:
    reason = "it does not run; not checked further"
    text = text_of(Validation("failed", CPU, notes=(reason, MATCHES)))
    assert "[failed] It does not run; not checked further." in text
    assert "Not checked (docs/formats.md): texts." in text


def test_a_failed_replay_leaves_the_comparison_of_outputs_passed() -> None:
    replayed = Validation(
        "passed",
        CPU,
        max_abs_diff=0.25,
        bit_identical=False,
        replay="failed",
        differences=(DIFFERENCE,),
    )
    checks = [block for block in blocks_of(replayed) if isinstance(block, doc.Check)]
    assert [check.passed for check in checks] == [True, False]


@pytest.mark.parametrize(
    ("validation", "reason"),
    [
        (Validation("failed", CPU, notes=("it does not run", MATCHES)), "it does not run"),
        (Validation("failed", CPU, max_abs_diff=0.5), "differ from those of a default run"),
        (
            Validation("passed", CPU, max_abs_diff=0.0, donated="failed"),
            "two steps with donated",
        ),
    ],
)
def test_a_model_is_not_written_for_the_check_that_failed(
    validation: Validation, reason: str
) -> None:
    report = plan_of_text("g (float[4] x) => (float[4] y) { y = Neg(x) }").report
    assert reason in reason_not_written(replace(report, validation=validation))
