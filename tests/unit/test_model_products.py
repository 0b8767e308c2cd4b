"""Rows times weights: every form gives the same product."""

import numpy as np
import pytest

from warmroute.adapters.embedded.model import products
from warmroute.adapters.embedded.model.arrays import F32
from warmroute.adapters.embedded.model.products import (
    FEW_ROWS,
    multiply,
    multiply_head,
)
from warmroute.adapters.embedded.model.scratch import Scratch

COUNTS = [1, 2, 3, FEW_ROWS, FEW_ROWS + 1]


def drawn(*shape: int) -> F32:
    return np.random.default_rng(3).standard_normal(shape, np.float32)


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("inputs", [64, 192, 100])
@pytest.mark.parametrize("outputs", [1, 90, 96])
def test_few_rows_and_many_give_one_product(
    count: int, inputs: int, outputs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where pieces are cut in both directions, and where none can be."""
    rows, weight = drawn(count, inputs), drawn(inputs, outputs)
    for limit in (100**3, 20_000, 2_000):
        monkeypatch.setattr(products, "UNPACKED", limit)
        out = np.full((count, outputs), np.nan, np.float32)
        assert multiply(rows, weight, out, Scratch()) is out
        np.testing.assert_allclose(out, rows @ weight, rtol=0, atol=1e-4)


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("outputs", [259, 32, 640])
def test_few_rows_and_many_give_one_product_with_the_head(
    count: int, outputs: int
) -> None:
    rows, head = drawn(count, 96), drawn(outputs, 96)
    out = np.full((count, outputs), np.nan, np.float32)
    assert multiply_head(rows, head, out) is out
    np.testing.assert_allclose(out, rows @ head.T, rtol=0, atol=1e-4)


def test_rows_that_are_not_side_by_side_are_multiplied_too() -> None:
    """The rows of one of several heads, for example."""
    rows, weight = drawn(4, 3, 64)[:, 1], drawn(64, 96)
    out = np.empty((4, 96), np.float32)
    np.testing.assert_allclose(
        multiply(rows, weight, out, Scratch()), rows @ weight, rtol=0, atol=1e-4
    )
