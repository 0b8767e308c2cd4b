"""Questions about the tokens of a prompt, in the form of SGLang's ``/v1/tokenize``."""

from collections.abc import Mapping

_READ_OTHERWISE = ("reasoning_effort", "enable_thinking")


def as_sglang_asks(body: Mapping[str, object]) -> dict[str, object] | None:
    """Return a question in vLLM's form as SGLang takes it; None where it has none.

    SGLang writes a chat as for an answer only if nothing is said about the head of
    that answer, has another name for what a model thought, and decides by rules of its
    own what an effort of reasoning means to a template.
    """
    question = dict(body)
    messages = question.get("messages")
    if not isinstance(messages, list):
        return question if "prompt" in question else None
    variables = question.get("chat_template_kwargs")
    if "chat_template" in question or (
        isinstance(variables, dict) and any(one in variables for one in _READ_OTHERWISE)
    ):
        return None
    if question.get("continue_final_message") or question.get(
        "add_generation_prompt", True
    ):
        question.pop("add_generation_prompt", None)
        question.pop("add_special_tokens", None)
    question["messages"] = [_with_reasoning(message) for message in messages]
    return question


def _with_reasoning(message: object) -> object:
    if not isinstance(message, dict) or "reasoning" not in message:
        return message
    renamed = {key: value for key, value in message.items() if key != "reasoning"}
    renamed.setdefault("reasoning_content", message["reasoning"])
    return renamed
