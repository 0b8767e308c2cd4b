"""Engines without a door of ours: what of KV control they offer, and in which words."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import aiohttp
import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from warmroute.adapters.base import Endpoint, KVControl
from warmroute.adapters.kv_control import VERBS, Capabilities, Flushed
from warmroute.adapters.kv_requests import BlocksRequest, Request
from warmroute.adapters.openai import OpenAIAdapter
from warmroute.adapters.sglang.client import SGLangAdapter
from warmroute.adapters.vllm.client import VLLMAdapter
from warmroute.policies.errors import ClientError, ProtocolMismatch

Answers = Mapping[tuple[str, str], tuple[int, str]]


@asynccontextmanager
async def engine(
    adapter: OpenAIAdapter, answers: Answers
) -> AsyncIterator[tuple[KVControl, list[tuple[str, str]]]]:
    """Serve these answers by method and path, and 404 otherwise; note what is asked."""
    asked: list[tuple[str, str]] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append((request.method, request.path))
        status, text = answers.get((request.method, request.path), (404, ""))
        return web.Response(status=status, text=text)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    async with TestServer(app) as server, aiohttp.ClientSession() as session:
        url = str(server.make_url("")).rstrip("/")
        yield adapter.kv_control(Endpoint(session, url, {}, 5)), asked


RESET = ("POST", "/reset_prefix_cache")
FLUSH = ("POST", "/flush_cache")


async def test_vllm_in_developer_mode_can_flush() -> None:
    """It is asked by a GET, which the path refuses, so that asking flushes nothing."""
    answers = {("GET", "/reset_prefix_cache"): (405, ""), RESET: (200, "")}
    async with engine(VLLMAdapter(), answers) as (control, asked):
        verbs = (await control.capabilities(Request())).verbs
        assert verbs.pop("flush") is True
        assert set(verbs) == set(VERBS) - {"flush"}
        assert all("VLLM_PLUGINS" in str(why) for why in verbs.values())
        assert RESET not in asked
        assert await control.flush(Request()) == Flushed(flushed=True)
        assert RESET in asked


async def test_vllm_without_developer_mode_says_what_is_needed() -> None:
    async with engine(VLLMAdapter(), {}) as (control, _):
        why = (await control.capabilities(Request())).verbs["flush"]
        assert "VLLM_SERVER_DEV_MODE=1" in str(why)
        with pytest.raises(ClientError, match="VLLM_SERVER_DEV_MODE=1") as caught:
            await control.flush(Request())
        assert caught.value.status == 501


@pytest.mark.parametrize("adapter", [VLLMAdapter(), SGLangAdapter()])
async def test_what_a_door_tells_is_told_on(adapter: OpenAIAdapter) -> None:
    """Of running requests, too."""
    verbs: dict[str, bool | str] = dict.fromkeys(VERBS, True)
    told = Capabilities(verbs=verbs, running={"restore": "unsupported: no budgets"})
    answers = {
        ("GET", "/warmroute/kv/capabilities"): (200, msgspec.json.encode(told).decode())
    }
    async with engine(adapter, answers) as (control, _):
        assert await control.capabilities(Request()) == told


@pytest.mark.parametrize(
    ("status", "text", "flushed"),
    [
        (200, '{"success": true}', True),
        (200, '{"success": false}', False),
        (200, "", True),
        (400, "busy", False),
    ],
)
async def test_what_a_stock_flush_did_is_read(
    status: int, text: str, flushed: bool
) -> None:
    async with engine(VLLMAdapter(), {RESET: (status, text)}) as (control, _):
        assert (await control.flush(Request())).flushed is flushed


async def test_sglang_is_not_asked_whether_it_can_flush() -> None:
    """Its path flushes by GET as well, so asking would do it."""
    async with engine(SGLangAdapter(), {FLUSH: (200, "Cache flushed.")}) as (it, asked):
        verbs = (await it.capabilities(Request())).verbs
        assert verbs["flush"] is True
        assert "plugin" in str(verbs["evict"])
        assert all("flush" not in path for _, path in asked)
        assert (await it.flush(Request())).flushed


async def test_a_wrong_key_and_a_broken_engine_are_told_apart() -> None:
    async with engine(SGLangAdapter(), {FLUSH: (401, "")}) as (control, _):
        with pytest.raises(ClientError, match="api_key") as caught:
            await control.flush(Request())
        assert caught.value.status == 401
    async with engine(SGLangAdapter(), {FLUSH: (500, "")}) as (control, _):
        with pytest.raises(ProtocolMismatch, match="HTTP 500"):
            await control.flush(Request())


async def test_the_door_comes_first_where_there_is_one() -> None:
    verbs = '{"verbs": {"flush": "no", "evict": true}}'
    answers = {
        ("GET", "/warmroute/kv/capabilities"): (200, verbs),
        ("POST", "/warmroute/kv/flush"): (
            200,
            '{"flushed": false, "dropped": 1, "referenced": 2}',
        ),
        RESET: (200, ""),
    }
    async with engine(VLLMAdapter(), answers) as (control, asked):
        told = await control.capabilities(Request())
        assert told.verbs == {"flush": "no", "evict": True}
        assert (await control.flush(Request())).referenced == 2
        assert RESET not in asked


async def test_any_other_engine_has_no_levers() -> None:
    async with engine(OpenAIAdapter(), {}) as (control, _):
        verbs = (await control.capabilities(Request())).verbs
        assert all(isinstance(why, str) for why in verbs.values())
        with pytest.raises(ClientError) as caught:
            await control.evict(BlocksRequest(hashes=[1]))
        assert caught.value.status == 501
