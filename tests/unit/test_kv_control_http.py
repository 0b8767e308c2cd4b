"""KV control over HTTP: the door, the routes, and the client at the other end."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from warmroute.adapters.embedded.client import EmbeddedAdapter
from warmroute.adapters.embedded.server import control as control_module
from warmroute.adapters.embedded.server.control import add_control_routes
from warmroute.adapters.embedded.server.door import Door
from warmroute.adapters.embedded.server.fence import fence
from warmroute.adapters.endpoint import Endpoint
from warmroute.adapters.kv_client import NO_DOOR, KVControlClient
from warmroute.adapters.kv_control import (
    SHAPES,
    VERBS,
    BudgetState,
    Capabilities,
    Changed,
    Evicted,
    Flushed,
    Kept,
    PolicyState,
    ResidentBlock,
    Retained,
    Snapshot,
    unsupported,
)
from warmroute.adapters.kv_requests import (
    BlocksRequest,
    BudgetRequest,
    PolicyRequest,
    Request,
    RestoreRequest,
    RetainRequest,
    SnapshotRequest,
)
from warmroute.policies.errors import ClientError, ProtocolMismatch

REQUESTS: dict[str, Request] = {
    "snapshot": SnapshotRequest(token_ids=True),
    "flush": Request(),
    "evict": BlocksRequest(prompt="x", cache_salt="y", skip_blocks=2),
    "retain": RetainRequest(token_ids=[1, 2], ttl_s=0.5),
    "release": BlocksRequest(hashes=[2**64 - 1]),
    "demote": BlocksRequest(hashes=[1]),
    "offload": BlocksRequest(messages=[{"role": "user", "content": "x"}]),
    "restore": RestoreRequest(request_id="cmpl-1", hold_tokens=96),
    "policy": PolicyRequest(name="lfu", options={"half_life_s": 3}),
    "budget": BudgetRequest(method="h2o", share=0.2, sinks=4),
    "capabilities": Request(),
}
ANSWERS: dict[str, Any] = {
    "snapshot": Snapshot(
        seq=3,
        block_size=2,
        copied_bytes=5,
        blocks=[
            ResidentBlock(
                hash=2**64 - 1,
                parent=None,
                refs=1,
                tier="gpu",
                token_ids=[1, 2],
                extra_keys=["pepper"],
            )
        ],
    ),
    "flush": Flushed(flushed=False, dropped=3, referenced=1),
    "evict": Evicted(evicted=[3, 2], kept=[Kept(hash=1, reason="followed")]),
    "retain": Retained(retained=1, named=2, total=5, cap=9),
    "release": Changed(changed=1, named=1),
    "demote": Changed(changed=0, named=1),
    "offload": Changed(changed=2, named=3),
    "restore": Changed(changed=3, named=3),
    "policy": PolicyState(name="lfu", options={"half_life_s": 3}, available=["lfu"]),
    "budget": BudgetState(method="h2o", share=0.2, sinks=4),
    "capabilities": Capabilities(
        verbs={"snapshot": True, "offload": "no host tier"}, running={"restore": True}
    ),
}


class FakeControl:
    """Keep what was asked, and answer what `ANSWERS` holds."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Request]] = []
        self.refusal: ClientError | None = None

    def __getattr__(self, verb: str) -> Callable[[Request], Awaitable[Any]]:
        async def answer(request: Request) -> Any:
            self.asked.append((verb, request))
            if self.refusal is not None:
                raise self.refusal
            return ANSWERS[verb]

        return answer


class Rig:
    """Hold a server with the door, and ask it."""

    def __init__(self, control: FakeControl, session: aiohttp.ClientSession) -> None:
        self.control = control
        self.url = ""
        self._session = session

    def client(self, **headers: str) -> KVControlClient:
        endpoint = Endpoint(self._session, self.url, headers, 10)
        return EmbeddedAdapter().kv_control(endpoint)

    async def ask(
        self, method: str, verb: str, **options: Any
    ) -> tuple[int, dict[str, Any]]:
        url = f"{self.url}/warmroute/kv/{verb}"
        async with self._session.request(method, url, **options) as response:
            assert response.content_type == "application/json"
            return response.status, await response.json()


@pytest.fixture
async def rigs() -> AsyncIterator[Callable[..., Awaitable[Rig]]]:
    """Start servers behind a door, and stop them afterwards."""
    servers: list[TestServer] = []
    async with aiohttp.ClientSession() as session:

        async def start(host: str = "127.0.0.1", token: str | None = None) -> Rig:
            app = web.Application(middlewares=[fence])
            server = TestServer(app)
            rig = Rig(FakeControl(), session)
            add_control_routes(app, rig.control, Door(host, token))  # type: ignore[arg-type]
            await server.start_server()
            rig.url = str(server.make_url("")).rstrip("/")
            servers.append(server)
            return rig

        yield start
    for server in servers:
        await server.close()


class TestRoundTrip:
    @pytest.mark.parametrize("verb", SHAPES)
    async def test_a_verb_arrives_and_its_answer_comes_back(
        self, rigs: Any, verb: str
    ) -> None:
        """Client and routes agree on every field of every verb."""
        rig = await rigs()
        answer = await getattr(rig.client(), verb)(REQUESTS[verb])
        assert rig.control.asked == [(verb, REQUESTS[verb])]
        assert answer == ANSWERS[verb]

    @pytest.mark.parametrize("verb", [v for v in SHAPES if SHAPES[v].reads])
    async def test_what_only_reads_can_be_got(self, rigs: Any, verb: str) -> None:
        rig = await rigs()
        status, _ = await rig.ask("GET", verb)
        assert (status, rig.control.asked) == (200, [(verb, SHAPES[verb].request())])

    async def test_what_changes_the_cache_cannot_be_got(self, rigs: Any) -> None:
        rig = await rigs()
        status, body = await rig.ask("GET", "flush")
        assert (status, body["error"]["code"]) == (405, "kv_verb_not_readable")
        assert rig.control.asked == []

    async def test_a_refusal_comes_back_as_it_was_raised(self, rigs: Any) -> None:
        rig = await rigs()
        rig.control.refusal = ClientError(400, "kv_policy_invalid", "no such policy")
        with pytest.raises(ClientError) as caught:
            await rig.client().policy(PolicyRequest(name="x"))
        refusal = caught.value
        assert (refusal.status, refusal.code) == (400, "kv_policy_invalid")
        assert refusal.message == "no such policy"

    async def test_an_unsupported_verb_says_why_once(self, rigs: Any) -> None:
        rig = await rigs()
        rig.control.refusal = unsupported("offload", "no host tier")
        with pytest.raises(ClientError) as caught:
            await rig.client().offload(BlocksRequest(hashes=[1]))
        assert caught.value.status == 501
        assert caught.value.message == "offload is not to be had here: no host tier"


class TestBadRequests:
    async def test_errors_have_the_shape_of_openai(self, rigs: Any) -> None:
        rig = await rigs()
        status, body = await rig.ask("POST", "evict", json={"hashes": "all"})
        assert status == 400
        assert body["error"].keys() == {"message", "type", "param", "code"}
        assert body["error"]["code"] == "kv_request_invalid"
        assert body["error"]["type"] == "invalid_request_error"

    async def test_an_unknown_verb_is_not_found(self, rigs: Any) -> None:
        rig = await rigs()
        for method in ("GET", "POST"):
            status, body = await rig.ask(method, "evikt", json={})
            assert (status, body["error"]["code"]) == (404, "kv_verb_unknown")

    async def test_a_body_is_bounded(
        self, rigs: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        rig = await rigs()
        monkeypatch.setattr(control_module, "MAX_BODY_BYTES", 100)
        status, body = await rig.ask("POST", "evict", json={"prompt": "x" * 100})
        assert (status, body["error"]["code"]) == (413, "body_too_large")
        assert rig.control.asked == []


class TestDoor:
    async def test_a_token_opens_and_nothing_else(self, rigs: Any) -> None:
        rig = await rigs("0.0.0.0", "secret")
        for wrong in ({}, {"Authorization": "Bearer no"}, {"Authorization": "secret"}):
            status, body = await rig.ask("POST", "flush", json={}, headers=wrong)
            assert (status, body["error"]["code"]) == (401, "engine_token_wrong")
        assert "secret" not in body["error"]["message"]
        answer = await rig.client(Authorization="Bearer secret").flush(Request())
        assert answer == ANSWERS["flush"]
        assert len(rig.control.asked) == 1

    async def test_a_token_guards_reading_too(self, rigs: Any) -> None:
        rig = await rigs("127.0.0.1", "secret")
        for verb in ("snapshot", "capabilities"):
            status, _ = await rig.ask("GET", verb)
            assert status == 401

    async def test_beyond_loopback_without_a_token_the_door_is_off(
        self, rigs: Any
    ) -> None:
        rig = await rigs("0.0.0.0")
        status, body = await rig.ask("POST", "flush", json={})
        assert (status, body["error"]["code"]) == (403, "kv_control_off")
        assert "WARMROUTE_ENGINE_TOKEN" in body["error"]["message"]
        assert (await rig.ask("GET", "snapshot"))[0] == 403
        assert rig.control.asked == []

    async def test_a_door_that_is_off_tells_its_reason_to_everybody(
        self, rigs: Any
    ) -> None:
        rig = await rigs("0.0.0.0")
        answer = await rig.client().capabilities(Request())
        assert set(answer.verbs) == set(VERBS)
        assert all("without a token" in str(why) for why in answer.verbs.values())

    async def test_a_name_in_the_host_header_needs_a_token(self, rigs: Any) -> None:
        """A web page can rebind its own name to loopback, but no address."""
        headers = {"Host": "evil.example:80"}
        rig = await rigs()
        status, body = await rig.ask("GET", "snapshot", headers=headers)
        assert (status, body["error"]["code"]) == (403, "host_not_allowed")
        rig = await rigs("127.0.0.1", "secret")
        headers["Authorization"] = "Bearer secret"
        assert (await rig.ask("GET", "snapshot", headers=headers))[0] == 200

    async def test_a_form_of_a_web_page_is_refused(self, rigs: Any) -> None:
        rig = await rigs()
        status, body = await rig.ask("POST", "flush", data={"a": "b"})
        assert (status, body["error"]["code"]) == (415, "content_type_not_json")
        assert rig.control.asked == []

    def test_repr_tells_the_kind_of_door(self) -> None:
        assert repr(Door("::1")) == "<Door local>"
        assert repr(Door("::", "x")) == "<Door token>"
        assert repr(Door("::")) == "<Door shut>"


async def serve(
    handler: Callable[[web.Request], Awaitable[web.Response]],
) -> TestServer:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    server = TestServer(app)
    await server.start_server()
    return server


class TestOtherEngines:
    """What a client makes of servers that are no warmroute engine."""

    @staticmethod
    async def ask(response: Callable[[], web.Response]) -> Any:
        async def handler(request: web.Request) -> web.Response:
            await asyncio.sleep(0)
            return response()

        server = await serve(handler)
        try:
            async with aiohttp.ClientSession() as session:
                url = str(server.make_url("")).rstrip("/")
                client = KVControlClient(Endpoint(session, url, {}, 10))
                assert url in repr(client)
                capabilities: Any
                try:
                    capabilities = await client.capabilities(Request())
                except Exception as error:
                    capabilities = error
                with pytest.raises((ClientError, ProtocolMismatch)) as caught:
                    await client.flush(Request())
                return capabilities, caught.value
        finally:
            await server.close()

    async def test_an_engine_without_the_door_can_do_nothing(self) -> None:
        capabilities, error = await self.ask(lambda: web.Response(status=404))
        assert capabilities.verbs == dict.fromkeys(VERBS, NO_DOOR)
        assert (error.status, error.code) == (501, "kv_verb_unsupported")

    async def test_an_older_engine_without_the_verb_says_so(self) -> None:
        refusal = {"error": {"message": "unknown verb", "code": "kv_verb_unknown"}}
        _, error = await self.ask(lambda: web.json_response(refusal, status=404))
        assert error.status == 501
        assert "unknown verb" in error.message

    async def test_a_wrong_token_is_the_reason_of_every_verb(self) -> None:
        refusal = {"error": {"message": "wants a token", "code": "x"}}
        capabilities, error = await self.ask(
            lambda: web.json_response(refusal, status=401)
        )
        assert capabilities.verbs == dict.fromkeys(VERBS, "wants a token")
        assert error.status == 401

    async def test_a_refusal_is_short_however_much_a_server_says(self) -> None:
        """What failed is remembered, a thousand times in a row."""
        refusal = {"error": {"message": "x" * 100_000, "code": "y" * 100_000}}
        capabilities, error = await self.ask(
            lambda: web.json_response(refusal, status=403)
        )
        assert capabilities.verbs == dict.fromkeys(VERBS, "x" * 1_000)
        assert (error.message, error.code) == ("x" * 1_000, "y" * 100)

    async def test_an_engine_that_is_down_is_not_taken_for_incapable(self) -> None:
        refusal = {"error": {"message": "dead", "code": "engine_down"}}
        capabilities, error = await self.ask(
            lambda: web.json_response(refusal, status=503)
        )
        assert isinstance(capabilities, ClientError)
        assert (error.status, error.code) == (503, "engine_down")

    @pytest.mark.parametrize("status", [200, 500])
    async def test_nonsense_is_a_mismatch(self, status: int) -> None:
        capabilities, error = await self.ask(
            lambda: web.Response(text="<html>", status=status)
        )
        assert isinstance(capabilities, ProtocolMismatch)
        assert isinstance(error, ProtocolMismatch)
