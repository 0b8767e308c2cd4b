"""The scheduler and the core: what runs, what waits, and whose pages go."""

from unit.engine_rig import Rig, expected

from warmroute.adapters.embedded.engine.request import GenerationRequest
from warmroute.adapters.embedded.engine.stats import EngineObserver
from warmroute.policies.eviction.lru import Lru


def prompt(length: int, first: int = 1) -> list[int]:
    return [(first + at) % 49 + 1 for at in range(length)]


class TestBatching:
    def test_prompts_share_a_step_up_to_the_token_budget(self):
        """Two prompts of 10 tokens take 16 tokens of the first step, then 4."""
        rig = Rig()
        rig.add("a", prompt(10))
        rig.add("b", prompt(10, 20))

        rig.step()
        rig.step()
        assert rig.runner.tokens_a_step == [16, 5]

    def test_decodes_go_before_a_long_prompt(self):
        """A prompt of many chunks lets a running sequence go on each step."""
        rig = Rig()
        rig.add("short", prompt(3), max_tokens=4)
        rig.step()
        rig.add("long", prompt(60, 9), max_tokens=1)

        for _ in range(3):
            rig.step()
        assert len(rig.tokens("short")) == 4
        assert rig.tokens("long") == []

    def test_generates_what_the_whole_prefix_asks_for(self):
        """Chunks, batches and shared steps do not change a sequence's tokens."""
        rig = Rig()
        for at in range(6):
            rig.add(f"r{at}", prompt(5 + at, 7 * at), max_tokens=6)
        rig.run()

        for at in range(6):
            assert rig.tokens(f"r{at}") == expected(prompt(5 + at, 7 * at), 6)
            assert rig.reasons(f"r{at}") == ["length"]

    def test_no_more_sequences_run_than_there_are_seats(self):
        """A request with three choices waits while two of four seats are taken."""
        rig = Rig(num_blocks=60)
        rig.add("a", prompt(3))
        rig.add("b", prompt(3))
        rig.add("c", prompt(3), n=3)

        rig.step()
        assert len(rig.scheduler.running) == 2
        rig.run()
        assert len(rig.reasons("c")) == 3

    def test_lower_priority_number_goes_first(self):
        """Of two waiting requests the later one with the lower number starts."""
        rig = Rig(max_num_seqs=1)
        rig.add("running", prompt(3))
        rig.step()
        rig.add("patient", prompt(3), priority=5)
        rig.add("urgent", prompt(3), priority=1)

        while not rig.reasons("urgent"):
            rig.step()
        assert rig.tokens("patient") == []


class TestStepSize:
    def test_first_prompt_takes_a_whole_step_where_nothing_decodes(self):
        """Nobody decodes, so that nobody waits; the next prompt has to."""
        rig = Rig(max_batched_tokens=40, max_shared_tokens=8)
        rig.add("long", prompt(30))
        rig.add("next", prompt(6, 50))
        rig.step()

        assert rig.runner.tokens_a_step == [30]
        assert (len(rig.tokens("long")), rig.tokens("next")) == (1, [])

    def test_prompt_beside_a_decode_is_cut(self):
        """One token for whoever decodes, and the rest of the shared ones."""
        rig = Rig(max_batched_tokens=40, max_shared_tokens=8)
        rig.add("short", prompt(3), max_tokens=9)
        rig.step()
        rig.add("long", prompt(30, 50))
        rig.step()

        assert rig.runner.tokens_a_step == [3, 8]

    def test_short_prompts_share_a_step_up_to_the_shared_tokens(self):
        """A first prompt leaves to others what it does not take of them."""
        rig = Rig(max_batched_tokens=40, max_shared_tokens=8)
        rig.add("first", prompt(5))
        rig.add("second", prompt(7, 50))
        rig.step()

        assert rig.runner.tokens_a_step == [8]


class TestPrefixCache:
    def test_second_request_starts_behind_the_cached_blocks(self):
        """Of a known prompt of 12 tokens only the last block is computed."""
        rig = Rig()
        rig.add("cold", prompt(12))
        rig.run()
        warm = rig.add("warm", prompt(12))
        rig.run()

        assert warm.num_cached_tokens == 8
        assert rig.core.stats.prefix_queries == 24
        assert rig.core.stats.prefix_hits == 8

    def test_generated_blocks_are_cached_too(self):
        """A follow-up over prompt and answer hits the answer's full blocks."""
        rig = Rig()
        rig.add("first", prompt(6), max_tokens=7)
        rig.run()
        turn = rig.add("second", prompt(6) + rig.tokens("first") + prompt(5, 30))
        rig.run()

        assert turn.num_cached_tokens == 12

    def test_salts_do_not_share(self):
        """The same prompt under another salt is cold."""
        rig = Rig()
        rig.add("a", prompt(12), cache_salt="x")
        rig.run()
        other = rig.add("b", prompt(12), cache_salt="y")
        rig.run()

        assert other.num_cached_tokens == 0

    def test_request_that_waits_does_not_use_its_prefix(self):
        """Only the admission counts as a hit with the eviction policy."""
        rig = Rig(num_blocks=6)
        policy = CountingLru(capacity=6, clock=lambda: rig.now)
        rig.state.pool.set_policy(policy)
        rig.add("first", prompt(8), max_tokens=1)
        rig.run()
        rig.add("busy", prompt(12, 30), max_tokens=5)
        rig.add("waiting", prompt(13), max_tokens=1)
        for _ in range(3):
            rig.step()
        assert policy.touches == 0

        rig.run()
        assert policy.touches == 2

    def test_equal_prompts_of_one_step_are_computed_once(self):
        """The second starts behind the blocks that the first computes beside it."""
        rig = Rig(max_batched_tokens=40)
        first = rig.add("a", prompt(12))
        second = rig.add("b", prompt(12))
        rig.run()

        assert (first.num_cached_tokens, second.num_cached_tokens) == (0, 8)
        assert rig.tokens("a") == rig.tokens("b")


class TestFork:
    def test_choices_share_the_prompt_until_they_write(self):
        """Three choices of a partly filled last block copy it twice."""
        rig = Rig()
        rig.add("best", prompt(10), n=3, max_tokens=3)
        rig.run()

        assert rig.store.copies == 2
        assert rig.state.peak_blocks == 2 + 3
        assert [rig.tokens("best", at) for at in range(3)] == [
            expected(prompt(10), 3)
        ] * 3

    def test_choices_of_a_full_last_block_copy_nothing(self):
        """A prompt that ends with a block is shared without a copy."""
        rig = Rig()
        rig.add("best", prompt(8), n=4, max_tokens=3)
        rig.run()

        assert rig.store.copies == 0
        assert rig.state.peak_blocks == 2 + 4


class TestPreemption:
    def test_latest_arrival_gives_way_and_comes_back_unharmed(self):
        """Two sequences that outgrow the pool end with the tokens they should."""
        rig = Rig(num_blocks=8)
        rig.add("first", prompt(8), max_tokens=16)
        rig.add("second", prompt(8, 30), max_tokens=16)
        rig.run()

        assert rig.core.stats.preemptions >= 1
        assert rig.tokens("first") == expected(prompt(8), 16)
        assert rig.tokens("second") == expected(prompt(8, 30), 16)
        rig.check()

    def test_least_urgent_gives_way_whatever_came_first(self):
        """The one with the higher priority number is preempted, though older."""
        preempted: list[str] = []
        rig = Rig(observer=Recorder(preempted), num_blocks=8)
        rig.add("old", prompt(8), max_tokens=16, priority=9)
        rig.add("young", prompt(8, 30), max_tokens=16, priority=0)
        rig.run()

        assert set(preempted) == {"old"}

    def test_request_counts_its_prefix_hit_once(self):
        """What a preempted sequence finds again is no hit of the client's."""
        rig = Rig(num_blocks=8)
        rig.add("first", prompt(8), max_tokens=16)
        second = rig.add("second", prompt(8, 30), max_tokens=16)
        rig.run()

        assert rig.core.stats.preemptions >= 1
        assert second.num_cached_tokens == 0
        assert rig.core.stats.prefix_queries == 16

    def test_choice_that_was_preempted_goes_on_alone(self):
        """Choices of one request may be preempted one by one."""
        rig = Rig(num_blocks=10)
        rig.add("best", prompt(8), n=4, max_tokens=16)
        rig.run()

        assert rig.core.stats.preemptions >= 1
        for at in range(4):
            assert rig.tokens("best", at) == expected(prompt(8), 16)
        rig.check()


class TestAbort:
    def test_running_and_waiting_requests_leave_no_block(self):
        """Aborting one that runs and one that waits frees everything."""
        rig = Rig(max_num_seqs=1)
        running = rig.add("running", prompt(10), max_tokens=50)
        waiting = rig.add("waiting", prompt(10))
        rig.step()
        rig.core.abort(running)
        rig.core.abort(waiting)
        rig.step()

        assert rig.reasons("running") == ["abort"]
        assert rig.reasons("waiting") == ["abort"]
        assert rig.state.pool.num_referenced == 0

    def test_aborting_twice_does_nothing(self):
        """A request that has ended is left alone."""
        rig = Rig()
        group = rig.add("a", prompt(3))
        rig.run()
        rig.core.abort(group)
        rig.step()

        assert rig.reasons("a") == ["length"]


class TestFailure:
    def test_failed_step_ends_its_requests_and_no_other(self):
        """What was in the step fails, what waited is served."""
        rig = Rig(max_num_seqs=1)
        rig.add("unlucky", prompt(5))
        rig.add("lucky", prompt(5, 20))
        rig.runner.fail_next = MemoryError("no memory")
        rig.run()

        assert rig.reasons("unlucky") == ["failed"]
        assert "MemoryError: no memory" in str(rig.outputs["unlucky"][0])
        assert rig.tokens("lucky") == expected(prompt(5, 20), 4)
        rig.check()

    def test_blocks_of_a_failed_step_are_not_cached(self):
        """Nothing is registered that was not computed."""
        rig = Rig()
        rig.add("a", prompt(8))
        rig.runner.fail_next = RuntimeError("broken")
        rig.run()

        assert rig.state.pool.num_cached == 0

    def test_whoever_started_behind_a_failed_step_fails_with_it(self):
        """Blocks that were shared and never computed are not left to others."""
        rig = Rig(max_batched_tokens=40)
        rig.add("a", prompt(12))
        rig.add("b", prompt(12))
        rig.runner.fail_next = RuntimeError("broken")
        rig.run()

        assert rig.reasons("a") == rig.reasons("b") == ["failed"]
        assert rig.state.pool.num_cached == 0
        rig.check()

    def test_observer_that_raises_fails_no_request(self):
        """An observer's exception is logged and forgotten."""
        rig = Rig(observer=Raiser())
        rig.add("a", prompt(5))
        rig.run()

        assert rig.reasons("a") == ["length"]


class TestBudget:
    def test_sequence_gives_its_pages_back_when_the_prompt_is_computed(self):
        """Under a budget only the private pages stay."""
        rig = Rig()
        rig.add("a", prompt(16), max_tokens=9, budget="some")
        rig.step()

        assert rig.state.pool.num_referenced == rig.budgets.pages
        rig.run()
        assert rig.tokens("a") == expected(prompt(16), 9)
        assert (len(rig.budgets.started), rig.budgets.closed) == (1, 1)
        rig.check()

    def test_generated_tokens_are_never_cached(self):
        """The prompt's blocks are, those computed under the budget are not."""
        rig = Rig()
        rig.add("a", prompt(8), max_tokens=20, budget="some")
        rig.run()

        assert rig.state.pool.num_cached == 2

    def test_every_choice_has_private_pages(self):
        """Three choices take three times the private pages, and give them back."""
        rig = Rig()
        rig.add("a", prompt(8), n=3, max_tokens=5, budget="some")
        rig.step()

        assert rig.state.pool.num_referenced == 3 * rig.budgets.pages
        rig.run()
        rig.check()

    def test_observed_prompt_is_computed_whole(self):
        """A rule that scores the prompt cannot skip the cached part."""
        rig = Rig()
        rig.add("a", prompt(12))
        rig.run()
        again = rig.add("b", prompt(12), budget="observed")
        rig.run()

        assert again.num_cached_tokens == 0


class TestLiveness:
    def test_request_that_held_blocks_leave_no_room_for_fails(self):
        """Nothing runs that could free pages, so waiting would be for ever."""
        rig = Rig(num_blocks=5)
        rig.add("a", prompt(15), max_tokens=1)
        rig.run()
        rig.state.pool.hold([one.block_hash for one in rig.state.pool.snapshot()])
        rig.add("b", prompt(16, 30), max_tokens=1)
        rig.run()

        assert rig.reasons("b") == ["failed"]
        rig.check()

    def test_retained_blocks_give_way_before_a_request_fails(self):
        """Serving goes before keeping something for later."""
        rig = Rig(num_blocks=5)
        rig.add("a", prompt(9), max_tokens=1)
        rig.run()
        blocks = [one.block_hash for one in rig.state.pool.snapshot()]
        assert rig.state.retention.retain(blocks, 1e9) == 2
        rig.add("b", prompt(16, 30), max_tokens=1)
        rig.run()

        assert rig.reasons("b") == ["length"]


class CountingLru(Lru):
    touches = 0

    def touched(self, block: int) -> None:
        self.touches += 1
        super().touched(block)


class Recorder(EngineObserver):
    def __init__(self, preempted: list[str]) -> None:
        self._preempted = preempted

    def preempted(self, request: GenerationRequest) -> None:
        self._preempted.append(request.request_id)


class Raiser(EngineObserver):
    def first_token(self, request: GenerationRequest, ttft_s: float) -> None:
        raise ValueError("no")

    inter_token = first_token
