"""The page of the collection: what is known of each model, and what fails."""

from __future__ import annotations

import platform
import re
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import onnx
import onnxruntime

from memplan_cli.core.version import VERSION

from .cases import cell
from .field_collection import LEFT_OUT
from .field_packages import PACKAGES
from .field_rows import COMMANDS, NOT_RUN, STOPPED, Row

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import date

MEANS = {STOPPED: "t", NOT_RUN: "-"}

COLUMNS = (
    "model", "source", "producer", "nodes", "weights", "opset", "total, no options",
    "total, shapes given", "coverage", "runs", "`optimize`, s", "exit codes",
)  # fmt: skip


@dataclass(frozen=True)
class Made:
    """A run over the whole collection."""

    rows: tuple[Row, ...]
    notes: tuple[str, ...]
    seconds: float
    day: date


def page(made: Made) -> list[str]:
    """Return the lines of the page."""
    rows = made.rows
    return [
        *_head(made),
        *_summary(rows),
        *_commands(rows),
        *_table(rows),
        *_causes(rows),
        *_naive(rows),
        *_hints(rows),
        *_sources(made.notes),
    ]


def _head(made: Made) -> list[str]:
    return [
        "# Models as people ship them",
        "",
        f"Made by `make field` on {made.day} in {made.seconds / 60:.0f} minutes: memplan",
        f"{VERSION}, onnx {onnx.__version__}, ONNX Runtime {onnxruntime.__version__},",
        f"Python {platform.python_version()}, {platform.machine()}. Every command was given",
        f"{len(made.rows)} models: those inside packages that people install, what exporters",
        'write of tiny models, and the hard ones of `../shared/models`. "Shapes given" means',
        "`--shape` for every input; the shapes are those that the packages feed, or drawn by",
        'a rule (`tests/benchmarks/field_shapes.py`), and stand below. "Runs" means that ONNX',
        "Runtime runs the model with these shapes.",
        "",
    ]  # fmt: skip


def _summary(rows: Sequence[Row]) -> list[str]:
    runs = [row for row in rows if row.runtime["runs"]]
    proved = [row for row in rows if row.proved]
    both = [row for row in proved if row.runtime["runs"]]
    naive = [row for row in runs if _comparable(row)]
    equal = [row for row in naive if row.bound["naive"] == row.runtime["naive"]]
    followed = [at for row in rows for at in row.hints]
    lines: list[tuple[str, int, int]] = [
        ("models that ONNX Runtime runs with these shapes", len(runs), len(rows)),
        *_totals("without options", [row.free for row in rows]),
        *_totals("with shapes given", [row.bound for row in rows]),
        ("the same, of those that ONNX Runtime runs: a number", _numbers(runs), len(runs)),
        ("`naive` with shapes given equal to a run's, where both are numbers", len(equal), len(naive)),
        ("`optimize` without options proves the written model", _passed(proved), len(proved)),
        ("the same, of those that ONNX Runtime runs", _passed(both), len(both)),
        ("hints that lead further", sum(_leads(at.outcome) for at in followed), len(followed)),
    ]  # fmt: skip
    return [
        "| figure | count | of |",
        "|---|---:|---:|",
        *(f"| {label} | {count} | {of} |" for label, count, of in lines),
        "",
    ]


def _totals(when: str, figures: Sequence[dict[str, Any]]) -> list[tuple[str, int, int]]:
    kinds = Counter(_kind(at["total"]) for at in figures)
    whole = sum(at["coverage"] == 1.0 for at in figures)
    return [
        (f"a total {when}: a number", kinds["number"], len(figures)),
        (f"a total {when}: a formula", kinds["formula"], len(figures)),
        (f"no total {when}", kinds["none"], len(figures)),
        (f"coverage 1.0 {when}", whole, len(figures)),
    ]


def _numbers(rows: Sequence[Row]) -> int:
    return sum(_kind(row.bound["total"]) == "number" for row in rows)


def _passed(rows: Sequence[Row]) -> int:
    return sum(row.ending("optimize").code == 0 for row in rows)


def _leads(outcome: str) -> bool:
    return outcome in ("works", "another message")


def _kind(total: object) -> str:
    if total is None:
        return "none"
    return "number" if isinstance(total, int) else "formula"


def _comparable(row: Row) -> bool:
    return row.bound["naive"] is not None and row.runtime["naive"] is not None


def _commands(rows: Sequence[Row]) -> list[str]:
    lines = [
        "| command | exit 0 | 1 | 2 | out of time | not run | slowest, s |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for command, words in COMMANDS.items():
        endings = [row.ending(command) for row in rows]
        codes = Counter(at.code for at in endings)
        cells = " | ".join(str(codes[code]) for code in (0, 1, 2, STOPPED, NOT_RUN))
        slowest = max(at.seconds for at in endings)
        lines.append(f"| `{' '.join(words)}` | {cells} | {slowest:.1f} |")
    return [*lines, ""]


def _table(rows: Sequence[Row]) -> list[str]:
    short = ", ".join(COMMANDS)
    lines = [
        "## Each model",
        "",
        f"Exit codes in this order: {short}; `t` is out of time, `-` not run. Coverage: without",
        "options and with shapes given.",
        "",
        f"| {' | '.join(COLUMNS)} |",
        "|---|---|---|---:|---|---|---|---:|---|---|---:|---|",
    ]
    for row in rows:
        ends = [row.ending(command).code for command in COMMANDS]
        codes = " ".join(MEANS.get(code, str(code)) for code in ends)
        optimize = row.ending("optimize")
        passed = "-" if optimize.code == NOT_RUN else "**no**"
        passed = f"{optimize.seconds:.0f}" if optimize.code == 0 else passed
        runs = "yes" if row.runtime["runs"] else "no"
        cover = f"{_share(row.free)} / {_share(row.bound)}"
        lines.append(
            f"| {row.name} | {row.source} | {cell(row.producer, 30)} | {row.nodes} "
            f"| {row.dtype} | {cell(row.opset, 30)} | {_total(row.free)} | {_total(row.bound)} "
            f"| {cover} | {runs} | {passed} | `{codes}` |"
        )
    shapes = [f"- `{row.name}`: {cell(row.shapes, 200)}" for row in rows]
    return [*lines, "", "The shapes:", "", *shapes, ""]


def _share(figures: dict[str, Any]) -> str:
    coverage = figures["coverage"]
    return "-" if coverage is None else f"{coverage:.2f}"


def _total(figures: dict[str, Any]) -> str:
    total = figures["total"]
    if total is None:
        return "none"
    return f"{total:,}" if isinstance(total, int) else f"`{cell(str(total), 60)}`"


def _causes(rows: Sequence[Row]) -> list[str]:
    lines = ["## What fails, by cause", ""]
    found = causes(rows)
    for cause, cases in found:
        models = sorted({model for model, _, _ in cases})
        commands = ", ".join(dict.fromkeys(command for _, command, _ in cases))
        lines += [
            f"- **{cell(cause, 160)}**: {len(models)} models ({commands}): {', '.join(models)}.",
            f"  For example `{cases[0][0]}`, {cases[0][1]}: {cell(cases[0][2], 260)}",
        ]
    broken = [row for row in rows if not row.runtime["runs"]]
    lines += ["", f"ONNX Runtime itself runs {len(rows) - len(broken)} of {len(rows)}:", ""]
    lines += [f"- `{row.name}`: {cell(row.runtime['error'], 240)}" for row in broken]
    return [*lines, ""]


def causes(rows: Sequence[Row]) -> list[tuple[str, list[tuple[str, str, str]]]]:
    """Return (model, command, message) by cause, that of most models first."""
    groups: dict[str, list[tuple[str, str, str]]] = defaultdict(list)
    for row in rows:
        for at in row.endings:
            if at.message:
                groups[_cause(at.message, row.name)].append((row.name, at.command, at.message))
        for command, figures in (("report", row.free), ("report, shapes", row.bound)):
            ended = row.ending(command)
            if ended.code == 0 and figures["total"] is None:
                share = f"coverage {figures['coverage']:.3f}"
                groups[f"no total ({command})"].append((row.name, command, share))
    size: Callable[[Any], int] = lambda item: -len({model for model, _, _ in item[1]})  # noqa: E731
    return sorted(groups.items(), key=size)


def _cause(message: str, model: str) -> str:
    text = message.replace(f"{model}.onnx", "MODEL")
    text = re.sub(r"'[^']*'", "'...'", text)
    text = re.sub(r"\[[^\]]*\]", "[...]", text)
    text = re.sub(r"\b\d[\d,.]*\b", "N", text)
    return re.sub(r"(N|'\.\.\.')(, (and )?\1)+", r"\1", text)[:160]


def _naive(rows: Sequence[Row]) -> list[str]:
    differ = [
        row for row in rows if _comparable(row) and row.bound["naive"] != row.runtime["naive"]
    ]
    return [
        "## `naive` against a run",
        "",
        "Each intermediate of the top graph was made an output of a run without optimisations;",
        "`naive` counts those inside subgraphs too, so models with If or Loop differ rightly.",
        "",
        *(
            f"- `{row.name}`: {row.bound['naive']:,} planned, {row.runtime['naive']:,} in the run"
            for row in differ
        ),
        *([] if differ else ["No difference."]),
        "",
    ]


def _hints(rows: Sequence[Row]) -> list[str]:
    followed = [at for row in rows for at in row.hints]
    lines = [
        "## Hints",
        "",
        "Each hint that a command printed was copied into the command as it stands, up to three",
        "times in a row. One without anything to copy has a placeholder such as `NAME=D,D`.",
        "",
        "| outcome | hints |",
        "|---|---:|",
    ]
    for outcome, count in Counter(at.outcome for at in followed).most_common():
        lines.append(f"| {outcome} | {count} |")
    groups: dict[tuple[str, str], list[Any]] = defaultdict(list)
    for at in followed:
        if not _leads(at.outcome):
            groups[at.outcome, _cause(at.hint, at.model)].append(at)
    lines += ["", "Those that lead no further:", ""]
    for (outcome, _), group in sorted(groups.items(), key=lambda item: -len(item[1])):
        models = dict.fromkeys(at.model for at in group)
        commands = ", ".join(dict.fromkeys(at.command for at in group))
        lines.append(
            f"- {outcome}, {len(group)} times, {len(models)} models ({commands}): "
            f'"{cell(group[0].hint, 200)}" of `{group[0].model}`'
        )
    return [*lines, ""]


def _sources(notes: Sequence[str]) -> list[str]:
    return [
        "## Where the models come from",
        "",
        "| package | version | why |",
        "|---|---|---|",
        *(f"| {at.name} | {at.version} | {at.why} |" for at in PACKAGES),
        "",
        "Only the model files are taken out of the wheels; nothing of a package is executed.",
        "Exporters ran in environments of their own (`tests/benchmarks/field_exporters.py`).",
        "Not run:",
        "",
        *(f"- {name}: {why}" for name, why in LEFT_OUT),
        *(f"- {note}" for note in notes),
    ]
