"""The option that puts an attention backend of ours in the place of the platform's."""

import importlib
import logging
import os
from typing import Any

from warmroute.adapters.vllm.plugin.names import ATTENTION_VARIABLE
from warmroute.adapters.vllm.plugin.versions import version_fault

logger = logging.getLogger("vllm.warmroute")

KNOWN = "vllm.v1.attention.backends.cpu_attn.CPUAttentionBackend"
"""The platform's backend that ours is derived from."""

OURS = "warmroute.adapters.vllm.plugin.attention.backend.ScoredBackend"


def register_attention() -> None:
    """Register our backend, if the option asks for it and it is the known one.

    Never raises; what keeps it from that is logged.
    """
    if not is_asked_for():
        return
    try:
        fault = platform_fault(KNOWN)
        if fault is None:
            registry = _registry()
            registry.register_backend(registry.AttentionBackendEnum.CPU_ATTN, OURS)
    except Exception as error:
        logger.exception("warmroute: the attention backend stays the platform's")
        fault = repr(error)
    if fault is not None:
        logger.warning("warmroute: attention is not looked at: %s", fault)


def is_asked_for() -> bool:
    """Return whether the operator asked for it."""
    return os.environ.get(ATTENTION_VARIABLE, "") == "1"


def option_fault() -> str | None:
    """Say why attention is not looked at in this process, if so."""
    if not is_asked_for():
        return (
            f"attention is not looked at; start vLLM with {ATTENTION_VARIABLE}=1 "
            f"(docs/vllm-plugin.md)"
        )
    return platform_fault(OURS)


def platform_fault(expected: str) -> str | None:
    """Say what keeps the platform's attention from being the *expected* backend."""
    fault = version_fault(importlib.import_module("vllm").__version__)
    if fault is not None:
        return fault
    if not importlib.import_module("vllm.platforms").current_platform.is_cpu():
        return "attention can be looked at on CPU only"
    found = _registry().AttentionBackendEnum.CPU_ATTN.get_path()
    if found not in (expected, OURS):
        return f"attention is by {found}, not by vLLM's {KNOWN}"
    return None


def _registry() -> Any:
    return importlib.import_module("vllm.v1.attention.backends.registry")
