"""One cache killer, as it is shown."""

from dataclasses import dataclass

from warmroute.policies.killers.kinds import Kind, phrase, remedy


@dataclass(frozen=True, slots=True)
class Killer:
    """Something early in prompts that differs, before text that does not.

    Args:
        cluster: Name of the requests that share their text; the same while the
            process lives.
        token_offset: Prompt tokens in front of it, about.
        requests: Requests looked at, of the last hour about.
        tokens_a_day: Tokens computed again because of it, at the present rate.
        tokens_a_request: The same for a request that it hits.
        kind: What differs.
        example: The place in one request, masked; what differs is between » and «.
    """

    cluster: str
    token_offset: int
    requests: int
    tokens_a_day: int
    tokens_a_request: int
    kind: Kind
    example: str

    def first_block(self, block_size: int) -> int:
        """Return the first block that no two requests share."""
        return self.token_offset // block_size

    @property
    def sentence(self) -> str:
        """Return it in words, with the remedy."""
        return (
            f"{phrase(self.kind)} at about token {self.token_offset:,} differs from "
            f"request to request; {self.tokens_a_request:,} tokens behind it are the "
            f"same each time and are computed again, {self.tokens_a_day:,} a day: "
            f"{remedy(self.kind)}"
        )
