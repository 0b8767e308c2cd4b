"""KV events as real engines sent them, against what those engines said of themselves.

The recordings are made by ``tests/engines/record_streams.py``.
"""

import gzip
from array import array
from pathlib import Path
from typing import Any

import msgspec
import pytest

from warmroute.adapters.kv_events.wire import decode
from warmroute.policies.kv.blocks import hash_tokens, root_hash
from warmroute.policies.kv.radix import PrefixIndex
from warmroute.proxy.view.track import Track

FOLDER = Path(__file__).parents[1] / "fixtures" / "kv_streams"
NAMES = ["sglang-0.5.23", "vllm-0.32.0"]


def root(lora: str | None = None, salt: str | None = None) -> int:
    return root_hash("tiny", lora=lora, salt=salt)


class Recording:
    """One recorded engine, played into an index."""

    def __init__(self, name: str) -> None:
        content = gzip.decompress((FOLDER / f"{name}.msgpack.gz").read_bytes())
        self.told: dict[str, Any] = msgspec.msgpack.decode(content)
        self.block_size: int = self.told["block_size"]
        self.index = PrefixIndex()
        self.tiers = {
            tier: self.index.add_holder("a", tier) for tier in ("gpu", "host", "disk")
        }
        self.track = Track(
            self.index, self.tiers, root, lambda size: None, lambda: None
        )
        self._at = 0

    def play(self, last_seq: int | None) -> None:
        """Apply the batches up to *last_seq*; None is before the first."""
        batches = self.told["batches"]
        last = -1 if last_seq is None else last_seq
        while self._at < len(batches) and batches[self._at][0] <= last:
            seq, payload = batches[self._at]
            batch = decode(payload)
            assert batch.num_skipped == 0
            self.track.apply(batch, float(seq))
            self._at += 1

    def promised(self, request: dict[str, Any]) -> int:
        """Return how many tokens of a prompt are to be hit, by the engines' rule."""
        tokens = array("I", request["tokens"])
        hashes = hash_tokens(tokens, self.block_size, root(salt=request["salt"]))
        resident = self.index.match(hashes).gpu[self.tiers["gpu"]] * self.block_size
        most = (len(tokens) - 1) // self.block_size * self.block_size
        return min(resident, most)


@pytest.fixture(params=NAMES)
def recording(request: pytest.FixtureRequest) -> Recording:
    return Recording(request.param)


def test_what_is_indexed_is_what_the_engine_holds(recording: Recording) -> None:
    """Every block of the engine's own list, under its name, and no other."""
    recording.play(recording.told["seq"])
    held = {
        tier: {key for key, one, _ in recording.told["held"] if one == tier}
        for tier in recording.tiers
    }
    assert len(held["gpu"]) > 20
    for tier, holder in recording.tiers.items():
        assert recording.index.blocks(holder) == len(held[tier])
        for key in held[tier]:
            assert recording.index.find(holder, key) is not None
    assert (recording.track.num_orphans, recording.track.num_skipped) == (0, 0)
    recording.index.check_integrity()


def test_every_prompt_is_promised_what_was_cached(recording: Recording) -> None:
    """With the batches that the cache contained, and none behind them."""
    promised, cached = [], []
    for request in recording.told["requests"]:
        recording.play(request["seq"])
        promised.append(recording.promised(request))
        cached.append(request["cached"])
    assert promised == cached
    assert sum(one > 0 for one in cached) > len(cached) / 3
    assert {one["salt"] for one in recording.told["requests"]} == {None, "salt"}


def test_the_recording_is_whole_and_evicted_from(recording: Recording) -> None:
    """Numbers without gaps, and more stored than is left."""
    recording.play(recording.told["seq"])
    numbers = [seq for seq, _ in recording.told["batches"]]
    assert numbers == list(range(len(numbers)))
    assert recording.told["seq"] <= numbers[-1]
    assert recording.track.num_events["removed"] > 0
