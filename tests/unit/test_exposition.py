"""The samples read from engines' Prometheus pages."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmroute.adapters.exposition import MAX_SAMPLES, Exposition
from warmroute.policies.errors import ProtocolMismatch


class TestExposition:
    def test_reads_only_whole_names_wanted(self) -> None:
        page = b'a 1\nab 2\na_total 3\n# a 4\nb{x="a 5"} 6\na{x="1"} 7\r\n'
        samples = Exposition(["a"]).read(page)
        assert [one.value for one in samples.all("a")] == [1, 7]
        assert repr(samples) == "<Samples a>"

    def test_counts_a_tensor_parallel_rank_once(self) -> None:
        page = b'r{dp="0",tp="0"} 5\nr{dp="0",tp="1"} 5\nr{dp="1",tp="0"} 2\n'
        assert Exposition(["r"]).read(page).total("r", "dp") == 7

    def test_is_unknown_without_a_finite_sample(self) -> None:
        samples = Exposition(["r"]).read(b"r NaN\nr +Inf\n")
        assert samples.total("r", "dp") is None
        assert samples.mean("r", "dp") is None
        assert samples.first("r") is None

    def test_bounds_the_samples(self) -> None:
        with pytest.raises(ProtocolMismatch, match="more than 4096"):
            Exposition(["r"]).read(b"r 1\n" * (MAX_SAMPLES + 1))

    @given(st.binary(max_size=200))
    def test_any_page_is_read_or_refused(self, junk: bytes) -> None:
        page = b'vllm:x{a="b' + junk + b"\nvllm:x " + junk
        with contextlib.suppress(ProtocolMismatch):
            assert repr(Exposition(["vllm:x"]).read(page)).startswith("<Samples ")
