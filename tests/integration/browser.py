"""A headless Chromium that tests drive by its debugging protocol, over two pipes."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), None)
_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-dev-shm-usage"),
    *("--disable-background-networking", "--remote-debugging-pipe"),
)


class Page:
    """One page of the browser.

    Args:
        commands: Where the browser reads.
        answers: Where it writes.
    """

    def __init__(self, commands: int, answers: int) -> None:
        self._commands = commands
        self._answers = os.fdopen(answers, "rb")
        self._count = 0
        self._session = ""
        self.complaints: list[str] = []
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        found = self.ask("Target.attachToTarget", targetId=target, flatten=True)
        self._session = found["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        """What the browser answers to a command; what it says meanwhile is looked through."""
        self._count += 1
        order = {"id": self._count, "method": method, "params": parameters}
        if self._session:
            order["sessionId"] = self._session
        os.write(self._commands, json.dumps(order).encode() + b"\0")
        while True:
            message = self._read()
            if message.get("id") == self._count:
                assert "error" not in message, message["error"]
                result: dict[str, Any] = message["result"]
                return result

    def _read(self) -> dict[str, Any]:
        text = bytearray()
        while (byte := self._answers.read(1)) != b"\0":
            assert byte, "the browser has ended"
            text += byte
        message: dict[str, Any] = json.loads(text)
        if message.get("method") in {"Log.entryAdded", "Runtime.exceptionThrown"}:
            self.complaints.append(json.dumps(message["params"]))
        return message

    def open(self, path: Path, width: int, *, dark: bool = False) -> None:
        """Show a file in a window of that width, and wait until it is all there."""
        self.ask(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=900,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.ask("Emulation.setEmulatedMedia", features=[scheme])
        self.ask("Page.navigate", url=path.as_uri())
        while self.value("document.readyState") != "complete":
            pass

    def value(self, expression: str) -> Any:
        """What a JavaScript expression is, promises awaited."""
        found = self.ask(
            "Runtime.evaluate",
            expression=expression,
            awaitPromise=True,
            returnByValue=True,
            userGesture=True,
        )
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def move_to(self, x: float, y: float, kind: str = "mouseMoved") -> None:
        """Put the pointer there, or press (``mousePressed``) or release its button."""
        pressed = {} if kind == "mouseMoved" else {"button": "left", "clickCount": 1}
        self.ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, **pressed)

    def click(self, x: float, y: float) -> None:
        """Click there."""
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.move_to(x, y, kind)

    def print(self) -> bytes:
        """The page as PDF."""
        return base64.b64decode(self.ask("Page.printToPDF")["data"])


@contextmanager
def browser(folder: Path) -> Iterator[Page]:
    """A page of a browser that keeps what it keeps in a folder, and ends with the test."""
    assert CHROMIUM is not None
    to_browser, of_us = os.pipe()
    to_us, of_browser = os.pipe()
    # The browser reads from descriptor 3 and writes to 4, whatever numbers the pipes have here.
    wrapper = f'exec "$0" "$@" 3<&{to_browser} 4>&{of_browser}'
    process = subprocess.Popen(
        ["bash", "-c", wrapper, CHROMIUM, *_FLAGS, f"--user-data-dir={folder}"],
        pass_fds=(to_browser, of_browser),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(to_browser)
    os.close(of_browser)
    try:
        yield Page(of_us, to_us)
    finally:
        os.close(of_us)
        process.terminate()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
