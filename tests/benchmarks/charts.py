"""Draw the charts of the documentation from the tables of docs/measurements.

    python -m tests.benchmarks.charts          writes docs/charts/*.svg

Nothing is measured here: a chart shows what its page's table says, with the date and the version of
ONNX Runtime that the page states. `tests/documents/test_figures.py` compares the files with the tables.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from .models import ROOT
from .pages import MEASUREMENTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

CHARTS_FOLDER = ROOT / "docs" / "charts"

KNOWN_NETWORKS = {
    "bert_base_dyn_ts": "BERT-base",
    "gpt2_small": "GPT-2",
    "llama_1b_dyn": "Llama, 1.2 billion",
    "t5_small_decoder": "T5-small, decoder",
    "whisper_tiny_encoder": "Whisper-tiny, encoder",
    "resnet50": "ResNet-50",
    "mobilenetv3_large": "MobileNetV3",
    "efficientnet_b0": "EfficientNet-B0",
    "swin_tiny": "Swin-T",
    "segformer_b0": "SegFormer-B0",
    "sd15_unet": "Stable Diffusion",
}
"""The models of the process chart with the names that people know them by.

They are the published networks that the page on processes has, each family once, whatever their result is.
"""

# Narrow, so that the text can still be read where a telephone shows the chart at 350 pixels.
_WIDTH, _MARGIN = 480, 16
_ROW_HEIGHT, _BAR_HEIGHT = 40, 11
_BEFORE, _AFTER, _PRIVATE = "#d0d7de", "#7fb2e5", "#0b5cad"


@dataclass(frozen=True, slots=True)
class Bar:
    """A row of a chart: a size before and after, in one unit.

    Attributes:
        remark: text behind the two numbers; may be empty.
        private: the part of `after` that is drawn dark; 0 if the chart has no such part.
    """

    name: str
    before: float
    after: float
    remark: str = ""
    private: float = 0.0


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart of sizes before and after.

    Attributes:
        legend: what the colors mean: of the whole bar, of its colored part and of the dark part.
        note: how and when the figures were measured.
        full: the size of a bar of the full width; None if each row's size before has it.
    """

    title: str
    unit: str
    bars: tuple[Bar, ...]
    legend: tuple[str, ...]
    note: str
    full: float | None = None


def main() -> None:
    """Write every chart, and say which files were written."""
    CHARTS_FOLDER.mkdir(parents=True, exist_ok=True)
    for name, text in chart_files().items():
        (CHARTS_FOLDER / name).write_text(text, encoding="utf-8")
        print(CHARTS_FOLDER.relative_to(ROOT) / name)


def chart_files() -> dict[str, str]:
    """Return the SVG text of each chart by its file name."""
    return {f"{name}.svg": svg(draw()) for name, draw in CHARTS.items()}


def process_chart() -> Chart:
    """Return the highest memory of processes: the original's and that of the file for ``cpu``."""
    page = (MEASUREMENTS / "process.md").read_text(encoding="utf-8")
    rows = {
        (row["model"], row["file"]): row
        for row in table_rows(page, "model", "file", "run", "private")
    }
    bars = []
    is_equal = all(rows[model, "cpu"]["bits"] == "same" for model in KNOWN_NETWORKS)
    for model, name in KNOWN_NETWORKS.items():
        before, after = rows[model, "default"], rows[model, "cpu"]
        remark = f"private {_rounded(before['private'])} → {_rounded(after['private'])}"
        bars.append(
            Bar(
                name, float(before["run"]), float(after["run"]),
                remark=remark, private=float(after["private"]),
            )
        )  # fmt: skip
    return Chart(
        title="Memory of a process that runs each network",
        unit="MB",
        bars=tuple(bars),
        legend=("ONNX Runtime's defaults", "memplan, --target cpu", "of it private"),
        note=f"{conditions(page)}. Beyond the runtime itself. Light blue: weights mapped from a "
        f"file, which processes share.{' Bit-identical outputs.' if is_equal else ''}",
    )


def chunking_chart() -> Chart:
    """Return what ONNX Runtime's arena holds in a first run, before and after chunking."""
    page = (MEASUREMENTS / "chunking.md").read_text(encoding="utf-8")
    rows = [*table_rows(page, "model", "measured before", "measured after", "bits")]
    bars = [
        Bar(row["model"], float(row["measured before"]), float(row["measured after"]))
        for row in rows
    ]
    is_equal = all(row["bits"] == "equal" for row in rows)
    return Chart(
        title="Activations of a first run, --chunk auto",
        unit="MiB",
        bars=tuple(bars),
        legend=("ONNX Runtime's defaults", "memplan, --target cpu --chunk auto"),
        note=f"{conditions(page)}.{' The same outputs, bit for bit.' if is_equal else ''}",
    )


def serving_chart() -> Chart:
    """Return the highest memory over many requests: the defaults and the chosen settings."""
    page = (MEASUREMENTS / "serving.md").read_text(encoding="utf-8")
    highest = {
        (row["model"], row["settings"]): float(row["highest, MB"])
        for row in table_rows(page, "model", "settings", "highest, MB")
    }
    bars = [
        Bar(model, size, highest[model, "chosen"])
        for (model, settings), size in highest.items()
        if settings == "defaults"
    ]
    return Chart(
        title="A server under requests of random sizes",
        unit="MB",
        bars=tuple(bars),
        legend=("ONNX Runtime's defaults", "memplan settings --bounds"),
        note=f"{conditions(page)}. Highest memory beyond the loaded session.",
    )


def ordering_chart() -> Chart:
    """Return the live peaks of models whose order is improved, with in-place results and views."""
    page = (MEASUREMENTS / "ordering.md").read_text(encoding="utf-8")
    bars = []
    for row in table_rows(page, "model", "sharing", "file", "best"):
        if row["sharing"] == "safely" and not row["model"].isdigit():
            before, after = (float(row[key].replace(",", "")) for key in ("file", "best"))
            if after < before:
                bars.append(Bar(row["model"], before, after))
    return Chart(
        title="Live peak in memplan's order of nodes",
        unit="KiB",
        bars=tuple(bars),
        legend=("in the order of the file", "in memplan's order"),
        note=f"{conditions(page)}. Models whose order is already optimal are left out.",
    )


def caches_chart() -> Chart:
    """Return the memory of decoding processes with growing caches and with caches in place."""
    page = (MEASUREMENTS / "caches.md").read_text(encoding="utf-8")
    bars = [
        Bar(
            f"{row['model']}, {row['capacity']} entries",
            float(row["process before"]),
            float(row["process now"]),
        )
        for row in table_rows(page, "model", "capacity", "process before", "process now")
    ]
    return Chart(
        title="A process that decodes, beyond its session",
        unit="MiB",
        bars=tuple(bars),
        legend=("growing caches", "memplan, --kv-cache in-place"),
        note=f"{conditions(page)}. The same tokens, bit for bit.",
    )


def runtimes_chart() -> Chart:
    """Return the highest memory of runs in each runtime, in percent of ONNX Runtime's defaults."""
    page = (MEASUREMENTS / "runtimes.md").read_text(encoding="utf-8")
    rows = [*table_rows(page, "runtime", "networks", "run", "private")]
    bars = [
        Bar(
            f"{row['runtime'].replace('`', '')} ({row['networks']})",
            before=100,
            after=100 * float(row["run"]),
            remark=f"private {100 * float(row['private']):.0f}",
        )
        for row in rows
    ]
    return Chart(
        title="Memory of runs by runtime",
        unit="% of the defaults'",
        bars=tuple(bars),
        legend=("ONNX Runtime's defaults", "this runtime"),
        note=f"{conditions(page)}. Highest memory beyond the imported runtime; geometric means, "
        "in brackets of how many networks.",
        full=max(bar.after for bar in bars),
    )


CHARTS: Mapping[str, Callable[[], Chart]] = {
    "process": process_chart,
    "chunking": chunking_chart,
    "serving": serving_chart,
    "ordering": ordering_chart,
    "caches": caches_chart,
    "runtimes": runtimes_chart,
}
"""The charts by the name of their file."""


def table_rows(page: str, *columns: str) -> Iterator[dict[str, str]]:
    """Yield the rows of the tables of a Markdown page that have these columns, as cells by column."""
    header: Sequence[str] = ()
    is_rule = False
    for line in page.splitlines():
        if not line.startswith("|"):
            header = ()
            continue
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not header:
            header, is_rule = cells, True
        elif is_rule:  # the line below the header, of dashes
            is_rule = False
        elif {*columns} <= {*header}:
            yield dict(zip(header, cells, strict=False))


def conditions(page: str) -> str:
    """Return the version, the device and the date that a page states for its figures.

    Raises:
        ValueError: the page states no version of ONNX Runtime or onnx, or no date.
    """
    tool = r"(?:ONNX Runtime|onnx) \d+\.\d+\.\d+(?:, CPU)?(?:, one thread)?"
    version = re.search(tool, page)
    date = re.search(r"\b20\d\d-\d\d-\d\d\b", page)
    if version is None or date is None:
        raise ValueError("the page states no version of ONNX Runtime or onnx, or no date")
    return f"{version[0]}, {date[0]}"


def svg(chart: Chart) -> str:
    """Return a chart as an SVG document with a white background."""
    notes = _wrapped(chart.note, columns=66)
    top = 64
    height = top + _ROW_HEIGHT * len(chart.bars) + 18 * len(notes) + 14
    fonts = "system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif"
    box = f'viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {box} role="img" font-family="{fonts}">',
        f"<title>{escape(chart.title)}</title>",
        f'<rect width="{_WIDTH}" height="{height}" rx="8" fill="#ffffff"/>',
        _text(_MARGIN, 26, f"{chart.title}, {chart.unit}", size=16, bold=True),
    ]
    lines += _legend(chart.legend)
    for index, bar in enumerate(chart.bars):
        lines += _bar(bar, top + _ROW_HEIGHT * index, chart.full or bar.before)
    bottom = top + _ROW_HEIGHT * len(chart.bars) + 14
    lines += [
        _text(_MARGIN, bottom + 18 * index, line, size=12, color="#57606a")
        for index, line in enumerate(notes)
    ]
    return "\n".join([*lines, "</svg>"]) + "\n"


def _bar(bar: Bar, top: int, full: float) -> list[str]:
    """Return the elements of one row: its text, and the bars below; ``full`` has the whole width."""
    scale = (_WIDTH - 2 * _MARGIN) / full
    numbers = f"{_rounded(bar.before)} → {_rounded(bar.after)}"
    if bar.remark:
        numbers += f", {bar.remark}"
    y = top + 20
    shapes = [
        _text(_MARGIN, top + 14, bar.name, size=14, bold=True),
        _text(_WIDTH - _MARGIN, top + 14, numbers, size=14, anchor="end"),
        _rectangle(y, bar.before * scale, _BEFORE),
        _rectangle(y, min(full, bar.after) * scale, _AFTER if bar.private else _PRIVATE),
    ]
    if bar.private:
        shapes.append(_rectangle(y, bar.private * scale, _PRIVATE))
    return shapes


def _legend(texts: Sequence[str]) -> list[str]:
    """Return the legend: a square and a text for each color, from left to right."""
    colors = (_BEFORE, _AFTER, _PRIVATE) if len(texts) > 2 else (_BEFORE, _PRIVATE)
    lines, x = [], _MARGIN
    for color, text in zip(colors, texts, strict=True):
        lines.append(f'<rect x="{x}" y="41" width="11" height="11" fill="{color}"/>')
        lines.append(_text(x + 16, 51, text, size=12, color="#57606a"))
        x += 40 + int(6.2 * len(text))
    return lines


def _rectangle(y: int, width: float, color: str) -> str:
    return f'<rect x="{_MARGIN}" y="{y}" width="{width:.1f}" height="{_BAR_HEIGHT}" fill="{color}"/>'


def _text(
    x: int, y: int, text: str, *, size: int, bold: bool = False, anchor: str = "start",
    color: str = "#1f2328",
) -> str:  # fmt: skip
    weight = ' font-weight="600"' if bold else ""
    return (
        f'<text x="{x}" y="{y}" font-size="{size}"{weight} text-anchor="{anchor}" '
        f'fill="{color}">{escape(text)}</text>'
    )


def _rounded(size: float | str) -> str:
    """Return a size in whole units with thousands separators; below 10 with one decimal."""
    value = float(size)
    return f"{value:,.1f}" if value < 10 else f"{value:,.0f}"


def _wrapped(text: str, columns: int) -> list[str]:
    lines = [""]
    for word in text.split():
        if len(lines[-1]) + len(word) >= columns:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines


if __name__ == "__main__":
    main()
