"""The order of a publisher's messages, whatever happens to them on the way."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from warmroute.adapters.kv_events.sequencer import Sequencer

BUFFER = 6


class Reader:
    """Keeps what a sequencer hands out, as the view would."""

    def __init__(self, can_replay: bool = True) -> None:
        self.sequencer = Sequencer(can_replay)
        self.told: list[bytes] = []
        self._wipes = 0

    def take(self, payloads: list[bytes]) -> None:
        if self.sequencer.num_wipes != self._wipes:
            self._wipes = self.sequencer.num_wipes
            self.told = []
        self.told += payloads

    def live(self, *seqs: int, incarnation: int = 0) -> None:
        for seq in seqs:
            self.take(self.sequencer.live(seq, message(incarnation, seq)))

    def replay(self, *seqs: int, incarnation: int = 0) -> None:
        self.sequencer.begin()
        for seq in seqs:
            self.take(self.sequencer.replayed(seq, message(incarnation, seq)))
        self.take(self.sequencer.ended())


def message(incarnation: int, seq: int) -> bytes:
    return b"%d:%d" % (incarnation, seq)


def messages(first: int, last: int, incarnation: int = 0) -> list[bytes]:
    return [message(incarnation, seq) for seq in range(first, last)]


class TestSequencer:
    def test_first_asks_for_everything(self) -> None:
        """What was published before the start comes first, then what came meanwhile."""
        reader = Reader()
        assert reader.sequencer.wanted == 0
        reader.live(5, 6)
        assert reader.told == []
        reader.replay(0, 1, 2, 3, 4, 5)
        assert reader.told == messages(0, 7)
        assert reader.sequencer.is_complete
        assert reader.sequencer.num_gaps == 0

    def test_a_buffer_that_starts_late_is_incomplete(self) -> None:
        reader = Reader()
        reader.replay(3, 4)
        assert reader.told == messages(3, 5)
        assert not reader.sequencer.is_complete

    def test_a_gap_is_healed_by_a_replay(self) -> None:
        """Nothing is handed out of order meanwhile, and nothing is forgotten."""
        reader = Reader()
        reader.replay(0, 1)
        reader.live(4)
        assert reader.sequencer.wanted == 2
        assert reader.told == messages(0, 2)
        reader.live(5)
        reader.replay(2, 3, 4)
        assert reader.told == messages(0, 6)
        assert (reader.sequencer.num_gaps, reader.sequencer.num_wipes) == (1, 0)

    def test_a_late_message_closes_its_gap(self) -> None:
        reader = Reader()
        reader.replay(0)
        reader.live(2, 1)
        assert reader.told == messages(0, 3)
        assert reader.sequencer.wanted is None

    def test_a_gap_without_replay_forgets_what_came_before(self) -> None:
        reader = Reader(can_replay=False)
        reader.live(4, 5, 8, 9)
        assert reader.told == messages(8, 10)
        assert (reader.sequencer.num_gaps, reader.sequencer.num_wipes) == (1, 1)

    def test_a_replay_that_fails_forgets_what_came_before(self) -> None:
        reader = Reader()
        reader.replay(0, 1)
        reader.live(4)
        reader.sequencer.begin()
        reader.take(reader.sequencer.failed())
        assert reader.told == messages(4, 5)

    def test_a_duplicate_is_dropped(self) -> None:
        reader = Reader()
        reader.replay(0, 1)
        reader.live(1, 0, 2, 2)
        assert reader.told == messages(0, 3)
        assert reader.sequencer.num_wipes == 0

    def test_an_old_number_with_other_content_is_a_restart(self) -> None:
        """The new publisher's own messages are then asked for from its first on."""
        reader = Reader()
        reader.replay(0, 1, 2)
        reader.live(1, incarnation=1)
        assert (reader.told, reader.sequencer.wanted) == ([], 0)
        reader.replay(0, 1, incarnation=1)
        assert reader.told == messages(0, 2, incarnation=1)
        assert reader.sequencer.num_restarts == 1

    def test_after_a_lost_connection_the_same_publisher_costs_nothing(self) -> None:
        reader = Reader()
        reader.replay(0, 1)
        reader.sequencer.doubt()
        assert reader.sequencer.wanted == 1
        reader.replay(1, 2)
        assert reader.told == messages(0, 3)
        assert reader.sequencer.num_wipes == 0

    def test_after_a_lost_connection_an_idle_new_publisher_is_found(self) -> None:
        """It has published nothing yet, and still nothing old is believed."""
        reader = Reader()
        reader.replay(0, 1)
        reader.sequencer.doubt()
        reader.replay()
        assert (reader.told, reader.sequencer.wanted) == ([], 0)
        reader.replay()
        assert reader.sequencer.wanted is None
        assert reader.sequencer.num_restarts == 1

    def test_after_a_lost_connection_one_that_cannot_be_asked_is_another(self) -> None:
        sequencer = Sequencer(can_replay=False)
        sequencer.doubt()
        assert (sequencer.num_restarts, sequencer.num_wipes) == (0, 0)
        sequencer.live(0, b"a")
        sequencer.doubt()
        sequencer.doubt()
        assert (sequencer.num_restarts, sequencer.num_wipes) == (1, 1)

    def test_a_restart_during_a_replay_is_asked_for_from_its_first_on(self) -> None:
        reader = Reader()
        reader.replay(0, 1, 2)
        reader.sequencer.doubt()
        reader.replay(2, 3, incarnation=1)
        assert (reader.told, reader.sequencer.wanted) == ([], 0)
        reader.replay(0, 1, 2, 3, incarnation=1)
        assert reader.told == messages(0, 4, incarnation=1)

    def test_a_snapshot_stands_in_for_what_it_contains(self) -> None:
        """Messages that it contains are dropped, though they come after it."""
        reader = Reader()
        reader.live(4, 5, 6)
        reader.take(reader.sequencer.rebased(5))
        assert reader.told == messages(6, 7)
        assert (reader.sequencer.last, reader.sequencer.wanted) == (6, None)
        reader.live(3, 5, 7)
        assert reader.told == messages(6, 8)
        assert reader.sequencer.is_complete

    def test_a_snapshot_from_before_a_gap_does_not_close_it(self) -> None:
        reader = Reader()
        reader.live(5)
        reader.take(reader.sequencer.rebased(3))
        assert (reader.told, reader.sequencer.wanted) == ([], 4)
        reader.live(4)
        assert reader.told == messages(4, 6)


class SequencerMachine(RuleBasedStateMachine):
    """A publisher that restarts, a wire that loses, repeats and reorders."""

    def __init__(self) -> None:
        super().__init__()
        self.reader = Reader()
        self.incarnation = 0
        self.published = 0
        self.wire: list[int] = []
        self.replay: list[int] | None = None

    @rule(count=st.integers(1, 3))
    def publish(self, count):
        self.wire += range(self.published, self.published + count)
        self.published += count

    @precondition(lambda self: self.wire)
    @rule(data=st.data(), repeats=st.booleans())
    def deliver(self, data, repeats):
        at = data.draw(st.integers(0, len(self.wire) - 1))
        seq = self.wire[at] if repeats else self.wire.pop(at)
        self.reader.live(seq, incarnation=self.incarnation)

    @precondition(lambda self: self.wire)
    @rule(data=st.data())
    def lose(self, data):
        self.wire.pop(data.draw(st.integers(0, len(self.wire) - 1)))

    @rule()
    def restart(self):
        """TCP delivers nothing of a publisher behind its successor's messages."""
        self.incarnation += 1
        self.published = 0
        self.wire = []
        if self.replay is not None:
            self.replay = None
            self.reader.take(self.reader.sequencer.failed())
        self.reader.sequencer.doubt()

    @precondition(lambda self: self.replay is None)
    @precondition(lambda self: self.reader.sequencer.wanted is not None)
    @rule()
    def begin_replay(self):
        first = max(self.reader.sequencer.begin(), self.published - BUFFER)
        self.replay = list(range(first, self.published))

    @precondition(lambda self: self.replay)
    @rule()
    def replay_one(self):
        seq = self.replay.pop(0)
        payload = message(self.incarnation, seq)
        self.reader.take(self.reader.sequencer.replayed(seq, payload))

    @precondition(lambda self: self.replay == [])
    @rule()
    def end_replay(self):
        self.replay = None
        self.reader.take(self.reader.sequencer.ended())

    @precondition(lambda self: self.replay is None)
    @rule()
    def settle(self):
        """Once the connection is known to be good, everything is known again."""
        self.wire = []
        self.reader.sequencer.doubt()
        for _ in range(5):
            if self.reader.sequencer.wanted is None:
                break
            self.begin_replay()
            while self.replay:
                self.replay_one()
            self.end_replay()
        assert self.reader.sequencer.wanted is None
        told = self.reader.told
        assert told == messages(
            self.published - len(told), self.published, self.incarnation
        )
        if self.published <= BUFFER:
            assert len(told) == self.published
            assert self.reader.sequencer.is_complete

    @invariant()
    def hands_out_one_publisher_in_order(self):
        told = self.reader.told
        if told:
            incarnation, first = map(int, told[0].split(b":"))
            assert told == messages(first, first + len(told), incarnation)


SequencerMachine.TestCase.settings = settings(
    max_examples=150, stateful_step_count=30, deadline=None
)
TestSequencerAgainstAWire = SequencerMachine.TestCase
