"""Are prompts tokenized here as in the engine?"""

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Protocol

from warmroute.adapters.base import Endpoint
from warmroute.policies.errors import ProtocolMismatch
from warmroute.proxy.config import ModelConfig
from warmroute.proxy.doctor.finding import Finding, broken, ok, skipped
from warmroute.proxy.doctor.parity_prompts import PROMPTS
from warmroute.proxy.doctor.patient import Patient

_PATH = "/tokenize"
_WORST_FIRST = ("broken", "warn", "ok", "skipped")


class TokenReader(Protocol):
    """Turn chats into token ids, as the proxy does it for one model."""

    async def read(self, body: Mapping[str, object]) -> Sequence[int] | None:
        """Return the tokens of a chat request; None if they cannot be exact."""
        ...


class Parity:
    """Compare the tokens of built-in prompts, a model at a time."""

    name = "token parity"
    needs: tuple[str, ...] = ("models",)

    async def examine(self, patient: Patient) -> Finding:
        """The worst finding of the models that this backend serves."""
        served = {card.id: card for card in patient.cards}
        findings = [
            await parity(model, patient)
            for model in patient.conditions.models
            if model.tokenizer != "none"
            and (not served or patient.adapter.serves(model.name, served))
        ]
        findings.sort(key=lambda one: _WORST_FIRST.index(one.status))
        return findings[0] if findings else skipped("no tokenizer configured")


async def parity(model: ModelConfig, patient: Patient) -> Finding:
    """Compare one model's tokens with those of one backend."""
    if model.tokenizer == "engine":
        return skipped(f"{model.name}: the engine itself is asked for tokens")
    reader = patient.conditions.readers.get(model.name)
    if reader is None:
        return skipped(f"{model.name}: this version estimates, whatever the tokenizer")
    equal: list[str] = []
    for name, body in PROMPTS.items():
        ours = await reader.read(body)
        theirs = await _engine_tokens(patient.endpoint, model.name, body)
        if ours is None or theirs is None:
            continue
        if [*ours] != theirs:
            return _differs(f"{model.name}, {name}", ours, theirs)
        equal.append(name)
    if not equal:
        return skipped(f"{model.name}: the engine tells no tokens of chats")
    missing = [name for name in PROMPTS if name not in equal]
    rest = f"; not compared: {', '.join(missing)}" if missing else ""
    return ok(f"{model.name}: equal on {', '.join(equal)}{rest}")


async def _engine_tokens(
    endpoint: Endpoint, model: str, body: Mapping[str, object]
) -> list[int] | None:
    """Ask the engine for a chat's tokens; None if it does not tell."""
    status, answer = await endpoint.post(_PATH, {"model": model, **body})
    if status != 200:
        return None
    tokens = endpoint.decode_object(_PATH, answer).get("tokens")
    if not isinstance(tokens, list):
        raise ProtocolMismatch(f"{endpoint.url}{_PATH} answered without 'tokens'")
    return tokens


def _differs(what: str, ours: Sequence[int], theirs: Sequence[int]) -> Finding:
    pairs = enumerate(zip_longest(ours, theirs))
    at, (mine, other) = next((at, pair) for at, pair in pairs if pair[0] != pair[1])
    return broken(
        f"{what}: token {at} is {_shown(mine)} here and {_shown(other)} in the engine "
        f"({len(ours)} and {len(theirs)} tokens)",
        "set the model's tokenizer to the files that the engine loads, its chat "
        "template included, or to engine",
    )


def _shown(token: int | None) -> str:
    return "missing" if token is None else str(token)
