"""Links, anchors and names of modules in the documentation exist, and every page is linked."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from documents.pages import (
    DOCS,
    PAGES,
    ROOT,
    anchors,
    broken_links,
    links,
    missing_files,
)

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_and_anchors_resolve(page: Path) -> None:
    assert broken_links(page) == ()


def test_broken_links_and_anchors_are_reported(tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text("# One `two`\n\n## One two\n")
    page = tmp_path / "page.md"
    page.write_text(
        "# Here\n\n[a](#here) [b](other.md#one-two) [c](other.md#one-two-1) <https://x.org>\n\n"
        "| t |\n|---|\n| [d](nowhere.md) |\n\n[e](other.md#three) [f](#there) ![g](no.png)\n"
    )
    assert broken_links(page) == ("nowhere.md", "other.md#three", "#there", "no.png")


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if page.parent != DOCS / "measurements"],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_named_modules_exist(page: Path) -> None:
    assert missing_files(page) == ()


def test_names_of_missing_modules_are_reported(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "`planning/choose.py`, `choose.py`, `planning.choose`,\n"
        "`planning/plan_file`, `planning.choose.choose`, `other.thing`, `settings.md`\n\n"
        "| tests/gone.py |\n|---|\n| `allocators/pool.py` |\n\n`packing.gone`, `core/gone`\n"
    )
    assert missing_files(page) == (
        "tests/gone.py", "allocators/pool.py", "packing.gone", "core/gone",
    )  # fmt: skip


def test_anchors_of_headings_are_those_of_markdown_viewers(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# `memplan train-step`\n\n## What's new, in 3 words?\n")
    assert anchors(page) == {"memplan-train-step", "whats-new-in-3-words"}


def test_every_page_is_linked_from_the_index() -> None:
    reached, waiting = set(), [DOCS / "index.md"]
    while waiting:
        page = waiting.pop()
        if page not in reached:
            reached.add(page)
            targets = (
                (page.parent / link.partition("#")[0]).resolve() for link in links(page)
            )
            waiting.extend(target for target in targets if target.suffix == ".md")
    assert [page for page in PAGES if page.is_relative_to(DOCS) and page not in reached] == []
