"""Prefixes by the names that people have for them: what is remembered of sessions."""

import tracemalloc

from warmroute.proxy.kv.prefixes import Sessions


class TestSessions:
    def test_a_session_is_found_by_its_key(self) -> None:
        sessions = Sessions()
        sessions.note("alice", {16: 7})
        sessions.note("bob \ud800 \xe9", {16: 8})
        sessions.note("alice", {16: 9})
        assert sessions.find("alice") == {16: 9}
        assert sessions.find("bob \ud800 \xe9") == {16: 8}
        assert sessions.find("carol") is None

    def test_a_key_beyond_ascii_is_found_though_a_header_brought_it(self) -> None:
        sessions = Sessions()
        sessions.note("b\xf3b".encode().decode("latin-1"), {16: 7})
        assert sessions.find("b\xf3b") == {16: 7}
        assert sessions.find("b\xf2b") is None

    def test_keys_of_any_length_take_the_same_memory(self) -> None:
        """They come from bodies, which may have megabytes of them."""
        sessions = Sessions()
        tracemalloc.start()
        try:
            for number in range(64):
                sessions.note(f"{number}" + "x" * 1_000_000, {16: number})
            held, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert held < 100_000
        assert sessions.find("63" + "x" * 1_000_000) == {16: 63}
