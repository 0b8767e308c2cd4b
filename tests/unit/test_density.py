from hypothesis import given
from hypothesis import strategies as st

from warmroute.proxy.prompt.density import MAX_MODELS, Density, Sums


def test_an_unknown_model_has_four_bytes_a_token() -> None:
    density = Density()
    assert density.bytes_per_token("m") == 4.0
    assert density.bytes_per_token(None) == 4.0


def test_estimate_approaches_what_the_engine_reports() -> None:
    density = Density()
    for _ in range(50):
        density.learn("m", 30_000, 10_000)
    assert abs(density.bytes_per_token("m") - 3.0) < 0.02


def test_models_learn_apart() -> None:
    density = Density()
    density.learn("a", 200_000, 100_000)
    assert density.bytes_per_token("a") < 3
    assert density.bytes_per_token("b") == 4.0


def test_a_body_without_a_model_learns_under_its_own_name() -> None:
    density = Density()
    density.learn(None, 200_000, 100_000)
    assert density.bytes_per_token(None) < 3


def test_long_prompts_outweigh_many_short_ones() -> None:
    """Template overhead of short prompts hardly moves the estimate."""
    density = Density()
    for _ in range(20):
        density.learn("m", 40_000, 10_000)
        for _ in range(5):
            density.learn("m", 300, 75 + 30)
    assert 3.8 < density.bytes_per_token("m") <= 4.0


def test_prompts_below_a_block_do_not_teach() -> None:
    density = Density()
    for _ in range(1000):
        density.learn("m", 255, 200)
    assert density.bytes_per_token("m") == 4.0


def test_senseless_counts_do_not_teach() -> None:
    density = Density()
    density.learn("m", 10_000, 0)
    density.learn("m", 10_000, -5)
    assert density.bytes_per_token("m") == 4.0


def test_one_outlier_moves_a_learned_estimate_by_its_bounded_weight() -> None:
    density = Density()
    for _ in range(100):
        density.learn("m", 40_000, 10_000)
    before = density.bytes_per_token("m")
    density.learn("m", 300, 50_000_000)
    assert before * 0.85 < density.bytes_per_token("m") < before


def test_estimate_follows_a_change_of_workload() -> None:
    density = Density()
    for _ in range(100):
        density.learn("m", 40_000, 10_000)
    for _ in range(100):
        density.learn("m", 20_000, 10_000)
    assert density.bytes_per_token("m") < 2.1


def test_number_of_models_is_bounded_and_the_one_in_use_stays() -> None:
    density = Density()
    for index in range(3 * MAX_MODELS):
        density.learn("used", 40_000, 20_000)
        density.learn(f"m{index}", 40_000, 20_000)
    assert repr(density) == f"<Density [{MAX_MODELS} models]>"
    assert density.bytes_per_token("m0") == 4.0
    assert density.bytes_per_token("used") < 2.5


def test_sums_at_hand_are_taught_as_the_model_is() -> None:
    density = Density()
    density.learn("m", 40_000, 20_000)
    sums, alike = density.find("m"), Sums()
    assert sums is not None
    alike.learn(40_000, 20_000)
    for each in (sums, alike):
        each.learn(40_000, 10_000)
    assert density.bytes_per_token("m") == sums.rate == alike.rate
    assert repr(sums) == f"<Sums [{sums.rate:.2f} bytes a token]>"


def test_a_forgotten_model_is_not_taught_by_old_sums() -> None:
    density = Density()
    density.learn("m", 40_000, 20_000)
    sums = density.find("m")
    assert sums is not None
    density.forget("m")
    sums.learn(40_000, 20_000)
    assert density.bytes_per_token("m") == 4.0


def test_models_that_all_are_in_use_make_room_in_turn() -> None:
    density = Density()
    for _ in range(2):
        for index in range(MAX_MODELS):
            density.learn(f"m{index}", 40_000, 20_000)
    density.learn("new", 40_000, 20_000)
    assert density.find("m0") is None
    assert density.find("m1") is not None
    assert density.bytes_per_token("new") < 2.5


def test_the_sums_settle_at_the_horizon() -> None:
    """An old workload's weight is gone after a few horizons of tokens."""
    density = Density()
    for _ in range(10_000):
        density.learn("m", 40_000, 10_000)
    for _ in range(20):
        density.learn("m", 20_000, 10_000)
    assert 2.7 < density.bytes_per_token("m") < 2.75


@given(
    st.lists(st.tuples(st.integers(0, 1 << 40), st.integers(-10, 1 << 40)), max_size=50)
)
def test_estimate_stays_within_its_bounds(reports: list[tuple[int, int]]) -> None:
    density = Density()
    for text_bytes, num_tokens in reports:
        density.learn("m", text_bytes, num_tokens)
    assert 0.5 <= density.bytes_per_token("m") <= 16.0
