"""Does the engine keep prefixes? Without, there is nothing to route by."""

from warmroute.proxy.doctor.finding import Finding, broken, ok, skipped, warn
from warmroute.proxy.doctor.patient import Patient
from warmroute.proxy.doctor.prompt import fresh_prompt, send


class PrefixCaching:
    """Send one prompt twice: the second time it must hit."""

    name = "prefix caching"
    needs: tuple[str, ...] = ("engine",)

    async def examine(self, patient: Patient) -> Finding:
        """Note both replies; believe what was seen more than what is told."""
        if patient.facts.prefix_caching is False:
            return broken("it is off, as the engine says", _remedy(patient))
        if not patient.is_good("generation"):
            return _as_told(patient)
        block_size = patient.facts.block_size
        prompt = fresh_prompt(block_size, patient.max_model_len)
        if not prompt:
            return skipped(
                f"no block of {block_size} tokens fits into the longest sequence of "
                f"{patient.max_model_len}"
            )
        before = await _hits(patient)
        first = await send(patient.endpoint, patient.model, prompt)
        second = await send(patient.endpoint, patient.model, prompt)
        patient.replies += (first, second)
        cached = second.cached_tokens
        if cached is not None:
            return _by_report(patient, len(prompt), cached)
        after = await _hits(patient)
        if before is None or after is None:
            return skipped("the engine tells neither cached tokens nor counters")
        return _by_counters(patient, len(prompt), after - before)


async def _hits(patient: Patient) -> int | None:
    counters = await patient.adapter.cache_counters(patient.endpoint)
    return counters.hit if counters else None


def _as_told(patient: Patient) -> Finding:
    if patient.facts.prefix_caching:
        return ok("it is on, as the engine says; not tried")
    return skipped("not told, and not tried")


def _by_report(patient: Patient, length: int, cached: int) -> Finding:
    if cached > 0:
        return ok(f"a prompt of {length} tokens hit {cached} the second time")
    return _missed(patient, length)


def _by_counters(patient: Patient, length: int, hits: int) -> Finding:
    if hits > 0:
        return ok(f"the hit counter rose by {hits} for a repeated prompt of {length}")
    return _missed(patient, length)


def _missed(patient: Patient, length: int) -> Finding:
    ranks = patient.facts.dp_ranks or 1
    found = f"a prompt of {length} tokens hit none of them the second time"
    if ranks > 1:
        return warn(
            f"{found}; it may have met another of the {ranks} ranks", _remedy(patient)
        )
    return broken(found, _remedy(patient))


def _remedy(patient: Patient) -> str:
    return patient.adapter.remedy("prefix_caching", patient.facts.version)
