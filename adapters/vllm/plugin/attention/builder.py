"""What makes the metadata of our backend, and at start has its look proved.

vLLM makes one a group of layers when it gets its pages. That is before any request, so
neither the proof nor what PyTorch does at its first calls holds up a step or a call.
"""

import logging
from typing import Any

from vllm.v1.attention.backends.cpu_attn import CPUAttentionMetadataBuilder

from warmroute.adapters.vllm.plugin.attention.proof import proof_fault

logger = logging.getLogger("vllm.warmroute")


class ScoredBuilder(CPUAttentionMetadataBuilder):  # type: ignore[misc]
    """The platform's builder, which knows whether a look finds what its kernel does.

    Attributes:
        fault: Why attention cannot be looked at, if so; the engine runs all the same.
    """

    def __init__(
        self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: Any
    ) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        self.fault = _fault(vllm_config, layer_names[0], kv_cache_spec)
        if self.fault is not None:
            logger.warning("warmroute: attention is not looked at: %s", self.fault)


def _fault(vllm_config: Any, name: str, spec: Any) -> str | None:
    try:
        layer = vllm_config.compilation_config.static_forward_context[name]
        return proof_fault(layer, spec.block_size, spec.dtype)
    except Exception as error:
        logger.exception("warmroute: attention is not looked at")
        return f"the proof of a look failed: {error!r}"
