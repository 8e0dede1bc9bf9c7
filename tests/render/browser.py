"""A headless Chromium, spoken to through chromedriver's own HTTP interface (W3C WebDriver): nothing to install."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.processes import HANG_S

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
CHROMEDRIVER = shutil.which("chromedriver")

FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--force-prefers-reduced-motion",
    "--hide-scrollbars",
    # Whatever a page asks for, it gets nothing.
    "--host-resolver-rules=MAP * ~NOTFOUND",
)


def missing() -> str | None:
    """Why no browser can be driven here and how to get one, or None."""
    there = CHROMIUM is not None and CHROMEDRIVER is not None
    return None if there else "no Chromium with chromedriver (on Debian: apt-get install chromium chromium-driver)"


class Browser:
    """One window."""

    def __init__(self, address: str, session: str) -> None:
        self._session = f"{address}/session/{session}"

    def open(self, page: Path) -> None:
        """Load a file and wait until the page says that it is ready, or has a problem to tell."""
        self._post("url", {"url": page.resolve().as_uri()})
        self.wait_for("document.documentElement.dataset.ready || document.getElementById('problem')?.hidden === false")

    def run(self, script: str, *arguments: Any) -> Any:
        """The value of some JavaScript, which must `return` it."""
        return self._post("execute/sync", {"script": script, "args": list(arguments)})

    def run_async(self, script: str) -> Any:
        """The value that some JavaScript passes to its last argument, a function."""
        return self._post("execute/async", {"script": script, "args": []})

    def wait_for(self, condition: str, timeout_s: float = HANG_S) -> None:
        """Wait until an expression is true."""
        until = time.monotonic() + timeout_s
        while not self.run(f"return Boolean({condition})"):
            if time.monotonic() > until:
                raise TimeoutError(f"never became true: {condition}")
            time.sleep(0.05)

    def settle(self) -> None:
        """Wait until what was asked for is drawn."""
        self.run_async(
            "const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(() => done(true)))"
        )

    def text(self, selector: str) -> str:
        """What an element says."""
        return str(self.run("return document.querySelector(arguments[0]).innerText", selector))

    def box(self, selector: str) -> tuple[float, float, float, float]:
        """Where an element is: x, y, width, height."""
        x, y, width, height = self.run(
            "const b = document.querySelector(arguments[0]).getBoundingClientRect();"
            "return [b.x, b.y, b.width, b.height]",
            selector,
        )
        return x, y, width, height

    def move(self, x: float, y: float) -> None:
        """Move the mouse to a point of the window."""
        self._pointer([_move(x, y)])

    def click(self, x: float, y: float) -> None:
        """Press and release the mouse there."""
        self._pointer([_move(x, y), {"type": "pointerDown", "button": 0}, {"type": "pointerUp", "button": 0}])

    def press(self, selector: str) -> None:
        """Click an element in its middle."""
        self.run("document.querySelector(arguments[0]).scrollIntoView({block: 'nearest'})", selector)
        x, y, width, height = self.box(selector)
        self.click(x + width / 2, y + height / 2)
        self.settle()

    def double_click(self, x: float, y: float) -> None:
        """Click twice."""
        once = [{"type": "pointerDown", "button": 0}, {"type": "pointerUp", "button": 0}]
        self._pointer([_move(x, y), *once, *once])
        self.settle()

    def drag(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        """Press at one point, move to another in steps, release."""
        steps = [
            _move(start[0] + (end[0] - start[0]) * step / 5, start[1] + (end[1] - start[1]) * step / 5)
            for step in range(1, 6)
        ]
        self._pointer([_move(*start), {"type": "pointerDown", "button": 0}, *steps, {"type": "pointerUp", "button": 0}])
        self.settle()

    def touch(self, *fingers: Sequence[tuple[float, float]]) -> None:
        """Fingers that touch, move along their points together, and are lifted."""
        sources = []
        for number, points in enumerate(fingers):
            actions = [_move(*points[0]), {"type": "pointerDown", "button": 0}]
            actions += [_move(x, y) | {"duration": 30} for x, y in points[1:]]
            actions += [{"type": "pointerUp", "button": 0}]
            sources.append(
                {"type": "pointer", "id": f"finger{number}", "parameters": {"pointerType": "touch"}, "actions": actions}
            )
        self._post("actions", {"actions": sources})
        self.settle()

    def wheel(self, x: float, y: float, delta: int) -> None:
        """Turn the wheel there; away from oneself is negative."""
        scroll = {"type": "scroll", "x": round(x), "y": round(y), "deltaX": 0, "deltaY": delta, "duration": 0}
        self._post("actions", {"actions": [{"type": "wheel", "id": "wheel", "actions": [scroll]}]})
        self.settle()

    def keys(self, *keys: str) -> None:
        """Press and release keys, one after the other."""
        actions = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        self._post("actions", {"actions": [{"type": "key", "id": "keyboard", "actions": actions}]})
        self.settle()

    def screenshot(self) -> bytes:
        """What the window shows, as PNG."""
        return base64.b64decode(self._request("GET", f"{self._session}/screenshot", None))

    def screenshot_of_page(self) -> bytes:
        """All of the page, however long it is, as PNG."""
        width, height = self.run("const e = document.documentElement; return [e.clientWidth, e.scrollHeight]")
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        shot = self._devtools("Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip})
        return base64.b64decode(shot["data"])

    def pdf(self) -> bytes:
        """The page on paper: A4, with the margins that it asks for."""
        paper = {"paperWidth": 8.27, "paperHeight": 11.69, "preferCSSPageSize": True, "printBackground": False}
        return base64.b64decode(self._devtools("Page.printToPDF", paper)["data"])

    def resize(self, width: int, height: int = 900) -> None:
        """What the page is given to lay itself out in; less than any window can be made."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self._devtools("Emulation.setDeviceMetricsOverride", metrics)

    def prefer(self, *, dark: bool = False, paper: bool = False) -> None:
        """What the reader's system asks pages for: a dark look, or how they would be on paper."""
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self._devtools("Emulation.setEmulatedMedia", {"media": "print" if paper else "screen", "features": features})

    def complaints(self) -> list[str]:
        """What was written to the console: errors, refused requests."""
        found = self._request("POST", f"{self._session}/se/log", {"type": "browser"})
        return [entry["message"] for entry in found]

    def close(self) -> None:
        """Close the window."""
        self._request("DELETE", self._session, None)

    def _devtools(self, command: str, parameters: dict[str, Any]) -> Any:
        return self._post("goog/cdp/execute", {"cmd": command, "params": parameters})

    def _pointer(self, actions: list[dict[str, Any]]) -> None:
        mouse = {"type": "pointer", "id": "mouse", "parameters": {"pointerType": "mouse"}, "actions": actions}
        self._post("actions", {"actions": [mouse]})
        self.settle()

    def _post(self, command: str, body: dict[str, Any]) -> Any:
        return self._request("POST", f"{self._session}/{command}", body)

    @staticmethod
    def _request(method: str, address: str, body: dict[str, Any] | None) -> Any:
        content = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(address, content, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=HANG_S) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise AssertionError(json.load(error)["value"]["message"]) from None


def _move(x: float, y: float) -> dict[str, Any]:
    return {"type": "pointerMove", "x": round(x), "y": round(y), "duration": 0, "origin": "viewport"}


@contextmanager
def browser(
    profile: Path, width: int = 1280, height: int = 900, *, dark: bool = False, phone: bool = False
) -> Iterator[Browser]:
    """A fresh browser with an empty profile."""
    assert CHROMIUM is not None
    assert CHROMEDRIVER is not None
    driver = subprocess.Popen([CHROMEDRIVER, "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        address = f"http://127.0.0.1:{_port(driver)}"
        arguments = [*FLAGS, f"--user-data-dir={profile}", f"--window-size={width},{height}"]
        if dark:
            arguments += ["--force-dark-mode", "--enable-features=WebContentsForceDark:inversion_method/none"]
        options: dict[str, Any] = {"binary": CHROMIUM, "args": arguments}
        if phone:
            metrics = {"width": width, "height": height, "pixelRatio": 2.0, "touch": True, "mobile": True}
            options["mobileEmulation"] = {"deviceMetrics": metrics}
        capabilities = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        body = {"capabilities": {"alwaysMatch": capabilities}}
        started = Browser._request("POST", f"{address}/session", body)
        window = Browser(address, started["sessionId"])
        try:
            yield window
        finally:
            window.close()
    finally:
        driver.terminate()
        driver.wait(HANG_S)
        if driver.stdout:
            driver.stdout.close()


def _port(driver: subprocess.Popen[str]) -> int:
    assert driver.stdout is not None
    for line in driver.stdout:
        if "started successfully on port" in line:
            return int(line.rsplit("port", 1)[1].strip(" .\n"))
    raise AssertionError("chromedriver did not start")
