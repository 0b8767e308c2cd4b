"""KV control inside one ``EngineCore``: what its busy loop calls between steps."""

from warmroute.adapters.kv_control import VERBS, unsupported
from warmroute.adapters.vllm.plugin.budgets import Budgets
from warmroute.adapters.vllm.plugin.events import Announcer
from warmroute.adapters.vllm.plugin.jobs import Answer, Jobs, refusal
from warmroute.adapters.vllm.plugin.ports import Workers
from warmroute.adapters.vllm.plugin.verbs import Arguments, Verbs
from warmroute.policies.errors import ClientError
from warmroute.policies.kv.retention import Retention


class CoreControl:
    """Answer the calls of the door about one engine.

    Args:
        verbs: What may be asked for.
        retention: Is let go of what is due before each call.
        announcer: Publishes what a call changed before it is answered.
        budgets: Of running sequences; None where there can be none.
    """

    __slots__ = ("_budgets", "_faults", "_jobs", "_retention", "_verbs")

    def __init__(
        self,
        verbs: Verbs,
        retention: Retention,
        announcer: Announcer,
        budgets: Budgets | None = None,
    ) -> None:
        self._verbs = verbs.all()
        self._faults = verbs.faults
        self._retention = retention
        self._budgets = budgets
        self._jobs = Jobs(announcer.announce)

    def __repr__(self) -> str:
        return f"<CoreControl {self._jobs!r}>"

    def reach(self, workers: Workers) -> None:
        """Learn who runs the model, and whether budgets work there; asks once."""
        budgets = self._budgets
        if budgets is not None and budgets.workers is None:
            budgets.workers = workers
            fault = budgets.fault()
            if fault is not None:
                self._faults["budget"] = fault

    def call(self, ticket: int, verb: str, arguments: Arguments) -> Answer:
        """Begin a verb, or go on with one whose *verb* is empty."""
        self._retention.expire()
        if not verb:
            return self._jobs.go_on(ticket)
        fault = self._faults.get("restore" if verb == "restorable" else verb)
        if fault is not None:
            return refusal(unsupported(verb, fault))
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

    def reach(self, workers: Workers) -> None:
        """Do without."""

    def call(self, ticket: int, verb: str, arguments: Arguments) -> Answer:
        """Refuse, with the reason; `capabilities` is told it as the answer."""
        if verb == "capabilities":
            verbs = dict.fromkeys(VERBS, self._reason)
            return {"parts": [{"verbs": verbs}], "done": True}
        return refusal(ClientError(501, "kv_verb_unsupported", self._reason))
