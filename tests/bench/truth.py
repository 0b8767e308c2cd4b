"""Print how often what warmroute promised is what embedded engines report.

    python tests/bench/truth.py [--requests 2000] [--users 4] [--num-blocks 96] [--wait]

Three embedded engines with the tiny model and caches far too small for the chats: each
request is one turn of a chat of random tokens that grows with its answers, sent through
a real ``warmroute serve``, and then looked up in its decision record. A prediction that
differs is printed with the reason that the record gives, and with what was in flight.
An answer and the events of its last step travel on two connections, and on a machine
whose cores are short of time ZMQ's threads may bring the events later than the answer.
With ``--wait`` each request waits until all events have come, so that only evictions
between decision and admission are left.
"""

import argparse
import asyncio
import json
import random
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from warmroute.proxy.demo.child import Child, free_port

NAMES = "abc"
MODEL = "tiny"
BLOCK = 16
CHATS = 24
MAX_CHAT = 480
COMMAND = (sys.executable, "-m", "warmroute.proxy.cli")


class Tally:
    """What came of the predictions."""

    def __init__(self) -> None:
        self.num_equal = 0
        self.promised = 0
        self.tokens: Counter[str] = Counter()
        self.differences: Counter[str] = Counter()

    def take(self, record: dict[str, Any], in_flight: int) -> None:
        """Take in a settled record."""
        outcome = record["outcome"]
        predicted, cached = outcome["predicted_tokens"], outcome["cached_tokens"]
        self.tokens.update(outcome["tokens"])
        self.promised += predicted
        if predicted == cached:
            self.num_equal += 1
            return
        self.differences[str(outcome["difference"])] += 1
        print(
            f"  {record['request_id']} on {record['chosen']}: promised {predicted} "
            f"of {record['prompt_tokens']}, cached {cached}: {outcome['difference']}, "
            f"{in_flight} in flight"
        )

    def report(self, num_users: int) -> None:
        """Print the sums."""
        total = self.num_equal + sum(self.differences.values())
        classes = ", ".join(f"{name} {num:,}" for name, num in self.tokens.items())
        print(
            f"{num_users} users: {self.num_equal:,} of {total:,} predictions equal "
            f"({self.num_equal / total:.2%}); others: {dict(self.differences)}"
        )
        print(f"  {self.promised:,} tokens promised; {classes}")


@asynccontextmanager
async def running(num_blocks: int) -> AsyncIterator[list[str]]:
    """Run them; yields the URLs of warmroute's two ports and of the engines."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        entries = []
        for name in NAMES:
            port = free_port()
            child = Child(f"engine {name}", folder / f"{name}.log")
            stack.push_async_callback(child.stop)
            await child.start(engine_command(port, num_blocks))
            entries.append({"name": name, "url": f"http://127.0.0.1:{port}"})
        listen, admin = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
        config = {"listen": listen, "admin": admin, "backends": entries}
        path = folder / "config.json"
        path.write_text(json.dumps({**config, "health": {"interval_s": 1}}))
        front = Child("warmroute", folder / "warmroute.log")
        stack.push_async_callback(front.stop)
        await front.start((*COMMAND, "serve", "-c", str(path)))
        await front.ready(lambda: is_live(f"http://{admin}"))
        yield [f"http://{listen}", f"http://{admin}", *(one["url"] for one in entries)]


def engine_command(port: int, num_blocks: int) -> tuple[str, ...]:
    return (
        *(*COMMAND, "engine", "--model", MODEL, "--port", str(port)),
        *("--num-blocks", str(num_blocks), "--block-size", str(BLOCK)),
        *("--kv-events", f"tcp://*:{free_port()}"),
        *("--kv-events-replay", f"tcp://*:{free_port()}"),
    )


async def is_live(admin: str) -> bool:
    try:
        async with (
            aiohttp.ClientSession() as http,
            http.get(f"{admin}/api/state") as answer,
        ):
            backends = (await answer.json())["backends"]
    except aiohttp.ClientError:
        return False
    return all(one["view"].get("status") == "live" for one in backends)


class User:
    """Take turns in a few chats, one after the other."""

    def __init__(
        self,
        number: int,
        num_chats: int,
        urls: Sequence[str],
        tally: Tally,
        waits: bool,
    ) -> None:
        self.number = number
        self.random = random.Random(number)
        self.chats = [self.begin() for _ in range(num_chats)]
        self.url, self.admin, *self.engines = urls
        self.waits = waits
        self.tally = tally

    def begin(self) -> list[int]:
        return self.random.choices(range(200), k=self.random.randrange(30, 120))

    async def run(
        self, count: int, http: aiohttp.ClientSession, busy: set[int]
    ) -> None:
        for turn in range(count):
            at = self.random.randrange(len(self.chats))
            if len(self.chats[at]) > MAX_CHAT:
                self.chats[at] = self.begin()
            chat = self.chats[at]
            name = f"u{self.number}-{turn}"
            if self.waits:
                await self.until_heard(http)
            busy.add(self.number)
            await self.ask(name, chat, http)
            busy.discard(self.number)
            record = await self.record(name, http)
            self.tally.take(record, len(busy))
            chat += self.random.choices(range(200), k=self.random.randrange(5, 40))

    async def until_heard(self, http: aiohttp.ClientSession) -> None:
        """Wait until the view has all that the engines have announced."""
        for at, url in enumerate(self.engines):
            async with http.get(f"{url}/warmroute/kv/snapshot") as answer:
                seq = (await answer.json())["seq"]
            while True:
                async with http.get(f"{self.admin}/api/state") as answer:
                    view = (await answer.json())["backends"][at]["view"]
                if seq is None or (view["seq"] is not None and view["seq"] >= seq):
                    break

    async def ask(
        self, name: str, chat: list[int], http: aiohttp.ClientSession
    ) -> None:
        body = {"model": MODEL, "prompt": chat, "max_tokens": 4, "temperature": 0}
        headers = {"x-request-id": name}
        url = f"{self.url}/v1/completions"
        async with http.post(url, json=body, headers=headers) as answer:
            content = await answer.json()
        if answer.status != 200:
            raise SystemExit(f"{name}: HTTP {answer.status}: {content}")

    async def record(self, name: str, http: aiohttp.ClientSession) -> dict[str, Any]:
        while True:
            async with http.get(f"{self.admin}/api/decisions/{name}") as answer:
                record: dict[str, Any] = await answer.json()
            if record.get("outcome"):
                return record


async def measure(
    num_requests: int, num_users: int, num_blocks: int, waits: bool
) -> None:
    """Run one load, and print what came of the predictions."""
    tally, busy = Tally(), set[int]()
    async with running(num_blocks) as urls, aiohttp.ClientSession() as http:
        chats = CHATS // num_users
        users = [User(number, chats, urls, tally, waits) for number in range(num_users)]
        share = num_requests // num_users
        await asyncio.gather(*(user.run(share, http, busy) for user in users))
    tally.report(num_users)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=2_000)
    parser.add_argument("--users", type=int, action="append")
    parser.add_argument("--num-blocks", type=int, default=96)
    parser.add_argument("--wait", action="store_true", help="for all events first")
    chosen = parser.parse_args()
    for num_users in chosen.users or (1, 4):
        asyncio.run(measure(chosen.requests, num_users, chosen.num_blocks, chosen.wait))


if __name__ == "__main__":
    main()
