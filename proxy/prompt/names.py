"""Which cache a model's name stands for: one base model, with or without a LoRA.

Requests name a model as they like; events of an engine name none, only a LoRA. Both
sides ask here, so that their chains have the same roots.
"""

from collections.abc import Iterable, Mapping

from warmroute.adapters.base import ModelCard

Cards = Mapping[str, ModelCard]
Resolved = tuple[str, str | None]


class Names:
    """Resolve the names that a fleet's engines list.

    An engine's base model is the first that it lists without a parent; its other
    names without one are aliases, those with one are LoRAs. A name for which two
    engines mean different things stands for itself: nothing is promised then.
    """

    __slots__ = ("_known", "_only")

    def __init__(self) -> None:
        self._known: dict[str, Resolved] = {}
        self._only = ""

    def __repr__(self) -> str:
        return f"<Names [{len(self._known)} known]>"

    def learn(self, fleet: Iterable[Cards]) -> bool:
        """Take over the models of all engines; tell whether anything changed."""
        known: dict[str, Resolved] = {}
        for cards in fleet:
            base = find_base(cards)
            for name, card in cards.items():
                meant = (base, name if card.parent is not None else None)
                if known.setdefault(name, meant) != meant:
                    known[name] = (name, None)
        bases = {base for base, _ in known.values()}
        only = bases.pop() if len(bases) == 1 else ""
        has_changed = (known, only) != (self._known, self._only)
        self._known, self._only = known, only
        return has_changed

    def resolve(self, model: str) -> Resolved:
        """Return base model and LoRA; an empty name is the only base, if it is one.

        SGLang's ``base:lora`` is taken apart where only the base is listed.
        """
        found = self._known.get(model)
        if found is not None:
            return found
        if not model:
            return self._only, None
        base, colon, lora = model.rpartition(":")
        if colon and lora and base in self._known:
            return self._known[base][0], lora
        return model, None


def find_base(cards: Cards) -> str:
    """Return the name of an engine's base model; empty while it is not known."""
    return next((name for name, card in cards.items() if card.parent is None), "")
