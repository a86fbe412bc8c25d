# SPDX-License-Identifier: Apache-2.0
"""A headless Chromium, driven through chromedriver's own protocol (WebDriver)."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Optional

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
DRIVER = shutil.which("chromedriver")
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
KEYS = {"ArrowRight": "\ue014", "ArrowLeft": "\ue012", "Home": "\ue011", "End": "\ue010"}

DRAWN = """
const canvas = document.querySelector(arguments[0]), pen = canvas.getContext('2d');
const data = new Uint32Array(pen.getImageData(0, 0, canvas.width, canvas.height).data.buffer);
let sum = 0;
for (let i = 0; i < data.length; i += 7) sum = (sum * 31 + data[i]) % 4294967291;
return [new Set(data).size, sum];
"""

# The driver is on this machine: no proxy is asked.
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def why_missing() -> Optional[str]:
    """None where a browser can be driven; otherwise what is not there."""
    if CHROMIUM is None or DRIVER is None:
        return "chromium and chromedriver are not installed (Debian: chromium, chromium-driver)"
    return None


class Browser:
    """One window. Closes the browser and its driver on exit."""

    def __init__(self, width: int = 1200, height: int = 900, dark: bool = False) -> None:
        assert DRIVER is not None
        self._driver = subprocess.Popen(
            [DRIVER, "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self._port = self._read_port()
        self._session = ""
        try:
            self._open(width, height, dark)
        except BaseException:
            self.close()
            raise

    def _read_port(self) -> int:
        assert self._driver.stdout is not None
        for line in self._driver.stdout:
            found = re.search(r"successfully on port (\d+)", line)
            if found:
                return int(found.group(1))
        raise OSError("chromedriver did not start")

    def _open(self, width: int, height: int, dark: bool) -> None:
        words = [
            "headless=new",
            "no-sandbox",
            "disable-gpu",
            "disable-dev-shm-usage",
            f"window-size={width},{height}",
            "hide-scrollbars",
            "force-color-profile=srgb",
        ]
        if dark:
            words.append("force-dark-mode")
        chrome = {"binary": CHROMIUM, "args": [f"--{word}" for word in words]}
        wanted = {
            "browserName": "chrome",
            "goog:chromeOptions": chrome,
            "goog:loggingPrefs": {"browser": "ALL"},
        }
        made = self._call("POST", "", {"capabilities": {"alwaysMatch": wanted}})
        self._session = "/" + made["sessionId"]
        self.devtools(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}],
        )

    def _call(self, method: str, path: str, body: Optional[dict[str, Any]] = None) -> Any:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._port}/session{self._session}{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        try:
            with _DIRECT.open(request, timeout=120) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise RuntimeError(json.load(error)["value"]["message"]) from None

    def devtools(self, command: str, **parameters: Any) -> Any:
        """A command of Chromium's own."""
        return self._call("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def resize(self, width: int, height: int, scale: float = 1) -> None:
        """The page's size, also below what a window can have."""
        self.devtools(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=scale,
            mobile=width < 600,
        )

    def show(self, folder: Path, page: str) -> None:
        """Opens a report that lies in the folder from here on."""
        path = folder / "report.html"
        path.write_text(page)
        self.open(path)
        assert self.run("return document.documentElement.dataset.ready") == "true"

    def open(self, path: Path) -> None:
        """Opens a report and waits until it is drawn."""
        self._call("POST", "/url", {"url": path.resolve().as_uri()})
        end = time.monotonic() + 60
        while self.run("return document.documentElement.dataset.ready") is None:
            if time.monotonic() > end:
                raise TimeoutError(f"{path} is not drawn: {self.complaints()}")
            time.sleep(0.05)
        self.wait_until_painted()

    def wait_until_painted(self) -> None:
        """Waits until what was asked for is painted."""
        self._call(
            "POST",
            "/execute/async",
            {
                "args": [],
                "script": "const done = arguments[0];"
                "requestAnimationFrame(() => requestAnimationFrame(done));",
            },
        )

    def run(self, script: str, *arguments: Any) -> Any:
        """Runs JavaScript; returns what it returns."""
        return self._call("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def wait(self, script: str) -> Any:
        """Runs JavaScript; returns what it hands to its last argument."""
        return self._call("POST", "/execute/async", {"script": script, "args": []})

    def find(self, selector: str) -> str:
        """An element's number, for the calls below."""
        found = self._call("POST", "/element", {"using": "css selector", "value": selector})
        return str(found[ELEMENT])

    def click(self, selector: str) -> None:
        """Clicks as a user does: what is covered or outside cannot be clicked."""
        self._call("POST", f"/element/{self.find(selector)}/click", {})
        self.wait_until_painted()

    def type(self, selector: str, *keys: str) -> None:
        """Focuses the element and types; names of keys as in KEYS."""
        self.run("document.querySelector(arguments[0]).focus()", selector)
        text = "".join(KEYS.get(key, key) for key in keys)
        strokes = [{"type": kind, "value": key} for key in text for kind in ("keyDown", "keyUp")]
        keyboard = {"type": "key", "id": "k", "actions": strokes}
        self._call("POST", "/actions", {"actions": [keyboard]})
        self.wait_until_painted()

    def drag(self, selector: str, start: float, end: float) -> None:
        """Drags inside an element, from and to fractions of its width."""
        box = self.run(
            "const e = document.querySelector(arguments[0]); e.scrollIntoView({block: 'center'});"
            "const b = e.getBoundingClientRect(); return [b.x, b.y, b.width, b.height]",
            selector,
        )
        y = round(box[1] + box[3] / 3)
        xs = [round(box[0] + part * box[2]) for part in (start, (start + end) / 2, end)]
        moves: list[dict[str, Any]] = [
            {"type": "pointerMove", "x": x, "y": y, "duration": 10} for x in xs
        ]
        moves.insert(1, {"type": "pointerDown", "button": 0})
        moves.append({"type": "pointerUp", "button": 0})
        pointer = {
            "type": "pointer",
            "id": "m",
            "actions": moves,
            "parameters": {"pointerType": "mouse"},
        }
        self._call("POST", "/actions", {"actions": [pointer]})
        self.wait_until_painted()

    def text(self, selector: str) -> str:
        """What an element says."""
        return re.sub(r"\s+", " ", self.of(selector, "e.textContent")).strip()

    def all(self, selector: str, expression: str) -> list[Any]:
        """Of each element the value of an expression in JavaScript, where it is called e."""
        script = f"return [...document.querySelectorAll(arguments[0])].map(e => {expression})"
        return list(self.run(script, selector))

    def of(self, selector: str, expression: str) -> Any:
        """The same of the first one."""
        return self.all(selector, expression)[0]

    def drawn(self, selector: str) -> list[int]:
        """How many colours a canvas shows, and a sum that changes with what is drawn."""
        return list(self.run(DRAWN, selector))

    def complaints(self) -> list[str]:
        """Errors that the page caused since the last call."""
        log = self._call("POST", "/se/log", {"type": "browser"})
        return [entry["message"] for entry in log if entry["level"] == "SEVERE"]

    def picture(self, path: Path, selector: Optional[str] = None, margin: int = 0) -> None:
        """The whole page as PNG, or the part of it that an element covers."""
        script = (
            "const e = arguments[0] ? document.querySelector(arguments[0])"
            " : document.documentElement; const b = e.getBoundingClientRect();"
            "return [b.x + scrollX, b.y + scrollY, b.width, b.height]"
        )
        x, y, width, height = self.run(script, selector)
        clip = {"x": x - margin, "y": y - margin, "scale": 1}
        clip.update(width=width + 2 * margin, height=height + 2 * margin)
        shot = self.devtools("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))

    def close(self) -> None:
        """Ends the browser and its driver."""
        try:
            if self._session:
                self._call("DELETE", "")
        finally:
            self._driver.terminate()
            self._driver.wait(timeout=20)

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
