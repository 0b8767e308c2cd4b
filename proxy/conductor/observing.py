"""From a request that ended to what the conductor learns from it."""

from collections.abc import Sequence

from warmroute.policies.conducting.item import Turn
from warmroute.policies.kv.run import Run
from warmroute.proxy.ledger.decision import Decision
from warmroute.proxy.view.lookup import Chain, Lookup

_MAX_ENDS = 128


def turn_of(
    decision: Decision, lookup: Lookup, seen_tokens: int, now: float
) -> Turn | None:
    """Return the turn; None for what has no token ids, or no full block. O(runs)."""
    chain = _chain(lookup.chains_at(decision.index))
    if chain is None:
        return None
    size, hashes = chain.tokens, chain.hashes
    seen = min(seen_tokens // size, len(hashes))
    cached = decision.cached_tokens
    if cached is None:
        cached = decision.predicted_tokens
    fresh = decision.prompt_tokens - cached + (decision.output_tokens or 0)
    return Turn(
        now,
        decision.chosen,
        hashes[-1],
        len(hashes),
        size,
        seen,
        hashes[seen - 1] if seen else None,
        _ends(hashes, seen),
        max(fresh, 0),
        cached,
        decision.duration_s or 0.0,
        chain.last,
        _run_at(chain, seen),
    )


def _chain(chains: Sequence[Chain]) -> Chain | None:
    if len(chains) == 1 and chains[0].hashes and not chains[0].is_text:
        return chains[0]
    return None


def _ends(hashes: Sequence[int], seen: int) -> Sequence[int]:
    """Return the hashes of the last blocks that the fleet knew, the last one first.

    Where an earlier prompt ended, its answer follows, which the engine has announced;
    so the end lies as many blocks back as that is long, 128 at most.
    """
    return hashes[max(seen - _MAX_ENDS, 0) : seen][::-1]


def _run_at(chain: Chain, num_blocks: int) -> Run | None:
    for run in chain.path:
        if run.end >= num_blocks:
            return run
    return chain.last
