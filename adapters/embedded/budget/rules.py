"""Token eviction as the engine asks for it."""

from collections.abc import Sequence

from warmroute.adapters.embedded.budget.calibration import calibrate, draw_sample
from warmroute.adapters.embedded.budget.host_attention import HostAttention
from warmroute.adapters.embedded.budget.host_layer import HostLayer
from warmroute.adapters.embedded.budget.options import BudgetOptions
from warmroute.adapters.embedded.budget.slot_attention import SlotAttention
from warmroute.adapters.embedded.model.arrays import F32
from warmroute.adapters.embedded.model.kv_store import KVStore
from warmroute.adapters.embedded.model.llama import Llama
from warmroute.adapters.embedded.model.rope import Rotary
from warmroute.policies.eviction.host_pool import HostPool
from warmroute.policies.eviction.infinigen import InfiniGen
from warmroute.policies.eviction.speculation import Speculation


class TokenRules:
    """Start sequences under a token budget; the engine's `BudgetRules`.

    What InfiniGen prepares offline is made at its first use, which takes as long as
    a prefill of 256 tokens, and kept.
    """

    __slots__ = ("_prepared",)

    def __init__(self) -> None:
        self._prepared: dict[float, tuple[Llama, list[Speculation]]] = {}

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
        """Count the private pages: enough for the budget, or for all there can be.

        Args:
            options: The budget.
            num_prompt: Tokens computed when it starts.
            max_tokens: Most tokens that the sequence can ever have.
            block_size: Slots a page.
        """
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
        """Move a computed sequence into its private pages.

        Args:
            options: The budget.
            model: Whose keys and values they are.
            store: The bytes of all pages.
            table: Pages that hold the sequence; only read, and not kept.
            private: As many pages as `pages_needed` said.
            num_tokens: Tokens in *table*.
            scores: ``[layers, kv_heads, num_tokens]``: attention that each token
                received in the prefill; None unless `is_observed`.
        """
        room = len(private) * store.block_size
        budget = options.budget(num_tokens, room)
        capacity = min(budget, room)
        if options.method != "infinigen":
            rule = options.rule(budget)
            return SlotAttention(
                rule, capacity, store, table, private, num_tokens, scores
            )
        speculations = self._speculations(model, options.partial)
        return HostAttention(
            InfiniGen(options.alpha),
            speculations,
            Rotary(model.config),
            store,
            table,
            private,
            num_tokens,
            scores,
            _host_layers(options, model, speculations, num_tokens),
            capacity - 1,
        )

    def _speculations(self, model: Llama, partial: float) -> list[Speculation]:
        known, speculations = self._prepared.get(partial, (None, []))
        if known is not model:
            speculations = calibrate(model, draw_sample(model.config), partial)
            self._prepared[partial] = (model, speculations)
        return speculations


def _host_layers(
    options: BudgetOptions,
    model: Llama,
    speculations: Sequence[Speculation],
    num_tokens: int,
) -> list[HostLayer]:
    config, limit = model.config, options.host_tokens
    layers = []
    for speculation in speculations:
        pool = HostPool(options.victims, config.num_kv_heads, limit or num_tokens)
        layers.append(HostLayer(pool, speculation, config.head_dim, limit is not None))
    return layers
