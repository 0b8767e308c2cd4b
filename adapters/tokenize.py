"""Asking an engine for the tokens that it makes of a prompt."""

from array import array
from collections.abc import Mapping

import msgspec

from warmroute.adapters.endpoint import Endpoint
from warmroute.policies.errors import ProtocolMismatch

ABSENT = (404, 405, 501)


class _Answer(msgspec.Struct):
    tokens: list[int]


_decode = msgspec.json.Decoder(_Answer).decode


async def ask_tokens(
    endpoint: Endpoint, path: str, body: Mapping[str, object]
) -> "array[int] | None":
    """Return the tokens that *path* makes of *body*; None if there is no such path.

    Raises:
        BackendUnavailable: No answer in time.
        ProtocolMismatch: The engine refused, or answered something else.
    """
    status, answer = await endpoint.post(path, body)
    if status in ABSENT:
        return None
    if status != 200:
        raise ProtocolMismatch(f"{endpoint.url}{path} answered HTTP {status}, not 200")
    try:
        return array("I", _decode(answer).tokens)
    except (msgspec.DecodeError, OverflowError) as error:
        raise ProtocolMismatch(
            f"{endpoint.url}{path} answered without a list of token ids"
        ) from error
