"""Replay real chats through warmroute in front of two vLLM engines.

Makes an environment with vLLM for CPU and a small model the first time,
starts two engines, plays the same chats under each policy with cold caches,
and prints what the engines counted. See README.md beside this file.
"""

import argparse
import asyncio
import json
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
from two_vllm.chats import num_chats, read_chats
from two_vllm.compare import DIRECT, Outcome, Workload, run_policy, warm_up
from two_vllm.engines import EngineOptions, EngineView, running_engines
from two_vllm.environment import ensure_environment
from two_vllm.errors import ExampleError
from two_vllm.models import ensure_smollm2, ensure_tiny
from two_vllm.proxy import running_warmroute
from two_vllm.report import as_json, is_good, table, verdict

_POLICIES = ("round_robin", "expected_ttft")
_NAMES = ("a", "b")


def parse_args(argv: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description="Replay real chats through warmroute in front of two vLLM engines.",
        epilog="example: python examples/01_two_vllm/run.py --users 4 --keep",
    )
    add = parser.add_argument
    add("--users", type=_positive, default=8, help="requests at a time (default 8)")
    add(
        "--open",
        type=_positive,
        default=3,
        help="chats that a user keeps open, turning from one to the next (default 3)",
    )
    add(
        "--conversations",
        type=_positive,
        default=20,
        help=f"chats in all (default 20, at most {num_chats()})",
    )
    add(
        "--policy",
        action="append",
        help="policy to replay under, repeatable (default round_robin, then "
        f"expected_ttft); '{DIRECT}' is the client's own round robin",
    )
    add("--max-tokens", type=_positive, default=16, help="a request (default 16)")
    add("--think", type=float, default=0.5, help="mean pause of a user, s (0.5)")
    add(
        "--blocks",
        type=_positive,
        help="KV cache of an engine, blocks of 32 tokens (default 384; tiny: 1200)",
    )
    add("--tiny", action="store_true", help="a tiny random model, not SmolLM2")
    add(
        "--engine-url",
        action="append",
        help="use a running engine, given twice; its prefix cache is emptied",
    )
    add("--keep", action="store_true", help="stay up afterwards until Ctrl-C")
    add("--json", action="store_true", help="print JSON, not a table")
    args = parser.parse_args(argv)
    if args.engine_url and len(args.engine_url) != len(_NAMES):
        parser.error("--engine-url must be given twice, once an engine")
    if args.conversations > num_chats():
        parser.error(f"--conversations must be at most {num_chats()}")
    args.policy = args.policy or list(_POLICIES)
    return args


def main(argv: Sequence[str]) -> int:
    """Run the example and return its exit code."""
    args = parse_args(argv)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    try:
        options = None if args.engine_url else _prepare(args)
        return asyncio.run(_example(args, options))
    except ExampleError as error:
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
        model = await _model_name(engines[0], http)
        await warm_up(engines, model, http)
        chats = read_chats(args.conversations)
        workload = Workload(
            chats, args.users, args.open, model, args.max_tokens, args.think
        )
        outcomes = [
            await run_policy(policy, workload, engines, folder, http)
            for policy in args.policy
        ]
        _print(outcomes, args)
        if args.keep:
            await _keep(args.policy[-1], engines, model, folder, http)
    return 0 if is_good(outcomes) else 1


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


async def _model_name(engine: EngineView, http: aiohttp.ClientSession) -> str:
    try:
        async with http.get(f"{engine.url}/v1/models") as answer:
            return str((await answer.json())["data"][0]["id"])
    except aiohttp.ClientError as error:
        raise ExampleError(f"no engine answers at {engine.url}: {error}") from error


async def _keep(
    policy: str,
    engines: Sequence[EngineView],
    model: str,
    folder: Path,
    http: aiohttp.ClientSession,
) -> None:
    if policy == DIRECT:
        policy = _POLICIES[-1]
    log = folder / f"warmroute-{policy}.log"
    async with running_warmroute(policy, engines, log, http) as warmroute:
        state_url = f"{warmroute.admin_url}/api/state"
        print(f"\nwarmroute {warmroute.url} ({policy}), admin {state_url}")
        for engine in engines:
            print(f"engine {engine.name} {engine.url}")
        print(f"\n{_curl(warmroute.url, model)}\n\nCtrl-C ends it", flush=True)
        await asyncio.Event().wait()


def _curl(url: str, model: str) -> str:
    message = {"role": "user", "content": "What is the capital of France?"}
    body = json.dumps({"model": model, "messages": [message], "max_tokens": 16})
    return (
        f"curl -si {url}/v1/chat/completions -H 'content-type: application/json' "
        f"-H 'x-warmroute-explain: 1' -d '{body}'"
    )


def _print(outcomes: Sequence[Outcome], args: argparse.Namespace) -> None:
    if args.json:
        print(as_json(outcomes), flush=True)
    else:
        print(f"\n{table(outcomes)}\n\n{verdict(outcomes)}", flush=True)


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {number}")
    return number


def _interrupt(number: int, frame: object) -> None:
    signal.signal(number, signal.SIG_IGN)
    signal.raise_signal(signal.SIGINT)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
