"""The pages of the documentation, their links, anchors and code blocks."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from markdown_it import MarkdownIt

if TYPE_CHECKING:
    from collections.abc import Iterator

    from markdown_it.token import Token

ROOT = Path(__file__).parents[2]
README, CONTRIBUTING = ROOT / "README.md", ROOT / "CONTRIBUTING.md"
CHANGELOG = ROOT / "CHANGELOG.md"
DOCS = ROOT / "docs"
ROOMS = frozenset(path.parent.name for path in ROOT.glob("memplan_cli/*/__init__.py"))
PAGES = (README, CONTRIBUTING, CHANGELOG, *sorted(DOCS.rglob("*.md")))


@dataclass(frozen=True, slots=True)
class CodeBlock:
    """A fenced block of a page.

    Attributes:
        line: where the block begins in the page, from 1.
        remark: the text of the HTML comment in front of the block, such as ``runs``; else empty.
    """

    page: Path
    line: int
    language: str
    text: str
    remark: str = ""

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def code_blocks(*languages: str) -> tuple[CodeBlock, ...]:
    """Return the blocks of all pages in some languages."""
    return tuple(
        block for page in PAGES for block in blocks_of(page) if block.language in languages
    )


def blocks_of(page: Path) -> Iterator[CodeBlock]:
    """Yield the fenced blocks of a page."""
    remark = ""
    for token in _tokens(page):
        if token.type == "fence":
            line = token.map[0] + 1 if token.map else 0
            yield CodeBlock(page, line, token.info.strip(), token.content, remark)
        remark = ""
        if token.type == "html_block" and (
            comment := re.fullmatch(r"<!-- (.*?) -->", token.content.strip())
        ):
            remark = comment[1]


def broken_links(page: Path) -> tuple[str, ...]:
    """Return the relative links of a page whose file or anchor does not exist."""
    return tuple(link for link in links(page) if not _resolves(page, link))


def links(page: Path) -> Iterator[str]:
    """Yield the targets of links and images that stay inside the repository."""
    for token in _tokens(page):
        for child in token.children or ():
            target = child.attrGet("href") or child.attrGet("src")
            if target and not re.match(r"[a-z]+:", str(target)):
                yield unquote(str(target))


def missing_files(page: Path) -> tuple[str, ...]:
    """Return the names of modules in a page that do not exist in this repository."""
    return tuple(name for name in _named_modules(page) if not _is_module(name))


def _named_modules(page: Path) -> Iterator[str]:
    """Yield the names of Python files in a page, and in inline code also names like ``packing.pools``.

    ``settings.order`` names a key of plan files, which the room `settings` does not have as a module.
    """
    for token in _tokens(page):
        for child in token.children or ():
            yield from re.findall(r"[\w./-]+\.py\b", child.content)
            if child.type == "code_inline" and re.fullmatch(r"\w+([./]\w+)+", child.content):
                first, *_ = re.split(r"[./]", child.content)
                is_plan_key = child.content.startswith("settings.")
                is_file = child.content.endswith((".md", ".py"))
                if first in ROOMS and not is_plan_key and not is_file:
                    yield child.content


def _is_module(name: str) -> bool:
    if name.endswith(".py"):
        return any(f"/{file}".endswith(f"/{name}") for file in _files())
    path = "memplan_cli/" + name.replace(".", "/")
    # The last part may be a function or class of a module: `planning.choose.choose`.
    modules = {f"{path}.py", f"{path.rpartition('/')[0]}.py"}
    return (ROOT / path).is_dir() or not modules.isdisjoint(_files())


@cache
def _files() -> frozenset[str]:
    """Return the paths of the repository's Python files, relative to its root."""
    folders = ("memplan_cli", "tests", "docs", "sample_models", ".ci")
    return frozenset(
        path.relative_to(ROOT).as_posix()
        for folder in folders
        for path in (ROOT / folder).rglob("*.py")
    )


def anchors(page: Path) -> frozenset[str]:
    """Return the anchors of a page's headings, in the form that GitHub and Sphinx give them."""
    tokens = _tokens(page)
    slugs: list[str] = []
    for heading, inline in pairwise(tokens):
        if heading.type == "heading_open":
            slug = _slug(inline)
            count = slugs.count(slug)
            slugs.append(f"{slug}-{count}" if count else slug)
    return frozenset(slugs)


def _slug(heading: Token) -> str:
    text = "".join(part.content for part in heading.children or ())
    return re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", "-")


def _resolves(page: Path, link: str) -> bool:
    name, _, anchor = link.partition("#")
    target = (page.parent / name).resolve() if name else page
    if not target.is_relative_to(ROOT) and not target.is_relative_to(page.parent):
        return False
    return target.exists() and (not anchor or anchor in anchors(target))


@cache
def _tokens(page: Path) -> tuple[Token, ...]:
    parser = MarkdownIt("commonmark").enable("table")
    return tuple(parser.parse(page.read_text(encoding="utf-8")))
