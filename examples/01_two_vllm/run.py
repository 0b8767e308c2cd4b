"""Replay real chats through warmroute in front of two vLLM engines.

Makes an environment with vLLM for CPU and a small model the first time,
starts two engines, plays the same chats under each policy with cold caches,
and prints what the engines counted. See README.md beside this file.
"""

import argparse
import asyncio
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
from two_vllm.engines import EngineOptions, running_engines
from two_vllm.environment import ensure_environment
from two_vllm.models import ensure_smollm2, ensure_tiny

from warmroute.proxy.commands.numbers import whole
from warmroute.proxy.demo.chats import num_chats, read_chats
from warmroute.proxy.demo.compare import DIRECT, Workload
from warmroute.proxy.demo.engine_view import EngineView
from warmroute.proxy.demo.errors import DemoError
from warmroute.proxy.demo.front import DEFAULT_PORTS, Setup
from warmroute.proxy.demo.show import POLICIES, Show, model_name

CONFIG = Path(__file__).parent / "config.yaml"
_NAMES = ("a", "b")


def parse_args(argv: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description="Replay real chats through warmroute in front of two vLLM engines.",
        epilog="example: python examples/01_two_vllm/run.py --users 4 --keep",
    )
    add_workload(parser)
    add_engines(parser)
    add = parser.add_argument
    add("--keep", action="store_true", help="stay up afterwards until Ctrl-C")
    add("--json", action="store_true", help="print JSON, not a table")
    args = parser.parse_args(argv)
    if args.engine_url and len(args.engine_url) != len(_NAMES):
        parser.error("--engine-url must be given twice, once an engine")
    if args.conversations > num_chats():
        parser.error(f"--conversations must be at most {num_chats()}")
    args.policy = args.policy or list(POLICIES)
    return args


def add_workload(parser: argparse.ArgumentParser) -> None:
    """Declare the flags that say what is played."""
    add = parser.add_argument
    add("--users", type=whole(1), default=8, help="requests at a time (default 8)")
    add(
        "--open",
        type=whole(1),
        default=3,
        help="chats that a user keeps open, turning from one to the next (default 3)",
    )
    add(
        "--conversations",
        type=whole(1),
        default=20,
        help=f"chats in all (default 20, at most {num_chats()})",
    )
    add(
        "--policy",
        action="append",
        help="policy to replay under, repeatable (default round_robin, then "
        f"expected_ttft); '{DIRECT}' is the client's own round robin",
    )
    add("--max-tokens", type=whole(1), default=16, help="a request (default 16)")
    add("--think", type=float, default=0.5, help="mean pause of a user, s (0.5)")


def add_engines(parser: argparse.ArgumentParser) -> None:
    """Declare the flags that say what it is played on."""
    add = parser.add_argument
    add(
        "--blocks",
        type=whole(1),
        help="KV cache of an engine, blocks of 32 tokens (default 384; tiny: 1200)",
    )
    add("--tiny", action="store_true", help="a tiny random model, not SmolLM2")
    add(
        "--engine-url",
        action="append",
        help="use a running engine, given twice; its prefix cache is emptied",
    )


def main(argv: Sequence[str]) -> int:
    """Run the example and return its exit code."""
    args = parse_args(argv)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    try:
        options = None if args.engine_url else _prepare(args)
        return asyncio.run(_example(args, options))
    except DemoError as error:
        print(f"\n{error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ninterrupted, all stopped", file=sys.stderr)
        return 130


def _prepare(args: argparse.Namespace) -> EngineOptions:
    environment = ensure_environment()
    if args.tiny:
        # Every byte is a token of the tiny model, so its prompts are longer.
        model = ensure_tiny(environment)
        blocks = args.blocks or 1200
        return EngineOptions(environment, model, "tiny", blocks, max_model_len=16384)
    model = ensure_smollm2(environment)
    return EngineOptions(environment, model, "smol", args.blocks or 384)


async def _example(args: argparse.Namespace, options: EngineOptions | None) -> int:
    folder = Path(tempfile.mkdtemp(prefix="warmroute-example-"))
    print(f"logs: {folder}", file=sys.stderr)
    connector = aiohttp.TCPConnector(limit=0)
    async with (
        aiohttp.ClientSession(connector=connector) as http,
        _engines(args, options, folder, http) as engines,
    ):
        model = await model_name(engines[0], http)
        tokenizer = "none" if options is None else str(options.model)
        workload = Workload(
            read_chats(args.conversations),
            args.users,
            args.open,
            model,
            args.max_tokens,
            args.think,
            Setup(CONFIG, model, tokenizer, DEFAULT_PORTS),
        )
        show = Show(workload, args.policy, args.keep, args.json)
        return await show.run(engines, folder, http)


@asynccontextmanager
async def _engines(
    args: argparse.Namespace,
    options: EngineOptions | None,
    folder: Path,
    http: aiohttp.ClientSession,
) -> AsyncIterator[Sequence[EngineView]]:
    if options is None:
        pairs = zip(_NAMES, args.engine_url, strict=True)
        yield [EngineView(name, url, http) for name, url in pairs]
        return
    async with running_engines(options, _NAMES, folder, http) as engines:
        yield engines


def _interrupt(number: int, frame: object) -> None:
    signal.signal(number, signal.SIG_IGN)
    signal.raise_signal(signal.SIGINT)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
