"""Chromium, driven by its DevTools protocol over two pipes: no driver and no package besides the browser itself."""

import base64
import fcntl
import itertools
import json
import os
import select
import shutil
import signal
import time
from pathlib import Path
from typing import Any

_NAMES = ("chromium", "chromium-browser", "google-chrome")
_FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--disable-background-networking")
_PATIENCE = 60.0  # seconds for one answer


def find_browser() -> str | None:
    """The browser that BROWSER names, else the first that is installed."""
    return shutil.which(os.environ.get("BROWSER", "")) or next(filter(None, map(shutil.which, _NAMES)), None)


class Browser:
    """One page of a headless browser; notes every request, and every error or warning of the console."""

    def __init__(self, program: str, profile: Path) -> None:
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self._numbers = itertools.count(1)
        self._rest = b""
        self._session: str | None = None
        (theirs_in, self._out), (self._in, theirs_out) = os.pipe(), os.pipe()
        # The browser speaks over descriptors 3 and 4; copies above them are overwritten by neither.
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in (theirs_in, theirs_out)]
        actions: list[tuple[Any, ...]] = [
            (os.POSIX_SPAWN_DUP2, end, place) for end, place in zip(ends, (3, 4), strict=True)
        ]
        actions += [(os.POSIX_SPAWN_OPEN, place, os.devnull, os.O_WRONLY, 0) for place in (1, 2)]
        command = [program, *_FLAGS, f"--user-data-dir={profile}", "--remote-debugging-pipe", "about:blank"]
        self._process = os.posix_spawn(program, command, os.environ, file_actions=actions)
        for end in (theirs_in, theirs_out, *ends):
            os.close(end)
        target = next(t for t in self.ask("Target.getTargets")["targetInfos"] if t["type"] == "page")
        attached = self.ask("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.ask(f"{domain}.enable")

    def close(self) -> None:
        """End the browser."""
        os.close(self._out)  # it ends by itself when nobody speaks to it
        limit = time.monotonic() + 10
        while os.waitpid(self._process, os.WNOHANG) == (0, 0):
            if time.monotonic() > limit:
                os.kill(self._process, signal.SIGKILL)
            time.sleep(0.05)
        os.close(self._in)

    def ask(self, method: str, **parameters: Any) -> Any:
        """The answer to a command of the protocol."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        message |= {"sessionId": self._session} if self._session else {}
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while (answer := self._message()).get("id") != number:
            self._note(answer)
        assert "error" not in answer, (method, answer["error"])
        return answer["result"]

    def evaluate(self, expression: str) -> Any:
        """The value of an expression in the page; promises are waited for."""
        answer = self.ask("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait_for(self, expression: str, seconds: float = 20.0) -> float:
        """Wait until an expression is true; how many seconds that took."""
        start = time.monotonic()
        while not self.evaluate(f"Boolean({expression})"):
            assert time.monotonic() - start < seconds, f"still not true after {seconds} s: {expression}"
            time.sleep(0.02)
        return time.monotonic() - start

    def open(self, address: str, *, width: int = 1400, height: int = 1000, dark: bool = False) -> None:
        """Open a page at a size, light or dark, and wait until it has drawn runs."""
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.ask("Emulation.setEmulatedMedia", features=[scheme])
        self.ask("Page.navigate", url="about:blank")  # else a change of the fragment alone would not load anew
        self.ask("Page.navigate", url=address)
        self.wait_for("globalThis.fedgmr?.page.runs.state && document.querySelector('#runs tbody tr')")

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        """Move, press or release the mouse."""
        self.ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def press(self, key: str) -> None:
        """Press and release a key."""
        for kind in ("keyDown", "keyUp"):
            self.ask("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    def picture(self, path: Path) -> None:
        """Write a PNG image of the whole page."""
        answer = self.ask("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(answer["data"]))

    def _message(self) -> Any:
        while b"\0" not in self._rest:
            assert select.select([self._in], [], [], _PATIENCE)[0], "the browser does not answer"
            read = os.read(self._in, 1 << 20)
            assert read, "the browser has ended"
            self._rest += read
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)

    def _note(self, event: Any) -> None:
        method, parameters = event.get("method"), event.get("params", {})
        if method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(parameters["exceptionDetails"])[:500])
        elif method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning", "assert"):
            self.complaints.append(json.dumps(parameters["args"])[:500])
        elif method == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            self.complaints.append(parameters["entry"]["text"])
