"""The error of models that cannot be loaded or prompted."""

from warmroute.policies.errors import WarmrouteError


class ModelError(WarmrouteError):
    """A model, its tokenizer or its chat template cannot be used as given."""
