"""Chromium without a window, driven by the DevTools protocol over pipes."""

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
LIMIT = 60  # seconds for an answer of the browser, and for a condition
KEYS = {
    "Enter": 13,
    "Tab": 9,
    "Escape": 27,
    "End": 35,
    "ArrowLeft": 37,
    "ArrowRight": 39,
    "ArrowDown": 40,
}


def find_browser() -> str | None:
    """Return the path of a browser, or None."""
    return next((path for path in map(shutil.which, NAMES) if path), None)


class Browser:
    """One tab of a browser. Events and errors of the page are collected in ``problems``."""

    def __init__(self, requests: int, answers: int):
        """``requests`` and ``answers`` are file descriptors of the protocol."""
        self.requests = requests
        self.answers = answers
        self.buffer = b""
        self.number = 0
        self.session: str | None = None
        self.problems: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self.session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> Any:
        """Return the result of a method of the protocol."""
        self.number += 1
        message: dict[str, Any] = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.requests, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self.number:
                assert "error" not in answer, answer
                return answer["result"]
            self._note(answer)

    def _read(self) -> Any:
        while b"\0" not in self.buffer:
            assert select.select([self.answers], [], [], LIMIT)[0], f"no answer in {LIMIT} s"
            piece = os.read(self.answers, 1 << 16)
            assert piece, "the browser has ended"
            self.buffer += piece
        message, _, self.buffer = self.buffer.partition(b"\0")
        return json.loads(message)

    def _note(self, event: Any) -> None:
        if event.get("method") == "Runtime.exceptionThrown":
            details = event["params"]["exceptionDetails"]
            self.problems.append(details.get("exception", details).get("description", str(details)))
        elif event.get("method") == "Log.entryAdded":
            entry = event["params"]["entry"]
            if entry["level"] == "error" and entry["source"] != "network":
                self.problems.append(entry["text"])

    def run(self, script: str) -> Any:
        """Return the value of an expression in the page; a promise is awaited."""
        result = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def wait(self, condition: str) -> None:
        """Wait until an expression in the page is true."""
        end = time.monotonic() + LIMIT
        while not self.run(f"Boolean({condition})"):
            assert time.monotonic() < end, f"not true in {LIMIT} s: {condition}; {self.problems}"
            time.sleep(0.05)

    def open(self, url: str) -> None:
        self.call("Page.navigate", url="about:blank")
        self.call("Page.navigate", url=url)
        self.wait("location.href !== 'about:blank' && document.readyState === 'complete'")

    def resize(self, width: int, height: int) -> None:
        """Set the size of the window in CSS pixels."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def use_theme(self, theme: str) -> None:
        """Prefer the theme ``light`` or ``dark``."""
        feature = {"name": "prefers-color-scheme", "value": theme}
        self.call("Emulation.setEmulatedMedia", features=[feature])

    def type(self, text: str) -> None:
        """Insert text into the focused field."""
        self.call("Input.insertText", text=text)

    def press(self, key: str) -> None:
        code = KEYS[key]
        event = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        text = {"text": "\r"} if key == "Enter" else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", **event, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", **event)

    def point(self, x: float, y: float, click: bool = False) -> None:
        """Move the pointer to a point of the window, and click there."""
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        for kind in ("mousePressed", "mouseReleased") if click else ():
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def click(self, selector: str) -> None:
        """Click on the middle of an element."""
        script = f"""(() => {{
            const element = document.querySelector({json.dumps(selector)});
            element.scrollIntoView({{ block: "center" }});
            const box = element.getBoundingClientRect();
            return [box.x + box.width / 2, box.y + box.height / 2];
        }})()"""
        self.point(*self.run(script), click=True)

    def save_picture(self, path: Path) -> None:
        """Write a picture of the complete page as PNG."""
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)["data"]
        path.write_bytes(base64.b64decode(data))


@contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """Start a browser whose profile is in ``folder``, and end it afterwards."""
    program = find_browser()
    assert program
    requests_in, requests_out = os.pipe()
    answers_in, answers_out = os.pipe()
    options = (
        "--headless --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run "
        f"--hide-scrollbars --remote-debugging-pipe --user-data-dir={folder}"
    )
    # The browser reads requests from descriptor 3 and writes answers to descriptor 4.
    command = f'exec "$0" {options} 3<&{requests_in} 4>&{answers_out}'
    process = subprocess.Popen(
        ["bash", "-c", command, program],
        pass_fds=(requests_in, answers_out),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(requests_in)
    os.close(answers_out)
    try:
        tab = Browser(requests_out, answers_in)
        yield tab
        tab.session = None
        tab.call("Browser.close")
        process.wait(20)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        os.close(requests_out)
        os.close(answers_in)
