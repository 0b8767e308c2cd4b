"""KV control inside one ``EngineCore``: what its busy loop calls between steps."""

from warmroute.adapters.kv_plugin.jobs import Answer
from warmroute.adapters.kv_plugin.verbs import Arguments, VerbCalls
from warmroute.adapters.vllm.plugin.budgets import Budgets
from warmroute.adapters.vllm.plugin.events import Announcer
from warmroute.adapters.vllm.plugin.ports import Workers
from warmroute.adapters.vllm.plugin.verbs import Verbs
from warmroute.policies.kv.retention import Retention


class CoreControl:
    """Answer the calls of the door about one engine.

    Args:
        verbs: What may be asked for.
        retention: Is let go of what is due before each call.
        announcer: Publishes what a call changed before it is answered.
        budgets: Of running sequences; None where there can be none.
    """

    __slots__ = ("_budgets", "_calls", "_retention")

    def __init__(
        self,
        verbs: Verbs,
        retention: Retention,
        announcer: Announcer,
        budgets: Budgets | None = None,
    ) -> None:
        self._calls = VerbCalls(verbs, announcer.announce)
        self._retention = retention
        self._budgets = budgets

    def __repr__(self) -> str:
        return f"<CoreControl {self._calls!r}>"

    def reach(self, workers: Workers) -> None:
        """Learn who runs the model, and whether budgets work there; asks once."""
        budgets = self._budgets
        if budgets is not None and budgets.workers is None:
            budgets.workers = workers
            fault = budgets.fault()
            if fault is not None:
                self._calls.faults["budget"] = fault

    def call(self, ticket: int, verb: str, arguments: Arguments) -> Answer:
        """Begin a verb, or go on with one whose *verb* is empty."""
        self._retention.expire()
        return self._calls.answer(ticket, verb, arguments)
