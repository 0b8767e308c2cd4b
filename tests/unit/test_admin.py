from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer
from aiohttp.web import Application, Request

from warmroute.adapters.kv_control import VERBS
from warmroute.policies.errors import ClientError, ConfigError
from warmroute.proxy.admin import make_admin
from warmroute.proxy.admin.conductor import conductor_routes
from warmroute.proxy.admin.guard import Guard
from warmroute.proxy.admin.state import (
    AdminState,
    IndexFacts,
    Learned,
    ReloadStatus,
)
from warmroute.proxy.config.sections import ConductorConfig
from warmroute.proxy.ledger import Ledger
from warmroute.proxy.ledger.decision import Decision, Roster
from warmroute.proxy.metrics import Exposition, build_registry

DOCS = Path(__file__).parents[2] / "docs" / "api.md"

Client = TestClient[Request, Application]
Open = Callable[..., Awaitable[Client]]


@dataclass
class FakeLoad:
    requests: int = 2
    prefill_tokens: int = 300
    decodes: int = 1


@dataclass
class FakeBreaker:
    state: str = "open"


@dataclass
class FakeBackend:
    name: str
    url: str = "http://user:secret@10.0.0.1:8000/base"
    engine: str = "vllm"
    state: str = "up"
    breaker: FakeBreaker = field(default_factory=FakeBreaker)
    incarnation: int = 3
    block_size: int | None = 16
    capacity_tokens: int | None = 4096
    kv_usage: float | None = 0.25
    load: FakeLoad = field(default_factory=FakeLoad)


class FakeFleet:
    """Two backends that drain and go."""

    def __init__(self) -> None:
        self.backends = {name: FakeBackend(name) for name in ("a", "b")}

    def drain(self, name: str) -> None:
        self.backends[name].state = "draining"

    async def remove(self, name: str) -> None:
        del self.backends[name]


class FakeView:
    """A view that echoes what it was asked."""

    def facts(self, name: str) -> Mapping[str, Any]:
        return {"source": "mirror", "blocks": 7, "incarnation": 1}

    def tree(self, name: str, depth: int, now: float) -> Any:
        return {"name": name, "depth": depth, "now": now}


class FakeApplication:
    """Record the levers that were pulled."""

    def __init__(self) -> None:
        self.explained: list[tuple[str, Mapping[str, str], bytes]] = []
        self.fault: Exception | None = None
        self.is_ready = True

    async def explain(
        self, path: str, headers: Mapping[str, str], body: bytes
    ) -> dict[str, Any]:
        self.explained.append((path, headers, body))
        if self.fault:
            raise self.fault
        return {"chosen": "a"}

    def add_backend(self, entry: Mapping[str, Any]) -> str:
        if self.fault:
            raise self.fault
        return str(entry["name"])

    async def reload(self) -> None:
        if self.fault:
            raise self.fault


def make_state(application: FakeApplication, **changes: Any) -> AdminState:
    ledger, fleet, view = Ledger(), FakeFleet(), FakeView()
    index = IndexFacts(1000, 4000, 14)
    registry = build_registry(
        Exposition(ledger, fleet, view, lambda: index, ReloadStatus(), "1.2.3")
    )
    facts: dict[str, Any] = {
        "version": "1.2.3",
        "ledger": ledger,
        "fleet": fleet,
        "view": view,
        "registry": registry,
        "index": lambda: index,
        "policy": lambda: "expected_ttft",
        "is_ready": lambda: application.is_ready,
        "explain": application.explain,
        "add_backend": application.add_backend,
        "reload": application.reload,
        "learned": lambda name: Learned(1000.0, None),
        "clock": lambda: 107.0,
        "started": 100.0,
    }
    return AdminState(**{**facts, **changes})


def fill(ledger: Ledger, num: int = 4) -> None:
    """Settle *num* requests, on a and b in turn."""
    roster = Roster(["a", "b"], ["up", "up"], ["mirror", "mirror"], [0, 1])
    for at in range(num):
        decision = Decision(
            *(f"r{at}", 1000.0 + at, "/v1/completions", f"m{at // 2}", "exact", 100),
            *("round_robin", roster, [48, 64], at % 2, "load"),
        )
        ledger.open(decision, 0.0)
        ledger.settle(decision, status=200, duration_s=1.0, cached_tokens=32)


@pytest.fixture
def application() -> FakeApplication:
    return FakeApplication()


@pytest.fixture
async def opened(application: FakeApplication) -> AsyncIterator[Open]:
    """Return a function that starts an admin server and a client of it."""
    clients: list[Client] = []

    async def start(state: AdminState | None = None) -> Client:
        app = make_admin(state or make_state(application))
        client: Client = TestClient(TestServer(app))
        await client.start_server()
        clients.append(client)
        return client

    yield start
    for client in clients:
        await client.close()


async def error_of(response: Any) -> tuple[int, str]:
    body = await response.json()
    assert set(body["error"]) == {"message", "type", "param", "code"}
    return response.status, body["error"]["code"]


class TestState:
    async def test_ranks_have_the_incarnation_of_their_backend(
        self,
        application: FakeApplication,
        opened: Open,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        facts = {"source": "events", "ranks": [{"seq": 1, "incarnation": 0}]}
        monkeypatch.setattr(FakeView, "facts", lambda *_: facts)
        client = await opened(make_state(application))
        body = await (await client.get("/api/state")).json()
        view = body["backends"][0]["view"]
        assert view["ranks"] == [{"seq": 1, "incarnation": 3}]
        assert view["incarnation"] == 3

    async def test_has_the_documented_shape(
        self, application: FakeApplication, opened: Open
    ) -> None:
        """Every key of the contract is there; credentials of a URL are not."""
        state = make_state(application)
        fill(state.ledger)
        client = await opened(state)
        body = await (await client.get("/api/state")).json()
        warnings = body.pop("warnings")
        assert [one["code"] for one in warnings] == ["breaker_open"] * 2
        first = body.pop("backends")[0]
        assert first.pop("kv").keys() == set(VERBS)
        assert first == {
            "name": "a",
            "url": "http://10.0.0.1:8000/base",
            "engine": "vllm",
            "state": "up",
            "breaker": "open",
            "block_size": 16,
            "capacity_tokens": 4096,
            "kv_usage": 0.25,
            "view": {
                "source": "mirror",
                "blocks": 7,
                "seq": None,
                "incarnation": 3,
                "gaps": 0,
                "replays": 0,
                "lag_s": None,
            },
            "load": {"requests": 2, "prefill_tokens": 300, "decodes": 1},
            "learned": {"prefill_tokens_per_s": 1000.0, "itl_s": None},
        }
        assert body == {
            "version": "1.2.3",
            "policy": "expected_ttft",
            "uptime_s": 7.0,
            "ready": True,
            "index": {"bytes": 1000, "cap_bytes": 4000, "blocks": 14},
            "tokens": {
                "prompt": 400,
                "hit": 128,
                "cold": 144,
                "evicted": 0,
                "elsewhere": 32,
                "unpredicted": 96,
            },
            "paid_twice_ratio": 0.32,
            "cache_killers": [],
            "queue": None,
            "shadow": None,
        }

    async def test_nothing_is_told_as_current_of_a_backend_that_is_down(
        self, application: FakeApplication
    ) -> None:
        class HeardView(FakeView):
            def facts(self, name: str) -> Mapping[str, Any]:
                return {**super().facts(name), "source": "events", "lag_s": 0.0008}

        state = make_state(application, view=HeardView())
        state.fleet.backends["b"].state = "down"  # type: ignore[attr-defined]
        up, down = state.backends()
        assert (up["view"]["lag_s"], up["kv_usage"]) == (0.0008, 0.25)
        assert (down["view"]["lag_s"], down["kv_usage"]) == (None, None)

    async def test_ready_follows_the_application(
        self, application: FakeApplication, opened: Open
    ) -> None:
        """livez never depends on backends, readyz does."""
        client = await opened()
        application.is_ready = False
        statuses = [(await client.get(path)).status for path in ("/livez", "/readyz")]
        assert statuses == [200, 503]

    async def test_metrics_are_exposed(self, opened: Open) -> None:
        """A plain scrape gets the text format."""
        response = await (await opened()).get("/metrics")
        assert response.headers["Content-Type"].startswith("text/plain; version=")
        assert 'warmroute_build_info{version="1.2.3"} 1.0' in await response.text()

    async def test_openmetrics_is_negotiated(self, opened: Open) -> None:
        """A scraper that asks for OpenMetrics gets it."""
        accept = {"Accept": "application/openmetrics-text; version=1.0.0"}
        response = await (await opened()).get("/metrics", headers=accept)
        assert "openmetrics-text" in response.headers["Content-Type"]


class TestDecisions:
    @pytest.mark.parametrize(
        ("query", "expected"),
        [
            ("", ["r3", "r2", "r1", "r0"]),
            ("?limit=2", ["r3", "r2"]),
            ("?backend=a", ["r2", "r0"]),
            ("?model=m1&limit=5", ["r3", "r2"]),
            ("?backend=b&model=m0", ["r1"]),
            ("?backend=none", []),
        ],
    )
    async def test_newest_first_and_filtered(
        self,
        application: FakeApplication,
        opened: Open,
        query: str,
        expected: list[str],
    ) -> None:
        """Filters combine, and the limit counts what passes them."""
        state = make_state(application)
        fill(state.ledger)
        response = await (await opened(state)).get(f"/api/decisions{query}")
        body = await response.json()
        assert expected == [record["request_id"] for record in body["decisions"]]

    @pytest.mark.parametrize(
        ("path", "key", "allowed"),
        [
            ("/api/decisions?limt=2", "limt", "limit, backend, model"),
            ("/api/view?backend=a&deep=2", "deep", "backend, depth"),
            ("/api/view/merged?node=2", "node", "nodes"),
            ("/api/stream?viw=1", "viw", "view"),
        ],
    )
    async def test_a_query_key_that_does_nothing_is_refused(
        self, opened: Open, path: str, key: str, allowed: str
    ) -> None:
        """Passed over, a misspelt filter would show what was not asked for."""
        response = await (await opened()).get(path)
        body = await response.json()
        assert (response.status, body["error"]["code"]) == (400, "query_invalid")
        assert body["error"]["message"] == f"query key '{key}' (allowed: {allowed})"

    async def test_one_is_found_by_its_request_id(
        self, application: FakeApplication, opened: Open
    ) -> None:
        """The record comes with its outcome."""
        state = make_state(application)
        fill(state.ledger)
        response = await (await opened(state)).get("/api/decisions/r1")
        body = await response.json()
        assert (body["chosen"], body["outcome"]["cached_tokens"]) == ("b", 32)

    async def test_an_unknown_id_is_404(self, opened: Open) -> None:
        """It may be older than the ring, or not the id that was in force."""
        response = await (await opened()).get("/api/decisions/none")
        message = (await response.json())["error"]["message"]
        assert "over 128" in message
        assert "x-request-id" in message
        assert await error_of(response) == (404, "decision_not_found")

    @pytest.mark.parametrize("limit", ["0", "-1", "1001", "x", "", "9" * 5000])
    async def test_a_bad_limit_is_400(self, opened: Open, limit: str) -> None:
        """The allowed range is told."""
        response = await (await opened()).get("/api/decisions", params={"limit": limit})
        assert await error_of(response) == (400, "query_invalid")


class TestExplain:
    async def test_passes_the_body_as_written(
        self, application: FakeApplication, opened: Open
    ) -> None:
        """The bytes that would be sent are the bytes that are explained."""
        client = await opened()
        response = await client.post(
            "/api/explain",
            data=b'{"path": "/v1/x", "headers": {"A-B": "c"}, "body": {"n":  1.0}}',
            headers={"Content-Type": "application/json"},
        )
        assert await response.json() == {"chosen": "a"}
        assert application.explained == [("/v1/x", {"a-b": "c"}, b'{"n":  1.0}')]

    async def test_a_text_body_is_taken_literally(
        self, application: FakeApplication, opened: Open
    ) -> None:
        """What is not JSON can be explained too."""
        client = await opened()
        await client.post("/api/explain", json={"path": "/v1/x", "body": "{broken é"})
        assert application.explained[0][2] == "{broken é".encode()

    @pytest.mark.parametrize(
        ("text", "named"),
        [
            (r"\ud800", r"\ud800 at byte 11"),
            (r"a\udC00b", r"\udC00 at byte 12"),
            (r"\ud83d\ude00\ud83d\u0041", r"\ud83d at byte 23"),
            (r"\ud83d \ude00", r"\ud83d at byte 11"),
            (r"\\\udc00", r"\udc00 at byte 13"),
        ],
    )
    async def test_a_surrogate_that_stands_alone_is_named(
        self, opened: Open, text: str, named: str
    ) -> None:
        """Not "truncated", which sends people to look for a missing bracket."""
        response = await (await opened()).post(
            "/api/explain",
            data=f'{{"body": ["{text}"], "path": "/v1/x"}}',
            headers={"Content-Type": "application/json"},
        )
        message = (await response.json())["error"]["message"]
        assert message == (
            f"body: {named} is a surrogate without its other half, and no character "
            r"(allowed: pairs such as \ud83d\ude00)"
        )

    async def test_a_refusal_is_what_the_client_would_get(
        self, application: FakeApplication, opened: Open
    ) -> None:
        """Status and code of the data port, with Retry-After."""
        application.fault = ClientError(503, "no_healthy_backend", "none", 1)
        response = await (await opened()).post("/api/explain", json={"path": "/v1/x"})
        assert response.headers["Retry-After"] == "1"
        assert await error_of(response) == (503, "no_healthy_backend")

    @pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"path": 1}', b"\xff"])
    async def test_a_malformed_question_is_400(self, opened: Open, body: bytes) -> None:
        """The fault is told."""
        response = await (await opened()).post(
            "/api/explain", data=body, headers={"Content-Type": "application/json"}
        )
        assert await error_of(response) == (400, "body_invalid")

    @pytest.mark.parametrize("text", ["[" * 200_000, "[" * 200_000 + "]" * 200_000])
    async def test_a_body_nested_too_deep_is_400(
        self, opened: Open, caplog: pytest.LogCaptureFixture, text: str
    ) -> None:
        """Closed or not, and without a traceback in the log."""
        response = await (await opened()).post(
            "/api/explain",
            data=f'{{"path": "/v1/x", "body": {text}}}',
            headers={"Content-Type": "application/json"},
        )
        assert await error_of(response) == (400, "body_invalid")
        assert [record for record in caplog.records if record.exc_info] == []

    async def test_an_exception_is_500_and_logged(
        self,
        application: FakeApplication,
        opened: Open,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        """Nothing of it reaches the caller."""
        application.fault = RuntimeError("inner secret")
        response = await (await opened()).post("/api/explain", json={"path": "/"})
        assert "secret" not in await response.text()
        assert await error_of(response) == (500, "internal_error")
        assert "admin_request_failed" in caplog.messages


class TestLevers:
    async def test_view_shows_a_tree(self, opened: Open) -> None:
        """Depth is 4 unless told."""
        client = await opened()
        default = await (await client.get("/api/view?backend=a")).json()
        deep = await (await client.get("/api/view?backend=a&depth=9")).json()
        assert [default["depth"], deep["depth"]] == [4, 9]

    @pytest.mark.parametrize(
        ("method", "path"),
        [
            ("GET", "/api/view?backend=x"),
            ("GET", "/api/view"),
            ("POST", "/api/backends/x/drain"),
            ("DELETE", "/api/backends/x"),
        ],
    )
    async def test_an_unknown_backend_is_404(
        self, opened: Open, method: str, path: str
    ) -> None:
        """The known ones are listed."""
        headers = {"Content-Type": "application/json"}
        response = await (await opened()).request(method, path, headers=headers)
        assert "known: a, b" in await response.text()
        assert await error_of(response) == (404, "backend_not_found")

    async def test_a_backend_can_be_added_drained_and_removed(
        self, opened: Open
    ) -> None:
        """Each lever answers with the backend's name."""
        client = await opened()
        added = await client.post(
            "/api/backends", json={"name": "c", "url": "http://c"}
        )
        drained = await client.post(
            "/api/backends/a/drain", headers={"Content-Type": "application/json"}
        )
        removed = await client.delete("/api/backends/b")
        listed = await (await client.get("/api/backends")).json()
        assert (added.status, await added.json()) == (201, {"name": "c"})
        assert await drained.json() == {"name": "a", "state": "draining"}
        assert await removed.json() == {"name": "b", "removed": True}
        assert [row["name"] for row in listed["backends"]] == ["a"]

    @pytest.mark.parametrize(
        ("path", "code"),
        [("/api/backends", "backend_invalid"), ("/api/reload", "config_invalid")],
    )
    async def test_configuration_errors_are_400_with_all_lines(
        self, application: FakeApplication, opened: Open, path: str, code: str
    ) -> None:
        """The message is what --check-config prints."""
        application.fault = ConfigError("w.yaml:1: a\nw.yaml:2: b")
        response = await (await opened()).post(path, json={})
        assert (await response.json())["error"]["message"].count("\n") == 1
        assert await error_of(response) == (400, code)

    async def test_a_good_reload_says_so(self, opened: Open) -> None:
        """Reloading needs a JSON content type and no body."""
        response = await (await opened()).post("/api/reload", json={})
        assert await response.json() == {"reloaded": True}

    @pytest.mark.parametrize(
        ("method", "path", "expected"),
        [
            ("GET", "/nothing", (404, "path_not_found")),
            ("DELETE", "/api/state", (405, "method_not_allowed")),
        ],
    )
    async def test_foreign_paths_and_methods_are_json_errors(
        self, opened: Open, method: str, path: str, expected: tuple[int, str]
    ) -> None:
        """Even these have the one shape."""
        response = await (await opened()).request(method, path)
        assert await error_of(response) == expected


class TestGuard:
    @pytest.mark.parametrize(
        "host",
        ["127.0.0.1:9090", "localhost", "LOCALHOST:1", "[::1]:9090", "10.1.1.1", ""],
    )
    def test_addresses_may_pass_without_a_token(self, host: str) -> None:
        """No DNS name is involved, so none can be rebound."""
        Guard("127.0.0.1", None).check("GET", "/api/state", host, "", "")

    @pytest.mark.parametrize(
        "host", ["evil.example", "evil.example:9090", "127.0.0.1.evil.example", "[x]"]
    )
    def test_names_may_not(self, host: str) -> None:
        """A page whose name was rebound to loopback is refused."""
        with pytest.raises(ClientError) as failure:
            Guard("127.0.0.1", None).check("GET", "/api/state", host, "", "")
        assert failure.value.code == "host_not_allowed"

    def test_beyond_loopback_nothing_passes_without_a_token(self) -> None:
        """A forgotten token is a closed door."""
        with pytest.raises(ClientError) as failure:
            Guard("0.0.0.0", None).check("GET", "/metrics", "10.0.0.1", "", "")
        assert failure.value.code == "admin_token_missing"

    @pytest.mark.parametrize(
        "header", ["", "Bearer", "Bearer x", "Basic s3cret", "s3cret", "Bearer s3cret2"]
    )
    def test_a_wrong_token_is_refused(self, header: str) -> None:
        """Near misses included."""
        with pytest.raises(ClientError) as failure:
            Guard("127.0.0.1", "s3cret").check("GET", "/metrics", "h", header, "")
        assert failure.value.status == 401

    def test_the_token_opens_under_any_name(self) -> None:
        """The scheme's case does not matter."""
        Guard("0.0.0.0", "s3cret").check("GET", "/", "name", "bearer s3cret", "")

    async def test_probes_need_no_token_and_the_rest_does(
        self, application: FakeApplication, opened: Open
    ) -> None:
        """A kubelet has no token; the challenge is named."""
        client = await opened(make_state(application, token="s3cret", host="0.0.0.0"))
        probe = await client.get("/livez")
        refused = await client.get("/api/state")
        passed = await client.get(
            "/api/state", headers={"Authorization": "Bearer s3cret"}
        )
        assert [probe.status, refused.status, passed.status] == [200, 401, 200]
        assert refused.headers["WWW-Authenticate"] == "Bearer"

    async def test_a_form_cannot_pull_a_lever(self, opened: Open) -> None:
        """Browsers post forms across origins without asking."""
        client = await opened()
        for kind in ("text/plain", "application/x-www-form-urlencoded"):
            response = await client.post(
                "/api/reload", data=b"{}", headers={"Content-Type": kind}
            )
            assert await error_of(response) == (415, "content_type_not_json")


async def test_every_route_is_documented(application: FakeApplication) -> None:
    """docs/api.md has a heading for each method and path."""
    text = DOCS.read_text()
    routes = {
        (route.method, route.resource.canonical)
        for route in make_admin(make_state(application)).router.routes()
        if route.resource is not None and route.method != "HEAD"
    }
    assert {
        route for route in routes if f"`{route[0]} {route[1]}`" not in text
    } == set()


class TestServerName:
    @pytest.mark.parametrize("path", ["/livez", "/", "/no/such", "/api/view?x=1"])
    async def test_names_itself_and_no_versions(self, opened: Open, path: str) -> None:
        response = await (await opened()).get(path)
        assert response.headers.getall("Server") == ["warmroute"]


class FakeConductor:
    """Be switched on or off by its configuration."""

    def __init__(self, *, enabled: bool) -> None:
        self.config = ConductorConfig(enabled=enabled)
        self.is_started = False

    def describe(self) -> dict[str, object]:
        return {"started": self.is_started}

    def start(self) -> None:
        self.is_started = True

    async def stop(self) -> None:
        self.is_started = False


class TestConductor:
    async def start(
        self, application: FakeApplication, opened: Open, conductor: FakeConductor
    ) -> Any:
        routes = conductor_routes(conductor)
        client = await opened(make_state(application, routes=routes))
        return await client.post("/api/conductor/start", json={})

    async def test_starts_where_the_configuration_lets_it(
        self, application: FakeApplication, opened: Open
    ) -> None:
        response = await self.start(application, opened, FakeConductor(enabled=True))
        assert (response.status, await response.json()) == (200, {"started": True})

    async def test_one_that_is_switched_off_is_not_said_to_start(
        self, application: FakeApplication, opened: Open
    ) -> None:
        """The answer names the key that switches it on."""
        conductor = FakeConductor(enabled=False)
        response = await self.start(application, opened, conductor)
        body = await response.json()
        assert (response.status, body["error"]["code"]) == (409, "conductor_off")
        assert "conductor.enabled: true" in body["error"]["message"]
        assert not conductor.is_started
