"""What `memplan doctor` found, as text or JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.core.serialization import to_json
from memplan_cli.reporting.escape import terminal
from memplan_cli.reporting.plans.json_text import document

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from memplan_cli.runtime.doctor import Diagnosis


def text(found: Diagnosis) -> str:
    """Return versions, the providers that really work, and what to do about the rest."""
    return "\n".join(_lines(found)) + "\n"


def as_json(found: Diagnosis) -> str:
    """Return everything as JSON, plain ASCII."""
    return document(to_json(found))


def _lines(found: Diagnosis) -> Iterator[str]:
    yield f"Python {terminal(found.python)}"
    width = max((len(name) for name, _ in found.versions), default=0)
    yield from (f"  {name:{width}}  {terminal(version)}" for name, version in found.versions)
    yield "Providers, by creating a session on each"
    for probe in found.probes:
        state = "works" if probe.works else f"does not work: {terminal(probe.reason)}"
        yield f"  {probe.provider}: {state}"
    if not found.problems:
        yield "No problems."
        return
    yield "Problems"
    yield from (f"  {terminal(problem)}" for problem in found.problems)


RENDERERS: Mapping[str, Callable[[Diagnosis], str]] = {"text": text, "json": as_json}
