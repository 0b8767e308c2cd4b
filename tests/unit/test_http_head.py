"""Request heads: what is read, what is refused, what passes on."""

import pytest

from warmroute.policies.errors import ClientError
from warmroute.proxy.http.head import Headers, RequestHead

HOST: Headers = [(b"Host", b"proxy")]


def head(
    *headers: tuple[bytes, bytes], target: bytes = b"/v1/x", version: str = "1.1"
) -> RequestHead:
    """Make the head of a POST to *target*, with a host."""
    return RequestHead(b"POST", target, version, [*HOST, *headers])


def test_end_to_end_headers_pass_in_order_and_spelling() -> None:
    """Repeated ones stay repeated."""
    passing = head((b"X-B", b"1"), (b"x-a", b"2"), (b"X-b", b"3")).passing
    assert passing == [
        (b"x-b", b"X-B", b"1"),
        (b"x-a", b"x-a", b"2"),
        (b"x-b", b"X-b", b"3"),
    ]


@pytest.mark.parametrize(
    "name",
    [
        *(b"Connection", b"Keep-Alive", b"Proxy-Authenticate", b"Proxy-Authorization"),
        *(b"Proxy-Connection", b"TE", b"Trailer", b"Upgrade", b"Expect"),
        *(b"HTTP2-Settings", b"X-Request-Id", b"X-Forwarded-For", b"X-Forwarded-Proto"),
        *(b"X-Forwarded-Host", b"X-Warmroute-Explain", b"Authorization"),
    ],
)
def test_hop_by_hop_and_own_headers_do_not_pass_as_they_are(name: bytes) -> None:
    """They end here, or are written anew."""
    assert head((name, b"1")).passing == []


def test_framing_does_not_pass() -> None:
    """The body is framed anew."""
    assert head((b"Content-Length", b"3")).passing == []
    assert head((b"Transfer-Encoding", b"chunked")).passing == []


@pytest.mark.parametrize("name", [b"host", b"Authorization", b"content-TYPE"])
def test_second_header_of_a_single_kind_is_400(name: bytes) -> None:
    """Two parsers could choose differently."""
    with pytest.raises(ClientError, match=name.decode().lower()) as caught:
        head((name, b"a"), (name, b"a"))
    assert (caught.value.status, caught.value.code) == (400, "duplicate_header")


@pytest.mark.parametrize(
    ("coding", "version"),
    [(b"gzip", "1.1"), (b"gzip, chunked", "1.1"), (b"chunked", "1.0"), (b"", "1.1")],
)
def test_other_codings_than_chunked_are_400(coding: bytes, version: str) -> None:
    """So is chunked where HTTP has none."""
    with pytest.raises(ClientError, match="transfer-encoding") as caught:
        head((b"Transfer-Encoding", coding), version=version)
    assert caught.value.code == "bad_framing"


def test_host_is_needed_in_http_1_1_only() -> None:
    """HTTP/1.0 knew none."""
    with pytest.raises(ClientError) as caught:
        RequestHead(b"GET", b"/", "1.1", [])
    assert caught.value.code == "missing_host"
    assert RequestHead(b"GET", b"/", "1.0", []).path == "/"


@pytest.mark.parametrize(
    ("target", "origin", "path"),
    [
        (b"/v1/x?a=b?c", b"/v1/x?a=b?c", "/v1/x"),
        (b"http://host:80/v1/x?a=/b", b"/v1/x?a=/b", "/v1/x"),
        (b"HTTPS://host/v1", b"/v1", "/v1"),
        (b"http://host", b"/", "/"),
        (b"http://host?a=1", b"/?a=1", "/"),
        (b"http://host?a=/v1/x", b"/?a=/v1/x", "/"),
        (b"http://user@host//a", b"//a", "//a"),
        (b"*", b"*", "*"),
    ],
)
def test_target_is_reduced_to_path_and_query(
    target: bytes, origin: bytes, path: str
) -> None:
    """An authority ends where the path or the query begins."""
    read = head(target=target)
    assert (read.target, read.path) == (origin, path)


@pytest.mark.parametrize("target", [b"v1/x", b"host:443", b"ftp://host/", b"", b"?a"])
def test_target_that_is_no_path_is_400(target: bytes) -> None:
    """The message quotes no more of it than fits."""
    with pytest.raises(ClientError) as caught:
        head(target=target)
    assert caught.value.code == "bad_target"


@pytest.mark.parametrize(
    "value", [b"abc", b"A-b_c.9", b"x" * 128, b"0123456789abcdef0123456789abcdef"]
)
def test_fit_request_id_is_kept(value: bytes) -> None:
    """Clients look for it in logs and decisions."""
    assert head((b"x-REQUEST-id", value)).request_id == value


@pytest.mark.parametrize(
    "value", [b"", b"x" * 129, b"a b", b"a\tb", b"a/b", b"\xc3\xa4", b"a,b", b"a\n"]
)
def test_unfit_request_id_is_replaced(value: bytes) -> None:
    """It would go into logs and headers; 32 hex digits take its place."""
    made = head((b"X-Request-Id", value)).request_id
    assert len(made) == 32
    assert int(made, 16) >= 0


def test_two_request_ids_are_none() -> None:
    """Nobody can tell which is meant."""
    read = head((b"X-Request-Id", b"a"), (b"X-Request-Id", b"b"))
    assert len(read.request_id) == 32


@pytest.mark.parametrize("given", [None, b"a b", b""])
def test_repeat_draws_an_id_unless_the_client_gave_one(given: bytes | None) -> None:
    """The same bytes are another request all the same."""
    read = head(*[] if given is None else [(b"X-Request-Id", given)])
    before = read.request_id
    read.repeat()
    assert read.request_id != before
    kept = head((b"X-Request-Id", b"mine"))
    kept.repeat()
    assert kept.request_id == b"mine"


def test_session_comes_from_its_headers_in_order() -> None:
    """x-session-id wins over x-smg-routing-key; both pass on; empty is none."""
    both = head((b"X-SMG-Routing-Key", b"b"), (b"X-Session-ID", b"a"))
    assert both.session == "a"
    assert len(both.passing) == 2
    assert head((b"x-smg-routing-key", b"b")).session == "b"
    assert head((b"x-session-id", b""), (b"x-smg-routing-key", b"b")).session == "b"
    assert head((b"x-session-id", b"\xe4")).session == "\xe4"
    assert head().session is None


@pytest.mark.parametrize(
    ("version", "value", "keeps"),
    [
        ("1.1", None, True),
        ("1.1", b"close", False),
        ("1.1", b"X, Close", False),
        ("1.1", b"keep-alive", True),
        ("1.0", None, False),
        ("1.0", b"Keep-Alive", True),
        ("1.0", b"close", False),
    ],
)
def test_connection_is_kept_as_the_version_says(
    version: str, value: bytes | None, keeps: bool
) -> None:
    """HTTP/1.1 keeps it unless told, HTTP/1.0 only if told."""
    headers = [] if value is None else [(b"Connection", value)]
    assert head(*headers, version=version).keeps_alive is keeps


def test_fields_the_proxy_reads_are_there() -> None:
    """Each by its own attribute."""
    read = head(
        *((b"Content-Type", b"a/b"), (b"Content-Encoding", b"gzip")),
        *((b"Authorization", b"Bearer x"), (b"X-Warmroute-Explain", b"1")),
        *((b"Expect", b"100-Continue"), (b"Content-Length", b"7")),
    )
    assert (read.content_type, read.content_encoding) == (b"a/b", b"gzip")
    assert (read.authorization, read.explains) == (b"Bearer x", True)
    assert (read.expects_continue, read.content_length) == (True, 7)
    assert read.has_body
    assert repr(read) == "<RequestHead POST /v1/x>"
    plain = head()
    assert (plain.content_type, plain.authorization) == (b"", None)
    assert (plain.explains, plain.expects_continue, plain.has_body) == (False,) * 3
