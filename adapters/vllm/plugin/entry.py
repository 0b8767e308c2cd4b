"""The entry point ``vllm.general_plugins``: runs in every process of vLLM.

It changes three things: a scheduler that was made gets a control of its cache, and an
``EngineCore`` a method with which the door reaches that, and a worker five that do
nothing until a budget is asked for. An option changes a fourth thing, the attention
backend. Whatever goes wrong here is logged, and the engine runs on.
"""

import functools
import importlib
import logging
from typing import Any

from warmroute.adapters.kv_plugin.entry import register_if_wanted
from warmroute.adapters.kv_plugin.jobs import Answer
from warmroute.adapters.kv_plugin.names import UTILITY
from warmroute.adapters.kv_plugin.verbs import DeafControl
from warmroute.adapters.vllm.plugin.attention.option import register_attention
from warmroute.adapters.vllm.plugin.attention.worker import (
    attention_masses,
    watch_attention,
)
from warmroute.adapters.vllm.plugin.copies import open_copies, put_back
from warmroute.adapters.vllm.plugin.core import CoreControl
from warmroute.adapters.vllm.plugin.holes import open_holes
from warmroute.adapters.vllm.plugin.installation import install
from warmroute.adapters.vllm.plugin.names import (
    CONTROL,
    COPIES,
    HOLES,
    MASSES,
    PLUGINS_VARIABLE,
    PUT_BACK,
    SCORES,
)
from warmroute.adapters.vllm.plugin.selftest import examine

logger = logging.getLogger("vllm.warmroute")

_MARK = "_warmroute_original"
_NO_CONTROL = DeafControl("unsupported: the engine's scheduler is not vLLM's own")


def register() -> None:
    """Let engines made from now on be driven; does nothing unless asked by name."""
    register_if_wanted(PLUGINS_VARIABLE, _register, logger)


def _register() -> None:
    core = importlib.import_module("vllm.v1.engine.core").EngineCore
    setattr(core, UTILITY, answer)
    worker = importlib.import_module("vllm.v1.worker.worker_base").WorkerBase
    setattr(worker, HOLES, open_holes)
    setattr(worker, SCORES, watch_attention)
    setattr(worker, MASSES, attention_masses)
    setattr(worker, COPIES, open_copies)
    setattr(worker, PUT_BACK, put_back)
    register_attention()
    scheduler = importlib.import_module("vllm.v1.core.sched.scheduler").Scheduler
    original = scheduler.__init__
    if hasattr(original, _MARK):  # vLLM may load plugins twice
        return

    # By now an EngineCore is being made, but its scheduler is not.
    @functools.wraps(original)
    def make(self: Any, *arguments: Any, **options: Any) -> None:
        original(self, *arguments, **options)
        setattr(self, CONTROL, controlled(self))

    setattr(make, _MARK, original)
    scheduler.__init__ = make


def answer(core: Any, ticket: int, verb: str, arguments: dict[str, object]) -> Answer:
    """Answer a call of the door; a method of ``EngineCore``."""
    control = getattr(core.scheduler, CONTROL, _NO_CONTROL)
    if isinstance(control, CoreControl):
        control.reach(core.model_executor)
    answered: Answer = control.call(ticket, verb, arguments)
    return answered


def controlled(scheduler: Any) -> CoreControl | DeafControl:
    """Return the control of a scheduler that was just made; never raises."""
    try:
        control = install(scheduler, examine())
    except Exception as error:
        logger.exception("warmroute: KV control is off")
        control = DeafControl(f"unsupported: the plugin failed to start: {error!r}")
    logger.info("warmroute: KV control is %r", control)
    return control
