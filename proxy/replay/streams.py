"""The streams that decode on a simulated engine, counted in its steps."""

from heapq import heappop, heappush

from warmroute.proxy.replay.engine_constants import EngineConstants
from warmroute.proxy.replay.sequence import Sequence


class Streams:
    """Running streams: each gains a token a step, and ends at a step known before.

    So a step costs O(1) whatever their number, and a run of steps no more.

    Args:
        constants: How long a step takes.

    Attributes:
        count: How many there are.
    """

    __slots__ = ("_constants", "_context", "_due", "_num_begun", "_step", "count")

    def __init__(self, constants: EngineConstants) -> None:
        self.count = 0
        self._constants = constants
        self._context = 0
        self._step = 0
        self._due: list[tuple[int, int, Sequence]] = []
        self._num_begun = 0

    def __repr__(self) -> str:
        return f"<Streams {self.count} with {self._context} tokens>"

    def begin(self, sequence: Sequence, tokens: int) -> None:
        """Let *sequence* give *tokens* more, one a step from now on."""
        sequence.started_step = self._step
        sequence.finish_step = self._step + tokens
        self._num_begun += 1
        heappush(self._due, (sequence.finish_step, self._num_begun, sequence))
        self.count += 1
        self._context += sequence.target

    def stop(self, sequence: Sequence) -> int:
        """Take a stream out, and return the tokens that it gave."""
        given = self._step - sequence.started_step
        self.count -= 1
        self._context -= sequence.target + given
        sequence.finish_step = 0
        return given

    def pass_steps(self, steps: int) -> int:
        """Let *steps* pass, and return the tokens that all gained."""
        gained = steps * self.count
        self._step += steps
        self._context += gained
        return gained

    def pop_ended(self) -> Sequence | None:
        """Return a stream whose last step has passed; it is still to be stopped."""
        if self._due and self._next_end() <= self._step:
            return heappop(self._due)[2]
        return None

    def steps_left(self) -> int:
        """Return the steps until the first one ends; there must be one."""
        return self._next_end() - self._step

    def step_s(self) -> float:
        """Return the time of a step that only decodes."""
        constants = self._constants
        return (
            constants.step_s
            + constants.sequence_s * self.count
            + constants.context_s_per_token * self._context
        )

    def run_s(self, steps: int) -> float:
        """Return the time of *steps* that only decode."""
        return steps * (self.step_s() + self._growth_s() * (steps - 1) / 2)

    def steps_in(self, seconds: float) -> int:
        """Return how many steps have begun *seconds* after the first one did."""
        # steps * first + growth * steps * (steps - 1) / 2 = seconds
        growth = self._growth_s()
        slope = self.step_s() - growth / 2
        root: float = (slope * slope + 2 * growth * seconds) ** 0.5
        return max(1, -int(-2 * seconds // (slope + root)))

    def _growth_s(self) -> float:
        return self._constants.context_s_per_token * self.count

    def _next_end(self) -> int:
        """Return the step of the first end, after those of streams that stopped."""
        due = self._due
        while due and due[0][2].finish_step != due[0][0]:
            heappop(due)
        return due[0][0] if due else self._step + 1
