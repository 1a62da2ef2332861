"""A model shown by the real Netron in Chromium: its nodes clicked, its sidebar read."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from browser import Browser

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_ACCEPT = """(() => {
    const found = [...document.querySelectorAll('button')].filter(
        each => each.innerText == 'Accept' && each.offsetParent);
    found.forEach(each => each.click());
    return document.querySelectorAll('.graph-node').length;
})()"""
"""Agree to what a first visit asks, and count the nodes that are drawn."""

_ROWS = """[...document.querySelectorAll('.sidebar .sidebar-item')].map(row => [
    row.querySelector('input').value,
    row.querySelector('.sidebar-item-value-list').innerText.trim(),
])"""

_TRIES = 240


@contextmanager
def shown(model: Path, profile: Path) -> Iterator[Browser]:
    """Serve a model with Netron, open it, and wait until its graph is drawn."""
    import netron

    address = netron.start(str(model), address=("localhost", 0), browse=False)
    browser = Browser(profile)
    try:
        size = {"width": 1400, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        browser.call("Emulation.setDeviceMetricsOverride", **size)
        browser.call("Page.navigate", url=f"http://{address[0]}:{address[1]}/")
        for _ in range(_TRIES):
            time.sleep(0.25)
            if browser.run(_ACCEPT):
                break
        time.sleep(1)
        yield browser
    finally:
        browser.close()
        netron.stop(address)


def node_properties(browser: Browser, node: str) -> list[list[Any]]:
    """Click on a node and return the rows of the sidebar: name and value."""
    corner = browser.run(
        f"(() => {{ const at = document.getElementById('node-name-{node}')"
        ".getBoundingClientRect(); return [at.x + 20, at.y + 10]; })()"
    )
    for kind in ("mousePressed", "mouseReleased"):
        browser.mouse(kind, *corner, button="left", clickCount=1)
    time.sleep(1)
    return list(browser.run(_ROWS))
