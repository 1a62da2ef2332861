"""The pages of docs/tasks as what they ask to be done: files written, commands run, in order.

    PYTHONPATH=tests:tests/e2e python -m documents.task_pages FOLDER

runs the commands of all pages in FOLDER, which has the models, and writes what they print
into the text blocks that are empty.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from documents.pages import DOCS, blocks_of

if TYPE_CHECKING:
    from collections.abc import Iterator

TASKS = tuple(sorted(page for page in (DOCS / "tasks").glob("*.md") if page.stem != "index"))

_PROGRESS = re.compile(r"memplan: [a-z ]+ \(\d+ s\)")


@dataclass(frozen=True, slots=True)
class Step:
    """Words to run, the exit code that the page says, and what stands below as printed."""

    words: tuple[str, ...]
    code: int
    printed: str
    page: Path
    line: int


def steps(page: Path) -> Iterator[Step]:
    """Yield the steps of a page; a block of settings is written to memplan.yaml."""
    blocks = list(blocks_of(page))
    for at, block in enumerate(blocks):
        if block.language == "yaml":
            yield Step(("write", "memplan.yaml", block.text), 0, "", page, block.line)
        if block.language != "sh":
            continue
        below = blocks[at + 1] if at + 1 < len(blocks) else None
        printed = below.text if below and below.language == "text" else ""
        code = int(block.remark.removeprefix("exit ")) if block.remark else 0
        for line in block.text.splitlines():
            yield Step(tuple(shlex.split(line)), code, printed, page, block.line)


def filed(step: Step, folder: Path) -> bool:
    """Do what a step does to files, if it is of that kind."""
    kind, *rest = step.words
    if kind == "write":
        (folder / rest[0]).write_text(rest[1], encoding="utf-8")
    elif kind == "cp":
        shutil.copy(folder / rest[0], folder / rest[1])
    return kind in {"write", "cp"}


def without_progress(text: str) -> str:
    """Return what a command printed, but for its lines of progress."""
    lines = text.splitlines()
    return "\n".join(line.rstrip() for line in lines if not _PROGRESS.fullmatch(line))


def main(folder: Path) -> None:
    """Run every page's commands, and fill what is empty."""
    for page in TASKS:
        work = folder / page.stem
        work.mkdir(exist_ok=True)
        for model in folder.glob("*.onnx"):
            shutil.copy(model, work)
        for step in list(steps(page)):
            if filed(step, work):
                continue
            if step.printed.strip():
                continue
            print(f"{page.name}:{step.line} {shlex.join(step.words)}", flush=True)
            done = subprocess.run(
                step.words, cwd=work, check=False, text=True,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )  # fmt: skip
            assert done.returncode == step.code, done.stdout
            text = page.read_text(encoding="utf-8")
            head, empty, rest = text.partition("```text\n```")
            followed = empty and head.rstrip().endswith(f"{shlex_line(step, text)}\n```")
            if followed:
                said = without_progress(done.stdout).strip()
                page.write_text(f"{head}```text\n{said}\n```{rest}", encoding="utf-8")


def shlex_line(step: Step, text: str) -> str:
    """Return the line of a page that a step was read from."""
    return next(
        line for line in text.splitlines() if line and tuple(_words(line)) == step.words
    )


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError:
        return []


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
