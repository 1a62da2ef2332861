"""The steps of the pages in docs/tasks: files to write, files to copy and commands to run.

    PYTHONPATH=tests:tests/e2e python -m documents.task_pages FOLDER

runs the commands of all pages on the models in FOLDER, and writes their output into the empty text
blocks of the pages.
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
    """One line of a shell block, or one file of settings to write.

    Attributes:
        words: the words of the command, or ``write``, a file name and its text.
        code: the exit code that the page states.
        printed: the text block below, the output of the command; empty if there is none.
        line: where the block begins in the page.
    """

    words: tuple[str, ...]
    code: int
    printed: str
    page: Path
    line: int


def steps(page: Path) -> Iterator[Step]:
    """Yield the steps of a page in order; a block of settings is the file memplan.yaml."""
    blocks = list(blocks_of(page))
    for index, block in enumerate(blocks):
        if block.language == "yaml":
            yield Step(("write", "memplan.yaml", block.text), 0, "", page, block.line)
        if block.language != "sh":
            continue
        next_block = blocks[index + 1] if index + 1 < len(blocks) else None
        printed = next_block.text if next_block and next_block.language == "text" else ""
        code = int(block.remark.removeprefix("exit ")) if block.remark else 0
        for line in block.text.splitlines():
            yield Step(tuple(shlex.split(line)), code, printed, page, block.line)


def write_or_copy(step: Step, folder: Path) -> bool:
    """Carry out a step that writes or copies a file in a folder; return whether it is one."""
    kind, *rest = step.words
    if kind == "write":
        (folder / rest[0]).write_text(rest[1], encoding="utf-8")
    elif kind == "cp":
        shutil.copy(folder / rest[0], folder / rest[1])
    return kind in {"write", "cp"}


def without_progress(text: str) -> str:
    """Return the output of a command without its progress lines."""
    lines = text.splitlines()
    return "\n".join(line.rstrip() for line in lines if not _PROGRESS.fullmatch(line))


def main(folder: Path) -> None:
    """Run the commands of every page, and write their output into its empty text blocks."""
    for page in TASKS:
        work = folder / page.stem
        work.mkdir(exist_ok=True)
        for model in folder.glob("*.onnx"):
            shutil.copy(model, work)
        for step in list(steps(page)):
            if write_or_copy(step, work):
                continue
            if step.printed.strip():
                continue
            print(f"{page.name}:{step.line} {shlex.join(step.words)}", flush=True)
            process = subprocess.run(
                step.words, cwd=work, check=False, text=True,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )  # fmt: skip
            assert process.returncode == step.code, process.stdout
            text = page.read_text(encoding="utf-8")
            head, empty, rest = text.partition("```text\n```")
            if empty and head.rstrip().endswith(f"{source_line(step, text)}\n```"):
                output = without_progress(process.stdout).strip()
                page.write_text(f"{head}```text\n{output}\n```{rest}", encoding="utf-8")


def source_line(step: Step, text: str) -> str:
    """Return the line of a page's text from which a step was read."""
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
