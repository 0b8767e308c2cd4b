"""The section of the configuration that says which spans are sent, and where."""

from typing import Annotated, Literal

from pydantic import Field

from warmroute.proxy.config.fields import (
    Count,
    Number,
    Seconds,
    Section,
    Url,
)


class TracingConfig(Section):
    """Export OpenTelemetry spans; needs the extra `warmroute[otel]`."""

    short_form = "endpoint"

    endpoint: Url = Field(
        description="OTLP collector, such as `http://127.0.0.1:4318`; with `grpc` "
        "mostly port 4317."
    )
    protocol: Literal["http/protobuf", "grpc"] = Field(
        default="http/protobuf",
        description="How the collector is spoken to; `grpc` needs the extra "
        "`warmroute[otel-grpc]`.",
    )
    sample: Annotated[float, Number] = Field(
        default=1.0,
        ge=0,
        le=1,
        description="Share of the traces begun here that are exported; a client's "
        "own sampling decision is kept.",
    )
    slow_s: Seconds = Field(
        default=30,
        description="A request that took so long is exported, whatever the sampling "
        "says, and so is one that failed.",
    )
    mispredicted_tokens: Count = Field(
        default=128,
        description="So is one whose predicted and reported cached tokens differ by "
        "so many.",
    )
    prompts: bool = Field(
        default=False,
        description="Put the text of prompts into the spans, up to 32 Ki characters "
        "each. They leave this machine, and whoever reads traces reads them.",
    )
