"""See one request in Arize Phoenix: client, warmroute and vLLM in one trace.

Makes environments with Phoenix and with vLLM for CPU the first time, starts both and
warmroute, asks two questions, and tells where the trace is. See README.md beside this
file.
"""

import argparse
import asyncio
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import aiohttp

sys.path.insert(0, str(Path(__file__).parents[1] / "01_two_vllm"))

from traced.phoenix_env import ensure_phoenix
from traced.shot import shoot
from traced.stack import running_stack
from two_vllm.engines import EngineOptions
from two_vllm.environment import ensure_environment
from two_vllm.models import ensure_smollm2, ensure_tiny

from warmroute.proxy.demo.errors import DemoError


def main(argv: Sequence[str]) -> int:
    """Run the example and return its exit code."""
    args = parse_args(argv)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return asyncio.run(_example(args))
    except DemoError as error:
        print(f"\n{error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ninterrupted, all stopped", file=sys.stderr)
        return 130


def parse_args(argv: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description="Trace a chat from its client through warmroute to vLLM.",
        epilog="example: python examples/03_traces/run.py --screenshot trace.png",
    )
    add = parser.add_argument
    add("--tiny", action="store_true", help="a tiny random model, not SmolLM2")
    add("--screenshot", type=Path, help="write a picture of the trace there (PNG)")
    add("--keep", action="store_true", help="stay up afterwards until Ctrl-C")
    return parser.parse_args(argv)


def prepare(*, is_tiny: bool) -> tuple[Path, EngineOptions]:
    """Return Phoenix's environment and the engine's options, made when missing.

    Raises:
        DemoError: An environment or the model could not be made.
    """
    phoenix, environment = ensure_phoenix(), ensure_environment()
    if is_tiny:
        model = ensure_tiny(environment)
        return phoenix, EngineOptions(environment, model, "tiny", 700)
    return phoenix, EngineOptions(environment, ensure_smollm2(environment), "smol", 384)


async def _example(args: argparse.Namespace) -> int:
    phoenix, options = prepare(is_tiny=args.tiny)
    folder = Path(tempfile.mkdtemp(prefix="warmroute-traces-"))
    print(f"logs: {folder}", file=sys.stderr)
    async with (
        aiohttp.ClientSession() as http,
        running_stack(phoenix, options, folder, http) as stack,
    ):
        trace_id = await stack.converse(http)
        spans = await stack.arrived(trace_id)
        for span in spans:
            print(f"{span['name']:<28} {span['start_time']}")
        chat = next(one for one in spans if one["name"].startswith("chat "))
        page = stack.phoenix.page(trace_id, chat)
        print(page)
        if args.screenshot is not None:
            await shoot(page, args.screenshot)
            print(args.screenshot)
        if args.keep:
            print("Ctrl-C stops it", file=sys.stderr)
            await asyncio.Event().wait()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
