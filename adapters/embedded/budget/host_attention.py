"""A sequence whose KV lies in host memory, and is fetched as it is needed."""

from collections.abc import Sequence

import numpy as np

from warmroute.adapters.embedded.budget.computed_prompt import ComputedPrompt
from warmroute.adapters.embedded.budget.group_attention import attend_group
from warmroute.adapters.embedded.budget.host_layer import HostLayer
from warmroute.adapters.embedded.budget.private_pages import PrivatePages
from warmroute.adapters.embedded.model.arrays import F32
from warmroute.adapters.embedded.model.rope import Rotary
from warmroute.policies.eviction.infinigen import InfiniGen
from warmroute.policies.eviction.speculation import Speculation, speculate


class HostAttention:
    """While a layer computes, fetch what the next one will attend to.

    The pages of the sequence are a working buffer: a layer's share of it holds the
    tokens fetched for this step, and the new one. NumPy has no second stream, so
    the fetch is ahead of its use in order, not in time.

    The first layer has no layer before it. It chooses by its own true query, which
    hides no transfer.

    Args:
        rule: Chooses what to fetch.
        speculations: One a layer, from `calibrate`.
        rotary: Turns of the positions.
        prompt: The sequence so far; not used afterwards.
        pages: The working buffer, with *cap* + 1 slots or more.
        layers: Host memory, one a layer.
        cap: Most tokens fetched a head and step.

    Attributes:
        fetched_bytes: Moved from host memory so far.
    """

    __slots__ = (
        "_cap",
        "_fetched",
        "_layers",
        "_pages",
        "_position",
        "_rotary",
        "_rule",
        "_speculations",
        "fetched_bytes",
    )

    def __init__(
        self,
        rule: InfiniGen,
        speculations: Sequence[Speculation],
        rotary: Rotary,
        prompt: ComputedPrompt,
        pages: PrivatePages,
        layers: Sequence[HostLayer],
        cap: int,
    ) -> None:
        self._rule = rule
        self._speculations = speculations
        self._rotary = rotary
        self._pages = pages
        self._position = prompt.num_tokens
        self._cap = cap
        self._fetched = 0
        self.fetched_bytes = 0
        self._layers = list(layers)
        for at, layer in enumerate(self._layers):
            layer.load(*prompt.layer(at))

    def __repr__(self) -> str:
        return (
            f"<HostAttention at {self._position}: {len(self._layers)} layers, "
            f"{self.fetched_bytes} bytes fetched>"
        )

    def attend(
        self, layer: int, inputs: F32, queries: F32, keys: F32, values: F32
    ) -> F32:
        """Attend to what was fetched and to the new token, then fetch ahead."""
        grouped = queries.reshape(len(keys), -1, queries.shape[-1])
        if layer == 0:
            self._fetch(0, self._speculations[0].part(queries[None])[0])
        at = np.full(len(keys), self._fetched, np.int64)
        self._pages.write(layer, at, keys, values)
        out, _ = attend_group(grouped, *self._pages.read(layer, self._fetched + 1))
        self._layers[layer].store(self._position, keys, values)
        if layer + 1 < len(self._layers):
            turns = self._rotary.turns(np.array([self._position]))
            guessed = self._speculations[layer + 1].queries(inputs[None], turns)
            self._fetch(layer + 1, guessed[0])
        else:
            self._position += 1
        return out.reshape(queries.shape)

    def close(self) -> None:
        """Let go of the host memory."""
        self._layers.clear()

    def _fetch(self, layer: int, queries: F32) -> None:
        """Bring what *layer* is guessed to need into its share of the buffer."""
        host = self._layers[layer]
        chosen = self._rule.choose(speculate(queries, host.part), self._cap)
        keys, values = host.fetch(chosen)
        self._pages.fill(layer, keys, values)
        self._fetched = chosen.shape[1]
        self.fetched_bytes += keys.nbytes + values.nbytes
