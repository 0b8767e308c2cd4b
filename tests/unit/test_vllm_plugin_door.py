"""The door of the vLLM plugin, its calls and its timer, without an engine."""

import asyncio
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from warmroute.adapters.kv_control import VERBS, Capabilities
from warmroute.adapters.kv_requests import Request
from warmroute.adapters.vllm.plugin import endpoint as endpoint_module
from warmroute.adapters.vllm.plugin.calls import CoreCalls
from warmroute.adapters.vllm.plugin.control import PluginKVControl
from warmroute.adapters.vllm.plugin.core import DeafControl
from warmroute.adapters.vllm.plugin.door import Door
from warmroute.adapters.vllm.plugin.endpoint import WarmrouteEndpoint, read_body
from warmroute.adapters.vllm.plugin.entry import register
from warmroute.adapters.vllm.plugin.jobs import MAX_OPEN, Jobs
from warmroute.adapters.vllm.plugin.names import is_wanted
from warmroute.adapters.vllm.plugin.timer import ExpiryTimer
from warmroute.adapters.vllm.plugin.tokens import ServerTokens
from warmroute.adapters.vllm.plugin.versions import version_fault
from warmroute.policies.errors import ClientError, PolicyError


class TestDoor:
    def test_without_a_token_it_is_shut(self) -> None:
        for token in (None, ""):
            door = Door(token)
            assert door.shut is not None
            assert "WARMROUTE_KV_TOKEN" in door.shut
            with pytest.raises(ClientError, match="off by default") as caught:
                door.check("GET", "Bearer ", "")
            assert caught.value.status == 403

    @pytest.mark.parametrize(
        "header", ["", "Bearer", "Bearer no", "Basic secret", "secret", "Bearer secreť"]
    )
    def test_another_token_is_refused(self, header: str) -> None:
        with pytest.raises(ClientError) as caught:
            Door("secret").check("GET", header, "")
        assert caught.value.status == 401
        assert "secret" not in caught.value.message

    def test_the_token_is_admitted(self) -> None:
        Door("secret").check("POST", "bearer secret", "application/json; charset=utf-8")

    @pytest.mark.parametrize("kind", ["", "text/plain", "application/x-json"])
    def test_a_body_that_web_pages_can_send_is_refused(self, kind: str) -> None:
        with pytest.raises(ClientError) as caught:
            Door("secret").check("POST", "Bearer secret", kind)
        assert caught.value.status == 415

    def test_the_environment_holds_the_token(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("WARMROUTE_KV_TOKEN", " t\n")
        Door.of_environment().check("GET", "Bearer t", "")
        assert "t" not in repr(Door("t")).split()


class FakeResponse:
    def __init__(self, body: bytes, status: int, headers: Any, kind: str) -> None:
        self.status = status
        self.body = msgspec.json.decode(body)


class FakeHttp:
    def __init__(
        self, verb: str, body: bytes = b"{}", method: str = "POST", token: str = "t"
    ) -> None:
        self.method = method
        self.headers = {
            "authorization": f"Bearer {token}",
            "content-type": "application/json",
        }
        self.path_params = {"verb": verb}
        self.app = SimpleNamespace(state=SimpleNamespace(serving_tokenization=None))
        self._body = body

    async def stream(self) -> AsyncIterator[bytes]:
        for at in range(0, len(self._body), 65536):
            yield self._body[at : at + 65536]


class FakeEngines:
    """Engines that answer with a function."""

    def __init__(self, *answer: Callable[[int, str, dict[str, Any]], object]) -> None:
        self._answers = answer
        self.calls: list[tuple[str, dict[str, Any]]] = []

    async def call_utility_all_async(self, method: str, *args: Any) -> list[object]:
        assert method == "warmroute_kv"
        self.calls.append(args[1:])
        return [answer(*args) for answer in self._answers]


def done(*parts: object) -> dict[str, object]:
    return {"parts": list(parts), "done": True}


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Callable[..., WarmrouteEndpoint]:
    def endpoint(token: str, engines: object = None) -> WarmrouteEndpoint:
        monkeypatch.setenv("WARMROUTE_KV_TOKEN", token)
        one = WarmrouteEndpoint()
        if engines is not None:
            one._calls = CoreCalls(engines)  # type: ignore[arg-type]
            one._timer = ExpiryTimer(one._calls)
            config = SimpleNamespace(max_model_len=100)
            one._client = SimpleNamespace(model_config=config)
        return one

    responses = SimpleNamespace(Response=FakeResponse)
    monkeypatch.setattr(
        endpoint_module, "importlib", SimpleNamespace(import_module=lambda _: responses)
    )
    return endpoint


Make = Callable[..., WarmrouteEndpoint]


class TestEndpoint:
    async def test_shut_it_says_why_to_anybody(self, make: Make) -> None:
        answer = await make("").answer(FakeHttp("capabilities", token=""))
        assert answer.status == 200
        assert set(answer.body["verbs"]) == set(VERBS)
        assert "off by default" in answer.body["verbs"]["evict"]
        answer = await make("").answer(FakeHttp("snapshot"))
        assert (answer.status, answer.body["error"]["code"]) == (403, "kv_control_off")

    @pytest.mark.parametrize(
        ("http", "status", "code"),
        [
            (FakeHttp("evict", token="x"), 401, "engine_token_wrong"),
            (FakeHttp("nonsense"), 404, "kv_verb_unknown"),
            (FakeHttp("evict", method="GET"), 405, "kv_verb_not_readable"),
            (FakeHttp("evict", b"{"), 400, "kv_request_invalid"),
            (FakeHttp("evict", b"[" * 100_000), 400, "kv_request_invalid"),
            (FakeHttp("evict", b'{"hashes":[1],"x":2}'), 400, "kv_request_invalid"),
            (FakeHttp("evict", b'{"hashes":["a"]}'), 400, "kv_request_invalid"),
            (FakeHttp("evict", bytes(17 * 2**20)), 413, "body_too_large"),
            (FakeHttp("snapshot", b'{"token_ids":1}'), 400, "kv_request_invalid"),
        ],
    )
    async def test_bad_calls_are_refused_and_reach_no_engine(
        self, make: Make, http: FakeHttp, status: int, code: str
    ) -> None:
        engines = FakeEngines(lambda *_: done())
        answer = await make("t", engines).answer(http)
        assert (answer.status, answer.body["error"]["code"]) == (status, code)
        assert not engines.calls

    async def test_what_fails_inside_is_logged_and_not_told(
        self, make: Make, caplog: pytest.LogCaptureFixture
    ) -> None:
        answer = await make("t", FakeEngines(lambda *_: None)).answer(FakeHttp("flush"))
        assert answer.body["error"]["message"] == "the plugin failed; see log"
        assert "AttributeError" in caplog.text

    async def test_a_server_without_an_engine_says_so(self, make: Make) -> None:
        answer = await make("t").answer(FakeHttp("flush"))
        assert (answer.status, answer.body["error"]["code"]) == (
            501,
            "kv_verb_unsupported",
        )

    async def test_a_body_is_read_in_pieces(self) -> None:
        assert len(await read_body(FakeHttp("x", bytes(200_000)))) == 200_000


class TestCalls:
    async def test_slices_are_put_together(self) -> None:
        def answer(ticket: int, verb: str, arguments: object) -> object:
            return {"parts": [verb], "done": not verb}

        assert await CoreCalls(FakeEngines(answer)).run("evict") == ["evict", ""]

    async def test_a_refusal_of_the_engine_is_told(self) -> None:
        engines = FakeEngines(lambda *_: {"error": [400, "kv_policy_invalid", "no"]})
        with pytest.raises(ClientError, match="no") as caught:
            await CoreCalls(engines).run("policy")
        assert (caught.value.status, caught.value.code) == (400, "kv_policy_invalid")

    async def test_several_engines_are_refused(self) -> None:
        engines = FakeEngines(lambda *_: done(), lambda *_: done())
        with pytest.raises(ClientError, match="2 engines share this server"):
            await CoreCalls(engines).run("flush")

    async def test_an_engine_that_hangs_is_told(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class Hung:
            async def call_utility_all_async(self, *_: object) -> list[object]:
                await asyncio.Event().wait()
                return []

        monkeypatch.setattr("warmroute.adapters.vllm.plugin.calls.TIMEOUT_S", 0.01)
        with pytest.raises(ClientError, match="is it stuck") as caught:
            await CoreCalls(Hung()).run("flush")
        assert caught.value.status == 503

    async def test_an_engine_of_another_release_says_why(self) -> None:
        engines = FakeEngines(DeafControl("unsupported: too new").call)
        calls = CoreCalls(engines)
        timer = ExpiryTimer(calls)
        control = PluginKVControl(calls, timer, no_tokens, no_tokens)
        told = await control.capabilities(Request())
        assert told == Capabilities(verbs=dict.fromkeys(VERBS, "unsupported: too new"))
        with pytest.raises(ClientError, match="unsupported: too new") as caught:
            await control.flush(Request())
        assert caught.value.status == 501


async def no_tokens(*request: object) -> Any:
    raise AssertionError(request)


class TestJobs:
    def test_work_is_cut_in_slices_of_a_few_milliseconds(self) -> None:
        time = [0.0]

        def work() -> Any:
            for at in range(5):
                time[0] += 0.0015
                yield {"at": at}

        told: list[float] = []
        jobs = Jobs(lambda: told.append(time[0]), lambda: time[0])
        first = jobs.begin(7, work())
        assert first == {"parts": [{"at": 0}, {"at": 1}], "done": False}
        assert [len(jobs.go_on(7)["parts"]) for _ in range(2)] == [2, 1]  # type: ignore[arg-type]
        assert len(told) == 3
        assert jobs.go_on(7)["error"]

    def test_jobs_left_alone_give_way_to_new_ones(self) -> None:
        jobs = Jobs(lambda: None, iter(range(10_000)).__next__)
        for ticket in range(MAX_OPEN + 3):
            jobs.begin(ticket, iter([{}] * 9))
        assert jobs.go_on(2)["error"]
        assert not jobs.go_on(3)["done"]

    @pytest.mark.parametrize(
        ("error", "refusal"),
        [
            (ClientError(409, "c", "m"), [409, "c", "m"]),
            (PolicyError("unknown"), [400, "kv_policy_invalid", "unknown"]),
            (
                KeyError("x"),
                [500, "kv_failed", "the engine's plugin failed: KeyError; see log"],
            ),
        ],
    )
    def test_what_a_verb_raises_is_a_refusal(
        self, error: Exception, refusal: list[object]
    ) -> None:
        def work() -> Any:
            raise error
            yield

        assert Jobs(lambda: None).begin(1, work()) == {"error": refusal}


class TestTimer:
    async def test_calls_when_something_is_due_and_rests_after(self) -> None:
        due = iter([0.0, 0.0, None])
        engines = FakeEngines(lambda *_: done({"due_s": next(due)}))
        timer = ExpiryTimer(CoreCalls(engines))
        timer.look_again()
        await ended(timer)
        assert [verb for verb, _ in engines.calls] == ["expire"] * 3
        assert repr(timer) == "<ExpiryTimer rests>"

    async def test_a_sooner_deadline_is_not_slept_through(self) -> None:
        due, asked = iter([900.0, 0.0, None]), asyncio.Event()

        def answer(ticket: int, verb: str, arguments: object) -> object:
            asked.set()
            return done({"due_s": next(due)})

        engines = FakeEngines(answer)
        timer = ExpiryTimer(CoreCalls(engines))
        timer.look_again()
        await asked.wait()
        timer.look_again()
        await ended(timer)
        assert len(engines.calls) == 3


async def ended(timer: ExpiryTimer) -> None:
    assert timer._task is not None
    async with asyncio.timeout(5):
        await timer._task


class TestTokens:
    async def test_a_refusal_of_vllm_is_told(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class Serving:
            async def create_tokenize(self, request: object, raw: object) -> object:
                return SimpleNamespace(error=SimpleNamespace(message="no template"))

        monkeypatch.setattr(
            "warmroute.adapters.vllm.plugin.tokens._asked", lambda request: request
        )
        from warmroute.adapters.kv_requests import BlocksRequest

        with pytest.raises(ClientError, match="no template"):
            await ServerTokens(Serving(), None, 9).tokenize(BlocksRequest(prompt="a"))


class TestVersions:
    @pytest.mark.parametrize("version", ["0.32.0", "0.32.5+cpu", "0.32.1rc1"])
    def test_known_ones(self, version: str) -> None:
        assert version_fault(version) is None

    @pytest.mark.parametrize("version", ["0.33.0", "0.31.9", "1.32.0", "dev", ""])
    def test_others_are_named(self, version: str) -> None:
        fault = version_fault(version)
        assert fault is not None
        assert f"vLLM {version} is not known to this plugin (known: 0.32.*)" in fault


class TestEntry:
    @pytest.mark.parametrize(
        ("names", "is_named"),
        [(None, False), ("", False), ("lora", False), ("a, warmroute", True)],
    )
    def test_is_wanted_only_by_name(
        self, monkeypatch: pytest.MonkeyPatch, names: str | None, is_named: bool
    ) -> None:
        if names is None:
            monkeypatch.delenv("VLLM_PLUGINS", raising=False)
        else:
            monkeypatch.setenv("VLLM_PLUGINS", names)
        assert is_wanted() is is_named

    def test_where_nothing_fits_the_engine_runs_on(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """There is no vLLM here at all."""
        monkeypatch.delenv("VLLM_PLUGINS", raising=False)
        register()
        assert not caplog.text
        monkeypatch.setenv("VLLM_PLUGINS", "warmroute")
        register()
        assert "the plugin is off" in caplog.text
