"""The section of the routing policy, and of what can stand beside it."""

from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, ConfigDict, Field

from warmroute.proxy.config.fields import Count, Seconds, Section, off_none

DEFAULT_POLICY = "expected_ttft"


class QueueConfig(Section):
    """Hold requests back while their backend is busy, and let the shorter go first."""

    short_form = "order"

    order: Literal["shortest_uncached", "arrival"] = Field(
        default="shortest_uncached",
        description="Who goes first: the least uncached work, with ageing, or whoever "
        "came first.",
    )
    max_wait_s: Seconds = Field(
        default=30,
        description="A request is held so long; then it is answered 429.",
    )
    max_requests: Count = Field(
        default=1000, description="Requests held at most; more are answered 429."
    )
    busy_s: Seconds = Field(
        default=0.5,
        description="A backend that has prefill for longer than this gets no more.",
    )


class NamedPolicy(Section):
    """A policy and its options."""

    model_config = ConfigDict(extra="allow")
    short_form = "name"

    own_keys: ClassVar[frozenset[str]] = frozenset({"name"})

    name: str = Field(default=DEFAULT_POLICY, description="Name of the policy.")

    @property
    def options(self) -> dict[str, object]:
        """The options that are given, by name."""
        extra = self.model_extra or {}
        return {key: value for key, value in extra.items() if value is not None}


class ShadowConfig(NamedPolicy):
    """Ask a second policy, and act on nothing; the other keys are its options."""


class PolicyConfig(NamedPolicy):
    """Choose the routing policy; the other keys are its options."""

    own_keys = frozenset({"name", "queue", "shadow"})

    queue: Annotated[QueueConfig | None, BeforeValidator(off_none)] = Field(
        default=None,
        description="Hold requests for busy backends back; left out, nothing is held.",
    )
    shadow: Annotated[ShadowConfig | None, BeforeValidator(off_none)] = Field(
        default=None,
        description="A second policy that decides beside the first and is only "
        "counted: a name, or a mapping of `name` and its options.",
    )

    def builds_as(self, other: "PolicyConfig") -> bool:
        """Tell whether both name the same policy with the same options."""
        return (self.name, self.options) == (other.name, other.options)
