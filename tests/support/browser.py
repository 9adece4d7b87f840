"""A headless browser, driven over the Chrome DevTools Protocol: exact sizes of the screen, colours, scripts, pictures.

`--window-size` alone cannot show a phone: Chromium's windows are at least 500 pixels wide.
"""

from __future__ import annotations

import base64
import io
import itertools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "headless_shell")
FLAGS = (
    "--headless", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-default-apps", "--disable-sync", "--disable-extensions",
    "--disable-features=OptimizationHints,MediaRouter,Translate,DialMediaRouteProvider", "--hide-scrollbars",
    "--host-resolver-rules=MAP * ~NOTFOUND",  # the browser itself shall not reach out either
    "--remote-debugging-pipe",
)  # fmt: skip
MAX_MESSAGE_BYTES = 1 << 16
# The protocol uses descriptors 3 and 4, which may be in use here: the launcher moves them and becomes the browser.
LAUNCHER = """\
import fcntl, os, sys
moved = [fcntl.fcntl(int(fd), fcntl.F_DUPFD, 10) for fd in sys.argv[1:3]]
for fd, target in zip(moved, (3, 4)):
    os.dup2(fd, target)
os.execv(sys.argv[3], sys.argv[3:])
"""


class BrowserError(Exception):
    """The browser does not run here, or refused a command."""


def find_browser() -> str | None:
    """Path of the first known browser; None if there is none."""
    return next((path for name in BROWSERS if (path := shutil.which(name))), None)


@dataclass
class Page:
    """One page. `console`: its messages and violations of its policy; `asked`: the addresses it requested."""

    browser: Browser
    session: str
    console: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send one DevTools command to this page. BrowserError if it is refused."""
        return self.browser.call(method, self.session, **parameters)

    def resize(self, width: int, height: int = 900) -> None:
        """Give the page a viewport of exactly this size, in CSS pixels."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def emulate(self, *, scheme: str = "light", media: str = "screen") -> None:
        """Set the preferred colour scheme (light, dark) and the medium (screen, print)."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", media=media, features=features)

    def open(self, path: Path) -> None:
        """Load a file and wait until it is complete."""
        self.console.clear()
        self.asked.clear()
        self.browser.loaded.discard(self.session)
        self.call("Page.navigate", url=path.resolve().as_uri())
        while self.session not in self.browser.loaded:
            self.browser.read()

    def evaluate(self, script: str) -> Any:
        """The JSON value of a JavaScript expression. It is not subject to the page's content security policy."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise BrowserError(json.dumps(answer["exceptionDetails"]))
        return answer["result"].get("value")

    def screenshot(self, *, full: bool = True) -> bytes:
        """The page as PNG; with `full` also what is below the viewport."""
        return base64.b64decode(self.call("Page.captureScreenshot", captureBeyondViewport=full)["data"])


class Browser:
    """A running browser. Commands are answered in order, so one thread is enough."""

    def __init__(self, commands: io.BufferedWriter, answers: io.FileIO) -> None:
        self._commands, self._answers = commands, answers
        self._ids, self._buffer = itertools.count(1), b""
        self._replies: dict[int, dict[str, Any]] = {}
        self._pages: dict[str, Page] = {}
        self.loaded: set[str] = set()

    def call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """Send one command and wait for its answer. BrowserError if it is refused or the browser ends."""
        number = next(self._ids)
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        self._commands.write(json.dumps(message).encode() + b"\0")
        self._commands.flush()
        while number not in self._replies:
            self.read()
        reply = self._replies.pop(number)
        if "error" in reply:
            raise BrowserError(f"{method}: {reply['error']}")
        result: dict[str, Any] = reply["result"]
        return result

    def page(self) -> Page:
        """A new, empty page."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = self._pages[session] = Page(self, session)
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.call(f"{domain}.enable")
        return page

    def read(self) -> None:
        """Take the next messages of the browser: replies, loaded pages, console messages and requests."""
        data = self._answers.read(MAX_MESSAGE_BYTES)
        if not data:
            raise BrowserError("the browser ended")
        *messages, self._buffer = (self._buffer + data).split(b"\0")
        for message in map(json.loads, messages):
            if "id" in message:
                self._replies[message["id"]] = message
            elif message["method"] == "Page.loadEventFired":
                self.loaded.add(message["sessionId"])
            elif (page := self._pages.get(message.get("sessionId", ""))) is not None:
                _note(page, message["method"], message["params"])


def _note(page: Page, method: str, parameters: Mapping[str, Any]) -> None:
    if method == "Log.entryAdded":
        page.console.append(str(parameters["entry"]["text"]))
    elif method == "Runtime.consoleAPICalled":
        page.console.append(" ".join(str(value.get("value")) for value in parameters["args"]))
    elif method == "Network.requestWillBeSent":
        page.asked.append(str(parameters["request"]["url"]))


@contextmanager
def running_browser(folder: Path) -> Iterator[Browser]:
    """Start a browser whose profile is in `folder`; it ends with the block. BrowserError if there is none."""
    path = find_browser()
    if path is None:
        raise BrowserError(f"no headless browser on PATH (looked for {', '.join(BROWSERS)})")
    as_root = ("--no-sandbox",) if os.geteuid() == 0 else ()
    taken, commands = os.pipe()
    answers, given = os.pipe()
    flags = [*FLAGS, *as_root, f"--user-data-dir={folder / 'profile'}"]
    process = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, str(taken), str(given), path, *flags],
        pass_fds=(taken, given), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    os.close(taken)
    os.close(given)
    with process, os.fdopen(commands, "wb") as writer, io.FileIO(answers, "rb") as reader:
        browser = Browser(writer, reader)
        try:
            browser.call("Browser.getVersion")
            yield browser
            browser.call("Browser.close")
        finally:
            process.terminate()
