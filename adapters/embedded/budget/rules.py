"""Token eviction as the engine asks for it."""

from collections.abc import Sequence

from warmroute.adapters.embedded.budget.calibration import calibrate, draw_sample
from warmroute.adapters.embedded.budget.computed_prompt import ComputedPrompt
from warmroute.adapters.embedded.budget.host_attention import HostAttention
from warmroute.adapters.embedded.budget.host_layer import HostLayer
from warmroute.adapters.embedded.budget.options import BudgetOptions
from warmroute.adapters.embedded.budget.private_pages import PrivatePages
from warmroute.adapters.embedded.budget.slot_attention import SlotAttention
from warmroute.adapters.embedded.model.arrays import F32
from warmroute.adapters.embedded.model.kv_store import KVStore
from warmroute.adapters.embedded.model.llama import Llama
from warmroute.adapters.embedded.model.rope import Rotary
from warmroute.policies.eviction.host_pool import HostPool
from warmroute.policies.eviction.infinigen import InfiniGen
from warmroute.policies.eviction.speculation import Speculation, num_pairs

MAX_PREPARED = 2
"""Shares of a head that stay prepared: clients choose them, and weights are copied."""


class TokenRules:
    """Start sequences under a token budget; the engine's `BudgetRules`.

    What InfiniGen prepares offline is made at its first use, which takes as long as
    a prefill of 256 tokens, and kept for the `MAX_PREPARED` shares used last.
    """

    __slots__ = ("_prepared",)

    def __init__(self) -> None:
        self._prepared: dict[int, tuple[Llama, list[Speculation]]] = {}

    def __repr__(self) -> str:
        return f"<TokenRules, {len(self._prepared)} prepared>"

    def is_whole(self, options: BudgetOptions) -> bool:
        """Tell whether nothing is ever evicted."""
        return options.is_whole

    def is_observed(self, options: BudgetOptions) -> bool:
        """Tell whether the attention received during the prefill is needed."""
        return options.is_observed

    def pages_needed(
        self, options: BudgetOptions, num_prompt: int, max_tokens: int, block_size: int
    ) -> int:
        """Count the private pages: enough for the budget, or for all there can be."""
        capacity = min(options.budget(num_prompt, max_tokens), max_tokens)
        return -(-max(1, capacity) // block_size)

    def start(
        self,
        options: BudgetOptions,
        model: Llama,
        store: KVStore,
        table: Sequence[int],
        private: Sequence[int],
        num_tokens: int,
        scores: F32 | None,
    ) -> SlotAttention | HostAttention:
        """Move a computed sequence into its private pages, by the rule it asks for."""
        room = len(private) * store.block_size
        budget = options.budget(num_tokens, room)
        capacity = min(budget, room)
        prompt = ComputedPrompt(store, table, num_tokens, scores)
        pages = PrivatePages(store, private)
        if options.method == "infinigen":
            return self._start_host(options, model, prompt, pages, capacity)
        return SlotAttention(options.rule(budget), capacity, prompt, pages)

    def _start_host(
        self,
        options: BudgetOptions,
        model: Llama,
        prompt: ComputedPrompt,
        pages: PrivatePages,
        capacity: int,
    ) -> HostAttention:
        speculations = self._speculations(model, options.partial)
        return HostAttention(
            InfiniGen(options.alpha),
            speculations,
            Rotary(model.config),
            prompt,
            pages,
            _host_layers(options, model, speculations, prompt.num_tokens),
            capacity - 1,  # the new token has a slot of the buffer, too
        )

    def _speculations(self, model: Llama, partial: float) -> list[Speculation]:
        pairs = num_pairs(model.config.head_dim, partial)
        known, speculations = self._prepared.pop(pairs, (None, []))
        if known is not model:
            speculations = calibrate(model, draw_sample(model.config), partial)
        self._prepared[pairs] = (model, speculations)
        if len(self._prepared) > MAX_PREPARED:
            del self._prepared[next(iter(self._prepared))]
        return speculations


def _host_layers(
    options: BudgetOptions,
    model: Llama,
    speculations: Sequence[Speculation],
    num_tokens: int,
) -> list[HostLayer]:
    config, limit = model.config, options.host_tokens
    capacity = num_tokens if limit is None else min(limit, num_tokens)
    layers = []
    for speculation in speculations:
        pool = HostPool(options.victims, config.num_kv_heads, capacity)
        layers.append(HostLayer(pool, speculation, config.head_dim, limit))
    return layers
