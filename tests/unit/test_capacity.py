"""The learned capacity: quick to grow, slow to shrink, never below what hit."""

from hypothesis import given
from hypothesis import strategies as st

from warmroute.policies.kv.capacity import Capacity


class TestCapacity:
    def test_unknown_capacity_is_unbounded_until_misses_repeat(self):
        """Two misses prove nothing; the third bounds what the view holds."""
        capacity = Capacity()
        capacity.miss(500, held=100_000)
        capacity.miss(500, held=100_000)
        assert capacity.limit is None

        capacity.miss(500, held=100_000)
        assert capacity.limit == 90_000

    def test_small_view_of_unknown_capacity_stays_unbounded(self):
        """Early misses say nothing of a pool that was hardly used yet."""
        capacity = Capacity()
        for _ in range(30):
            capacity.miss(500, held=20_000)

        assert capacity.limit is None

    def test_shrinks_by_a_tenth_for_three_misses(self):
        """Each third miss in a row takes ten per cent, down to the distance."""
        capacity = Capacity(1_000)
        limits = []
        for _ in range(30):
            capacity.miss(700, held=1_000)
            limits.append(capacity.limit)

        assert limits[1] == 1_000
        assert limits[2] == 900
        assert limits[-1] == 700

    def test_hit_at_that_distance_clears_the_misses_before(self):
        """A hit as far away as the misses shows that they had another cause."""
        capacity = Capacity(1_000)
        for _ in range(20):
            capacity.miss(700, held=1_000)
            capacity.miss(700, held=1_000)
            capacity.hit(700)

        assert capacity.limit == 1_000

    def test_miss_nearer_than_a_recent_hit_teaches_nothing(self):
        """What is gone nearer than something that stayed was not evicted by age."""
        capacity = Capacity(1_000)
        capacity.hit(800)
        for _ in range(50):
            capacity.miss(100, held=1_000)

        assert capacity.limit == 1_000

    def test_never_below_the_farthest_recent_hit(self):
        """Misses behind a hit shrink the limit to that hit, no further."""
        capacity = Capacity(10_000)
        capacity.hit(6_000)
        for _ in range(100):
            capacity.miss(6_001, held=10_000)

        assert capacity.limit == 6_001

    def test_hits_grow_old(self):
        """A far hit is forgotten after some hundred nearer ones."""
        capacity = Capacity(1_000)
        capacity.hit(900)
        for _ in range(300):
            capacity.hit(10)
        for _ in range(60):
            capacity.miss(400, held=1_000)

        assert capacity.limit == 400

    def test_grows_at_once_and_up_to_twice_what_was_told(self):
        """One report of more is enough, if the view was full."""
        capacity = Capacity(1_000)
        capacity.exceed(held=500)
        assert capacity.limit == 1_000
        capacity.exceed(held=990)
        assert capacity.limit == 1_250
        for _ in range(9):
            capacity.exceed(held=2_000)
        assert capacity.limit == 2_000

    def test_same_word_of_the_engine_keeps_what_was_learned(self):
        """Only a new figure replaces the learned limit."""
        capacity = Capacity(1_000)
        capacity.exceed(held=1_000)
        capacity.tell(1_000)
        assert capacity.limit == 1_250
        capacity.tell(3_000)
        assert repr(capacity) == "<Capacity [Limit: 3000, told: 3000]>"

    def test_quarter_of_what_was_told_is_the_floor(self):
        """Misses at no distance do not drive the limit to nothing."""
        capacity = Capacity(1_000)
        for _ in range(200):
            capacity.miss(0, held=1_000)

        assert capacity.limit == 250

    @given(st.lists(st.integers(0, 100), max_size=200))
    def test_volume_is_that_after_the_insert(self, sizes):
        """The volume at a stamp counts everything inserted up to then."""
        capacity = Capacity()
        total = 0
        totals = []
        for stamp, size in enumerate(sizes):
            capacity.insert(size, float(stamp))
            total += size
            totals.append(total)

        assert totals == [capacity.volume_at(float(at)) for at in range(len(sizes))]
        assert totals == [capacity.volume_at(at + 0.5) for at in range(len(sizes))]

    def test_long_history_is_thinned_not_lost(self):
        """After many inserts an old volume is off by a small share."""
        capacity = Capacity()
        for stamp in range(100_000):
            capacity.insert(10, float(stamp))

        assert abs(capacity.volume_at(50_000.0) - 500_010) < 1_000
        assert abs(capacity.volume_at(99_999.0) - capacity.volume) < 1_000

    def test_history_far_beyond_the_capacity_is_forgotten(self):
        """What lies eight capacities back reads as at least that far."""
        capacity = Capacity(1_000)
        for stamp in range(100_000):
            capacity.insert(10, float(stamp))

        assert abs(capacity.volume_at(99_900.0) - 999_010) < 40
        assert capacity.volume - capacity.volume_at(10.0) > 8_000
