"""One headless Chromium, driven through the DevTools protocol over a pipe."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--window-size=1440,1000", "--remote-debugging-pipe",
)  # fmt: skip


_PATIENCE = 120
"""Seconds to wait for an answer on a machine that does other things too."""


_IS_DRAWN = "!!document.body && document.body.dataset.ready === 'yes'"
"""Whether a page of a report has drawn its map and tables."""

IS_LOADED = "document.readyState === 'complete' && location.protocol === 'file:'"
"""Whether any other page and its pictures are loaded."""


class Browser:
    """One headless Chromium with one page; events are kept, answers are returned."""

    def __init__(self, profile: Path) -> None:
        to_browser, from_us = os.pipe()
        to_us, from_browser = os.pipe()
        # Chromium reads commands on descriptor 3 and answers on 4.
        script = f'exec "$@" 3<&{to_browser} 4>&{from_browser}'
        command = [str(CHROMIUM), *FLAGS, f"--user-data-dir={profile}"]
        self.process = subprocess.Popen(
            ["bash", "-c", script, "bash", *command],
            pass_fds=(to_browser, from_browser),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        self.out, self.inn, self.rest, self.last = from_us, to_us, b"", 0
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self.session = str(attached["sessionId"])
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    session = ""
    """Empty while the browser itself is spoken to, before there is a page."""

    def call(self, method: str, **params: object) -> dict[str, Any]:
        self.last += 1
        message: dict[str, object] = {"id": self.last, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.receive()
            if answer.get("id") == self.last:
                assert "error" not in answer, answer
                return dict(answer["result"])
            self.events.append(answer)

    def receive(self) -> dict[str, Any]:
        until = time.monotonic() + _PATIENCE
        while b"\0" not in self.rest:
            ready, _, _ = select.select([self.inn], [], [], max(until - time.monotonic(), 0))
            assert ready, "the browser does not answer"
            self.rest += os.read(self.inn, 1 << 20)
        message, _, self.rest = self.rest.partition(b"\0")
        return dict(json.loads(message))

    def open(self, path: Path, is_ready: str = _IS_DRAWN) -> None:
        """Open a page, and wait until an expression in it is true."""
        self.events.clear()
        self.call("Page.navigate", url=path.as_uri())
        until = time.monotonic() + _PATIENCE
        while self.run(is_ready) is not True:
            assert time.monotonic() < until, "the page is not ready"

    def run(self, expression: str) -> Any:  # noqa: ANN401 - whatever the page says
        got = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in got, got
        return got["result"].get("value")

    def mouse(self, kind: str, x: float, y: float, **more: object) -> None:
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def press(self, key: str) -> None:
        text = {"text": key} if len(key) == 1 else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))

    def complaints(self) -> list[object]:
        """Return console errors, exceptions, and requests for anything but the page."""
        found: list[object] = []
        for event in self.events:
            params = event.get("params", {})
            if event["method"] == "Runtime.exceptionThrown":
                found.append(params["exceptionDetails"])
            if event["method"] == "Log.entryAdded":
                found.append(params["entry"])
            if event["method"] == "Runtime.consoleAPICalled":
                found.append(params["args"])
            if event["method"] == "Page.javascriptDialogOpening":
                found.append(params["message"])
            if event["method"] == "Network.requestWillBeSent":
                url = params["request"]["url"]
                found += [] if url.startswith(("file:", "data:")) else [url]
        return found

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(10)
        os.close(self.out)
        os.close(self.inn)
