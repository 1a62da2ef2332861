"""`memplan doctor`: installed packages, working providers and problems."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.reporting import document as doc
from memplan_cli.reporting.media import result_renderers

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from memplan_cli.runtime.doctor import Diagnosis


def diagnosis_document(diagnosis: Diagnosis) -> doc.Document:
    """Return the versions, the page size, the state of each provider, the facts of the file, the problems."""
    provider_states = tuple(
        f"{provider} works" if probe.works else f"{provider} does not work: {probe.reason}"
        for provider, probe in diagnosis.providers.items()
    )
    file_facts = doc.first_rows(("", ""), tuple(diagnosis.file.items()), noun="facts")
    problems = tuple(doc.Check(passed=False, text=problem) for problem in diagnosis.problems)
    return doc.Document(
        f"Python {diagnosis.python}",
        (
            doc.Table(doc.columns("package", "version"), tuple(diagnosis.versions.items())),
            doc.Paragraph(
                f"Memory pages have {diagnosis.page_bytes:,} bytes. "
                f"Files are mapped at multiples of {diagnosis.mapping_bytes:,} bytes."
            ),
            *doc.section("Providers, each tested with a session", doc.Items(provider_states)),
            *doc.section("The file", file_facts),
            *doc.section(
                "Problems", *(problems or (doc.Check(passed=True, text="No problem found."),))
            ),
        ),
    )


DOCTOR: Mapping[str, Callable[[Diagnosis], str]] = result_renderers(
    "doctor", diagnosis_document, "text"
)
