"""A picture of a page, by a headless Chromium."""

import asyncio
import shutil
import tempfile
from pathlib import Path

from warmroute.proxy.demo.errors import DemoError

_PATIENCE_S = 180.0


def find_chromium() -> str | None:
    """Return the browser's program, None where there is none."""
    return shutil.which("chromium") or shutil.which("google-chrome")


async def shoot(url: str, target: Path, size: tuple[int, int] = (1440, 810)) -> None:
    """Write what the page shows once it is at rest to *target*, as PNG.

    Raises:
        DemoError: There is no browser, or it failed.
    """
    browser = find_chromium()
    if browser is None:
        raise DemoError("no browser; on Debian: apt-get install chromium")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = await asyncio.create_subprocess_exec(
            *(browser, "--headless=new", "--no-sandbox", "--disable-gpu"),
            *("--hide-scrollbars", "--disable-dev-shm-usage", "--no-first-run"),
            *("--disable-background-networking", "--disable-component-update"),
            f"--user-data-dir={profile}",
            f"--window-size={size[0]},{size[1]}",
            "--virtual-time-budget=25000",
            *(f"--screenshot={target}", url),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            async with asyncio.timeout(_PATIENCE_S):
                await process.wait()
        except TimeoutError as error:
            raise DemoError(f"the browser took over {_PATIENCE_S:.0f} s") from error
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    if process.returncode or not target.exists():  # noqa: ASYNC240
        raise DemoError(f"the browser ended with {process.returncode} and no picture")
