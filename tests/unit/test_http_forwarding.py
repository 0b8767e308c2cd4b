"""What an engine gets to see of a client's head."""

import pytest
from pydantic import SecretStr

from warmroute.adapters.openai import OpenAIAdapter
from warmroute.policies.routing.load import FleetLoad
from warmroute.proxy.config.backend import BackendConfig
from warmroute.proxy.config.sections import HealthConfig
from warmroute.proxy.fleet.backend import Backend
from warmroute.proxy.http.forwarding import Forwarding
from warmroute.proxy.http.head import Headers, RequestHead

PEER = b"10.0.0.9"
STRIP = ["X-Data-Parallel-Rank", "x-override-*"]


def backend(url: str = "http://engine:8000", key: str | None = None) -> Backend:
    """Make a backend that nobody talks to."""
    config = BackendConfig(
        name="a", url=url, api_key=None if key is None else SecretStr(key)
    )
    return Backend(config, HealthConfig(), OpenAIAdapter(), FleetLoad())


def lines(
    *headers: tuple[bytes, bytes],
    method: bytes = b"POST",
    to: Backend | None = None,
    length: int = 3,
    traceparent: bytes | None = None,
    target: bytes = b"/v1/x?a=b",
    rank: int | None = None,
) -> list[bytes]:
    """Render the head for a backend; the lines without the blank one."""
    given: Headers = [(b"Host", b"proxy:80"), *headers]
    head = RequestHead(method, target, "1.1", given)
    rendered = Forwarding(STRIP, b"http").head_for(
        head, backend() if to is None else to, PEER, length, traceparent, rank
    )
    assert rendered.endswith(b"\r\n\r\n")
    assert rendered.count(b"\r\n\r\n") == 1
    return rendered[:-4].split(b"\r\n")


def values(rendered: list[bytes], name: bytes) -> list[bytes]:
    pairs = [line.split(b": ", 1) for line in rendered[1:]]
    return [pair[1] for pair in pairs if pair[0].lower() == name.lower()]


def test_the_chosen_rank_stands_in_for_the_clients() -> None:
    """Whether clients may name one or not; each rank has a head of its own."""
    mine = (b"X-Data-Parallel-Rank", b"7")
    rendered = lines(mine, rank=1)
    assert values(rendered, b"x-data-parallel-rank") == [b"1"]
    head = RequestHead(b"POST", b"/v1/x", "1.1", [(b"Host", b"p"), mine])
    trusting, to = Forwarding([], b"http"), backend()
    for rank, expected in ((0, b"0"), (1, b"1"), (None, b"7")):
        start = trusting.head_for(head, to, PEER, 1, None, rank)
        found = values(start[:-4].split(b"\r\n"), b"x-data-parallel-rank")
        assert found == [expected]


def test_plain_request_gets_what_the_proxy_adds() -> None:
    """Host of the backend, one id, who asked and how, and the length."""
    assert lines((b"X-Request-Id", b"id"), (b"X-Any", b"1")) == [
        b"POST /v1/x?a=b HTTP/1.1",
        b"Host: engine:8000",
        b"X-Any: 1",
        b"X-Forwarded-For: 10.0.0.9",
        b"X-Forwarded-Proto: http",
        b"X-Forwarded-Host: proxy:80",
        b"X-Request-Id: id",
        b"Content-Length: 3",
    ]


def test_request_without_a_body_gets_no_length() -> None:
    """A GET stays a GET; a body of length 0 stays one too."""
    assert values(lines(method=b"GET", length=0), b"content-length") == []
    empty = lines((b"Content-Length", b"0"), length=0)
    assert values(empty, b"content-length") == [b"0"]


def test_chunked_request_leaves_with_a_length_alone() -> None:
    """Two framings would be ambiguous."""
    rendered = lines((b"Transfer-Encoding", b"chunked"), length=9)
    assert values(rendered, b"transfer-encoding") == []
    assert values(rendered, b"content-length") == [b"9"]


def test_path_of_the_backend_comes_first() -> None:
    """Its URL may lie below a prefix."""
    rendered = lines(to=backend("http://engine:8000/base"))
    assert rendered[0] == b"POST /base/v1/x?a=b HTTP/1.1"


def test_exactly_one_authorization_leaves() -> None:
    """The backend's key where there is one, else the client's, else none."""
    theirs = (b"authorization", b"Bearer client")
    assert values(lines(theirs), b"authorization") == [b"Bearer client"]
    keyed = lines(theirs, to=backend(key="own"))
    assert values(keyed, b"authorization") == [b"Bearer own"]
    assert values(lines(), b"authorization") == []


def test_forwarded_headers_continue_the_chain() -> None:
    """Addresses are appended; the first scheme and host stand."""
    rendered = lines(
        *((b"X-Forwarded-For", b"1.1.1.1"), (b"x-forwarded-for", b"2.2.2.2")),
        *((b"X-Forwarded-Proto", b"https"), (b"X-Forwarded-Host", b"public")),
    )
    assert values(rendered, b"x-forwarded-for") == [b"1.1.1.1, 2.2.2.2, 10.0.0.9"]
    assert values(rendered, b"x-forwarded-proto") == [b"https"]
    assert values(rendered, b"x-forwarded-host") == [b"public"]


def test_headers_named_by_connection_stay_here() -> None:
    """Whatever their case; what the proxy itself adds cannot be named away."""
    rendered = lines(
        (b"Connection", b"close, X-Own ,x-forwarded-for"),
        (b"connection", b"content-length"),
        *((b"x-OWN", b"1"), (b"X-Other", b"2")),
    )
    assert values(rendered, b"x-own") == []
    assert values(rendered, b"x-other") == [b"2"]
    assert values(rendered, b"connection") == []
    assert values(rendered, b"x-forwarded-for") == [PEER]
    assert values(rendered, b"content-length") == [b"3"]


@pytest.mark.parametrize(
    ("name", "passes"),
    [
        (b"x-data-parallel-RANK", False),
        (b"x-data-parallel-rank2", True),
        (b"X-Override-Model", False),
        (b"x-override", True),
    ],
)
def test_stripped_headers_do_not_pass(name: bytes, passes: bool) -> None:
    """By name, or by prefix where the pattern ends in a star."""
    assert bool(values(lines((name, b"1")), name)) is passes


def test_own_traceparent_takes_the_place_of_the_clients() -> None:
    """Without one, the client's passes."""
    theirs = (b"traceparent", b"00-theirs")
    assert values(lines(theirs), b"traceparent") == [b"00-theirs"]
    ours = lines(theirs, traceparent=b"00-ours")
    assert values(ours, b"traceparent") == [b"00-ours"]


def test_a_sampled_request_starts_as_the_others_of_its_connection() -> None:
    """Where the client sends no traceparent, ours is added to what was rendered."""
    head = RequestHead(b"POST", b"/v1/x", "1.1", [(b"Host", b"p")])
    to, forwarding = backend("http://one:1"), Forwarding(STRIP, b"http")
    bare = forwarding.head_for(head, to, PEER, 1, None)
    traced = forwarding.head_for(head, to, PEER, 1, b"00-ours")
    assert len(head.starts) == 1
    assert traced.replace(b"traceparent: 00-ours\r\n", b"") == bare


def test_one_head_is_rendered_right_for_each_use() -> None:
    """Retries, repeats and traces of one head do not mix."""
    head = RequestHead(
        b"POST", b"/v1/x", "1.1", [(b"Host", b"p"), (b"traceparent", b"00-theirs")]
    )
    first, second = backend("http://one:1"), backend("http://two:2", key="own")
    forwarding = Forwarding(STRIP, b"http")
    bare = forwarding.head_for(head, first, PEER, 1, None)
    traced = forwarding.head_for(head, first, PEER, 1, b"00-ours")
    other = forwarding.head_for(head, second, PEER, 2, None)
    assert b"Host: one:1" in bare
    assert b"00-theirs" in bare
    assert b"00-ours" in traced
    assert b"00-theirs" not in traced
    assert b"Host: two:2" in other
    assert b"Bearer own" in other
    head.repeat()
    again = forwarding.head_for(head, first, PEER, 77, None)
    assert b"Content-Length: 77\r\n" in again
    assert head.request_id in again
    assert (
        Forwarding(["traceparent"], b"https")
        .head_for(head, first, PEER, 1, None)
        .count(b"traceparent")
        == 0
    )
