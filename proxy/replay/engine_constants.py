"""How fast a simulated engine is, and how much it holds."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import msgspec

from warmroute.policies.errors import ConfigError
from warmroute.proxy.replay.trace import TraceError

Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e6)]
Count = Annotated[int, msgspec.Meta(ge=1, le=10**12)]


class EngineConstants(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True
):
    """The cost of a step of an engine with continuous batching.

    The defaults are an 8B model in bf16 on an H100 of 80 GB, by the figures of its
    data sheet: 16 GB of weights at 3.35 TB/s are 4.8 ms a step, with launches 6.5; 16
    GFLOP a token at 55 % of 989 TFLOP/s are 29 us; attention takes 4 * 32 layers *
    4,096 FLOP a pair of tokens; a token of context is 128 KiB of keys and values, read
    at 2.85 TB/s in 46 ns; 55 GB of them fit beside the weights.

    Attributes:
        step_s: Of every step.
        prefill_s_per_token: Of a prompt token that is computed.
        attention_s_per_pair: Of a token before it that it attends to.
        sequence_s: Of a running sequence, a step.
        context_s_per_token: Of a token that a decode attends to, a step.
        max_batched_tokens: Tokens that a step computes at most.
        max_sequences: Sequences that run at once at most.
        kv_tokens: Tokens that memory holds, of running sequences and the cache.
    """

    step_s: Annotated[float, msgspec.Meta(gt=0, le=1e6)] = 6.5e-3
    prefill_s_per_token: Seconds = 29e-6
    attention_s_per_pair: Seconds = 0.95e-9
    sequence_s: Seconds = 25e-6
    context_s_per_token: Seconds = 46e-9
    max_batched_tokens: Count = 8192
    max_sequences: Count = 256
    kv_tokens: Count = 420_000

    def prefill_s(self, tokens: int, context: int = 0) -> float:
        """Return the compute of *tokens* behind *context* others, steps apart."""
        pairs = tokens * context + tokens * (tokens + 1) / 2
        return tokens * self.prefill_s_per_token + pairs * self.attention_s_per_pair

    def slowed(self, factor: float) -> "EngineConstants":
        """Return an engine that takes *factor* times as long for everything."""
        return msgspec.structs.replace(
            self,
            step_s=self.step_s * factor,
            prefill_s_per_token=self.prefill_s_per_token * factor,
            attention_s_per_pair=self.attention_s_per_pair * factor,
            sequence_s=self.sequence_s * factor,
            context_s_per_token=self.context_s_per_token * factor,
        )


def read_constants(path: Path) -> EngineConstants:
    """Read measured constants from a JSON file; what it leaves out is the default.

    Raises:
        TraceError: The file cannot be read, or says something else.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=EngineConstants)
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        known = ", ".join(EngineConstants.__struct_fields__)
        raise TraceError(f"{path}: {error} (known constants: {known})") from error


def choose_constants(
    file: str | None, values: Iterable[tuple[str, float]]
) -> EngineConstants:
    """Return the defaults, over them a file of measured ones, over them *values*.

    Raises:
        ConfigError: There is no such constant, or it cannot be that.
    """
    constants = EngineConstants() if file is None else read_constants(Path(file))
    known = EngineConstants.__struct_fields__
    given = msgspec.structs.asdict(constants)
    for name, value in values:
        if name not in known:
            raise ConfigError(
                f"--constant: unknown constant {name!r} (known: {', '.join(known)})"
            )
        given[name] = int(value) if isinstance(given[name], int) else value
    try:
        return msgspec.convert(given, EngineConstants)
    except msgspec.ValidationError as error:
        raise ConfigError(f"--constant: {error}") from error
