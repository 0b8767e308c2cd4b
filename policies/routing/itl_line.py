"""How the time between two tokens of a stream grows with the load beside it."""

from __future__ import annotations

from typing import Final

from warmroute.policies.routing.least_squares import solve_nonnegative

BASE_S: Final = 6.5e-3
REQUEST_S: Final = 25e-6
TOKEN_S: Final = 46e-9

_KEEP: Final = 0.995
_RIDGE: Final = 1e-3
_RIDGE_SAMPLES: Final = 0.5
_LEAST_GAIN: Final = 0.35  # of squared error, from where another shape counts
_MIN_SHARE: Final = 1e-6
_FLOOR: Final = 1e-6  # of all, so that what hardly occurs gets no price of its own
_GAIN: Final = 0.02
_STEP: Final = 4.0  # one stream may look this much faster or slower than expected


class ItlLine:
    """``scale * (base_s + request_s * requests + token_s * context tokens)``.

    Two things are learned of a stream. *scale* against the published line of an 8B
    model on one H100, by steps of bounded size: a level, sound after a few streams.
    And by `fit` the shape: what the base, a request and a token of context cost
    relative to each other, from the last 200 streams or so, if that explains them
    much better. Where streams do not tell two of them apart, they keep the proportion
    that they were published with.
    """

    __slots__ = (
        "_gram",
        "_has_news",
        "_samples",
        "_squares",
        "_target",
        "base_s",
        "request_s",
        "scale",
        "token_s",
    )

    def __init__(self) -> None:
        self.scale = 1.0
        self.base_s = BASE_S
        self.request_s = REQUEST_S
        self.token_s = TOKEN_S
        self._samples = 0
        self._squares = 0.0
        self._has_news = False
        self._gram = [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]
        self._target = [0.0, 0.0, 0.0]

    def __repr__(self) -> str:
        return (
            f"<ItlLine {1e3 * self.scale * self.base_s:.2f} ms + "
            f"{1e6 * self.scale * self.request_s:.0f} us a request + "
            f"{1e9 * self.scale * self.token_s:.0f} ns a token>"
        )

    def itl_s(self, requests: float, context_tokens: float) -> float:
        """Predict the seconds between two tokens of a stream."""
        shape = self.base_s + self.request_s * requests + self.token_s * context_tokens
        return self.scale * shape

    def learn(self, observed_s: float, requests: float, context_tokens: float) -> None:
        """Take in a finished stream.

        Args:
            observed_s: Mean seconds between its tokens.
            requests: Requests beside it and itself, the mean over its life.
            context_tokens: Prompt tokens of those, likewise.
        """
        by_request, by_token = REQUEST_S * requests, TOKEN_S * context_tokens
        published = BASE_S + by_request + by_token
        scale = self.scale
        ratio = observed_s / published
        ratio = min(max(ratio, scale / _STEP), scale * _STEP)
        self._samples += 1
        self.scale += max(_GAIN, 1.0 / self._samples) * (ratio - scale)
        expected = max(self.itl_s(requests, context_tokens), _MIN_SHARE * published)
        # Over what the line predicts, so that all errors are relative ones.
        parts = [BASE_S / expected, by_request / expected, by_token / expected]
        ratio *= published / expected
        for row in range(3):
            sums = self._gram[row]
            for column in range(3):
                sums[column] = _KEEP * sums[column] + parts[row] * parts[column]
            self._target[row] = _KEEP * self._target[row] + parts[row] * ratio
        self._squares = _KEEP * self._squares + ratio * ratio
        self._has_news = True

    def fit(self) -> None:
        """Bring the shape up to date; microseconds, and nothing without news."""
        if not self._has_news:
            return
        self._has_news = False
        scale = self.scale
        ridge = _RIDGE + _RIDGE_SAMPLES / self._samples
        gram = [sums.copy() for sums in self._gram]
        floor = _FLOOR * (gram[0][0] + gram[1][1] + gram[2][2])
        target = self._target.copy()
        for at in range(3):
            hold = ridge * gram[at][at] + floor
            gram[at][at] += hold
            target[at] += hold * scale
        found = solve_nonnegative(gram, target, [scale, scale, scale])
        trust = self._trust(found)
        base, request, token = (1.0 + trust * (one / scale - 1.0) for one in found)
        self.base_s = BASE_S * base
        self.request_s = REQUEST_S * request
        self.token_s = TOKEN_S * token

    def _trust(self, found: list[float]) -> float:
        """Return how far to go from the published shape to another, 0 to 1.

        Prefills that stop streams blur the shape: a fit to them finds a flatter line,
        and piles decodes up. So another shape must explain much more.
        """
        level = self._target[0] + self._target[1] + self._target[2]
        total = sum(map(sum, self._gram))
        published = self._error([level / total] * 3)
        if published <= 0.0:
            return 0.0
        gain = 1.0 - self._error(found) / published
        return min(1.0, max(0.0, (gain - _LEAST_GAIN) / _LEAST_GAIN))

    def _error(self, factors: list[float]) -> float:
        """Return the sum of the squared errors with these factors."""
        error = self._squares
        for row in range(3):
            error -= 2.0 * factors[row] * self._target[row]
            for column in range(3):
                error += factors[row] * factors[column] * self._gram[row][column]
        return error
