"""Sampling: greedy, seeded, nucleus, and what is forbidden for a while."""

import numpy as np
import pytest

from warmroute.adapters.embedded.engine.request import GenerationRequest
from warmroute.adapters.embedded.engine.sampler import Sampler

EOS = (3,)


def sampler(index=0, **fields):
    return Sampler(GenerationRequest("r", [1], **fields), index, EOS)


def row(*probabilities):
    return np.log(np.array(probabilities, np.float32))


class TestSampler:
    def test_temperature_zero_takes_the_most_likely(self):
        """Greedy sampling is the argmax."""
        assert sampler(temperature=0.0).sample(row(0.2, 0.5, 0.3), 0) == 1

    def test_same_seed_gives_the_same_tokens(self):
        """Two samplers of one seed agree for 50 tokens, one of another does not."""
        logits = np.zeros(1000, np.float32)
        draws = [
            [one.sample(logits, at) for at in range(50)]
            for one in (sampler(seed=7), sampler(seed=7), sampler(seed=8))
        ]

        assert draws[0] == draws[1] != draws[2]

    def test_choices_of_a_seed_differ(self):
        """Each choice has random numbers of its own."""
        logits = np.zeros(1000, np.float32)
        first, second = sampler(0, seed=7), sampler(1, seed=7)

        assert [first.sample(logits, 0) for _ in range(5)] != [
            second.sample(logits, 0) for _ in range(5)
        ]

    def test_negative_seed_is_a_seed(self):
        """Any integer may be a seed."""
        logits = np.zeros(1000, np.float32)
        draw = sampler(seed=-1).sample(logits, 0)

        assert draw == sampler(seed=-1).sample(logits, 0)

    def test_frequencies_follow_the_probabilities(self):
        """Of 4,000 draws each token gets about its share."""
        one = sampler(seed=1)
        logits = row(0.1, 0.2, 0.7)
        counts = np.bincount([one.sample(logits, 0) for _ in range(4_000)])

        assert counts / 4_000 == pytest.approx([0.1, 0.2, 0.7], abs=0.03)

    def test_temperature_sharpens(self):
        """At half the temperature, probabilities are squared and rescaled."""
        one = sampler(seed=1, temperature=0.5)
        logits = row(0.25, 0.75)
        counts = np.bincount([one.sample(logits, 0) for _ in range(4_000)])

        assert counts / 4_000 == pytest.approx([0.1, 0.9], abs=0.03)

    def test_top_p_keeps_the_smallest_set_that_reaches_it(self):
        """With 0.5, 0.3, 0.2 and top-p 0.6 the third is never drawn."""
        one = sampler(seed=1, top_p=0.6)
        logits = row(0.2, 0.5, 0.3)
        counts = np.bincount([one.sample(logits, 0) for _ in range(2_000)], minlength=3)

        assert counts[0] == 0
        assert counts[1] / 2_000 == pytest.approx(0.5 / 0.8, abs=0.04)

    def test_top_p_of_a_flat_row_looks_past_the_first_candidates(self):
        """A nucleus of many tokens is found, however many it takes."""
        one = sampler(seed=1, top_p=0.9)
        logits = np.zeros(5_000, np.float32)
        draws = {one.sample(logits, 0) for _ in range(3_000)}

        assert len(draws) > 1_500
        assert max(draws) < 4_501

    def test_end_token_is_forbidden_before_min_tokens(self):
        """The end token is the best, but comes only after two others."""
        one = sampler(temperature=0.0, min_tokens=2)
        logits = row(0.1, 0.2, 0.1, 0.6)
        before = logits.copy()

        assert [one.sample(logits, at) for at in range(3)] == [1, 1, 3]
        assert (logits == before).all()

    def test_logprobs_are_of_the_model_whatever_the_temperature(self):
        """The chosen token and the best ones, most likely first."""
        one = sampler(logprobs=2, temperature=0.2)
        report = one.logprob(row(0.2, 0.5, 0.3), 0)

        assert report.logprob == pytest.approx(np.log(0.2), abs=1e-5)
        assert [token for token, _ in report.top] == [1, 2]
        assert [value for _, value in report.top] == pytest.approx(
            np.log([0.5, 0.3]), abs=1e-5
        )
