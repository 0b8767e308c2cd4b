"""The embedded engine over HTTP: metrics and paths of vLLM, and all of KV control."""

from collections.abc import Sequence
from dataclasses import replace

from warmroute.adapters.base import Endpoint, EngineFacts, Lack, ModelCard
from warmroute.adapters.embedded.remedies import REMEDIES
from warmroute.adapters.kv_client import KVControlClient
from warmroute.adapters.openai import owners
from warmroute.adapters.vllm.client import VLLMAdapter

OWNER = "warmroute"


class EmbeddedAdapter(VLLMAdapter):
    """Read the embedded engine as one reads vLLM, whose metrics it has."""

    name = "embedded"
    remedies = REMEDIES

    async def facts(
        self, endpoint: Endpoint, known: EngineFacts | None = None
    ) -> EngineFacts:
        """Read ``/metrics``, and ``/version`` the first time.

        The engine always reports cached tokens; vLLM must be told to.
        """
        facts = await super().facts(endpoint, known)
        return replace(facts, reports_cached_tokens=True)

    async def recognises(self, endpoint: Endpoint, models: Sequence[ModelCard]) -> bool:
        """Recognise by the models' owner; asks nothing."""
        return OWNER in owners(models)

    def remedy(self, lack: Lack, version: str | None) -> str:
        """Return the engine's own flag; it has no releases that differ."""
        return super().remedy(lack, None)

    def kv_control(self, endpoint: Endpoint) -> KVControlClient:
        """Return the levers of the cache behind *endpoint*."""
        return KVControlClient(endpoint)
