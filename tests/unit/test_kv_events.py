"""The publisher of KV events over real ZeroMQ sockets."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq
from unit.kv_subscriber import Subscriber, replay

from warmroute.adapters.embedded.server import kv_events
from warmroute.adapters.embedded.server.kv_events import KVEventPublisher
from warmroute.adapters.embedded.server.kv_sockets import (
    EndpointUnusable,
    KVSockets,
    is_bound,
)
from warmroute.adapters.embedded.server.kv_wire import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    KVEventBatch,
)
from warmroute.policies.errors import ConfigError

Publish = Callable[..., KVEventPublisher]


@pytest.fixture
def address(tmp_path: Path) -> Callable[[str], str]:
    """Name an ipc address of this test."""
    return lambda name: f"ipc://{tmp_path}/{name}"


@pytest.fixture
def publisher(address: Callable[[str], str]) -> Iterator[Publish]:
    """Start publishers, and close them afterwards."""
    started: list[KVEventPublisher] = []

    def start(endpoint: str | None = None, **options: Any) -> KVEventPublisher:
        options.setdefault("replay_endpoint", address("replay"))
        one = KVEventPublisher(
            endpoint or address("events"), clock=lambda: 1.5, **options
        )
        started.append(one)
        one.start()
        return one

    yield start
    for one in started:
        one.close()


def removed(block: int) -> BlockRemoved:
    return BlockRemoved([block], "GPU", 0)


def removed_blocks(messages: list[Any]) -> list[int]:
    return [
        block
        for message in messages
        for event in message.batch[1]
        for block in event["block_hashes"]
    ]


# vLLM 0.32.0: msgspec.msgpack.encode of its own KVEventBatch with these events.
VLLM_PAYLOAD = bytes.fromhex(
    "93cb41dac313987ce1cb938ba474797065ab426c6f636b53746f726564ac626c6f636b5f6861"
    "7368657392cf71385b9548f02cb2cfffffffffffffffffb1706172656e745f626c6f636b5f68"
    "617368c0a9746f6b656e5f6964739401020304aa626c6f636b5f73697a6502a76c6f72615f69"
    "64c0a66d656469756da3475055a96c6f72615f6e616d65c0aa65787472615f6b6579739291a1"
    "73c0a967726f75705f69647800b26b765f63616368655f737065635f6b696e64ae66756c6c5f"
    "617474656e74696f6e84a474797065ac426c6f636b52656d6f766564ac626c6f636b5f686173"
    "6865739101a66d656469756da3435055a967726f75705f6964780081a474797065b0416c6c42"
    "6c6f636b73436c656172656400"
)


class TestWire:
    def test_a_batch_is_byte_for_byte_what_vllm_encodes(self) -> None:
        stored = BlockStored(
            block_hashes=[8158371421713607858, 2**64 - 1],
            parent_block_hash=None,
            token_ids=[1, 2, 3, 4],
            block_size=2,
            lora_id=None,
            medium="GPU",
            lora_name=None,
            extra_keys=[["s"], None],
            group_idx=0,
            kv_cache_spec_kind="full_attention",
        )
        events = [stored, BlockRemoved([1], "CPU", 0), AllBlocksCleared()]
        batch = KVEventBatch(1795968609.9512813, events, 0)
        assert msgspec.msgpack.encode(batch) == VLLM_PAYLOAD

    def test_a_message_has_the_frames_and_fields_of_vllm(
        self, publisher: Publish, address: Callable[[str], str]
    ) -> None:
        """The batch equals, key by key and in order, one received from vLLM 0.32."""
        publish = publisher(topic="kv-events")
        event = BlockStored(
            block_hashes=[2**64 - 1],
            parent_block_hash=None,
            token_ids=[7, 8],
            block_size=2,
            lora_id=None,
            medium="GPU",
            lora_name=None,
            extra_keys=[None],
            group_idx=0,
            kv_cache_spec_kind="full_attention",
        )
        publish.publish([event, removed(3)])
        [message] = replay(address("replay"), 0)
        assert (message.topic, message.seq) == (b"kv-events", 0)
        ts, [stored, gone], rank = message.batch
        assert (ts, rank) == (1.5, 0)
        assert list(stored.items()) == [
            ("type", "BlockStored"),
            ("block_hashes", [2**64 - 1]),
            ("parent_block_hash", None),
            ("token_ids", [7, 8]),
            ("block_size", 2),
            ("lora_id", None),
            ("medium", "GPU"),
            ("lora_name", None),
            ("extra_keys", [None]),
            ("group_idx", 0),
            ("kv_cache_spec_kind", "full_attention"),
        ]
        assert list(gone.items()) == [
            ("type", "BlockRemoved"),
            ("block_hashes", [3]),
            ("medium", "GPU"),
            ("group_idx", 0),
        ]

    @pytest.mark.parametrize(
        ("endpoint", "binds"),
        [
            ("tcp://*:5557", True),
            ("tcp://[::]:5557", True),
            ("tcp://[::1]:5557", True),
            ("ipc:///run/events", True),
            ("inproc://events", True),
            ("tcp://127.0.0.1:5557", False),
            ("tcp://0.0.0.0:5557", False),
            ("tcp://collector:5557", False),
        ],
    )
    def test_binds_and_connects_where_vllm_does(
        self, endpoint: str, binds: bool
    ) -> None:
        assert binds is is_bound(endpoint)


class TestLive:
    def test_a_subscriber_gets_every_batch_in_order(
        self, publisher: Publish, address: Callable[[str], str]
    ) -> None:
        publish = publisher()
        with Subscriber(address("events")) as subscriber:
            first = subscriber.join(publish)
            for block in range(500):
                last = publish.publish([removed(block)])
            messages = subscriber.until(last)
        assert list(range(500)) == removed_blocks(messages)
        assert list(range(first.seq + 1, last + 1)) == [one.seq for one in messages]

    def test_two_engines_share_a_subscriber_that_binds(
        self, publisher: Publish
    ) -> None:
        """A concrete host is connected to, and the topic tells engines apart."""
        with Subscriber("tcp://127.0.0.1:*", binds=True) as subscriber:
            for topic in ("a", "b"):
                one = publisher(subscriber.endpoint, replay_endpoint=None, topic=topic)
                while subscriber.join(one).topic != topic.encode():
                    pass
                assert one.endpoint == subscriber.endpoint

    def test_a_free_port_is_told(self, publisher: Publish) -> None:
        publish = publisher("tcp://*:0", replay_endpoint="tcp://127.0.0.1:0")
        assert publish.endpoint.startswith("tcp://*:")
        assert not publish.endpoint.endswith(":0")
        assert publish.replay_endpoint is not None
        assert not publish.replay_endpoint.endswith(":0")
        port = publish.endpoint.rpartition(":")[2]
        with Subscriber(f"tcp://127.0.0.1:{port}") as subscriber:
            subscriber.join(publish)

    def test_the_source_is_described_as_vllm_does(self, publisher: Publish) -> None:
        publish = publisher(topic="t", buffer_steps=7)
        assert {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": publish.endpoint,
            "replay_endpoint": publish.replay_endpoint,
            "buffer_steps": 7,
            "hwm": 100_000,
            "max_queue_size": 100_000,
            "topic": "t",
        } == publish.source()


class TestReplay:
    def test_answers_from_the_sequence_number_asked_for(
        self, publisher: Publish, address: Callable[[str], str]
    ) -> None:
        publish = publisher()
        for block in range(10):
            publish.publish([removed(block)])
        messages = replay(address("replay"), 7)
        assert [7, 8, 9] == [one.seq for one in messages] == removed_blocks(messages)
        assert replay(address("replay"), 10) == []

    def test_holds_the_newest_steps_only(
        self, publisher: Publish, address: Callable[[str], str]
    ) -> None:
        publish = publisher(buffer_steps=3)
        for block in range(10):
            publish.publish([removed(block)])
        assert removed_blocks(replay(address("replay"), 0)) == [7, 8, 9]

    def test_a_whole_buffer_arrives(
        self, publisher: Publish, address: Callable[[str], str]
    ) -> None:
        """ZeroMQ's default mark would drop what exceeds a thousand messages."""
        publish = publisher()
        for block in range(10_000):
            publish.publish([removed(block)])
        assert list(range(10_000)) == removed_blocks(replay(address("replay"), 0))

    def test_a_malformed_request_is_ignored_and_logged(
        self,
        publisher: Publish,
        address: Callable[[str], str],
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        publish = publisher()
        publish.publish([removed(1)])
        with zmq.Context.instance().socket(zmq.DEALER) as dealer:
            dealer.setsockopt(zmq.LINGER, 0)
            dealer.connect(address("replay"))
            dealer.send_multipart([b"", b"\0"])
            dealer.send_multipart([b"what"])
            dealer.send_multipart([b"", (0).to_bytes(8, "big")])
            assert dealer.poll(10_000)
            assert (0).to_bytes(8, "big") == dealer.recv_multipart()[2]
        assert caplog.text.count("kv_events_replay_malformed") == 2

    def test_a_restarted_engine_counts_from_zero(
        self, publisher: Publish, address: Callable[[str], str]
    ) -> None:
        first = publisher()
        for block in range(5):
            first.publish([removed(block)])
        assert first.last_seq == 4
        first.close()
        second = publisher()
        assert second.last_seq is None
        assert replay(address("replay"), 0) == []
        assert second.publish([removed(9)]) == 0
        assert removed_blocks(replay(address("replay"), 0)) == [9]


class TestPressure:
    def test_a_slow_subscriber_sees_a_gap_and_replays_it(
        self, publisher: Publish, address: Callable[[str], str]
    ) -> None:
        """It hinders neither the engine nor the replay."""
        publish = publisher(hwm=2)
        payload = list(range(4_000))
        with Subscriber(address("events"), hwm=1) as subscriber:
            subscriber.join(publish)
            for _ in range(1_000):
                last = publish.publish([BlockRemoved(payload, "GPU", 0)])
            assert last == replay(address("replay"), last)[-1].seq
            seen = [subscriber.next().seq]
            while seen[-1] <= last:
                seen.append(subscriber.join(publish).seq)
        lost = set(range(seen[0], seen[-1])) - set(seen)
        assert lost
        assert lost <= {one.seq for one in replay(address("replay"), min(lost))}

    def test_the_hand_over_is_bounded_and_its_loss_shows_as_a_gap(
        self, publisher: Publish, address: Callable[[str], str]
    ) -> None:
        """Before the thread runs, nobody takes what is handed over."""
        publish = KVEventPublisher(address("e"), address("r"), max_pending=3)
        for block in range(10):
            assert block == publish.publish([removed(block)])
        assert publish.num_dropped == 7
        publish.start()
        assert [one.seq for one in replay(address("r"), 0)] == [7, 8, 9]
        publish.close()

    def test_handing_over_never_waits_for_a_replay(
        self, address: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The thread is stuck in one here, and what is published meanwhile arrives."""
        is_stuck, is_free = threading.Event(), threading.Event()
        send = KVSockets.send_replay

        def stuck(sockets: KVSockets, frames: Any) -> None:
            is_stuck.set()
            is_free.wait()
            send(sockets, frames)

        publish = KVEventPublisher(address("e"), address("r"))
        publish.start()
        with Subscriber(address("e")) as subscriber:
            subscriber.join(publish)
            before = publish.last_seq or 0
            monkeypatch.setattr(KVSockets, "send_replay", stuck)
            with zmq.Context.instance().socket(zmq.DEALER) as dealer:
                dealer.setsockopt(zmq.LINGER, 0)
                dealer.connect(address("r"))
                dealer.send_multipart([b"", (0).to_bytes(8, "big")])
                assert is_stuck.wait(10)
                for block in range(80_000):
                    last = publish.publish([removed(block)])
                    if block % 1000 == 999:  # its own queue is bounded, too
                        subscriber.until(last)
                is_free.set()
        messages = replay(address("r"), 0)
        assert [one.seq for one in messages] == list(range(last - 9_999, last + 1))
        assert last == before + 80_000
        publish.close()

    def test_a_batch_is_on_its_way_when_the_hand_over_returns(
        self, publisher: Publish, address: Callable[[str], str]
    ) -> None:
        """No thread has to wake for it: what follows, comes after it."""
        sent = []

        class Recorder(KVSockets):
            __slots__ = ()

            def publish(self, frames: Any) -> None:
                sent.append((threading.current_thread(), frames[1]))
                super().publish(frames)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(kv_events, "KVSockets", Recorder)
            publish = publisher()
        seq = publish.publish([removed(1)])
        assert sent == [(threading.current_thread(), seq.to_bytes(8, "big"))]

    def test_a_failure_is_logged_once_and_never_reaches_the_engine(
        self,
        address: Callable[[str], str],
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        def fail(sockets: KVSockets, frames: Any) -> None:
            raise RuntimeError("no more numbers")

        monkeypatch.setattr(KVSockets, "publish", fail)
        publish = KVEventPublisher(address("e"))
        publish.start()
        for seq in range(3):
            assert publish.publish([]) == seq
        publish.close()
        assert publish.num_dropped == 3
        assert caplog.text.count("kv_events_failed") == 1
        assert "no more numbers" in caplog.text


class TestClose:
    def test_close_sends_what_was_handed_over(
        self, publisher: Publish, address: Callable[[str], str]
    ) -> None:
        publish = publisher()
        with Subscriber(address("events")) as subscriber:
            subscriber.join(publish)
            for block in range(200):
                last = publish.publish([removed(block)])
            publish.close()
            assert list(range(200)) == removed_blocks(subscriber.until(last))

    def test_close_twice_and_before_start_is_harmless(
        self, address: Callable[[str], str]
    ) -> None:
        publish = KVEventPublisher(address("e"))
        publish.close()
        publish.start()
        publish.close()
        publish.close()
        assert "kv-events" not in {one.name for one in threading.enumerate()}


class TestRefusal:
    def test_a_star_is_the_interface_that_is_given(self) -> None:
        """It is announced as a star, so that subscribers know who binds."""
        sockets = KVSockets(zmq.Context.instance(), 10, 10, "127.0.0.1")
        try:
            endpoint = sockets.open_publisher("tcp://*:0")
            assert sockets._publisher is not None
            bound = sockets._publisher.getsockopt_string(zmq.LAST_ENDPOINT)
            assert endpoint.startswith("tcp://*:")
            assert bound == endpoint.replace("*", "127.0.0.1")
        finally:
            sockets.close(0)

    @pytest.mark.parametrize("endpoint", ["nonsense", "carrier://x", "tcp://*:port"])
    def test_a_malformed_address_is_a_configuration_error(self, endpoint: str) -> None:
        with pytest.raises(ConfigError, match="allowed: tcp://"):
            KVEventPublisher(endpoint).start()

    def test_a_host_that_is_not_found_is_refused_with_the_remedy(self) -> None:
        """ZeroMQ would connect to it for ever, and nobody would be told."""
        with pytest.raises(EndpointUnusable, match=r"host 'nowhere\.invalid'.*PORT"):
            KVEventPublisher("tcp://nowhere.invalid:5557").start()

    def test_a_taken_address_is_named(self, publisher: Publish) -> None:
        taken = publisher("tcp://*:0", replay_endpoint="tcp://127.0.0.1:0")
        assert taken.replay_endpoint is not None
        second = KVEventPublisher("tcp://*:0", taken.replay_endpoint)
        with pytest.raises(EndpointUnusable, match="Address already in use") as caught:
            second.start()
        assert taken.replay_endpoint in str(caught.value)
        second.close()

    def test_repr_tells_where_and_how_far(self, address: Callable[[str], str]) -> None:
        publish = KVEventPublisher("tcp://*:5557")
        publish.publish([])
        assert repr(publish) == (
            "<KVEventPublisher tcp://*:5557: next seq 1, 0 dropped, replay none>"
        )
