"""What servers know of their callers."""

import pytest

from warmroute.adapters.caller import brings, is_address, is_loopback


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        *[("127.0.0.1", True), ("127.9.9.9", True), ("::1", True)],
        *[("localhost", True), ("LOCALHOST", True), ("0.0.0.0", False), ("::", False)],
        *[("10.0.0.1", False), ("localhost.evil.example", False), ("", False)],
        ("engine", False),
    ],
)
def test_loopback_is_told_from_other_addresses(host: str, expected: bool) -> None:
    """Only addresses that stay on the machine need no token."""
    assert is_loopback(host) is expected


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        *[("127.0.0.1:80", True), ("[::1]:80", True), ("[::1]", True)],
        *[("localhost:1", True), ("LOCALHOST", True), ("10.1.1.1", True), ("", True)],
        *[("evil.example", False), ("1.2.3.4.evil.example:80", False)],
        *[("[evil]:80", False), ("a:b:c", False), ("127.0.0.1]evil.example", False)],
        *[(":80", False), ("[", False)],
    ],
)
def test_addresses_are_told_from_names(host: str, expected: bool) -> None:
    """A web page can rebind a name to this machine, but no address."""
    assert is_address(host) is expected


@pytest.mark.parametrize(
    ("authorization", "expected"),
    [
        *[("Bearer s3cret", True), ("bearer  s3cret ", True)],
        *[("Basic s3cret", False), ("Bearer s3cre", False), ("Bearer", False)],
        *[("s3cret", False), ("", False), ("Bearer s3cret\udcff", False)],
    ],
)
def test_a_token_is_brought_as_a_bearer(authorization: str, expected: bool) -> None:
    assert brings(authorization, b"s3cret") is expected
