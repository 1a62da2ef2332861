"""Take the pictures of docs/screenshots: ``python tests/e2e/screenshots.py MODELS``."""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from browser import Browser
from memplan_cli import workflows
from memplan_cli.reporting.plans import html
from memplan_cli.settings.settings import Settings

TARGET = Path(__file__).parents[2] / "docs" / "screenshots"
MODELS = {"sd15_unet": "light", "train_bert_small_adam": "dark"}
_SETTLE = "new Promise(done => setTimeout(done, 150))"


def page(model: Path) -> str:
    """Return a model's page, the order of its file laid over."""
    kept = replace(Settings(), order="keep")
    plan, other = workflows.plan(model), workflows.plan(model, kept)
    plan = replace(
        plan, report=replace(plan.report, model=replace(plan.report.model, path=model.name))
    )
    return html.render(plan, html.Beside("in the order of the file", other))


def shoot(browser: Browser, path: Path, theme: str, target: Path) -> None:
    """Open a page, point at its map, and take the picture."""
    features = [{"name": "prefers-color-scheme", "value": theme}]
    browser.call("Emulation.setEmulatedMedia", features=features)
    size = {"width": 1440, "height": 1180, "deviceScaleFactor": 1, "mobile": False}
    browser.call("Emulation.setDeviceMetricsOverride", **size)
    browser.open(path)
    browser.run(_SETTLE)
    # The largest tensor: the first row, which is chosen on the map by a click.
    browser.run("document.querySelector('#rows tr[data-tensor]').click()")
    browser.run(_SETTLE)
    browser.screenshot(target)
    assert browser.complaints() == []


def main() -> None:
    """Write a picture a model; the argument is the folder of the shared models."""
    TARGET.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        browser = Browser(Path(folder) / "profile")
        try:
            for name, theme in MODELS.items():
                path = Path(folder) / f"{name}.html"
                path.write_text(page(Path(sys.argv[1]) / f"{name}.onnx"), encoding="utf-8")
                print(f"{name}: {path.stat().st_size} bytes")
                shoot(browser, path, theme, TARGET / f"{name}-{theme}.png")
        finally:
            browser.close()


if __name__ == "__main__":
    main()
