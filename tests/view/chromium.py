"""Chromium: a headless browser driven through its debugging pipe, for tests of the page."""

import json
import os
import shutil
import subprocess
import tempfile
import time
from typing import Self, cast

from coseek.core.files import JsonObject

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--remote-debugging-pipe", "--hide-scrollbars",
)  # fmt: skip
FOUND = shutil.which("chromium")
WAIT_S = 60.0


class Chromium:
    """One page of a browser with its own profile. `requests` are the URLs that the page requested."""

    def __init__(self) -> None:
        assert FOUND is not None, "chromium is not installed"
        self.profile = tempfile.mkdtemp(prefix="coseek-view-")
        (read, self._write), (self._read, write) = os.pipe(), os.pipe()

        def join_pipes() -> None:  # the browser reads file 3 and writes file 4
            high = os.dup(read), os.dup(write)
            os.dup2(high[0], 3)
            os.dup2(high[1], 4)

        self._process = subprocess.Popen(
            [FOUND, *FLAGS, f"--user-data-dir={self.profile}", "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            close_fds=False,
            preexec_fn=join_pipes,
        )
        os.close(read)
        os.close(write)
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        self.requests: list[str] = []
        self.errors: list[str] = []
        targets = cast("list[dict[str, str]]", self.send("Target.getTargets")["targetInfos"])
        page = next(target["targetId"] for target in targets if target["type"] == "page")
        self._session = str(self.send("Target.attachToTarget", targetId=page, flatten=True)["sessionId"])
        for domain in ("Network", "Page", "Runtime", "Log"):
            self.send(f"{domain}.enable")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._write)  # the browser ends when its pipe does
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._read)
        shutil.rmtree(self.profile, ignore_errors=True)

    def send(self, method: str, **params: object) -> JsonObject:
        """Send a command of the DevTools protocol and return its result."""
        self._number += 1
        message: dict[str, object] = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return cast(JsonObject, answer["result"])

    def _next(self) -> JsonObject:
        while b"\0" not in self._buffer:
            chunk = os.read(self._read, 2**20)
            assert chunk, "the browser has ended"
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\0")
        message = cast(JsonObject, json.loads(line))
        params = cast("dict[str, dict[str, object]]", message.get("params", {}))
        if message.get("method") == "Network.requestWillBeSent":
            self.requests.append(str(params["request"]["url"]))
        if message.get("method") == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(params["exceptionDetails"]))
        if message.get("method") == "Log.entryAdded":
            self.errors.append(str(params["entry"]["text"]))
        return message

    def ask(self, script: str) -> object:
        """The JSON value of an expression in the page; promises are awaited."""
        reply = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in reply, reply["exceptionDetails"]
        return cast("dict[str, object]", reply["result"]).get("value")

    def open(self, url: str) -> None:
        """Open a page, and wait until it is drawn."""
        self.send("Page.navigate", url="about:blank")
        self.send("Page.navigate", url=url)
        self.until("document.documentElement?.dataset.openMs !== undefined")

    def until(self, script: str) -> None:
        """Wait until an expression is true."""
        end = time.monotonic() + WAIT_S
        while not self.ask(script):
            assert time.monotonic() < end, f"not true within {WAIT_S:.0f} s: {script}; {self.errors}"
            time.sleep(0.02)

    def go(self, fragment: str, view: str) -> None:
        """Follow a link inside the page."""
        self.ask(f"delete document.documentElement.dataset.shown; location.hash = {json.dumps(fragment)}; 0")
        self.until(f"document.documentElement.dataset.shown === {json.dumps(view)}")

    def press(self, key: str) -> None:
        """Press and release a key."""
        text = {"Enter": "\r"}.get(key, key if len(key) == 1 else "")
        self.send("Input.dispatchKeyEvent", type="keyDown", key=key, text=text)
        self.send("Input.dispatchKeyEvent", type="keyUp", key=key)
