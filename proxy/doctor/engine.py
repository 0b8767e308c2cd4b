"""Which engine is it, and which release?"""

from warmroute.adapters.registry import FALLBACK, adapters, detect
from warmroute.proxy.doctor.finding import Finding, ok, warn
from warmroute.proxy.doctor.patient import Patient


class Engine:
    """Find the adapter: as configured, and as the engine looks."""

    name = "engine"
    needs: tuple[str, ...] = ("authorised",)

    async def examine(self, patient: Patient) -> Finding:
        """Note adapter, models, facts and counters, before any prompt is sent."""
        endpoint = patient.endpoint
        patient.cards = await patient.adapter.models(endpoint)
        seen = await detect(endpoint, patient.cards)
        configured = patient.config.engine
        is_free = configured in ("auto", seen.name)
        patient.adapter = seen if is_free else adapters.get(configured)()
        patient.facts = await patient.adapter.facts(endpoint)
        patient.counters = await patient.adapter.cache_counters(endpoint)
        told = " ".join([patient.adapter.name, patient.facts.version or ""]).strip()
        if not is_free:
            return warn(
                f"configured as {configured}, and looks like {seen.name}",
                f"set the backend's engine to {seen.name}, or to auto",
            )
        if seen.name == FALLBACK:
            return warn(
                "no engine that warmroute knows: nothing is told of its cache",
                "set the backend's engine, if it is vLLM or SGLang behind something "
                "that hides it",
            )
        return ok(told if patient.facts.version else f"{told}, release not told")
