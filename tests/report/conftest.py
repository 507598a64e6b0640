"""A headless Chromium, spoken to over its DevTools pipe: no driver, no port, no further package."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--hide-scrollbars", "--disable-dev-shm-usage", "--remote-debugging-pipe"),
)


class Chromium:
    """One browser with one page; `messages`: what its console and loader complained of."""

    def __init__(self, command: str, profile: str) -> None:
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()

        def give_pipes() -> None:
            """Chromium reads commands from descriptor 3 and answers on 4."""
            source, target = os.dup(theirs_in), os.dup(theirs_out)
            os.dup2(source, 3)
            os.dup2(target, 4)

        self._process = subprocess.Popen(
            [command, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
            preexec_fn=give_pipes,
            pass_fds=(3, 4),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._reader = os.fdopen(self._in, "rb")
        self._number = 0
        self.messages: list[str] = []
        self.requests: list[str] = []
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        attached = self._call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._page(f"{domain}.enable")

    def open(
        self, path: Path | str, *, width: int = 1280, dark: bool = False, paper: bool = False
    ) -> None:
        """Load a file, or a URL, at a window width and wait; `paper`: with the styles of print."""
        self.messages.clear()
        self.requests.clear()
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        media = "print" if paper else ""
        self._page("Emulation.setEmulatedMedia", media=media, features=[scheme])
        self._page(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=900,
            deviceScaleFactor=1,
            mobile=False,
        )
        url = path if isinstance(path, str) else path.resolve().as_uri()
        self._page("Page.navigate", url=url)
        self._wait_for("Page.loadEventFired")

    def value(self, expression: str) -> Any:
        """A JavaScript expression's value; works although the page itself may run no script."""
        answer = self._page("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def printed(self) -> bytes:
        """The page as PDF, with backgrounds as the page itself asks for them."""
        done = self._page("Page.printToPDF", printBackground=False, preferCSSPageSize=True)
        return base64.b64decode(done["data"])

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(timeout=20)
        self._reader.close()
        os.close(self._out)

    def _page(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self._call(method, session=self._session, **parameters)

    def _call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return dict(answer["result"])

    def _wait_for(self, event: str) -> None:
        while self._read().get("method") != event:
            pass

    def _read(self) -> dict[str, Any]:
        text = bytearray()
        while (byte := self._reader.read(1)) != b"\0":
            assert byte, "Chromium ended"
            text += byte
        message: dict[str, Any] = json.loads(text)
        parameters = message.get("params", {})
        if message.get("method") == "Log.entryAdded":
            self.messages.append(parameters["entry"]["text"])
        elif message.get("method") in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown"):
            self.messages.append(json.dumps(parameters)[:500])
        elif message.get("method") == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])
        return message


@pytest.fixture(scope="session")
def chromium() -> Iterator[Chromium]:
    command = shutil.which("chromium") or shutil.which("chromium-browser")
    if command is None:
        pytest.skip("no chromium here: apt-get install -y --no-install-recommends chromium")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        browser = Chromium(command, profile)
        try:
            yield browser
        finally:
            browser.close()


@pytest.fixture
def opened(chromium: Chromium) -> Iterator[Chromium]:
    yield chromium
    assert chromium.messages == []
    assert len(chromium.requests) == 1, "the page loads nothing but itself"
