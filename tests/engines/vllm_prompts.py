"""Print the tokens that vLLM makes of request bodies; runs in vLLM's environment.

Standard input holds a body a line; standard output gets a line for each: its token
ids, those of all prompts of a completion, or null where vLLM refuses the body. All of
it is done by vLLM's own classes, from the validation of the body on.
"""

import asyncio
import json
import os
import sys

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

from vllm.config import ModelConfig, VllmConfig
from vllm.entrypoints.openai.chat_completion.protocol import (
    ChatCompletionRequest,
)
from vllm.entrypoints.openai.completion.protocol import (
    CompletionRequest,
)
from vllm.renderers.hf import HfRenderer
from vllm.renderers.online_renderer import OnlineRenderer
from vllm.tokenizers import cached_tokenizer_from_config


def make_renderer(folder: str) -> OnlineRenderer:
    config = ModelConfig(model=folder)
    tokenizer = cached_tokenizer_from_config(config)
    return OnlineRenderer(
        config,
        HfRenderer(VllmConfig(model_config=config), tokenizer),
        request_logger=None,
        chat_template=None,
        chat_template_content_format="auto",
        trust_request_chat_template=True,
        enable_auto_tools=True,
    )


async def tokens_of(renderer: OnlineRenderer, body: dict) -> list[list[int]] | None:
    if "messages" in body:
        if "tools" in body:
            body.setdefault("tool_choice", "none")
        made = await renderer.render_chat(ChatCompletionRequest(**body))
        inputs = made[1] if isinstance(made, tuple) else None
    else:
        made = await renderer.render_completion(CompletionRequest(**body))
        inputs = made if isinstance(made, list) else None
    return inputs and [list(one["prompt_token_ids"]) for one in inputs]


async def main() -> None:
    renderer = make_renderer(sys.argv[1])
    for line in sys.stdin:
        try:
            tokens = await tokens_of(renderer, json.loads(line))
        except Exception:
            tokens = None
        print(json.dumps(tokens), flush=True)


asyncio.run(main())
