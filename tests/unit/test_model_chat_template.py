"""Chat templates: Hugging Face's conventions, in a sandbox."""

from datetime import datetime
from typing import Any

import pytest

from warmroute.adapters.embedded.model.tiny import tiny_tokenizer
from warmroute.adapters.tokens.chat_template import ChatTemplate
from warmroute.adapters.tokens.errors import ModelError

CHATML = (
    "{% for m in messages %}{{ '<' + m['role'] + '>' + m['content'] + '</>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}"
)
CHAT = [
    {"role": "user", "content": '2 < 3 & "é"?'},
    {"role": "assistant", "content": "Yes, "},
]


def render(source: str, messages: list[dict[str, Any]] = CHAT, **options: Any) -> str:
    return ChatTemplate(source, {"bos_token": "<s>"}).render(messages, **options)


def test_a_chat_is_written_without_escapes() -> None:
    text = '<user>2 < 3 & "é"?</>\n<assistant>Yes, </>\n'
    assert render(CHATML, add_generation_prompt=False) == text
    assert render(CHATML) == text + "<assistant>"


def test_the_last_message_may_be_continued() -> None:
    """The text ends where the content ends, its trailing space included."""
    options = {"add_generation_prompt": False, "continue_final_message": True}
    assert render(CHATML, **options).endswith("<assistant>Yes, ")
    stripping = CHATML.replace("m['content']", "m['content'].strip()")
    assert render(stripping, **options).endswith("<assistant>Yes,")


@pytest.mark.parametrize(
    ("source", "messages", "options", "said"),
    [
        (CHATML, CHAT, {"continue_final_message": True}, "are both set"),
        (
            "nothing",
            CHAT,
            {"continue_final_message": True, "add_generation_prompt": False},
            "does not name the content of messages",
        ),
        (CHATML, [{"role": "user"}], {}, "refused the messages"),
        ("{{ raise_exception('roles must alternate') }}", CHAT, {}, "must alternate"),
        ("{{ messages.append(1) }}", CHAT, {}, "refused the messages"),
        ("{{ ''.__class__.__mro__ }}", CHAT, {}, "unsafe"),
        (CHATML, [{"content": [{"type": "image_url"}]}], {}, "type 'image_url'"),
        (CHATML, [{"content": ["text"]}], {}, r"\(allowed: text\)"),
    ],
)
def test_what_cannot_be_rendered_says_why(
    source: str, messages: list[dict[str, Any]], options: dict[str, Any], said: str
) -> None:
    with pytest.raises(ModelError, match=said):
        render(source, messages, **options)


def test_a_template_that_is_not_jinja_is_refused_at_once() -> None:
    with pytest.raises(ModelError, match="the chat template cannot be read"):
        ChatTemplate("{% if %}", {})


def test_parts_are_joined() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    chat = [{"role": "user", "content": parts}]
    assert render(CHATML, chat, add_generation_prompt=False) == "<user>a\nb</>\n"


def test_templates_have_what_they_have_at_hugging_face() -> None:
    """Blocks leave no lines, loops can break, tools and variables are there."""
    source = (
        "{% for m in messages %}\n"
        "  {% if loop.index0 == 1 %}\n"
        "    {% break %}\n"
        "  {% endif %}\n"
        "{{ bos_token }}{{ tools | tojson }}{{ thinking }}\n"
        "{% endfor %}\n"
        "{{ strftime_now('%Y') }}"
    )
    text = render(source, tools=[{"name": "<é>"}], thinking=True)
    year = datetime.now().astimezone().year
    assert text == f'<s>[{{"name": "<é>"}}]True\n{year}'
    assert render("{{ tools is none }}", tools=[]) == "True"


def test_the_messages_of_the_caller_are_not_changed() -> None:
    chat = [{"role": "user", "content": [{"type": "text", "text": "a"}]}]
    render(CHATML, chat)
    assert chat[0]["content"] == [{"type": "text", "text": "a"}]


def test_the_tiny_model_writes_chatml() -> None:
    tokenizer = tiny_tokenizer()
    text = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    chat = [{"role": "user", "content": "hi"}]
    assert tokenizer.render(chat) == text
    assert tokenizer.encode_chat(chat) == tokenizer.encode(text)
