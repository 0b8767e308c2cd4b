"""The worker's methods that watch attention, and tell what was seen."""

import importlib
import inspect
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from warmroute.adapters.vllm.plugin.attention.option import option_fault
from warmroute.adapters.vllm.plugin.names import OPEN_WATCH

if TYPE_CHECKING:
    from warmroute.adapters.vllm.plugin.attention.watch import Watch

logger = logging.getLogger("vllm.warmroute")

_HERE = "warmroute.adapters.vllm.plugin.attention"

EVERY_LAYERS = 4
"""One layer in so many looks; what one costs is paid by the step."""

_FORWARD = (
    "self",
    "layer",
    "query",
    "key",
    "value",
    "kv_cache",
    "attn_metadata",
    "output",
    "output_scale",
    "output_block_scale",
)


def watch_attention(worker: Any, is_armed: bool) -> str | None:
    """Say why a worker cannot look at attention; otherwise let it, if *is_armed*.

    A method of every worker of vLLM; never raises.
    """
    try:
        fault = option_fault() or _runner_fault(worker.model_runner)
        if fault is None and is_armed and not hasattr(worker.model_runner, OPEN_WATCH):
            _arm(worker.model_runner)
    except Exception as error:
        logger.exception("warmroute: attention is not looked at")
        return f"unsupported: a look at attention failed: {error!r}"
    if fault is None or fault.startswith("unsupported: "):
        return fault
    return f"unsupported: {fault}"


def attention_masses(worker: Any, names: list[str]) -> dict[str, list[float]]:
    """Return what the blocks of these requests receive; a method of every worker."""
    watch: Watch | None = getattr(worker.model_runner, OPEN_WATCH, None)
    return {} if watch is None else watch.masses(names)


def looking_layers(names: list[str]) -> list[str]:
    """Choose the layers that look, spread over the model, the first one never."""
    return names[EVERY_LAYERS // 2 :: EVERY_LAYERS] or names[-1:]


def _runner_fault(runner: Any) -> str | None:
    backend = importlib.import_module(f"{_HERE}.backend")
    platform = importlib.import_module("vllm.v1.attention.backends.cpu_attn")
    forward = platform.CPUAttentionBackendImpl.forward
    found = tuple(inspect.signature(forward).parameters)
    if found != _FORWARD:
        return f"the platform's attention takes {found}"
    for group in _groups(runner):
        layer = _layers(runner)[group.layer_names[0]]
        if not isinstance(layer.impl, backend.ScoredImpl):
            return f"attention is by a {type(layer.impl).__name__}, not by ours"
        for builder in group.metadata_builders:
            if not isinstance(builder, backend.ScoredBuilder):
                return f"metadata are made by a {type(builder).__name__}, not by ours"
            if builder.fault is not None:
                fault: str = builder.fault
                return fault
    return None


def _arm(runner: Any) -> None:
    watch: Watch = importlib.import_module(f"{_HERE}.watch").Watch(
        runner, next(_groups(runner)).kv_cache_spec.block_size
    )
    for group in _groups(runner):
        for builder in group.metadata_builders:
            builder.build = watch.building(builder.build)
        for name in looking_layers(group.layer_names):
            _layers(runner)[name].impl.watch = watch
    runner._update_states = watch.updating(runner._update_states)
    setattr(runner, OPEN_WATCH, watch)


def _layers(runner: Any) -> dict[str, Any]:
    layers: dict[str, Any] = runner.compilation_config.static_forward_context
    return layers


def _groups(runner: Any) -> Iterator[Any]:
    for groups in runner.attn_groups:
        yield from groups
