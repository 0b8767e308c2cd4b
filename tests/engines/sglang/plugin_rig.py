"""A real SGLang with the plugin beside it, and how the tests speak to its door."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
from engines.sglang.engine import PAGE, SGLangEngine, SGLangOptions
from engines.vllm_plugin_rig import link_package

from warmroute.adapters.base import Endpoint
from warmroute.adapters.kv_client import KVControlClient
from warmroute.adapters.kv_control import Snapshot
from warmroute.adapters.kv_requests import SnapshotRequest

TOKEN = "a token of the tests"
LENGTH = 30 * PAGE + 1


def prompt(seed: int, length: int = LENGTH) -> list[int]:
    """Make up token ids, the same ones for the same seed."""
    return [(seed * 97 + at * at * 13 + at * 5) % 250 + 3 for at in range(length)]


def with_plugin(options: SGLangOptions, site: Path, **environ: str) -> SGLangOptions:
    """Return *options* with the plugin of this checkout, imported from *site*."""
    if not site.exists():
        link_package(site)
    paths = [str(site), *filter(None, [os.environ.get("PYTHONPATH")])]
    return replace(
        options,
        context_length=2048,
        environ={
            "PYTHONPATH": os.pathsep.join(paths),
            "TMPDIR": str(site.parent),
            "SGLANG_PLUGINS": "warmroute",
            "WARMROUTE_KV_TOKEN": TOKEN,
            "SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND": "python",
            **environ,
        },
    )


class PluginEngine(SGLangEngine):
    """One SGLang with the plugin."""

    def __init__(self, options: SGLangOptions, http: aiohttp.ClientSession) -> None:
        super().__init__(options, http)
        self.token = TOKEN
        self.temporary = options.environ["TMPDIR"]
        headers = {"Authorization": f"Bearer {TOKEN}"}
        self.door = Endpoint(http, self.url, headers, 60, max_bytes=1 << 26)
        self.control = KVControlClient(self.door)

    @property
    def socket(self) -> Path:
        """Where server and scheduler meet."""
        (path,) = Path(self.temporary).glob("warmroute-sglang-*/scheduler")
        return path

    async def kv(self, verb: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Perform a verb, which must succeed."""
        status, answer = await self.ask(verb, body)
        assert status == 200, answer
        return answer

    async def ask(
        self, verb: str, body: Mapping[str, Any] | bytes, token: str | None = TOKEN
    ) -> tuple[int, dict[str, Any]]:
        """Call the door; returns status and answer."""
        headers = {"Content-Type": "application/json"}
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        url = f"{self.url}/warmroute/kv/{verb}"
        content = {"data": body} if isinstance(body, bytes) else {"json": body}
        async with self.http.post(url, headers=headers, **content) as response:
            return response.status, await response.json()

    async def snapshot(self) -> Snapshot:
        """List what is cached, with tokens."""
        return await self.control.snapshot(SnapshotRequest(token_ids=True))

    async def fill(self, prompts: Sequence[Sequence[int]]) -> None:
        """Ask for prompts, one after the other."""
        for prompt in prompts:
            await self.generate(prompt)
