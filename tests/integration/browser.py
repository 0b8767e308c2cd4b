"""A real headless Chromium, driven by WebDriver over HTTP."""

import asyncio
import base64
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
FLAGS = [
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic"),
    *("--no-first-run", "--disable-background-networking", "--disable-sync"),
    *("--disable-component-update", "--disable-dev-shm-usage", "--hide-scrollbars"),
]
KEYS = {
    **{"ArrowLeft": "\ue012", "ArrowUp": "\ue013", "ArrowRight": "\ue014"},
    **{"ArrowDown": "\ue015", "Tab": "\ue004", "Enter": "\ue007", "Escape": "\ue00c"},
}


class Browser:
    """One window; every step raises when the driver says it failed."""

    def __init__(self, http: aiohttp.ClientSession) -> None:
        self._http = http
        self._session = ""

    async def open(self, folder: Path) -> None:
        options = {"binary": CHROMIUM, "args": [*FLAGS, f"--user-data-dir={folder}"]}
        capabilities = {
            "goog:chromeOptions": options,
            "goog:loggingPrefs": {"browser": "ALL"},
        }
        body = {"capabilities": {"alwaysMatch": capabilities}}
        self._session = (await self._send("/session", body))["sessionId"]

    async def close(self) -> None:
        async with self._http.delete(f"/session/{self._session}") as response:
            await response.read()

    async def _send(self, path: str, body: dict[str, Any]) -> Any:
        async with self._http.post(path, json=body) as response:
            answer = await response.json()
        assert response.status == 200, answer
        return answer["value"]

    async def do(self, command: str, **body: Any) -> Any:
        return await self._send(f"/session/{self._session}/{command}", body)

    async def get(self, url: str) -> None:
        await self.do("url", url=url)

    async def run(self, script: str, *args: Any) -> Any:
        """Return what the body of a function returns in the page."""
        return await self.do("execute/sync", script=script, args=args)

    async def text(self, selector: str) -> str:
        script = "return document.querySelector(arguments[0])?.textContent ?? ''"
        return str(await self.run(script, selector))

    async def click(self, selector: str) -> None:
        await self.run("document.querySelector(arguments[0]).click()", selector)

    async def until(self, expression: str, *args: Any, timeout_s: float = 20) -> Any:
        """Wait until a JavaScript expression is true; returns its value."""
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    if value := await self.run(f"return {expression}", *args):
                        return value
                    await asyncio.sleep(0.05)
        except TimeoutError:
            page = await self.run("return document.body.innerText")
            pytest.fail(f"never true: {expression}\n{page}\n{await self.console()}")

    async def press(self, *keys: str) -> None:
        """Press and release keys, by their names."""
        actions = [
            {"type": kind, "value": KEYS.get(key, key)}
            for key in keys
            for kind in ("keyDown", "keyUp")
        ]
        board = {"type": "key", "id": "keyboard", "actions": actions}
        await self.do("actions", actions=[board])

    async def console(self) -> list[str]:
        """Return the warnings and errors since the last call."""
        entries = await self.do("se/log", type="browser")
        return [one["message"] for one in entries if one["level"] != "INFO"]

    async def protocol(self, command: str, **params: Any) -> Any:
        """Call the browser's own protocol."""
        return await self.do("goog/cdp/execute", cmd=command, params=params)

    async def resize(self, width: int, height: int) -> None:
        await self.protocol(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 500,
        )

    async def prefer(self, **features: str) -> None:
        """Set media features, such as ``prefers-color-scheme``."""
        named = [
            {"name": name.replace("_", "-"), "value": value}
            for name, value in features.items()
        ]
        await self.protocol("Emulation.setEmulatedMedia", features=named)

    async def shoot(self) -> bytes:
        """Return a picture of what is seen, as PNG."""
        taken = await self.protocol("Page.captureScreenshot", format="png")
        return base64.b64decode(taken["data"])


@asynccontextmanager
async def browsing(folder: Path) -> AsyncIterator[Browser]:
    """Run a browser for the length of the block; skip where there is none."""
    if CHROMIUM is None or DRIVER is None:
        pytest.skip("no browser; on Debian: apt-get install chromium chromium-driver")
    process = await asyncio.create_subprocess_exec(
        *(DRIVER, "--port=0"), stdout=asyncio.subprocess.PIPE
    )
    try:
        async with aiohttp.ClientSession(await _address(process)) as http:
            browser = Browser(http)
            await browser.open(folder)
            try:
                yield browser
            finally:
                await browser.close()
    finally:
        process.terminate()
        await process.communicate()


async def _address(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    async with asyncio.timeout(30):
        async for line in process.stdout:
            words = line.decode().rstrip(".\n").split("successfully on port ")
            if len(words) == 2:
                return f"http://127.0.0.1:{words[1]}"
    pytest.fail("chromedriver ended before it listened")
