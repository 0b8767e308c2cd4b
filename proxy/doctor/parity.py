"""Are prompts tokenized here as in the engine?"""

from warmroute.proxy.config import ModelConfig
from warmroute.proxy.doctor.finding import Finding, skipped
from warmroute.proxy.doctor.patient import Patient


class Parity:
    """Compare the tokens of built-in prompts, a model at a time."""

    name = "token parity"
    needs: tuple[str, ...] = ("models",)

    async def examine(self, patient: Patient) -> Finding:
        """The worst finding of the models that this backend serves."""
        served = {card.id: card for card in patient.cards}
        mine = [
            model
            for model in patient.conditions.models
            if model.tokenizer != "none"
            and (not served or patient.adapter.serves(model.name, served))
        ]
        findings = [await parity(model, patient) for model in mine]
        order = ("broken", "warn", "ok", "skipped")
        findings.sort(key=lambda one: order.index(one.status))
        return findings[0] if findings else skipped("no tokenizer configured")


async def parity(model: ModelConfig, patient: Patient) -> Finding:
    """Compare one model's tokens with those of one backend."""
    if model.tokenizer == "engine":
        return skipped(f"{model.name}: the engine itself is asked for tokens")
    return skipped(f"{model.name}: this version estimates, whatever the tokenizer")
