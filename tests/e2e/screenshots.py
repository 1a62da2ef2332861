"""Take the pictures of docs/screenshots: ``python tests/e2e/screenshots.py MODELS [NAME...]``.

MODELS is the folder of the shared models. Pages of reports are made by memplan's own commands. Pages of
the site are those of ``make docs``; charts are those of docs/charts; the help is what a terminal shows.
``make pictures`` does all of it. Pictures whose name ends in ``-narrow`` are 400 pixels wide, as on a
telephone, the others 1,400.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from browser import IS_LOADED, Browser

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[2]
TARGET = ROOT / "docs" / "screenshots"
_SETTLE = "new Promise(done => setTimeout(done, 150))"
_BY_OP = """(() => {
    const menu = document.querySelector('#color');
    menu.value = 'type';
    menu.dispatchEvent(new Event('change'));
})()"""

_OTHER_VALUES = """[[1, 4], [2, 16]].forEach(([symbol, value]) => {
    const field = document.querySelector(`#fields input[data-symbol="${symbol}"]`);
    field.value = value;
    field.dispatchEvent(new Event('input', { bubbles: true }));
    field.dispatchEvent(new Event('change', { bubbles: true }));
})"""

Words = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Picture:
    """A page, and how it is looked at.

    Attributes:
        commands: memplan's, the last of which prints the page. ``SAMPLES`` and ``MODELS``
            stand for folders.
        theme: of the system.
        width: of the window, in pixels.
        done: run in the page before the picture is taken.
    """

    commands: tuple[Words, ...]
    theme: str = "light"
    width: int = 1400
    done: str = ""


@dataclass(frozen=True, slots=True)
class FilePicture:
    """A file of the repository, and how it is looked at.

    Attributes:
        path: relative to the root of the repository.
        width, height: of the window, in pixels.
    """

    path: str
    width: int = 1400
    height: int = 1000


_SYMBOLIC: tuple[Words, ...] = (
    ("report", "MODELS/messy/gpt_cache_dynamo.onnx", "--format", "html"),
)
PICTURES = {
    "symbolic": Picture(_SYMBOLIC, done=_OTHER_VALUES),
    "symbolic-narrow": Picture(_SYMBOLIC, width=400, done=_OTHER_VALUES),
    "measured": Picture(
        (
            ("optimize", "SAMPLES/branchy_cnn.onnx", "-o", "branchy.onnx"),
            ("report", "branchy.json", "--format", "html"),
        ),
        theme="dark",
        done=_BY_OP,
    ),
    "chunked": Picture(
        (
            (
                "report", "MODELS/whisper_tiny_encoder.onnx", "--chunk", "auto", "--budget", "60%",
                "--format", "html",
            ),
        )
    ),
}  # fmt: skip

_SITE = "out/site"
FILE_PICTURES = {
    "site": FilePicture(f"{_SITE}/index.html"),
    "site-narrow": FilePicture(f"{_SITE}/index.html", width=400, height=1150),
    "site-measurement": FilePicture(f"{_SITE}/measurements/process.html"),
    "site-measurement-narrow": FilePicture(
        f"{_SITE}/measurements/process.html", width=400, height=1150
    ),
}


@dataclass(frozen=True, slots=True)
class WrittenPicture:
    """A page that is written here, and is shown in its full height.

    Attributes:
        body: returns the HTML of the page's body.
        width: of the window, in pixels.
    """

    body: Callable[[], str]
    width: int = 1400


def chart_body() -> str:
    """Return the chart of README, as wide as the page allows, but not wider than it is drawn."""
    chart = ROOT / "docs" / "charts" / "process.svg"
    return f'<img src="{chart.as_uri()}" style="max-width: 100%">'


def help_body(columns: int) -> str:
    """Return the help of memplan and of its longest command in terminals of so many columns."""
    program = "from memplan_cli.cli import main; main(prog_name='memplan')"
    terminals = []
    for words in (("--help",), ("optimize", "--help")):
        shown = subprocess.run(
            [sys.executable, "-c", program, *words], check=True, text=True, capture_output=True,
            env={**os.environ, "COLUMNS": str(columns)},
        )  # fmt: skip
        text = escape(f"$ memplan {' '.join(words)}\n{shown.stdout}")
        terminals.append(f'<pre style="width: {columns + 1}ch">{text}</pre>')
    return "".join(terminals)


_PAGE = """<!doctype html><meta charset="utf-8"><link rel="icon" href="data:,">
<style>
body { margin: 6px; display: flex; flex-wrap: wrap; gap: 8px; align-items: flex-start; }
pre { margin: 0; padding: 9px; border-radius: 8px; background: #16181d; color: #e6e6e6;
  font: 13px/1.35 "DejaVu Sans Mono", monospace; white-space: pre-wrap; word-break: break-all; }
@media (max-width: 400px) { pre { font-size: 12px; } }
</style>
<body>"""
"""Before the body of a page. A line that is wider than a terminal goes on in the next one."""

WRITTEN_PICTURES = {
    "chart": WrittenPicture(chart_body),
    "chart-narrow": WrittenPicture(chart_body, width=400),
    "help": WrittenPicture(lambda: help_body(columns=80)),
    "help-narrow": WrittenPicture(lambda: help_body(columns=50), width=400),
}


def made(picture: Picture, models: Path, work: Path) -> Path:
    """Run a picture's commands where copies of the models lie; return its page.

    Raises:
        RuntimeError: a command failed.
    """
    page = work / "page.html"
    folders = {"MODELS": models, "SAMPLES": ROOT / "sample_models"}
    with contextlib.chdir(work):  # a page says the path that it was made from
        for command in picture.commands:
            words = []
            for word in command:
                first, _, rest = word.partition("/")
                if first in folders:
                    shutil.copy(folders[first] / rest, work)
                words.append(Path(rest).name if first in folders else word)
            # A process of its own: the figures of processes are those that a user gets.
            process = subprocess.run(
                [sys.executable, "-m", "memplan_cli", *words], check=False, text=True,
                capture_output=True,
            )  # fmt: skip
            if process.returncode:
                raise RuntimeError(f"{' '.join(words)}: {process.stderr}")
            page.write_text(process.stdout, encoding="utf-8")
    return page


def set_window(browser: Browser, width: int, height: int) -> None:
    """Set the size of the browser's window in pixels."""
    browser.call(
        "Emulation.setDeviceMetricsOverride",
        width=width, height=height, deviceScaleFactor=1, mobile=False,
    )  # fmt: skip


def shoot(browser: Browser, page: Path, picture: Picture, target: Path) -> None:
    """Open a page, do what is to be done, and take the picture."""
    features = [{"name": "prefers-color-scheme", "value": picture.theme}]
    browser.call("Emulation.setEmulatedMedia", features=features)
    set_window(browser, picture.width, 1150)
    browser.open(page)
    browser.run(_SETTLE)
    if picture.done:
        browser.run(picture.done)
        browser.run(_SETTLE)
    browser.screenshot(target)
    assert browser.complaints() == []


def shoot_file(browser: Browser, picture: FilePicture, target: Path) -> None:
    """Open a file of the repository and take the picture.

    Raises:
        FileNotFoundError: the file is not there; pages of the site are made by ``make docs``.
    """
    set_window(browser, picture.width, picture.height)
    browser.open((ROOT / picture.path).resolve(strict=True), IS_LOADED)
    browser.run(_SETTLE)
    browser.screenshot(target)
    assert browser.complaints() == []


def shoot_written(browser: Browser, picture: WrittenPicture, page: Path, target: Path) -> None:
    """Write a page, open it and take a picture of all of it."""
    page.write_text(f"{_PAGE}{picture.body()}", encoding="utf-8")
    set_window(browser, picture.width, 100)
    browser.open(page, IS_LOADED)
    height = browser.run("document.documentElement.scrollHeight")
    set_window(browser, picture.width, int(height))
    browser.run(_SETTLE)
    browser.screenshot(target)
    assert browser.complaints() == []


def main() -> None:
    """Take the pictures that are named, or all."""
    models, *names = sys.argv[1:]
    TARGET.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        browser = Browser(Path(folder) / "profile")
        try:
            browser.call("Emulation.setScrollbarsHidden", hidden=True)
            for name in names or (*PICTURES, *FILE_PICTURES, *WRITTEN_PICTURES):
                if name in FILE_PICTURES:
                    shoot_file(browser, FILE_PICTURES[name], TARGET / f"{name}.png")
                    continue
                if name in WRITTEN_PICTURES:
                    page, target = Path(folder) / f"{name}.html", TARGET / f"{name}.png"
                    shoot_written(browser, WRITTEN_PICTURES[name], page, target)
                    continue
                work = Path(folder) / name
                work.mkdir()
                page = made(PICTURES[name], Path(models).resolve(), work)
                print(f"{name}: {page.stat().st_size} bytes")
                shoot(browser, page, PICTURES[name], TARGET / f"{name}.png")
        finally:
            browser.close()


if __name__ == "__main__":
    main()
