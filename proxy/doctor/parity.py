"""Are prompts tokenized here as in the engine?"""

from functools import partial

from warmroute.proxy.config import ModelConfig
from warmroute.proxy.doctor.finding import Finding, broken, ok, skipped
from warmroute.proxy.doctor.patient import Patient
from warmroute.proxy.prompt.exact_model import read_models
from warmroute.proxy.prompt.memo import TokenMemo

_WORST_FIRST = ("broken", "warn", "ok", "skipped")


class Parity:
    """Compare the tokens of built-in prompts, a model at a time."""

    name = "token parity"
    needs: tuple[str, ...] = ("models",)

    async def examine(self, patient: Patient) -> Finding:
        """The worst finding of the models that this backend serves."""
        served = {card.id: card for card in patient.cards}
        findings = [
            await parity(model, patient)
            for model in patient.conditions.models
            if model.tokenizer != "none"
            and (not served or patient.adapter.serves(model.name, served))
        ]
        findings.sort(key=lambda one: _WORST_FIRST.index(one.status))
        return findings[0] if findings else skipped("no tokenizer configured")


async def parity(model: ModelConfig, patient: Patient) -> Finding:
    """Compare one model's tokens with those of one backend.

    Raises:
        ConfigError: The tokenizer's files are not usable.
    """
    if model.tokenizer == "engine":
        return skipped(f"{model.name}: the engine itself is asked for tokens")
    from warmroute.proxy.prompt.parity import check_parity  # needs an extra

    renderer = read_models([model], TokenMemo())[model.name].renderer
    assert renderer is not None  # files are configured
    ask = partial(patient.adapter.tokenize, patient.endpoint)
    verdicts = await check_parity(renderer, model.name, ask)
    for one in verdicts:
        if one.outcome == "differs":
            return broken(
                f"{model.name}, {one.check}: {one.detail}",
                "set the model's tokenizer to the files that the engine loads, its "
                "chat template included, or to engine",
            )
    equal = [one.check for one in verdicts if one.outcome == "equal"]
    if not equal:
        return skipped(f"{model.name}: the engine tells no tokens of chats")
    missing = [one.check for one in verdicts if one.outcome != "equal"]
    rest = f"; not compared: {', '.join(missing)}" if missing else ""
    return ok(f"{model.name}: equal on {', '.join(equal)}{rest}")
