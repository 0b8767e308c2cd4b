"""Calls from an engine's API server into the engine, a slice at a time."""

import asyncio
import secrets
from collections.abc import Mapping
from typing import Protocol, cast

from warmroute.adapters.kv_plugin.names import UTILITY
from warmroute.policies.errors import ClientError

TIMEOUT_S = 30.0
"""How long one slice may wait for its turn between two steps of the engine."""

MAX_CALLS = 4

Part = Mapping[str, object]


class EngineCalls(Protocol):
    """The client of the engines behind one API server (``EngineCoreClient``)."""

    async def call_utility_all_async(self, method: str, *args: object) -> list[object]:
        """Call a method of every engine between two of its steps."""
        ...


class CoreCalls:
    """Have verbs performed by the engine, whatever they take.

    At most four are under way; more of them wait, so that their answers do not fill
    the server's memory.

    Args:
        engines: The client of the engine.
    """

    __slots__ = ("_engines", "_gate")

    def __init__(self, engines: EngineCalls) -> None:
        self._engines = engines
        self._gate = asyncio.Semaphore(MAX_CALLS)

    def __repr__(self) -> str:
        return f"<CoreCalls to {type(self._engines).__name__}>"

    async def run(self, verb: str, **arguments: object) -> list[Part]:
        """Perform a verb, and return the parts of its answer.

        Raises:
            ClientError: The engine refuses, is silent, or there are several.
        """
        async with self._gate:
            ticket = secrets.randbits(62)
            answer = await self._call(ticket, verb, arguments)
            parts = cast(list[Part], answer["parts"])
            while not answer["done"]:
                answer = await self._call(ticket, "", {})
                parts += cast(list[Part], answer["parts"])
            return parts

    async def _call(
        self, ticket: int, verb: str, arguments: Mapping[str, object]
    ) -> Mapping[str, object]:
        try:
            async with asyncio.timeout(TIMEOUT_S):
                answers = await self._engines.call_utility_all_async(
                    UTILITY, ticket, verb, dict(arguments)
                )
        except TimeoutError as error:
            raise ClientError(
                503,
                "kv_engine_silent",
                f"the engine did not answer within {TIMEOUT_S:g} s; is it stuck?",
            ) from error
        except OverflowError as error:
            raise ClientError(
                400,
                "kv_request_invalid",
                f"kv {verb}: a number is out of range (allowed: what fits 64 bits)",
            ) from error
        return _only(answers)


def _only(answers: list[object]) -> Mapping[str, object]:
    if len(answers) != 1:
        raise ClientError(
            501,
            "kv_verb_unsupported",
            f"unsupported: {len(answers)} engines share this server (allowed: 1); "
            f"give each rank a server of its own",
        )
    answer = cast(Mapping[str, object], answers[0])
    refusal = cast(list[object] | None, answer.get("error"))
    if refusal is not None:
        status, code, message = refusal
        raise ClientError(cast(int, status), str(code), str(message))
    return answer
