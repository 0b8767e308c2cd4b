"""The engines that are known, by name and by how they look from outside."""

from collections.abc import Sequence

from warmroute.adapters.base import Adapter, Endpoint, ModelCard
from warmroute.policies.errors import ConfigError
from warmroute.policies.registry import Registry

FALLBACK = "openai"

adapters: Registry[Adapter] = Registry("warmroute.adapters", "engine", ConfigError)
"""The engine adapters, built-in and installed."""


async def detect(endpoint: Endpoint, models: Sequence[ModelCard]) -> Adapter:
    """Find out which engine answers, and return its adapter.

    Every adapter is asked whether it recognises its engine; where none does, the
    promises of OpenAI's API are all that can be relied on.

    Raises:
        BackendUnavailable: The engine gave no answer in time; ask again later.
    """
    for name in adapters.names():
        if name == FALLBACK:
            continue
        adapter = adapters.get(name)()
        if await adapter.recognises(endpoint, models):
            return adapter
    return adapters.get(FALLBACK)()
