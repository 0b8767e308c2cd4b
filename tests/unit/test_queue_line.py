"""A line is sorted, and its tokens are told to the backend until they leave."""

from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from warmroute.policies.routing.base import Candidate
from warmroute.proxy.queue.line import Line


def request(number: int, key: float, tokens: int) -> Any:
    return SimpleNamespace(number=number, key=key, uncached_tokens=tokens)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["enter", "enter", "take", "leave"]),
        st.sampled_from([0.0, 0.5, 1.0, 2.0]),
        st.integers(1, 1000),
    )
)


class TestAgainstNaiveModel:
    @given(STEPS)
    def test_the_least_key_goes_first_and_the_books_balance(
        self, steps: list[tuple[str, float, int]]
    ) -> None:
        candidate = Candidate("a", queued_tokens=7)
        line, model = Line(candidate, "a"), []
        for number, (step, key, tokens) in enumerate(steps):
            if step == "enter":
                one = request(number, key, tokens)
                assert line.is_before_all(key) == all(key < r.key for r in model)
                line.enter(one)
                model.append(one)
            elif model and step == "take":
                least = min(model, key=lambda r: (r.key, r.number))
                assert line.take() is least
                model.remove(least)
            elif model:
                line.leave(model.pop(tokens % len(model)))
            assert len(line) == len(model)
            total = sum(one.uncached_tokens for one in model)
            assert line.tokens == candidate.held_tokens == total
            assert candidate.queued_tokens == 7 + total
