"""Record KV events of real engines, and what the engines themselves say they hold.

Usage: ``python tests/engines/record_streams.py sglang|vllm``. The environment of the
engine is made when it is missing, and a tiny random model is served with the plugin
beside it. Prompts that share prefixes, with and without salts, are sent one after the
other, more than the pool holds. In front of each the plugin's snapshot tells the last
batch that the cache contains; behind each the engine reports what was cached. The
batches come from the engine's own replay, byte for byte as it sent them.

The recordings lie in ``tests/fixtures/kv_streams`` and are read by
``tests/unit/test_recorded_streams.py``.
"""

import asyncio
import gzip
import random
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

import aiohttp
import msgspec

_ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(_ROOT / "tests"), str(_ROOT / "examples" / "01_two_vllm")]

from engines import vllm_plugin_rig as vllm  # noqa: E402
from engines.sglang import make_env as sglang_env  # noqa: E402
from engines.sglang import plugin_rig as sglang  # noqa: E402
from engines.sglang.engine import SGLangOptions  # noqa: E402
from engines.sglang.stream import EventStream  # noqa: E402
from two_vllm.engines import EngineOptions  # noqa: E402
from two_vllm.environment import VLLM_VERSION, ensure_environment  # noqa: E402
from two_vllm.models import ensure_tiny  # noqa: E402

_FOLDER = _ROOT / "tests" / "fixtures" / "kv_streams"
_NUM_REQUESTS = 60
_STEMS = 4
_STEM_TOKENS = 320
_POOL_TOKENS = 2048


class Recorded(Protocol):
    """What the two rigs have in common."""

    events: str
    replay: str

    async def cached(self, tokens: Sequence[int], **fields: Any) -> int:
        """Send a prompt; return how many of its tokens were cached."""
        ...


def workload() -> list[tuple[list[int], str | None]]:
    """Return prompts and salts, the same ones each time."""
    chance = random.Random(23)

    def fresh(length: int) -> list[int]:
        return [chance.randrange(3, 127) for _ in range(length)]

    stems = [fresh(_STEM_TOKENS) for _ in range(_STEMS)]
    asked: list[tuple[list[int], str | None]] = []
    for _ in range(_NUM_REQUESTS):
        stem = chance.choice(stems)
        length = chance.randrange(40, len(stem))
        salt = chance.choice((None, None, None, "salt"))
        asked.append((stem[:length] + fresh(chance.randrange(1, 120)), salt))
    return asked


async def play(engine: Recorded, ask: Any) -> dict[str, Any]:
    """Send the workload; return the requests, the batches and the last snapshot."""
    requests = []
    for tokens, salt in workload():
        seq = (await ask("snapshot", {}))["seq"]
        fields = {} if salt is None else {"cache_salt": salt}
        cached = await engine.cached(tokens, **fields)
        requests.append({"seq": seq, "tokens": tokens, "salt": salt, "cached": cached})
    snapshot = await ask("snapshot", {})
    batches = EventStream.recorded(engine.replay)
    return {
        "requests": requests,
        "seq": snapshot["seq"],
        "block_size": snapshot["block_size"],
        "held": sorted(
            [one["hash"], one["tier"], one["parent"]] for one in snapshot["blocks"]
        ),
        "batches": [[seq, payload] for seq, payload in batches],
    }


@asynccontextmanager
async def a_vllm(folder: Path) -> AsyncIterator[tuple[Recorded, Any]]:
    """Run a vLLM with the plugin."""
    environment = ensure_environment()
    base = EngineOptions(environment, ensure_tiny(environment), "tiny", 64)
    site = vllm.link_package(folder / "site")
    pool = _POOL_TOKENS // vllm.BLOCK
    one = vllm.PluginOptions(
        "recorded", folder, site, num_blocks=pool, max_model_len=1024
    )
    async with vllm.running(base, [one]) as (engine,):
        with EventStream(engine.events):
            yield engine, engine.kv


@asynccontextmanager
async def a_sglang(folder: Path) -> AsyncIterator[tuple[Recorded, Any]]:
    """Run an SGLang with the plugin."""
    environment = sglang_env.ensure_environment()
    base = SGLangOptions(environment, ensure_tiny(environment), folder, _POOL_TOKENS)
    async with aiohttp.ClientSession() as http:
        options = sglang.with_plugin(base, folder / "site")
        one = sglang.PluginEngine(options, http)
        with EventStream(one.events):
            async with one as engine:
                yield engine, engine.kv


async def record(name: str) -> Path:
    """Record one engine; returns the file."""
    runs = {
        "sglang": (a_sglang, sglang_env.SGLANG_VERSION),
        "vllm": (a_vllm, VLLM_VERSION),
    }
    run, version = runs[name]
    with tempfile.TemporaryDirectory() as folder:
        async with run(Path(folder)) as (engine, ask):
            content = {"engine": name, "version": version, **await play(engine, ask)}
    path = _FOLDER / f"{name}-{version}.msgpack.gz"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(msgspec.msgpack.encode(content), mtime=0))
    return path


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in ("sglang", "vllm"):
        print(__doc__)
        sys.exit(2)
    print(asyncio.run(record(sys.argv[1])))
