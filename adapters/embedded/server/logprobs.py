"""Log probabilities in the shapes of chat and of text completions."""

from collections.abc import Iterable, Sequence

from warmroute.adapters.embedded.engine.stream import TokenLogprob
from warmroute.adapters.embedded.server.port import TokenizerPort


def describe_for_chat(
    logprobs: Iterable[TokenLogprob], tokenizer: TokenizerPort
) -> dict[str, object]:
    """Return the ``logprobs`` of a chat choice."""

    def describe(token_id: int, logprob: float) -> dict[str, object]:
        token, raw = tokenizer.token(token_id), tokenizer.token_bytes.of(token_id)
        return {"token": token, "logprob": logprob, "bytes": [*raw]}

    return {
        "content": [
            {
                **describe(one.token_id, one.logprob),
                "top_logprobs": [describe(*pair) for pair in one.top],
            }
            for one in logprobs
        ]
    }


def describe_for_text(
    logprobs: Sequence[TokenLogprob], tokenizer: TokenizerPort, offset: int
) -> dict[str, object]:
    """Return the ``logprobs`` of a text choice.

    Args:
        logprobs: One for each token.
        tokenizer: Turns token ids into their texts.
        offset: Characters of the choice in front of the first token.
    """
    tokens, offsets, tops = [], [], []
    for one in logprobs:
        token = tokenizer.token(one.token_id)
        tokens.append(token)
        offsets.append(offset)
        offset += len(token)
        tops.append({tokenizer.token(at): logprob for at, logprob in one.top})
    return {
        "tokens": tokens,
        "token_logprobs": [one.logprob for one in logprobs],
        "top_logprobs": tops,
        "text_offset": offsets,
    }
