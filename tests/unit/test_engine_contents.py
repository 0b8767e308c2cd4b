"""What followers of the cache are told, and what it remembers of its blocks."""

from unit.engine_rig import Rig

from warmroute.adapters.embedded.engine.contents import KVObserver


class Told(KVObserver):
    def __init__(self):
        self.events = []

    def stored(self, content, medium):
        self.events.append(("stored", content.token_ids, medium))

    def removed(self, block_hash, medium):
        self.events.append(("removed", medium))

    def cleared(self):
        self.events.append(("cleared",))

    def batch_ended(self):
        if self.events and self.events[-1] != ("end",):
            self.events.append(("end",))


def served(told, **settings):
    rig = Rig(kv=told, **settings)
    rig.add("a", [1, 2, 3, 4, 5, 6, 7, 8, 9], max_tokens=1)
    rig.run()
    return rig


def hashes(rig):
    return [one.block_hash for one in rig.state.pool.snapshot()]


class TestBlockContents:
    def test_stored_blocks_are_told_with_their_tokens(self):
        """Two full blocks of the prompt, in one step."""
        told = Told()
        served(told)

        assert told.events == [
            ("stored", (1, 2, 3, 4), "GPU"),
            ("stored", (5, 6, 7, 8), "GPU"),
            ("end",),
        ]

    def test_what_a_step_changes_is_told_before_it_is_computed(self):
        """Its blocks, and what they took the place of: two steps of two blocks."""
        told = Told()
        rig = Rig(kv=told, num_blocks=3)
        known = []
        rig.runner.fail_on = lambda work: known.append(told.events.copy())
        for name, first in (("a", 1), ("b", 10)):
            rig.add(name, list(range(first, first + 9)), max_tokens=1)
            rig.run()

        stored = [
            ("stored", (10, 11, 12, 13), "GPU"),
            ("stored", (14, 15, 16, 17), "GPU"),
        ]
        assert known[0] == told.events[:3]
        assert known[1][3:] == [("removed", "GPU")] * 2 + stored + [("end",)]

    def test_what_a_failed_step_had_told_is_taken_back(self):
        """Nobody may count on blocks that were never computed."""
        told = Told()
        rig = Rig(kv=told)
        rig.runner.fail_next = RuntimeError("no numbers")
        rig.add("a", [1, 2, 3, 4, 5, 6, 7, 8, 9])
        rig.run()

        assert told.events[2:] == [
            ("end",),
            ("removed", "GPU"),
            ("removed", "GPU"),
            ("end",),
        ]

    def test_content_of_a_block_is_known_while_it_is_resident(self):
        """An evicted block is forgotten."""
        rig = served(None)
        first, second = hashes(rig)
        assert rig.state.contents.get(second).parent_hash == first

        rig.state.pool.evict([second])
        assert rig.state.contents.get(second) is None

    def test_offloaded_block_changes_its_tier(self):
        """It enters the host before it leaves its page."""
        told = Told()
        rig = served(told, host_blocks=4)
        told.events.clear()

        assert rig.state.offload(hashes(rig)) == 2
        assert [event[-1] for event in told.events] == ["CPU", "CPU", "GPU", "GPU"]
        assert rig.state.pool.num_cached == 0

    def test_prompt_comes_back_from_the_host(self):
        """Blocks on the host count as cached, and lie on pages again."""
        rig = served(None, host_blocks=4)
        rig.state.offload(hashes(rig))
        again = rig.add("b", [1, 2, 3, 4, 5, 6, 7, 8, 9])
        rig.run()

        assert again.num_cached_tokens == 8
        assert rig.core.stats.host_hits == 8

    def test_full_host_gives_its_oldest_block_up(self):
        """A host of one block holds the last one that was offloaded."""
        told = Told()
        rig = served(told, host_blocks=1)
        first, second = hashes(rig)
        rig.state.offload([second])
        rig.state.offload([first])

        assert ("removed", "CPU") in told.events
        assert [one.block_hash for one in rig.state.contents.listed("CPU")] == [first]

    def test_what_the_host_has_no_room_for_stays_on_its_page(self):
        """No block that is moved takes the place of one that was moved with it."""
        rig = served(None, host_blocks=1)
        first, second = hashes(rig)

        assert rig.state.offload([first, second]) == 1
        assert hashes(rig) == [first]
        assert [one.block_hash for one in rig.state.contents.listed("CPU")] == [second]

    def test_restore_needs_the_block_in_front(self):
        """A block whose parent is not resident stays where it is."""
        rig = served(None, host_blocks=4)
        first, second = hashes(rig)
        rig.state.offload([first, second])

        assert rig.state.restore([second]) == 0
        assert rig.state.restore([first, second]) == 2
        assert rig.state.pool.num_free == 20

    def test_clearing_the_pages_tells_the_host_anew(self):
        """Followers drop every tier, so what stays is announced again."""
        told = Told()
        rig = served(told, host_blocks=4)
        rig.state.offload(hashes(rig))
        rig.state.restore([one.block_hash for one in rig.state.contents.listed("CPU")])
        told.events.clear()
        rig.state.pool.flush()

        assert [event[0] for event in told.events] == ["cleared", "stored", "stored"]

    def test_flush_empties_both_tiers(self):
        """Nothing is resident afterwards."""
        rig = served(None, host_blocks=4)
        rig.state.offload(hashes(rig))

        assert rig.state.flush()
        assert rig.state.contents.listed("GPU") == []
        assert rig.state.contents.listed("CPU") == []
