"""The entry point ``sglang.srt.plugins``: runs in SGLang's server and its scheduler.

By SGLang's own hooks it puts a door in front of the server's application, and has the
scheduler look at one socket in each turn of its loop. Whatever goes wrong here is
logged, and the engine runs on.
"""

import importlib
import logging
import multiprocessing
import os
from typing import Any

from warmroute.adapters.kv_plugin.calls import EngineCalls
from warmroute.adapters.kv_plugin.entry import register_if_wanted
from warmroute.adapters.sglang.plugin.endpoint import DeafLink, DoorApp, SGLangEndpoint
from warmroute.adapters.sglang.plugin.installation import install
from warmroute.adapters.sglang.plugin.link import SchedulerLink, make_socket_folder
from warmroute.adapters.sglang.plugin.names import (
    CONTROL,
    PLUGINS_VARIABLE,
    SOCKET_VARIABLE,
)
from warmroute.adapters.sglang.plugin.versions import version_fault

logger = logging.getLogger("sglang.warmroute")

SERVER = "sglang.srt.entrypoints.http_server"
START = f"{SERVER}._setup_and_run_http_server"
TURN = "sglang.srt.managers.scheduler.Scheduler.process_input_requests"


def register() -> None:
    """Let the engine be driven; does nothing unless asked for by name."""
    register_if_wanted(PLUGINS_VARIABLE, _register, logger)


def _register() -> None:
    hooks: Any = importlib.import_module("sglang.srt.plugins.hook_registry")
    fault = version_fault(importlib.import_module("sglang").__version__)
    kind = hooks.HookType
    if multiprocessing.parent_process() is None:
        link: EngineCalls
        if fault is None:
            make_socket_folder()
            link = SchedulerLink(os.environ[SOCKET_VARIABLE])
        else:
            link = DeafLink(fault)
        hooks.HookRegistry.register(START, _opener(link), kind.BEFORE)
    elif fault is None:
        hooks.HookRegistry.register(TURN, take_turn, kind.AFTER)


def take_turn(result: object, scheduler: Any, *arguments: object) -> None:
    """Look at the socket once; called behind each turn of the scheduler's loop."""
    desk = getattr(scheduler, CONTROL, None)
    if desk is None:
        desk = install(scheduler)
        setattr(scheduler, CONTROL, desk)
    desk.turn()


def _opener(link: EngineCalls) -> Any:
    def open_door(*arguments: object, **options: object) -> None:
        try:
            put_door(importlib.import_module(SERVER).app, SGLangEndpoint(link))
        except Exception:
            logger.exception("warmroute: the door is not there")

    return open_door


def put_door(app: Any, endpoint: SGLangEndpoint) -> None:
    """Have *app* begin with a door, whatever middleware is added to it later."""
    build = app.build_middleware_stack
    app.build_middleware_stack = lambda: DoorApp(build(), endpoint)
    logger.info("warmroute: the door is %r", endpoint)
