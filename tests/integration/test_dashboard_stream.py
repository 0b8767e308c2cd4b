"""The live updates over real sockets: many pages, slow pages, and no token."""

import asyncio
import json
from typing import Any

import aiohttp
import pytest
from conformance.rig import PATIENCE_S, post
from integration import served
from integration.scripts import answer_ok
from integration.served import Served, Stage

stage = served.stage


@pytest.fixture
async def proxy(stage: Stage) -> Served:
    return await stage.serve(await stage.engine(answer_ok))


def url(proxy: Served, path: str) -> str:
    host, port = proxy.address("admin")
    return f"http://{host}:{port}{path}"


async def read_event(response: aiohttp.ClientResponse) -> tuple[str, Any]:
    async with asyncio.timeout(PATIENCE_S):
        name = (await response.content.readline()).decode()
        data = (await response.content.readline()).decode()
        await response.content.readline()
    return name.removeprefix("event: ").strip(), json.loads(data.removeprefix("data:"))


async def read_until(response: aiohttp.ClientResponse, wanted: str) -> Any:
    while True:
        name, value = await read_event(response)
        if name == wanted:
            return value


class TestStream:
    async def test_begins_with_the_state(self, proxy: Served) -> None:
        """The first event is what /api/state says, the uptime apart."""
        _, state = await proxy.admin("/api/state")
        async with (
            aiohttp.ClientSession() as http,
            http.get(url(proxy, "/api/stream")) as response,
        ):
            assert response.content_type == "text/event-stream"
            name, told = await read_event(response)
        assert name == "state"
        assert {**told, "uptime_s": 0} == {**state, "uptime_s": 0}

    async def test_fifty_pages_see_a_request(self, proxy: Served) -> None:
        """Each is told of the decision, and requests are served as before."""
        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0)
        ) as http:
            pages = [
                await http.get(url(proxy, "/api/stream?view=1")) for _ in range(50)
            ]
            for page in pages:
                assert await read_until(page, "decisions") == []
            for at in range(20):
                extra = f"x-request-id: r{at}\r\n"
                reply = await proxy.request(
                    post({"model": "m", "messages": []}, extra=extra)
                )
                assert reply.status == 200
            for page in pages:
                seen = set[str]()
                while len(seen) < 20:
                    told = await read_until(page, "decisions")
                    seen |= {one["request_id"] for one in told}
                page.close()
        assert proxy.count("dashboard_tick_failed") == 0

    async def test_pages_that_leave_make_room(self, proxy: Served) -> None:
        """The 101st is refused; one that was closed is noticed at the next tick."""
        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0)
        ) as http:
            pages = [await http.get(url(proxy, "/api/stream")) for _ in range(100)]
            status, answer = await proxy.admin("/api/stream")
            assert (status, answer["error"]["code"]) == (503, "too_many_streams")
            for page in pages:
                page.close()
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    async with http.get(url(proxy, "/api/stream")) as response:
                        if response.status == 200:
                            break
                    await asyncio.sleep(0.05)

    async def test_ends_with_the_server(self, proxy: Served) -> None:
        """An open page does not delay a stop."""
        async with (
            aiohttp.ClientSession() as http,
            http.get(url(proxy, "/api/stream")) as response,
        ):
            await read_until(response, "state")
            proxy.signal(2)
            assert await proxy.ended() == 0


class TestPage:
    async def test_is_what_the_root_shows(self, proxy: Served) -> None:
        """With headers that keep everything else out."""
        async with (
            aiohttp.ClientSession() as http,
            http.get(url(proxy, "/")) as response,
        ):
            assert (response.status, response.content_type) == (200, "text/html")
            policy = response.headers["content-security-policy"]
            assert policy.startswith("default-src 'none'; script-src 'self'")
            assert response.headers["x-content-type-options"] == "nosniff"

    async def test_programs_get_the_links(self, proxy: Served) -> None:
        """JSON for those who ask for it, at / and at /api."""
        accept = {"accept": "application/json"}
        _, told = await proxy.admin("/", headers=accept)
        assert told == (await proxy.admin("/api"))[1]
        assert {"/api/state", "/api/stream", "/metrics"} <= set(told["links"])

    async def test_an_unchanged_file_is_not_sent_again(self, proxy: Served) -> None:
        async with aiohttp.ClientSession() as http:
            address = url(proxy, "/static/js/main.js")
            async with http.get(address) as response:
                tag = response.headers["etag"]
                assert response.headers["content-encoding"] == "gzip"
            again = {"if-none-match": tag}
            async with http.get(address, headers=again) as response:
                assert (response.status, await response.read()) == (304, b"")

    async def test_only_its_own_files_are_served(self, proxy: Served) -> None:
        for path in ("none", "../assets.py", "%2e%2e/assets.py", "js", "js%00"):
            status, answer = await proxy.admin(f"/static/{path}")
            assert (status, answer["error"]["code"]) == (404, "path_not_found")

    async def test_a_browser_without_the_token_gets_the_form(
        self, stage: Stage
    ) -> None:
        """The page and its files, which hold nothing; and no figure of anything."""
        token = {"WARMROUTE_ADMIN_TOKEN": "secret"}
        engine = await stage.engine(answer_ok)
        proxy = await stage.spawn(engine, admin="0.0.0.0:0", environ=token)
        await proxy.ready(1)
        html = {"accept": "text/html"}
        status, page = await proxy.admin("/", headers=html)
        assert (status, page.startswith("<!doctype html>")) == (401, True)
        assert (await proxy.admin("/static/style.css"))[0] == 200
        for path in ("/api/stream", "/api/view/merged", "/api", "/static"):
            status, answer = await proxy.admin(path, headers=html)
            assert (status, answer["error"]["code"]) == (401, "admin_token_wrong")


async def test_a_wrong_number_of_nodes_is_400(proxy: Served) -> None:
    for nodes in ("0", "1001", "x", "-1"):
        status, answer = await proxy.admin(f"/api/view/merged?nodes={nodes}")
        assert (status, answer["error"]["code"]) == (400, "query_invalid")
