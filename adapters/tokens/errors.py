"""The error of models that cannot be loaded or prompted."""

from warmroute.policies.errors import WarmrouteError


class ModelError(WarmrouteError):
    """A model, its tokenizer or its chat template cannot be used as given."""


class NotExact(ModelError):
    """The tokens that an engine makes of a request cannot be told for certain."""
