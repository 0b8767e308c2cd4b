"""The shape of a Llama-like model."""

from dataclasses import dataclass

from warmroute.adapters.tokens.errors import ModelError


@dataclass(frozen=True, slots=True)
class LlamaConfig:
    """Everything about a model that is not a weight.

    Args:
        name: What the model calls itself.
        head_dim: Width of one attention head; even, for RoPE turns pairs.
        rope_theta: Base of the rotary frequencies.
        max_positions: Longest context the model was made for, in tokens.
        eos_ids: Token ids that end an answer.
        bos_id: Token id that starts a text, where the model has one.
        rope_divisors: What each of the ``head_dim / 2`` frequencies is divided
            by, where the context was stretched; empty where it was not.

    Raises:
        ModelError: The numbers do not fit together.
    """

    name: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rope_theta: float = 10000.0
    norm_eps: float = 1e-5
    max_positions: int = 2048
    eos_ids: tuple[int, ...] = ()
    bos_id: int | None = None
    rope_divisors: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        for field in (
            "vocab_size",
            "hidden_size",
            "intermediate_size",
            "num_layers",
            "num_heads",
            "num_kv_heads",
            "head_dim",
            "max_positions",
        ):
            if getattr(self, field) < 1:
                raise ModelError(
                    f"{self.name}: {field} is {getattr(self, field)} (allowed: 1 or "
                    "more); the model's config is damaged"
                )
        if self.num_heads % self.num_kv_heads or self.head_dim % 2:
            raise ModelError(
                f"{self.name}: {self.num_heads} query heads, {self.num_kv_heads} KV "
                f"heads of {self.head_dim} numbers (allowed: query heads a multiple "
                "of KV heads, heads of an even width); the model's config is damaged"
            )
        if self.rope_divisors and len(self.rope_divisors) != self.head_dim // 2:
            raise ModelError(
                f"{self.name}: {len(self.rope_divisors)} RoPE divisors (allowed: "
                f"none, or head_dim / 2 = {self.head_dim // 2})"
            )

    @property
    def group_size(self) -> int:
        """Query heads that share one KV head."""
        return self.num_heads // self.num_kv_heads

    @property
    def query_size(self) -> int:
        """Width of all query heads together."""
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Width of all key heads together; that of the values is the same."""
        return self.num_kv_heads * self.head_dim

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes that one token takes in a `KVStore`, float32."""
        return self.num_layers * 2 * self.kv_size * 4
