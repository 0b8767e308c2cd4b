"""The verbs of KV control inside an engine, and who answers calls for them.

Each verb is a generator: what it yields is part of the answer, in plain types, and
while it waits to be resumed the engine may step.
"""

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import ClassVar, cast

from warmroute.adapters.kv_control import VERBS, unsupported
from warmroute.adapters.kv_plugin.jobs import Answer, Jobs, Part, refusal
from warmroute.policies.errors import ClientError

Arguments = dict[str, object]
Verb = Callable[[Arguments], Iterator[Part]]

_FAULT_OF = {"restorable": "restore", "bring_back": "budget"}
"""Verbs whose fault parts of verbs share."""

Chain = tuple[list[int], str | None, list[int]]
"""Token ids of a prompt, its salt, and the keys of its blocks that come back."""


class EngineVerbs:
    """Perform the verbs on one engine; a subclass has a method for each.

    Args:
        faults: Why some verbs do not work here.

    Attributes:
        asked: Verbs and parts of verbs that may be asked for, each a method.
    """

    __slots__ = ("faults",)

    asked: ClassVar[tuple[str, ...]] = (
        "capabilities",
        "hashes",
        "snapshot",
        "flush",
        "evict",
        "retain",
        "release",
        "demote",
        "offload",
        "policy",
        "expire",
    )

    def __init__(self, faults: Mapping[str, str]) -> None:
        self.faults = dict(faults)

    def capabilities(self, arguments: Arguments) -> Iterator[Part]:
        """Say for each verb that it works here, or why not."""
        yield {
            "verbs": dict.fromkeys(VERBS, True) | self.faults,
            "running": {"restore": self.faults.get("budget", True)},
        }

    def all(self) -> dict[str, Verb]:
        """Return what may be asked for, by name."""
        return {name: getattr(self, name) for name in self.asked}


class VerbCalls:
    """Answer calls for the verbs of one engine, a slice of work each.

    Args:
        verbs: What may be asked for.
        after: Called behind each call that did something.
    """

    __slots__ = ("_jobs", "_verbs", "faults")

    def __init__(self, verbs: EngineVerbs, after: Callable[[], object]) -> None:
        self._verbs = verbs.all()
        self._jobs = Jobs(after)
        self.faults = verbs.faults

    def __repr__(self) -> str:
        return f"<VerbCalls {self._jobs!r}>"

    def answer(self, ticket: int, verb: str, arguments: Arguments) -> Answer:
        """Begin a verb, or go on with one whose *verb* is empty."""
        if not verb:
            return self._jobs.go_on(ticket)
        fault = self.faults.get(_FAULT_OF.get(verb, verb))
        if fault is not None:
            name = "restore" if verb in _FAULT_OF else verb
            return refusal(unsupported(name, fault))
        generate = self._verbs.get(verb)
        if generate is None:
            return refusal(
                ClientError(404, "kv_verb_unknown", f"no verb {verb[:40]!r}")
            )
        return self._jobs.begin(ticket, generate(arguments))


class DeafControl:
    """Say of every call why this engine cannot be driven."""

    __slots__ = ("_reason",)

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def __repr__(self) -> str:
        return f"<DeafControl {self._reason}>"

    def call(self, ticket: int, verb: str, arguments: Arguments) -> Answer:
        """Refuse, with the reason; `capabilities` is told it as the answer."""
        if verb == "capabilities":
            verbs = dict.fromkeys(VERBS, self._reason)
            running = {"restore": self._reason}
            return {"parts": [{"verbs": verbs, "running": running}], "done": True}
        return refusal(ClientError(501, "kv_verb_unsupported", self._reason))


def packed(keys: Iterable[int]) -> bytes:
    """Pack the keys that a call names.

    The garbage collector of the engine would go through a list of them.
    """
    return array("Q", keys).tobytes()


def named(arguments: Arguments) -> Sequence[int]:
    """Return the keys that a call names."""
    return memoryview(cast(bytes, arguments["hashes"])).cast("Q")
