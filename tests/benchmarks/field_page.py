"""The page of the collection: what is known of each model, and what fails."""

from __future__ import annotations

import platform
import re
from collections import Counter, defaultdict
from dataclasses import dataclass
from statistics import geometric_mean
from typing import TYPE_CHECKING, Any

import onnx
import onnxruntime

from memplan_cli.core.version import VERSION

from .cases import cell
from .field_collection import LEFT_OUT, PACKAGES
from .field_process import STOPPED
from .field_rows import COMMANDS, NOT_RUN, Row

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import date

    from .field_rows import Row


def failures(rows: Sequence[Row]) -> list[str]:
    """Return the lines that say what failed, the cause of most models first."""
    lines = ["## What fails, by cause", ""]
    found = causes(rows)
    for why, cases in found:
        models = sorted({model for model, _, _ in cases})
        commands = ", ".join(dict.fromkeys(command for _, command, _ in cases))
        lines += [
            f"- **{cell(why, 160).strip(' :')}**: {len(models)} models ({commands}): {', '.join(models)}.",
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
                groups[cause(at.message, row.name)].append((row.name, at.command, at.message))
        for command, figures in _reports(row):
            ended = row.ending(command)
            if ended.code == 0 and figures["total"] is None:
                share = f"coverage {figures['coverage']:.3f}"
                groups[f"no total ({command})"].append((row.name, command, share))
    size: Callable[[Any], int] = lambda item: -len({model for model, _, _ in item[1]})  # noqa: E731
    return sorted(groups.items(), key=size)


def _reports(row: Row) -> tuple[tuple[str, dict[str, Any]], ...]:
    return (("report", row.free), ("report, shapes", row.bound), ("report, inputs", row.fed))


def cause(message: str, model: str) -> str:
    """Return a message without what belongs to one model: those of one cause are equal."""
    text = message.replace(f"{model}.onnx", "MODEL")
    text = re.sub(r"'[^']*'", "'...'", text)
    text = re.sub(r"\[[^\]]*\]", "[...]", text)
    text = re.sub(r"\b\d[\d,.]*\b", "N", text)
    return re.sub(r"(N|'\.\.\.')(, (and )?\1)+", r"\1", text)[:160]


PARTS = ("load", "run", "private")
NOISE = 1e6
"""Bytes by which one process may differ from the next."""


def figures(rows: Sequence[Row]) -> list[tuple[str, int, int]]:
    """Return (label, count, of) of what was written for the target."""
    passed = _passed(rows)
    known = [row for row in passed if _ratios(row)]
    return [
        ("`optimize --target cpu` passes", len(passed), _asked(rows)),
        ("of them with the original's bits", sum(bool(row.target["identical"]) for row in passed), len(passed)),
        ("of them no process above the original's by more than 1 MB", sum(not _above(row) for row in known), len(known)),
    ]  # fmt: skip


def section(rows: Sequence[Row]) -> list[str]:
    """Return the lines on the processes of the written files."""
    known = [row for row in _passed(rows) if _ratios(row)]
    lines = [
        "## Written for the processor",
        "",
        "Observed processes of the file that `optimize --target cpu` writes, against those of",
        "the model as given: geometric means over the models, then the worst.",
        "",
        "| figure | mean | worst |",
        "|---|---:|---|",
    ]
    for part in PARTS:
        ratios = {row.key: _ratios(row)[part] for row in known if part in _ratios(row)}
        if ratios:
            worst = max(ratios, key=ratios.__getitem__)
            mean = geometric_mean(ratios.values())
            lines.append(f"| {part} | {mean:.3f} | {ratios[worst]:.3f} `{worst[1]}` |")
    above = [f"- `{row.name}`: {', '.join(_above(row))}" for row in known if _above(row)]
    other = [row for row in _passed(rows) if not row.target["identical"]]
    return [
        *lines,
        "",
        "Above the original by more than 1 MB:",
        "",
        *(above or ["None."]),
        "",
        f"With other bits: {_names(other)}.",
        "",
    ]


def _passed(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row.ending("target").code == 0 and row.target]


def _asked(rows: Sequence[Row]) -> int:
    return sum(bool(row.target) or bool(row.ending("target").message) for row in rows)


def _sides(row: Row) -> tuple[dict[str, Any], dict[str, Any]]:
    process = row.target["process"]
    return process.get("original") or {}, process.get("optimized") or {}


def _ratios(row: Row) -> dict[str, float]:
    """Return what is left of each number of the process, where both sides were measured."""
    before, after = _sides(row)
    return {at: after[at] / before[at] for at in PARTS if before.get(at) and after.get(at)}


def _above(row: Row) -> list[str]:
    before, after = _sides(row)
    return [
        f"{at} {before[at] / 1e6:.1f} -> {after[at] / 1e6:.1f} MB"
        for at in _ratios(row)
        if after[at] > before[at] + NOISE
    ]


def _names(rows: Sequence[Row]) -> str:
    return ", ".join(f"`{row.name}`" for row in rows) or "none"


MEANS = {STOPPED: "t", NOT_RUN: "-"}

COLUMNS = (
    "model", "source", "producer", "nodes", "weights", "opset", "total, no options",
    "total, shapes given", "total, inputs given", "coverage", "tensors", "`optimize`, s",
    "exit codes",
)  # fmt: skip


@dataclass(frozen=True)
class Made:
    """A run over the whole collection."""

    rows: tuple[Row, ...]
    notes: tuple[str, ...]
    seconds: float
    day: date


def full_table(made: Made) -> list[str]:
    """Return everything that was found: each model, each failure, each hint."""
    rows = made.rows
    return [
        *_table(rows),
        *failures(rows),
        *_against(rows),
        *_hints(rows),
        *_sources(made.notes),
    ]


def sums(made: Made) -> str:
    """Return the tables of the page: counts, exit codes, and processes of written files."""
    conditions = (
        f"{made.day}, {made.seconds / 60:.0f} minutes: memplan {VERSION}, onnx {onnx.__version__}, "
        f"ONNX Runtime {onnxruntime.__version__}, Python {platform.python_version()}."
    )
    rows = made.rows
    return "\n".join([conditions, "", *_summary(rows), *_commands(rows), *section(rows)])


def _summary(rows: Sequence[Row]) -> list[str]:
    runs = [row for row in rows if row.runtime["runs"]]
    proved = [row for row in runs if row.ending("optimize").code != NOT_RUN]
    held = [row for row in runs if row.against["tensors"]]
    seen = [row for row in proved if row.proof.get("observed")]
    static = [row for row in seen if is_static(row)]
    followed = [at for row in rows for at in row.hints]
    lines: list[tuple[str, int, int]] = [
        ("models that ONNX Runtime runs with these inputs", len(runs), len(rows)),
        *_totals("without options", [row.free for row in rows]),
        *_totals("with shapes given", [row.bound for row in rows]),
        *_totals("with inputs given", [row.fed for row in rows]),
        ("every tensor's bytes with inputs given equal to a run's", sum(not row.against["other"] for row in held), len(held)),
        ("`naive` of the top graph equal to a run's", sum(_agrees(row) for row in held), len(held)),
        ("`optimize --inputs` passes", sum(_passes(row) for row in proved), len(proved)),
        ("`observed` is of those inputs", sum(_is_of_inputs(row) for row in seen), len(seen)),
        ("predicted peaks equal to observed ones, models without a free dim", sum(is_predicted(row) for row in static), len(static)),
        ("the same, all models", sum(is_predicted(row) for row in seen), len(seen)),
        *figures(rows),
        ("hints that lead further", sum(_leads(at.outcome) for at in followed), len(followed)),
    ]  # fmt: skip
    return [
        "| figure | count | of |",
        "|---|---:|---:|",
        *(f"| {label} | {count} | {of} |" for label, count, of in lines),
        "",
    ]


def is_static(row: Row) -> bool:
    """Whether a runtime knows all sizes before it runs: no dim is free, nothing is seen."""
    return not (row.has_free_dims or row.free.get("observed"))


def is_predicted(row: Row) -> bool:
    """Whether both peaks of both models are as predicted."""
    return bool(row.proof["observed"]) and row.proof["predicted"] == row.proof["observed"]


def _agrees(row: Row) -> bool:
    return bool(row.against["planned"] == row.against["run"])


def _passes(row: Row) -> bool:
    return row.ending("optimize").code == 0


def _is_of_inputs(row: Row) -> bool:
    """Whether nobody assumed a dim, and the outputs of these inputs fit into what was seen."""
    peaks = row.proof["observed"].get("original", [None])
    sources = set(row.proof["sources"]) <= {"inputs"}
    return sources and peaks[0] is not None and peaks[0] >= row.runtime["outputs"]


def _totals(when: str, figures: Sequence[dict[str, Any]]) -> list[tuple[str, int, int]]:
    kinds = Counter(_kind(at["total"]) for at in figures)
    whole = sum(at["coverage"] == 1.0 for at in figures)
    return [
        (f"a total {when}: a number", kinds["number"], len(figures)),
        (f"a total {when}: a formula", kinds["formula"], len(figures)),
        (f"no total {when}", kinds["none"], len(figures)),
        (f"coverage 1.0 {when}", whole, len(figures)),
    ]


def _leads(outcome: str) -> bool:
    return outcome in ("works", "another message")


def _kind(total: object) -> str:
    if total is None:
        return "none"
    return "number" if isinstance(total, int) else "formula"


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
        "options, with shapes and with inputs given. Tensors: of those that a run made, how many",
        "have another size in the plan for the same inputs.",
        "",
        f"| {' | '.join(COLUMNS)} |",
        "|---|---|---|---:|---|---|---|---:|---:|---|---|---:|---|",
    ]
    for row in rows:
        ends = [row.ending(command).code for command in COMMANDS]
        codes = " ".join(MEANS.get(code, str(code)) for code in ends)
        optimize = row.ending("optimize")
        passed = "-" if optimize.code == NOT_RUN else "**no**"
        passed = f"{optimize.seconds:.0f}" if optimize.code == 0 else passed
        held = row.against
        other = (
            f"{held['other']} of {held['tensors']}" if row.runtime["runs"] else "does not run"
        )
        cover = " / ".join(_share(at) for at in (row.free, row.bound, row.fed))
        lines.append(
            f"| {row.name} | {row.source} | {cell(row.producer, 30)} | {row.nodes} "
            f"| {row.dtype} | {cell(row.opset, 30)} | {_total(row.free)} | {_total(row.bound)} "
            f"| {_total(row.fed)} | {cover} | {other} | {passed} | `{codes}` |"
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


def _against(rows: Sequence[Row]) -> list[str]:
    differ = [row for row in rows if row.against["other"]]
    peaks = [row for row in rows if row.proof.get("observed") and not is_predicted(row)]
    return [
        "## Against a run",
        "",
        "Each intermediate of the top graph was made an output of a run without optimizations,",
        "and held against the plan for the same inputs: (planned and run, bytes)",
        "",
        *(
            f"- `{row.name}`: {cell('; '.join(row.against['examples']), 200)}"
            for row in differ
        ),
        *([] if differ else ["No difference."]),
        "",
        "Peaks of `optimize --inputs` that are not as predicted (first run, steady):",
        "",
        *(f"- `{row.name}`: {_peaks(row)}" for row in peaks),
        *([] if peaks else ["None."]),
        "",
    ]


def _peaks(row: Row) -> str:
    said = [
        f"{side} {row.proof['predicted'].get(side)} predicted, {seen} observed"
        for side, seen in row.proof["observed"].items()
    ]
    return ("" if is_static(row) else "(dims are free) ") + "; ".join(said)


def _hints(rows: Sequence[Row]) -> list[str]:
    followed = [at for row in rows for at in row.hints]
    lines = [
        "## Hints",
        "",
        "Each clause of each hint that a command printed was copied as it stands, and those",
        "that were printed then, up to three times in a row. One without anything to copy has",
        "a placeholder such as `NAME=D,D`, or only words.",
        "",
        "| outcome | hints |",
        "|---|---:|",
    ]
    for outcome, count in Counter(at.outcome for at in followed).most_common():
        lines.append(f"| {outcome} | {count} |")
    groups: dict[tuple[str, str], list[Any]] = defaultdict(list)
    for at in followed:
        if not _leads(at.outcome):
            groups[at.outcome, cause(at.hint, at.model)].append(at)
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
