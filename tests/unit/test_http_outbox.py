"""Writes that wait for the end of a turn."""

from collections.abc import Callable

from unit.fake_http import FakeTransport

from warmroute.proxy.http.outbox import Outbox


class Turn:
    """Keep what is to be called at its end."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []

    def end(self) -> None:
        calls, self.calls = self.calls, []
        for call in calls:
            call()


def test_small_writes_leave_in_order_at_the_end_of_the_turn() -> None:
    turn, one, two = Turn(), FakeTransport(), FakeTransport()
    outbox = Outbox(turn.calls.append)
    outbox.write(one, b"a")
    outbox.write(two, b"b")
    outbox.write(one, b"c")
    assert (one.written, two.written, len(turn.calls)) == (b"", b"", 1)
    turn.end()
    assert (one.written, two.written) == (b"ac", b"b")


def test_each_turn_is_ended_anew() -> None:
    turn, one = Turn(), FakeTransport()
    outbox = Outbox(lambda flush: turn.calls.append(flush))
    outbox.write(one, b"a")
    turn.end()
    outbox.write(one, b"b")
    turn.end()
    assert one.written == b"ab"


def test_large_write_leaves_at_once_behind_what_is_held() -> None:
    turn, one = Turn(), FakeTransport()
    outbox = Outbox(turn.calls.append)
    outbox.write(one, b"a")
    outbox.write(one, bytes(20_000))
    assert one.written == b"a" + bytes(20_000)


def test_flush_sends_early_and_nothing_twice() -> None:
    turn, one = Turn(), FakeTransport()
    outbox = Outbox(turn.calls.append)
    outbox.write(one, b"a")
    outbox.flush()
    assert one.written == b"a"
    turn.end()
    assert one.written == b"a"


def test_closed_transport_is_passed_over() -> None:
    """A client that left in the same turn takes nothing; the others get theirs."""
    turn, one, two = Turn(), FakeTransport(), FakeTransport()
    outbox = Outbox(turn.calls.append)
    outbox.write(one, b"a")
    outbox.write(two, b"b")
    one.abort()
    turn.end()
    assert (one.written, two.written) == (b"", b"b")
