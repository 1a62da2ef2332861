"""Write what every command printed at an earlier commit and prints today, in one page of text.

    python -m tests.benchmarks.text_changes OLD [OUT]

OLD is a commit; OUT is by default docs/history/texts.txt. Every command runs on a small model, on a
transformer and on a model with free dims, with both versions of the code and the installed libraries,
as in a terminal of 80 columns. It takes some ten minutes and a folder of shared models.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .models import ROOT, SHARED
from .same_results import CACHE, Side, commit
from .texts import prepare

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = ROOT / "docs" / "history" / "texts.txt"

_COLUMNS = 80
_TIMEOUT = 600.0
"""Seconds for one command."""

_PROGRESS = re.compile(r"memplan: .* \(\d+ s\)")
"""A line of progress. A terminal shows one at a time and removes it; its seconds are of no interest here."""

_MAX_LINES = 60
"""Lines of an output in the page; the number above it counts all."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A model that commands run on.

    Attributes:
        kind: what the model stands for.
        name: of its file, without the suffix.
        dims: options that bind its free dims, empty if they stay free.
        bounds: options with a range for each free dim, empty without free dims.
        search: the options of ``fit``, of which one dim is searched; empty without free dims.
    """

    kind: str
    name: str
    dims: str = ""
    bounds: str = ""
    search: str = ""


SUBJECTS = (
    Subject("small", "branchy_cnn"),
    Subject("transformer", "vit_ts", dims="--dim batch=2", search="--dim batch=?"),
    Subject(
        "dynamic", "gru_decoder_ts", bounds="--bounds batch=1..4 --bounds seq=1..16",
        search="--dim batch=? --dim seq=8",
    ),
)  # fmt: skip

MODEL_COMMANDS = (
    "report {name}.onnx {dims}",
    "optimize {name}.onnx {dims}",
    "optimize {name}.onnx {dims} --target cpu -o target.onnx",
    "report {name}.memplan.json",
    "gate {name}.onnx {dims} --max-memory 512MiB",
    "gate {name}.onnx {dims} --max-memory 1KiB",
    "gate {name}.onnx {dims} --update-baseline",
    "gate {name}.onnx {dims} --max-increase 2%",
    "why {name}.onnx {dims}",
    "why {name}.onnx {dims} --process",
    "diff {name}.onnx {name}.memplan.json {dims}",
    "fit {name}.onnx --memory 200MiB {search}",
    "settings {name}.onnx {dims}",
    "settings {name}.onnx {bounds}",
    "soak {name}.onnx {bounds} --requests 20",
    "simulate {name}.onnx {dims}",
    "validate {name}.memplan.onnx",
    "validate {name}.memplan.onnx --replay --measure",
    "doctor {name}.memplan.onnx",
    "train-step {name}.onnx -o step.onnx --loss-fn mse --optimizer sgd",
    "sweep {name}.onnx {dims} --jobs 1",
    "optimize {name}.onnx {dims} --certificate c.json --plan certified.json -o certified.onnx",
    "verify-certificate {name}.onnx certified.json c.json",
)
"""Commands on a model, in the order in which they run. The words in braces are fields of `Subject`."""

_NEEDED = ("{bounds}", "{search}")
"""Fields without which a command makes no sense: it is left out where one of its own is empty."""

OTHER_COMMANDS = (
    "pack problem.csv",
    "pack problem.csv --capacity 1",
    "doctor",
    "schema gate",
    "report missing.onnx",
    "optimize branchy_cnn.onnx --exclude fc11",
    "gate branchy_cnn.onnx --max-memory 512",
    "reprot branchy_cnn.onnx",
)
"""Commands without a model, and refusals."""


@dataclass(frozen=True, slots=True)
class Output:
    """What a command printed: standard output and standard error, without lines of progress."""

    exit_code: int
    lines: tuple[str, ...]

    @property
    def measure(self) -> str:
        """Return the number of lines, the length of the longest, and the exit code."""
        longest = max(map(len, self.lines), default=0)
        return f"{len(self.lines)} lines, longest {longest}, exit code {self.exit_code}"

    @property
    def has_unknown_option(self) -> bool:
        """Return whether the command refused an option because it has none of that name."""
        return any("no such option" in line.lower() for line in self.lines)


def command_lines() -> Iterator[tuple[str, str]]:
    """Yield the title of a part of the page and a command line, in the order in which they run."""
    for subject in SUBJECTS:
        values = asdict(subject)
        for command in MODEL_COMMANDS:
            lacks = any(key in command and not values[key.strip("{}")] for key in _NEEDED)
            if not lacks:
                line = " ".join(command.format(**values).split())
                yield f"{subject.kind}: {subject.name}.onnx", line
    for line in OTHER_COMMANDS:
        yield "without a model, and refusals", line


def outputs(side: Side, folder: Path) -> list[Output]:
    """Run all commands in a folder with the code of one side. The folder gets the models first."""
    prepare(folder)
    for subject in SUBJECTS:
        shared = SHARED / "messy" / f"{subject.name}.onnx"
        if shared.exists():
            shutil.copy(shared, folder)
    return [run(side, line, folder) for _, line in command_lines()]


def run(side: Side, line: str, folder: Path) -> Output:
    """Run one command. Paths of this machine are replaced by words."""
    program = "from memplan_cli.cli import main; main(prog_name='memplan')"
    environment = {
        **os.environ,
        "PYTHONPATH": str(side.tree),
        "COLUMNS": str(_COLUMNS),
        "NO_COLOR": "1",
        "ORT_DISABLE_TELEMETRY": "1",
    }
    done = subprocess.run(
        [sys.executable, "-c", program, *shlex.split(line)], cwd=folder, env=environment,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=_TIMEOUT,
    )  # fmt: skip
    text = done.stdout
    places = {
        folder: "FOLDER", side.tree: "PACKAGE", Path(sys.prefix): "PYTHON", ROOT: "REPOSITORY",
        Path.home(): "HOME",
    }  # fmt: skip
    for place, word in places.items():
        text = text.replace(str(place), word)
    lines = (line.rstrip() for line in text.splitlines() if not _PROGRESS.fullmatch(line))
    return Output(done.returncode, tuple(lines))


def page(old: Side, before: list[Output], after: list[Output]) -> Iterator[str]:
    """Yield the lines of the page: how it was made, a table of all commands, and their outputs."""
    commands = [*command_lines()]
    unknown = [
        line
        for (_, line), output in zip(commands, before, strict=True)
        if output.has_unknown_option
    ]
    yield "Texts of the commands, before and after"
    yield ""
    yield f"Before is commit {old.name}, after is the code that this page was made with, by"
    yield f"python -m tests.benchmarks.text_changes {old.name}"
    yield f"Both ran with the same libraries on one machine, in {_COLUMNS} columns. Standard error"
    yield "is among the lines, without progress. Longer lines are commands to copy, which"
    yield "are never broken, and messages on standard error, which a terminal breaks."
    yield "Times depend on the load of the machine. Its paths are words in capitals."
    if unknown:
        yield ""
        yield "Options that did not exist before:"
        yield from (f"  memplan {line}" for line in unknown)
    yield ""
    yield f"{'lines, longest line:':62}{'before':>9}{'after':>9}"
    for (_, line), *sides in zip(commands, before, after, strict=True):
        sizes = (
            f"{len(side.lines)}, {max(map(len, side.lines), default=0)}" for side in sides
        )
        name = line if len(line) <= 60 else f"{line[:57]}..."
        yield f"{name:62}" + "".join(f"{size:>9}" for size in sizes)
    title = ""
    for (part, line), *sides in zip(commands, before, after, strict=True):
        if part != title:
            title = part
            yield from ("", "", "#" * _COLUMNS, f"# {part}", "#" * _COLUMNS)
        yield from ("", "=" * _COLUMNS, f"$ memplan {line}", "=" * _COLUMNS)
        labels = ("before", "after") if sides[0] != sides[1] else ("before and after",)
        for label, output in zip(labels, sides, strict=False):
            yield f"--- {label}: {output.measure}"
            yield from output.lines[:_MAX_LINES]
            hidden = len(output.lines) - _MAX_LINES
            if hidden > 0:
                yield f"--- and {hidden} more lines"


def main() -> None:
    """Run both versions, and write the page."""
    revision, *rest = sys.argv[1:]
    target = Path(rest[0]) if rest else PAGE
    old = commit(revision, CACHE)
    new = Side("the working tree", ROOT, CACHE)
    both = []
    for side in (old, new):
        with tempfile.TemporaryDirectory() as folder:
            both.append(outputs(side, Path(folder)))
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text("\n".join(page(old, *both)) + "\n", encoding="utf-8")
    print(f"{target}: {target.stat().st_size} bytes")


if __name__ == "__main__":
    main()
