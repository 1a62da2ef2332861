"""Seconds and bytes of pages: `python -m tests.benchmarks.pages`, with `tests` and `tests/e2e` on the path.

Plans of many tensors whose names differ as those of exporters do; each page is opened in
Chromium several times, and the median counts from navigation until everything is drawn.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from statistics import median

from browser import Browser
from large_plans import large
from memplan_cli.reporting.plans import html

from .cases import asked, publish
from .fault_place import ROOT

TABLE = ROOT / "docs" / "measurements" / "pages.md"
COUNTS = (1_000, 10_000, 50_000)
TIMES = 5


def row(browser: Browser, count: int, folder: Path) -> str:
    """Return one line of the table."""
    plan, path = large(count), folder / "page.html"
    start = time.perf_counter()
    path.write_text(html.render(plan), encoding="utf-8")
    made = time.perf_counter() - start
    opened = []
    for _ in range(TIMES):
        browser.open(path)
        opened.append(browser.run("performance.now() / 1000"))
    size = path.stat().st_size / 1e6
    return (
        f"| {count:,} | {size:.2f} | {made:.2f} | {median(opened):.2f} | {max(opened):.2f} |"
    )


def main() -> int:
    words = asked(__doc__)
    with tempfile.TemporaryDirectory() as folder:
        browser = Browser(Path(folder) / "profile")
        rows = [row(browser, count, Path(folder)) for count in COUNTS]
        browser.close()
    lines = [
        "# Pages",
        "",
        "Made by `PYTHONPATH=tests:tests/e2e python -m tests.benchmarks.pages`: pages of plans with many tensors,",
        f"names of five levels, all different; opened {TIMES} times in headless Chromium, from",
        "navigation until the map, the table and the groups are drawn.",
        "",
        "| tensors | MB | seconds to make | seconds to open, median | most |",
        "|---:|---:|---:|---:|---:|",
        *rows,
    ]
    publish(lines, TABLE, words)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
