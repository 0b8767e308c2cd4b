"""No body makes the embedded engine's server fail: it answers or refuses."""

import asyncio
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from unit.fake_generator import FakeEngine, serve

from warmroute.adapters.embedded.server.chat import ChatFields
from warmroute.adapters.embedded.server.chat_prompt import ChatPrompt
from warmroute.adapters.embedded.server.completions import CompletionFields
from warmroute.adapters.embedded.server.openai_fields import UNSUPPORTED

PATHS = ("/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize")
FIELDS = sorted(
    {
        *CompletionFields.__struct_fields__,
        *ChatFields.__struct_fields__,
        *ChatPrompt.__struct_fields__,
        *UNSUPPORTED,
        "tokens",
    }
)
PARTS = ("type", "text", "role", "content", "tool_calls", "function", "arguments")

numbers = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    st.none() | st.booleans() | numbers | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(PARTS) | st.text(max_size=4), inner)
    ),
    max_leaves=8,
)
messages = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "assistant", "tool"]) | values},
        optional={"content": values, "tool_calls": values, "name": values},
    ),
    max_size=3,
)
bodies = st.fixed_dictionaries(
    {},
    optional={
        "prompt": st.text(max_size=8) | st.lists(st.integers(0, 300)) | values,
        "messages": messages | values,
        "n": st.integers(-1, 9),
    },
)
extras = st.dictionaries(st.sampled_from(FIELDS) | st.text(max_size=5), values)


@settings(max_examples=25)
@given(asked=st.lists(st.tuples(st.sampled_from(PATHS), bodies, extras), max_size=20))
def test_every_body_is_answered_or_refused(
    asked: list[tuple[str, dict[str, Any], dict[str, Any]]],
) -> None:
    """Whatever the fields hold, nothing is a server error."""

    async def ask() -> None:
        async with serve(FakeEngine()) as served:
            for path, body, extra in asked:
                url = served.client.make_url(path)
                async with served.client.session.post(
                    url, json={**extra, **body}
                ) as response:
                    text = await response.text()
                    assert response.status in (200, 400, 404), (body, extra, text)

    asyncio.run(ask())
