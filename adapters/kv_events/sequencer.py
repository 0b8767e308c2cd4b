"""Put the messages of one publisher into order, and know when some are lost.

Publishers number their messages from 0 on, anew in each process. What can happen:

- A number that is too high: messages were lost, or come late. They are asked for
  again, and what comes meanwhile is held, so that nothing is applied out of order: a
  replayed "stored" after a live "removed" would bring a block back from the dead.
- A number that was seen: a duplicate, if the message is the same one. Else the
  publisher has started anew, and so has its cache: everything is forgotten.
- A replay that does not reach back far enough: what is missing is lost for good. The
  cache may have dropped blocks that are still believed in, so everything is forgotten
  and learned anew.

Where a publisher cannot send again, a snapshot of what is cached may stand in.

No I/O here: the caller asks for what `wanted` says and brings what it gets.
"""

from collections import OrderedDict

from xxhash import xxh3_64_intdigest

_MAX_MARKS = 4096
_MAX_HELD = 65_536


class Sequencer:
    """The order of one publisher's messages.

    Args:
        can_replay: Whether messages can be had again, or a snapshot in their place.

    Each call returns the messages that are next, in order. `num_wipes` grows
    when everything told before is void; that is before the messages returned.

    Attributes:
        wanted: Number from which messages are to be asked for again, or None.
        num_gaps: Gaps seen, healed ones too.
        num_wipes: How often everything was forgotten.
        num_restarts: How often the publisher was found to have started anew.
        is_complete: Whether nothing is known to be missing since the last wipe.
    """

    __slots__ = (
        "_asked",
        "_can_replay",
        "_doubted",
        "_floor",
        "_held",
        "_last",
        "_marks",
        "is_complete",
        "num_gaps",
        "num_restarts",
        "num_wipes",
        "wanted",
    )

    def __init__(self, can_replay: bool) -> None:
        self._can_replay = can_replay
        self._asked: int | None = None
        self._doubted = False
        self._floor = -1
        self._held: dict[int, bytes] = {}
        self._marks: OrderedDict[int, int] = OrderedDict()
        self._last: int | None = None
        self.wanted: int | None = 0 if can_replay else None
        self.num_gaps = 0
        self.num_wipes = 0
        self.num_restarts = 0
        self.is_complete = False

    def __repr__(self) -> str:
        return (
            f"<Sequencer [last: {self._last}, wanted: {self.wanted}, "
            f"held: {len(self._held)}, gaps: {self.num_gaps}]>"
        )

    @property
    def last(self) -> int | None:
        """Number of the newest message handed out; None before the first."""
        return None if self._last is None or self._last < 0 else self._last

    def live(self, seq: int, payload: bytes) -> list[bytes]:
        """Take a message that was published; return those that are next."""
        if self._is_old(seq, payload):
            return []
        if self.wanted is not None:
            self._hold(seq, payload)
            return [] if self._doubted else self._release()
        if self._last is not None and seq > self._last + 1:
            return self._miss(seq, payload)
        self._note(seq, payload)
        return [payload]

    def begin(self) -> int:
        """Return the number from which to ask now; then come `replayed`, `ended`."""
        assert self.wanted is not None
        self._asked = self.wanted
        return self.wanted

    def replayed(self, seq: int, payload: bytes) -> list[bytes]:
        """Take a message that was sent again; return those that are next.

        The first one of a replay may be newer than what was asked for: then the
        publisher keeps nothing older.
        """
        if self._is_old(seq, payload):
            if self._doubted and seq == self._last:
                self._doubted = False
                return self._release()
            return []
        if self._asked is None:
            self._hold(seq, payload)  # a restart: a replay from 0 on is to come
            return []
        if self._last is not None and seq > self._last + 1:
            self._forget()
        self._note(seq, payload)
        return [payload, *self._release()]

    def ended(self) -> list[bytes]:
        """Note that the replay is over; return the messages that are next.

        Where `wanted` is still set, another replay is to be asked for: there is a gap
        to what was held, or another publisher.
        """
        if self._doubted:
            self.restart()
            return []
        if self._asked is None:
            return []
        self.wanted = self._asked = None
        if self._last is None:
            self._last = -1  # nothing was published yet, so that 0 is next
            self.is_complete = True
        ready = self._release()
        if self._held:
            self.wanted = self._last + 1
        return ready

    def failed(self) -> list[bytes]:
        """Note that no replay can be had; return the messages that are next.

        A publisher in doubt is then taken for another one.
        """
        if self._doubted:
            self.restart()
        self.wanted = self._asked = None
        if not self._held:
            return []
        if self._last is not None:
            self._forget()
        return self._jump()

    def rebased(self, seq: int | None) -> list[bytes]:
        """Take a snapshot that contains all messages up to *seq*; return what is next.

        Everything told before is void, for the snapshot tells it better. None is a
        publisher that has sent nothing yet.
        """
        self._forget()
        self._marks.clear()
        self._last = self._floor = -1 if seq is None else seq
        self._held = {at: one for at, one in self._held.items() if at > self._last}
        self._doubted = False
        self.is_complete = True
        self.wanted = self._asked = None
        ready = self._release()
        if self._held:
            self.wanted = self._last + 1
        return ready

    def doubt(self) -> None:
        """Ask whether the publisher is the same one: the connection was lost.

        The newest message is wanted again. If it comes, and is the same, all is
        well; if not, the publisher has started anew, and so has its cache. Where it
        cannot be asked for, it is taken for another one.
        """
        if self._can_replay:
            # What was held, or is being sent, may be another one's, and comes again.
            self._held.clear()
            self._asked = None
            self.wanted = self.last or 0
            self._doubted = self.last is not None
        elif self.last is not None:
            self.restart()

    def restart(self) -> None:
        """Forget everything: the publisher is known to have started anew."""
        self._forget()
        self.num_restarts += 1
        self._asked = None
        self._marks.clear()
        self._held.clear()
        self._doubted = False
        self._floor = -1
        self._last = None
        self.wanted = 0 if self._can_replay else None

    def _is_old(self, seq: int, payload: bytes) -> bool:
        """Drop what was seen; a number that was seen with other content restarts."""
        if self._last is None or seq > self._last:
            return False
        mark = self._marks.get(seq)
        if mark == xxh3_64_intdigest(payload) or (mark is None and seq <= self._floor):
            return True
        self.restart()
        return False

    def _miss(self, seq: int, payload: bytes) -> list[bytes]:
        self.num_gaps += 1
        self._hold(seq, payload)
        if self._can_replay:
            assert self._last is not None
            self.wanted = self._last + 1
            return []
        self._forget()
        return self._jump()

    def _hold(self, seq: int, payload: bytes) -> None:
        if len(self._held) < _MAX_HELD:  # beyond, it is a gap like any other
            self._held[seq] = payload

    def _jump(self) -> list[bytes]:
        """Go on from the oldest message held, whatever lies before it."""
        ready: list[bytes] = []
        for seq in sorted(self._held):
            if self._last is not None and ready and seq != self._last + 1:
                self.num_gaps += 1
                self._forget()
                ready.clear()
            payload = self._held[seq]
            self._note(seq, payload)
            ready.append(payload)
        return ready

    def _release(self) -> list[bytes]:
        ready: list[bytes] = []
        while self._last is not None and self._last + 1 in self._held:
            payload = self._held[self._last + 1]
            self._note(self._last + 1, payload)
            ready.append(payload)
        if self.wanted is not None and self._last is not None and not self._held:
            self.wanted = self.wanted if self.wanted > self._last else None
        return ready

    def _note(self, seq: int, payload: bytes) -> None:
        if self._last is None:
            self.is_complete = seq == 0
        self._last = seq
        self._held.pop(seq, None)
        self._marks[seq] = xxh3_64_intdigest(payload)
        if len(self._marks) > _MAX_MARKS:
            self._marks.popitem(last=False)

    def _forget(self) -> None:
        self.num_wipes += 1
        self.is_complete = False
