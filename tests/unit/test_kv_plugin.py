"""What the plugins of all engines share, without an engine."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from warmroute.adapters.kv_control import (
    VERBS,
    Capabilities,
    decode_request,
    perform,
)
from warmroute.adapters.kv_plugin import body as body_module
from warmroute.adapters.kv_plugin import endpoint as endpoint_module
from warmroute.adapters.kv_plugin.body import Body
from warmroute.adapters.kv_plugin.calls import CoreCalls
from warmroute.adapters.kv_plugin.control import PluginKVControl
from warmroute.adapters.kv_plugin.door import Door
from warmroute.adapters.kv_plugin.endpoint import DoorEndpoint, HttpRequest
from warmroute.adapters.kv_plugin.jobs import LEFT_S, MAX_OPEN, Jobs
from warmroute.adapters.kv_plugin.share import retained_share, retention_cap
from warmroute.adapters.kv_plugin.timer import ExpiryTimer
from warmroute.adapters.kv_plugin.tokens import PromptTokens
from warmroute.adapters.kv_plugin.verbs import DeafControl, EngineVerbs, VerbCalls
from warmroute.adapters.kv_requests import BlocksRequest, Request
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
        self.app = None
        self.num_read = 0
        self.stays = True
        self._body = body

    async def stream(self) -> AsyncIterator[bytes]:
        for at in range(0, len(self._body), 65536):
            yield self._body[at : at + 65536]
            self.num_read = min(at + 65536, len(self._body))
        if not self.stays:
            raise FakeDisconnect


class FakeDisconnect(Exception):
    """Tells that the caller went away, as the server does."""


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


class FakeTokens(PromptTokens):
    """A server with a token a character, which wants text."""

    async def _ask(self, request: BlocksRequest) -> Sequence[int]:
        if request.prompt is None:
            raise ValueError("no template")
        return [ord(one) for one in request.prompt]


class FakeEndpoint(DoorEndpoint):
    """The endpoint of an engine that loads nothing."""

    def _tokens(self, request: HttpRequest) -> PromptTokens:
        return FakeTokens(100)

    async def _generate(self, tokens: Sequence[int], salt: str | None) -> None:
        raise AssertionError(tokens)


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Callable[..., DoorEndpoint]:
    def endpoint(token: str, engines: FakeEngines | None = None) -> DoorEndpoint:
        monkeypatch.setenv("WARMROUTE_KV_TOKEN", token)
        one = FakeEndpoint()
        if engines is not None:
            one._drive(engines)
        return one

    server = SimpleNamespace(Response=FakeResponse, ClientDisconnect=FakeDisconnect)
    importing = SimpleNamespace(import_module=lambda _: server)
    for module in (endpoint_module, body_module):
        monkeypatch.setattr(module, "importlib", importing)
    return endpoint


Make = Callable[..., DoorEndpoint]


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

    async def test_a_body_is_read_in_pieces(self, make: Make) -> None:
        body = Body(FakeHttp("x", bytes(200_000)))
        assert len(await body.read()) == 200_000

    @pytest.mark.parametrize(
        ("http", "status"),
        [
            (FakeHttp("evict", bytes(20 * 2**20)), 413),
            (FakeHttp("evict", bytes(5 * 2**20), token="x"), 401),
            (FakeHttp("nonsense", bytes(5 * 2**20)), 404),
        ],
    )
    async def test_whoever_is_refused_may_send_its_body_to_the_end(
        self, make: Make, http: FakeHttp, status: int
    ) -> None:
        """Or the connection would be reset, and the refusal lost with it."""
        answer = await make("t", FakeEngines()).answer(http)
        assert (answer.status, http.num_read) == (status, len(http._body))

    async def test_a_body_without_end_is_not_read_for_ever(self, make: Make) -> None:
        http = FakeHttp("evict", token="x")
        http._body = bytes(200 * 2**20)
        assert (await make("t").answer(http)).status == 401
        assert http.num_read < 100 * 2**20

    async def test_a_refused_caller_that_stops_sending_is_not_waited_for(
        self, make: Make, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class Stuck(FakeHttp):
            async def stream(self) -> AsyncIterator[bytes]:
                yield b"{"
                await asyncio.Event().wait()

        monkeypatch.setattr(body_module, "LINGER_S", 0.01)
        assert (await make("t").answer(Stuck("evict", token="x"))).status == 401

    @pytest.mark.parametrize("token", ["t", "x"])
    async def test_a_caller_that_goes_away_is_nothing_to_log(
        self, make: Make, caplog: pytest.LogCaptureFixture, token: str
    ) -> None:
        http = FakeHttp("evict", b"{", token=token)
        http.stays = False
        answer = await make("t").answer(http)
        assert answer.status == (400 if token == "t" else 401)
        assert not caplog.records


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

        monkeypatch.setattr("warmroute.adapters.kv_plugin.calls.TIMEOUT_S", 0.01)
        with pytest.raises(ClientError, match="is it stuck") as caught:
            await CoreCalls(Hung()).run("flush")
        assert caught.value.status == 503

    async def test_an_engine_of_another_release_says_why(self) -> None:
        engines = FakeEngines(DeafControl("unsupported: too new").call)
        calls = CoreCalls(engines)
        timer = ExpiryTimer(calls)
        control = PluginKVControl(calls, timer, no_tokens, no_tokens)
        told = await control.capabilities(Request())
        assert told == Capabilities(
            verbs=dict.fromkeys(VERBS, "unsupported: too new"),
            running={"restore": "unsupported: too new"},
        )
        with pytest.raises(ClientError, match="unsupported: too new") as caught:
            await control.flush(Request())
        assert caught.value.status == 501

    @pytest.mark.parametrize("verb", ["evict", "retain", "restore"])
    async def test_more_blocks_than_a_call_may_name_are_refused(
        self, verb: str
    ) -> None:
        """Before anything is done: with a page a token, a long prompt comes to it."""
        engines = FakeEngines(lambda *_: done({"hashes": list(range(65_537))}))
        calls = CoreCalls(engines)

        async def tokenize(request: object) -> list[int]:
            return [0] * 65_537

        control = PluginKVControl(calls, ExpiryTimer(calls), tokenize, no_tokens)
        fields = {"ttl_s": 1.0} if verb == "retain" else {}
        asked = decode_request(verb, msgspec.json.encode({"prompt": "a", **fields}))
        with pytest.raises(ClientError, match="allowed: 65536 blocks in a") as caught:
            await perform(control, verb, asked)
        assert (caught.value.status, caught.value.code) == (400, "kv_request_invalid")
        assert [one for one, _ in engines.calls] == ["hashes"]


async def no_tokens(*request: object) -> Any:
    raise AssertionError(request)


class TestJobs:
    def test_work_is_cut_in_slices_of_a_few_milliseconds(self) -> None:
        time = [0.0]

        def work() -> Any:
            for at in range(5):
                time[0] += 0.0006
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

    def test_one_that_nobody_goes_on_with_is_closed_after_a_while(self) -> None:
        time, closed = [0.0], []

        def work() -> Any:
            try:
                while True:
                    time[0] += 0.01
                    yield {}
            finally:
                closed.append(time[0])

        jobs = Jobs(lambda: None, lambda: time[0])
        jobs.begin(1, work())
        jobs.begin(2, work())
        time[0] += LEFT_S / 2
        jobs.go_on(1)
        time[0] += LEFT_S / 2 + 1
        jobs.begin(3, work())
        assert len(closed) == 1
        assert jobs.go_on(2)["error"]
        assert not jobs.go_on(1)["done"]

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
    async def test_a_prompt_is_cut_where_no_request_goes_on(self) -> None:
        tokens = FakeTokens(3)
        assert await tokens.tokenize(BlocksRequest(prompt="abcd")) == [97, 98, 99]
        assert await tokens.tokenize(BlocksRequest(token_ids=[1, 2, 3, 4])) == [1, 2, 3]

    async def test_what_the_server_cannot_read_is_refused_in_its_words(self) -> None:
        asked = BlocksRequest(messages=[{"role": "user"}])
        with pytest.raises(ClientError, match="cannot be named: no template") as caught:
            await FakeTokens(3).tokenize(asked)
        assert caught.value.status == 400


class FakeVerbs(EngineVerbs):
    """Verbs of which one does something."""

    __slots__ = ()
    asked = ("capabilities", "flush", "restorable")

    def flush(self, arguments: dict[str, object]) -> Iterator[dict[str, object]]:
        yield arguments

    def restorable(self, arguments: dict[str, object]) -> Iterator[dict[str, object]]:
        raise AssertionError(arguments)


class TestVerbCalls:
    def test_a_verb_is_begun_with_its_arguments_and_what_follows_is_called(
        self,
    ) -> None:
        done: list[bool] = []
        calls = VerbCalls(FakeVerbs({}), lambda: done.append(True))
        assert calls.answer(1, "flush", {"a": 1}) == {"parts": [{"a": 1}], "done": True}
        assert done == [True]

    @pytest.mark.parametrize(
        ("verb", "refused"),
        [
            ("restorable", [501, "kv_verb_unsupported"]),
            ("nothing", [404, "kv_verb_unknown"]),
            ("all", [404, "kv_verb_unknown"]),
            ("", [503, "kv_call_lost"]),
        ],
    )
    def test_what_cannot_be_asked_for_is_refused(
        self, verb: str, refused: list[object]
    ) -> None:
        """Parts of a verb that does not work do not work either."""
        calls = VerbCalls(FakeVerbs({"restore": "unsupported: no"}), lambda: None)
        answer = calls.answer(1, verb, {})
        error = answer["error"]
        assert isinstance(error, list)
        assert error[:2] == refused

    def test_running_requests_are_restored_where_they_may_have_budgets(self) -> None:
        calls = VerbCalls(FakeVerbs({"restore": "unsupported: no host"}), lambda: None)
        (part,) = cast(list[Any], calls.answer(1, "capabilities", {})["parts"])
        assert part["running"] == {"restore": True}
        calls.faults["budget"] = "unsupported: two workers"
        (part,) = cast(list[Any], calls.answer(2, "capabilities", {})["parts"])
        assert part["running"] == {"restore": "unsupported: two workers"}
        told = cast(list[Any], calls.answer(3, "bring_back", {})["error"])
        assert told[0] == 501
        assert "two workers" in told[2]

    def test_a_verb_found_not_to_work_later_is_refused_from_then_on(self) -> None:
        calls = VerbCalls(FakeVerbs({}), lambda: None)
        calls.faults["flush"] = "unsupported: no"
        assert "error" in calls.answer(1, "flush", {})
        (part,) = cast(list[Any], calls.answer(2, "capabilities", {})["parts"])
        assert part["verbs"]["flush"] == "unsupported: no"


class TestShare:
    @pytest.mark.parametrize(
        ("pages", "longest", "share", "cap"),
        [
            (100, 100, 0.5, 50),
            (100, 1000, 0.5, 37),
            (100, 3000, 1.0, 0),
            (100, 1, 0.0, 0),
            (100, 16, 1.0, 99),
            (256, 2064, 0.5, 127),
        ],
    )
    def test_the_longest_request_keeps_room(
        self, pages: int, longest: int, share: float, cap: int
    ) -> None:
        assert retention_cap(pages, 16, longest, share) == cap

    @pytest.mark.parametrize(
        ("text", "share"),
        [("", 0.5), ("0.2", 0.2), ("2", 0.0), ("x", 0.0), ("nan", 0.0)],
    )
    def test_a_bad_share_is_none(
        self, monkeypatch: pytest.MonkeyPatch, text: str, share: float
    ) -> None:
        monkeypatch.setenv("WARMROUTE_KV_RETAIN_SHARE", text)
        assert retained_share() == share


IMPORTS = """
import pkgutil, sys
before = set(sys.modules)
from importlib import import_module
for package in {packages!r}:
    for module in pkgutil.iter_modules(import_module(package).__path__):
        if module.name != "cpu_offload":
            import_module(f"{{package}}.{{module.name}}")
names = {{name.partition(".")[0] for name in set(sys.modules) - before}}
ours = {{n for n in sys.modules if n.startswith("warmroute.proxy")}}
print(*sorted(names - sys.stdlib_module_names | ours))
"""


@pytest.mark.parametrize(
    ("package", "others"),
    [("kv_plugin", set()), ("vllm.plugin", set()), ("sglang.plugin", {"zmq"})],
)
def test_an_engine_gets_no_more_into_its_process_than_it_needs(
    package: str, others: set[str]
) -> None:
    """Neither the proxy nor the other engine's plugin nor an optional package.

    SGLang needs ZeroMQ itself. What needs torch is imported by vLLM alone.
    """
    packages = [f"warmroute.adapters.{package}"]
    code = IMPORTS.format(packages=packages)
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    found = {name for name in run.stdout.split() if not name.startswith("_")}
    by_the_way = {"cython_runtime", "typing_extensions"}  # by msgspec and ZeroMQ
    assert found - by_the_way == {"msgspec", "warmroute", *others}
