"""What an engine refuses, and how it says so."""

import math

import pytest

from warmroute.adapters.embedded.engine.options import EngineOptions
from warmroute.adapters.embedded.engine.request import (
    EngineRefused,
    GenerationRequest,
    Limits,
)
from warmroute.policies.errors import ConfigError

LIMITS = Limits(max_model_len=100, max_num_seqs=8, vocab_size=50)


def refusal(prompt=(1, 2, 3), **fields) -> EngineRefused:
    with pytest.raises(EngineRefused) as refused:
        LIMITS.check(GenerationRequest("r", list(prompt), **fields))
    return refused.value


class TestLimits:
    def test_takes_a_request_that_fits_exactly(self):
        """Prompt and output may fill the context."""
        request = GenerationRequest("r", [1] * 60, max_tokens=40)
        LIMITS.check(request)

        assert LIMITS.longest_output(request) == 40

    def test_no_max_tokens_is_all_that_fits(self):
        """The output may take what the prompt leaves."""
        request = GenerationRequest("r", [1] * 60, max_tokens=None)
        LIMITS.check(request)

        assert LIMITS.longest_output(request) == 40

    def test_long_prompt_is_refused_with_length_limit_and_remedy(self):
        """The message names the prompt's length and what is allowed."""
        error = refusal([1] * 100)

        assert (error.status, error.code) == (400, "context_length_exceeded")
        assert "has 100 tokens (allowed: 99" in error.message
        assert error.param == "prompt"

    def test_output_that_does_not_fit_is_refused_with_what_does(self):
        """The message says to what max_tokens must be lowered."""
        error = refusal([1] * 60, max_tokens=41)

        assert error.code == "context_length_exceeded"
        assert "lower max_tokens to 40" in error.message

    def test_empty_prompt_is_refused(self):
        """There is nothing to continue."""
        assert refusal([]).code == "empty_prompt"

    @pytest.mark.parametrize("token", [-1, 50])
    def test_token_outside_the_vocabulary_is_refused(self, token):
        """The message names the token."""
        error = refusal([1, token])

        assert error.code == "token_out_of_vocabulary"
        assert f"token id {token} (allowed: 0 to 49)" in error.message

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("max_tokens", 0),
            ("temperature", -0.1),
            ("temperature", math.nan),
            ("temperature", math.inf),
            ("top_p", 0.0),
            ("top_p", 1.1),
            ("top_p", math.nan),
            ("n", 0),
            ("n", 9),
            ("logprobs", 21),
            ("min_tokens", 17),
            ("stop", ("",)),
            ("stop", ("a",) * 17),
        ],
    )
    def test_value_out_of_range_is_refused_by_name(self, field, value):
        """The error points at the field."""
        error = refusal(**{field: value})

        assert (error.code, error.param) == ("invalid_parameter", field)
        assert "allowed:" in error.message


class TestEngineOptions:
    def test_longest_sequence_is_bounded_by_blocks_and_positions(self):
        """The smaller of the two counts when nothing is asked for."""
        options = EngineOptions(num_blocks=10, block_size=16)

        assert options.longest(2048) == 160
        assert options.longest(128) == 128

    def test_longest_sequence_that_cannot_be_held_is_refused(self):
        """The message names model, blocks and remedy."""
        options = EngineOptions(num_blocks=10, block_size=16, max_model_len=161)

        with pytest.raises(ConfigError, match=r"161 \(allowed: 2 to 160: .*10 blocks"):
            options.longest(2048)

    @pytest.mark.parametrize(
        "field",
        [
            *("num_blocks", "block_size", "max_num_seqs"),
            *("max_batched_tokens", "max_shared_tokens"),
        ],
    )
    def test_zero_is_refused(self, field):
        """Sizes start at one."""
        with pytest.raises(ConfigError, match=f"{field} is 0"):
            EngineOptions(**{field: 0})

    @pytest.mark.parametrize("field", ["max_batched_tokens", "max_shared_tokens"])
    def test_step_must_have_room_for_each_sequence(self, field):
        """More sequences than tokens a step would starve some."""
        with pytest.raises(ConfigError, match=f"{field} is 4"):
            EngineOptions(max_num_seqs=8, **{field: 4})
