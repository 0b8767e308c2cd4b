"""Random work on the core: every slot right, nothing lost, nothing left over."""

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from unit.engine_rig import Rig, expected

PROMPTS = [[(7 * row + at) % 49 + 1 for at in range(40)] for row in range(3)]


class CoreMachine(RuleBasedStateMachine):
    """Add, abort, fail and move blocks about between steps of a small engine.

    The shadow memory asserts in each step that every slot which a sequence attends
    to holds the prefix that it should.
    """

    def __init__(self) -> None:
        super().__init__()
        self.rig = Rig(num_blocks=14, host_blocks=5)
        self.groups: list[Any] = []
        self.undisturbed: list[Any] = []

    @rule(
        row=st.integers(0, 2),
        length=st.integers(1, 30),
        n=st.integers(1, 4),
        max_tokens=st.integers(1, 14),
        priority=st.integers(0, 2),
        salt=st.sampled_from([None, "s"]),
        budget=st.sampled_from([None, None, "some", "observed"]),
    )
    def add(self, row: int, length: int, **fields: Any) -> None:
        name = f"r{len(self.groups)}"
        group = self.rig.add(
            name,
            PROMPTS[row][:length],
            n=fields["n"],
            max_tokens=fields["max_tokens"],
            priority=fields["priority"],
            cache_salt=fields["salt"],
            budget=fields["budget"],
        )
        self.groups.append(group)
        self.undisturbed.append(group)

    @rule(count=st.integers(1, 5))
    def step(self, count: int) -> None:
        for _ in range(count):
            self.rig.step()
            self.rig.check()

    @rule(at=st.integers(0, 10_000))
    def abort(self, at: int) -> None:
        if self.groups:
            group = self.groups[at % len(self.groups)]
            self.rig.core.abort(group)
            self.disturb(group)

    @rule()
    def fail(self) -> None:
        self.rig.runner.fail_next = RuntimeError("broken")
        self.rig.step()
        self.rig.runner.fail_next = None
        for group in self.groups:
            if "failed" in self.rig.reasons(group.request.request_id):
                self.disturb(group)

    @rule(share=st.integers(1, 4), verb=st.sampled_from(["offload", "evict"]))
    def drop_blocks(self, share: int, verb: str) -> None:
        state = self.rig.state
        hashes = [one.block_hash for one in state.pool.snapshot()][::share]
        (state.offload if verb == "offload" else state.pool.evict)(hashes)

    @rule()
    def restore(self) -> None:
        state = self.rig.state
        state.restore([one.block_hash for one in state.contents.listed("CPU")])

    @rule()
    def flush(self) -> None:
        self.rig.state.flush()

    @invariant()
    def nothing_is_lost(self) -> None:
        self.rig.check()

    def teardown(self) -> None:
        self.rig.step()
        self.rig.run()
        self.rig.check()
        assert self.rig.budgets.closed == len(self.rig.budgets.started)
        for group in self.groups:
            name, request = group.request.request_id, group.request
            reasons = self.rig.reasons(name)
            assert group.is_finished
            assert len(reasons) == request.n or reasons[-1] == "failed"
        for group in self.undisturbed:
            self.judge(group)

    def judge(self, group: Any) -> None:
        request = group.request
        reasons = self.rig.reasons(request.request_id)
        if reasons == ["failed"]:  # the pool cannot hold it with its private pages
            assert request.budget
            return
        assert reasons == ["length"] * request.n
        for at in range(request.n):
            tokens = self.rig.tokens(request.request_id, at)
            assert tokens == expected(request.prompt_ids, request.max_tokens)

    def disturb(self, group: Any) -> None:
        if group in self.undisturbed:
            self.undisturbed.remove(group)


TestCore = CoreMachine.TestCase
TestCore.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
