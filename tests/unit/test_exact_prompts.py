"""Prompts become exact, or stay estimates for a reason that is counted."""

import asyncio
import json
from array import array
from typing import Any

import pytest
from unit import fleet_rig
from unit.fleet_rig import Make, Rig, entry
from unit.token_files import CHATML, tiny_files

from warmroute.adapters.tokens.files import TokenizerFiles
from warmroute.policies.errors import BackendUnavailable
from warmroute.proxy.prompt import PromptReader
from warmroute.proxy.prompt.exact import ExactPrompts
from warmroute.proxy.prompt.exact_model import ExactModel
from warmroute.proxy.prompt.memo import TokenMemo
from warmroute.proxy.prompt.roots import event_root
from warmroute.proxy.prompt.trials import SAMPLE_EVERY

make = fleet_rig.make

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
HI = [{"role": "user", "content": "hi"}]
LONG = [{"role": "user", "content": "as it was, so it is. " * 2000}]


class House:
    """Exact prompts in front of a fleet that nobody probes."""

    def __init__(self, rig: Rig, files: TokenizerFiles | None) -> None:
        self.rig = rig
        self.reader = PromptReader()
        self.memo = TokenMemo()
        roots = self.reader.roots
        roots.learn(one.models for one in rig.fleet.backends.values())
        self.exact = ExactPrompts(rig.fleet, roots, self.memo, rig.clock)
        self.model = ExactModel("m", files, self.memo)
        self.exact.configure({"m": self.model})

    async def read(self, path: str = CHAT, **fields: Any) -> Any:
        body = json.dumps({"model": "m", "messages": HI, **fields}).encode()
        prompt = self.reader.read(path, b"application/json", b"", body)
        await self.exact.read(prompt, body)
        return prompt


@pytest.fixture
async def house(make: Make):
    rig = make(entry("a"), entry("b"))
    rig.put_up(a="m", b="m")
    house = House(rig, tiny_files())
    yield house
    await house.exact.close()


def tokens_of(text: str) -> "array[int]":
    return array("I", tiny_files().tokenizer.encode(text, add_special_tokens=False).ids)


def turn(text: str) -> str:
    return f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"


class TestGrades:
    async def test_a_short_chat_is_exact_at_once(self, house):
        body = json.dumps({"model": "m", "messages": HI}).encode()
        prompt = house.reader.read(CHAT, b"application/json", b"", body)
        assert house.exact.begin(prompt, body) is None
        assert prompt.grade == "exact"
        (piece,) = prompt.pieces
        assert piece.tokens == tokens_of(turn("hi"))
        assert prompt.num_tokens == piece.num_tokens == len(piece.tokens)
        assert house.exact.num_exact == {"m": 1}

    async def test_a_long_chat_is_made_exact_off_the_loop(self, house):
        body = json.dumps({"model": "m", "messages": LONG}).encode()
        prompt = house.reader.read(CHAT, b"application/json", b"", body)
        pending = house.exact.begin(prompt, body)
        assert prompt.grade == "estimated"
        await pending.finish()
        assert prompt.pieces[0].tokens == tokens_of(turn(LONG[0]["content"]))

    async def test_new_text_in_a_short_body_is_made_exact_off_the_loop(self, house):
        body = json.dumps({"model": "m", "prompt": "ab " * 300}).encode()
        prompt = house.reader.read(TEXT, b"application/json", b"", body)
        pending = house.exact.begin(prompt, body)
        await pending.finish()
        assert prompt.pieces[0].tokens == tokens_of("ab " * 300)

    async def test_texts_are_exact_each_with_its_own_piece(self, house):
        prompt = await house.read(TEXT, prompt=["ab", "", "c"], messages=None)
        assert [one.tokens for one in prompt.pieces] == [
            tokens_of("ab"),
            tokens_of("c"),
        ]

    @pytest.mark.parametrize(
        "fields",
        [
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            {"truncate_prompt_tokens": 5},
            {"chat_template": "{{ messages }}"},
            {"chat_template_kwargs": {"tokenize": False}},
            {"chat_template_kwargs": []},
            {"kv_transfer_params": {"prompt_token_ids": [1]}},
            {"add_generation_prompt": "yes"},
            {"messages": [{"role": "assistant", "tool_calls": [{"id": "1"}]}]},
            {"tools": [{"type": "web_search"}]},
            {"messages": []},
        ],
    )
    async def test_what_is_not_certain_stays_an_estimate(self, house, fields):
        prompt = await house.read(**fields)
        assert prompt.grade == "estimated"
        assert house.exact.fallbacks == {("m", "uncertain"): 1}

    async def test_what_the_template_refuses_stays_an_estimate(self, house):
        fields = {"add_generation_prompt": True, "continue_final_message": True}
        prompt = await house.read(**fields)
        assert prompt.grade == "estimated"
        assert house.exact.fallbacks == {("m", "refused"): 1}

    @pytest.mark.parametrize(
        ("path", "fields"),
        [
            ("/v1/responses", {"input": "hi"}),
            ("/v1/messages", {}),
            (CHAT, {"model": "other"}),
            (TEXT, {"prompt": [1, 2, 3]}),
            (TEXT, {"prompt": None}),
        ],
    )
    async def test_what_is_not_asked_for_costs_nothing(self, house, path, fields):
        await house.read(path, **fields)
        assert not house.exact.fallbacks
        assert not house.exact.num_exact

    async def test_a_full_queue_leaves_estimates(self, house):
        house.exact._workers.num_bytes = 1 << 40
        assert (await house.read(messages=LONG)).grade == "estimated"
        assert house.exact.fallbacks == {("m", "busy"): 1}

    async def test_a_failure_is_logged_once_and_without_the_prompt(self, house, caplog):
        class Broken:  # a fake renderer
            def draft(self, fields):
                raise RuntimeError("secret prompt")

        house.model.renderer = Broken()
        for messages in (HI, LONG, LONG):
            assert (await house.read(messages=messages)).grade == "estimated"
        assert house.exact.fallbacks == {("m", "failed"): 3}
        assert [one.message for one in caplog.records] == ["exact_prompt_failed"]
        assert "secret" not in str(vars(caplog.records[0]))

    async def test_a_client_that_goes_leaves_the_books_in_order(self, house):
        tasks = [asyncio.create_task(house.read(messages=LONG)) for _ in range(9)]
        await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await house.read(messages=LONG)  # the workers go on
        workers = house.exact._workers
        async with asyncio.timeout(10):
            while workers.num_jobs:
                await asyncio.to_thread(int)
        assert workers.num_bytes == 0


class TestRoots:
    async def test_a_prompt_has_the_root_of_the_engine_s_events(self, house):
        models = house.rig["a"].models
        assert (await house.read()).pieces[0].root == event_root(models, None, None)
        salted = await house.read(cache_salt="s")
        assert salted.pieces[0].root == event_root(models, None, "s")

    async def test_text_and_token_ids_of_a_model_share_their_root(self, house):
        (piece,) = (await house.read(TEXT, prompt="ab")).pieces
        body = json.dumps({"model": "m", "prompt": list(piece.tokens)}).encode()
        ids = house.reader.read(TEXT, b"application/json", b"", body)
        assert ids.pieces[0].root == piece.root


def differing_files() -> TokenizerFiles:
    return tiny_files(CHATML.replace("assistant", "model"))


class Engine:
    """A fake adapter's tokenizer: that of the tiny model, or nothing."""

    name = "vllm"

    def __init__(self, files: TokenizerFiles) -> None:
        self.model = ExactModel("m", files, TokenMemo())
        self.asked: list[dict[str, Any]] = []
        self.fault: Exception | None = None
        self.has_path = True

    async def tokenize(self, endpoint: Any, body: dict[str, Any]) -> Any:
        from warmroute.proxy.prompt.exact_bodies import decode_exact

        self.asked.append(body)
        if self.fault is not None:
            raise self.fault
        if not self.has_path:
            return None
        kind = "chat" if "messages" in body else "completions"
        fields = decode_exact(kind, json.dumps(body).encode())
        renderer = self.model.renderer
        return renderer.encoder.complete(renderer.draft(fields))[0]


def put(house: House, name: str, engine: Engine) -> None:
    """Put a fake tokenizer into a backend that nobody probes."""
    backend = house.rig[name]
    adapter = backend.adapter
    adapter.tokenize = engine.tokenize
    house.rig.fleet.endpoint = lambda backend: object()


async def tried(house: House) -> None:
    """Start the trials anew, and wait for them and for samples."""
    house.exact.configure({"m": house.model})
    await ended(house)


async def ended(house: House) -> None:
    for task in list(house.exact._trials._tasks):
        await task


class TestParity:
    async def test_equal_tokens_keep_the_grade(self, house):
        engine = Engine(tiny_files())
        put(house, "a", engine)
        await tried(house)
        assert [*house.exact.parity()] == [("m", "a", True)]
        assert len(engine.asked) == 6
        house.exact.changed(house.rig["a"])
        await ended(house)
        assert len(engine.asked) == 6
        house.rig["a"].incarnation += 1
        house.exact.changed(house.rig["a"])
        await ended(house)
        assert len(engine.asked) == 12

    async def test_other_tokens_make_the_model_s_prompts_estimates(self, house, caplog):
        put(house, "a", Engine(differing_files()))
        await tried(house)
        assert (await house.read()).grade == "estimated"
        assert house.exact.fallbacks == {("m", "differs"): 1}
        assert [*house.exact.parity()] == [("m", "a", False)]
        (line,) = caplog.records
        assert line.message == "tokenizer_differs"
        assert (line.model, line.backend, line.check) == ("m", "a", "chat")
        assert "'a' here and" in line.difference
        assert "'m' in the engine" in line.difference

    async def test_a_backend_that_goes_takes_its_verdict_along(self, house):
        put(house, "a", Engine(differing_files()))
        await tried(house)
        assert (await house.read()).grade == "estimated"
        house.exact.removed(house.rig["a"])
        assert (await house.read()).grade == "exact"

    async def test_an_engine_that_offers_no_way_says_nothing(self, house):
        engine = Engine(tiny_files())
        engine.has_path = False
        put(house, "a", engine)
        await tried(house)
        assert [*house.exact.parity()] == []
        assert (await house.read()).grade == "exact"

    async def test_an_engine_that_tells_of_texts_only_leaves_chats_unknown(self, house):
        class Texts(Engine):
            async def tokenize(self, endpoint, body):
                return None if "messages" in body else await super().tokenize(0, body)

        put(house, "a", Texts(tiny_files()))
        await tried(house)
        assert [*house.exact.parity()] == []

    async def test_three_other_counts_are_proof_enough(self, house, caplog):
        for _ in range(3):
            prompt = await house.read()
            assert prompt.grade == "exact"
            house.exact.miscounted(prompt, "a", prompt.num_tokens + 1)
        assert (await house.read()).grade == "estimated"
        (line,) = caplog.records
        assert (line.message, line.backend) == ("tokenizer_differs", "a")

    async def test_one_prompt_of_200_is_compared(self, house, caplog):
        for name in "ab":
            put(house, name, Engine(differing_files()))
        for _ in range(SAMPLE_EVERY - 1):
            await house.read()
        assert not house.exact._trials._tasks
        await house.read()
        await ended(house)
        assert (await house.read()).grade == "estimated"
        (line,) = caplog.records
        assert "from token" in line.difference
        assert "'" not in line.difference

    async def test_samples_keep_their_distance_in_time(self, house):
        engine = Engine(tiny_files())
        for name in "ab":
            put(house, name, engine)
        for _ in range(3 * SAMPLE_EVERY):
            await house.read()
        await ended(house)
        assert len(engine.asked) == 1
        house.rig.clock.now += 11
        await house.read()
        await ended(house)
        assert len(engine.asked) == 2


class TestEngine:
    @pytest.fixture
    async def asking(self, make: Make):
        rig = make(entry("a"), entry("b"))
        rig.put_up(a="m", b="m")
        house = House(rig, None)
        yield house
        await house.exact.close()

    async def test_the_engine_s_tokens_are_used_and_remembered(self, asking):
        engine = Engine(tiny_files())
        for name in "ab":
            put(asking, name, engine)
        for temperature in (0, 1):
            prompt = await asking.read(temperature=temperature)
            assert prompt.grade == "exact"
            assert prompt.pieces[0].tokens == tokens_of(turn("hi"))
        assert len(engine.asked) == 1

    async def test_what_decides_on_the_tokens_is_asked(self, asking):
        engine = Engine(tiny_files())
        for name in "ab":
            put(asking, name, engine)
        said = {"role": "assistant", "content": "", "reasoning_content": "r"}
        await asking.read(
            messages=[*HI, said],
            tools=[{"type": "function", "function": {"name": "f"}}],
            reasoning_effort="low",
            documents=[{"text": "d"}],
            chat_template_kwargs={"x": 1},
            temperature=1,
        )
        (asked,) = engine.asked
        assert asked == {
            "model": "m",
            "messages": [*HI, {"role": "assistant", "content": "", "reasoning": "r"}],
            "add_generation_prompt": True,
            "continue_final_message": False,
            "add_special_tokens": False,
            "tools": [{"type": "function", "function": {"name": "f"}}],
            "chat_template_kwargs": {
                "x": 1,
                "documents": [{"text": "d"}],
                "reasoning_effort": "low",
                "enable_thinking": True,
            },
        }

    async def test_a_failing_engine_is_left_alone_for_a_while(self, asking):
        engine, good = Engine(tiny_files()), Engine(tiny_files())
        engine.fault = BackendUnavailable("gone")
        put(asking, "a", engine)
        put(asking, "b", good)
        for at in range(6):
            assert (await asking.read(prompt=str(at), path=TEXT)).grade == "exact"
        assert (len(engine.asked), len(good.asked)) == (1, 6)
        good.fault = BackendUnavailable("gone")
        assert (await asking.read(TEXT, prompt="x")).grade == "estimated"
        assert asking.exact.fallbacks == {("m", "uncertain"): 1}
        engine.fault = good.fault = None
        asking.rig.clock.now += 6
        assert (await asking.read(TEXT, prompt="y")).grade == "exact"

    async def test_a_picture_is_not_asked_about(self, asking):
        engine = Engine(tiny_files())
        put(asking, "a", engine)
        part = {"type": "image_url", "image_url": {"url": "http://x/y.png"}}
        prompt = await asking.read(messages=[{"role": "user", "content": [part]}])
        assert prompt.grade == "estimated"
        assert not engine.asked
