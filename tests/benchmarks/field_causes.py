"""What failed in the collection, by cause."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from .cases import cell

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

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
