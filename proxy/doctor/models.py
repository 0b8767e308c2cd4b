"""What does it serve, and do the backends serve the same?"""

from collections.abc import Sequence

from warmroute.proxy.doctor.finding import Finding, broken, ok, skipped, warn
from warmroute.proxy.doctor.patient import Patient

_MAX_NAMED = 8


class Models:
    """Compare what the engine lists with what is configured."""

    name = "models"
    needs: tuple[str, ...] = ("engine",)

    async def examine(self, patient: Patient) -> Finding:
        """Look at the list that the engine gave."""
        served = {card.id: card for card in patient.cards}
        wanted = patient.config.models or ()
        missing = [
            model for model in wanted if not patient.adapter.serves(model, served)
        ]
        if missing and served:
            return broken(
                f"{_named(missing)} is configured, and the engine serves "
                f"{_named(sorted(served))}",
                patient.adapter.remedy("model_names", patient.facts.version),
            )
        if not served and not wanted:
            return warn(
                "the engine lists no models, so every model is sent to it",
                "name the backend's models",
            )
        lengths = {one.max_model_len for one in served.values()} - {None}
        context = f", context {max(filter(None, lengths))}" if lengths else ""
        return ok(f"{_named(sorted(served) or wanted)}{context}")


class SameModels:
    """Compare the models over the fleet."""

    name = "same models"

    def compare(self, patients: Sequence[Patient]) -> Finding:
        """Look at those backends whose models are known."""
        known = [one for one in patients if one.is_good("models") and one.cards]
        if len(known) < 2:
            return skipped("fewer than two backends tell their models")
        served = {one.name: {card.id for card in one.cards} for one in known}
        if len({frozenset(models) for models in served.values()}) > 1:
            return warn(
                "; ".join(
                    f"{name} serves {_named(sorted(models))}"
                    for name, models in served.items()
                ),
                "start all engines with the same models, unless these are pools that "
                "you mean: a request only goes where its model is",
            )
        return _same_lengths(known)


def _same_lengths(known: Sequence[Patient]) -> Finding:
    lengths = {one.name: one.max_model_len for one in known if one.max_model_len}
    if len(set(lengths.values())) > 1:
        shown = ", ".join(f"{name} {length}" for name, length in lengths.items())
        return warn(
            f"the longest sequence differs: {shown} tokens",
            known[0].adapter.remedy("max_model_len", known[0].facts.version),
        )
    return ok(f"equal on {len(known)} backends")


def _named(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_MAX_NAMED])
    more = len(names) - _MAX_NAMED
    return f"{shown} and {more} more" if more > 0 else shown
