"""What `memplan gate` found, as SARIF 2.1.0: for code scanning and editors."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING
from urllib.parse import quote

from memplan_cli.core.quantities import format_change
from memplan_cli.core.version import VERSION
from memplan_cli.reporting.commands.changes import MOST_IN_VERDICT
from memplan_cli.reporting.escape import shortened, terminal
from memplan_cli.reporting.findings.gate import MEANINGS, Finding
from memplan_cli.reporting.plans.json_text import document

if TYPE_CHECKING:
    from memplan_cli.core.serialization import Json
    from memplan_cli.reporting.findings.gate import Result, Verdict

_RULES = tuple(Finding)


def sarif(verdicts: tuple[Verdict, ...]) -> str:
    """Return one run with a result for each finding, tensors as logical locations."""
    log = {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [
            {
                "tool": {"driver": _driver()},
                "columnKind": "unicodeCodePoints",
                "results": [
                    _result(verdict, result)
                    for verdict in verdicts
                    for result in verdict.results
                ],
            }
        ],
    }
    return document(log)


def _driver() -> Json:
    return {
        "name": "memplan",
        "version": VERSION,
        "rules": [
            {
                "id": finding.value,
                "shortDescription": {"text": MEANINGS[finding]},
                "defaultConfiguration": {"level": _level(fails=finding.fails)},
            }
            for finding in _RULES
        ],
    }


def _level(*, fails: bool) -> str:
    return "error" if fails else "warning"


def _result(verdict: Verdict, result: Result) -> Json:
    model = verdict.snapshot.model
    changes = verdict.difference.changes if verdict.difference and result.fails else ()
    lines = [terminal(result.message)]
    lines += [
        f"{format_change(change.effect)} {shortened(change.tensor, 60)}: {terminal(change.reason)}"
        for change in changes[:MOST_IN_VERDICT]
    ]
    location: Json = {
        "physicalLocation": {"artifactLocation": {"uri": quote(model, errors="replace")}}
    }
    if changes:
        location["logicalLocations"] = [
            {"name": terminal(change.tensor), "kind": "variable"}
            for change in changes[:MOST_IN_VERDICT]
        ]
    return {
        "ruleId": result.finding.value,
        "ruleIndex": _RULES.index(result.finding),
        "level": _level(fails=result.fails),
        "message": {"text": "\n".join(lines)},
        "locations": [location],
        "partialFingerprints": {"memplan/v1": _fingerprint(model, result)},
    }


def _fingerprint(model: str, result: Result) -> str:
    """Return what stays the same while the same rule is broken by the same model."""
    key = f"{model}\n{result.finding.value}\n{result.metric}"
    return hashlib.sha256(key.encode("utf-8", "backslashreplace")).hexdigest()
