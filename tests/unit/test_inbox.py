"""What was received and waits is bounded."""

import pytest

from warmroute.proxy.view import inbox
from warmroute.proxy.view.inbox import Inbox


def test_messages_come_out_as_they_came() -> None:
    box = Inbox()
    assert box.add(1, b"a")
    assert box.add(2, b"bc")
    assert (repr(box), len(box)) == ("<Inbox [2 messages, 3 bytes]>", 2)
    assert [box.take(), box.take()] == [(1, b"a"), (2, b"bc")]
    assert repr(box) == "<Inbox [0 messages, 0 bytes]>"


def test_more_than_it_holds_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox, "_MAX_MESSAGES", 3)
    monkeypatch.setattr(inbox, "_MAX_BYTES", 10)
    monkeypatch.setattr(inbox, "_FULL_BYTES", 5)
    box = Inbox()
    assert [box.add(at, b"1234") for at in range(3)] == [True, True, False]
    assert box.is_full
    box.take()
    assert not box.is_full
    assert [box.add(at, b"") for at in range(3)] == [True, True, False]
    box.clear()
    assert (len(box), box.add(0, b"1234567890")) == (0, True)
