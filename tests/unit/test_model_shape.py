"""The shape of a model: its pages, its RoPE, and what does not fit together."""

from dataclasses import replace

import numpy as np
import pytest
from unit.model_rig import (
    BLOCK,
    CONFIG,
    NaiveLlama,
    Part,
    draw_ids,
    halved_tensors,
    make_model,
    make_store,
    one_run,
    run,
)

from warmroute.adapters.embedded.model.kv_store import KVStore
from warmroute.adapters.embedded.model.rope import read_divisors
from warmroute.adapters.tokens.errors import ModelError

CLOSE = {"rtol": 0, "atol": 2e-4}


def test_pages_are_copied_read_and_written_whole() -> None:
    store = make_store()
    random = np.random.default_rng(0)
    for pair in store.pairs:
        pair[:] = random.standard_normal(pair.shape)
    page = store.read_page(3)
    width = (CONFIG.num_layers, 2, CONFIG.num_kv_heads, BLOCK, CONFIG.head_dim)
    assert page.shape == width
    store.copy_page(3, 7)
    np.testing.assert_array_equal(store.read_page(7), page)
    np.testing.assert_array_equal(store.keys[1][:, 12:16], page[1, 0])
    store.write_page(3, page * 2)
    np.testing.assert_array_equal(store.values[0][:, 12:16], page[0, 1] * 2)
    np.testing.assert_array_equal(store.read_page(7), page)
    assert store.nbytes == 64 * BLOCK * CONFIG.kv_bytes_per_token


@pytest.mark.parametrize(
    "scaling",
    [
        {"rope_type": "linear", "factor": 4.0},
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    ],
)
def test_scaled_rope_slows_the_slow_pairs(scaling: dict[str, object]) -> None:
    divisors = read_divisors(scaling, 10000.0, CONFIG.head_dim, "m")
    factor = scaling["factor"]
    assert divisors[-1] == pytest.approx(factor)
    assert divisors[0] == pytest.approx(factor if len(scaling) == 2 else 1.0)
    assert list(divisors) == sorted(divisors)
    config = replace(CONFIG, rope_divisors=divisors)
    naive = NaiveLlama(halved_tensors(config), config)
    ids = draw_ids(30)
    found = run(make_model(config), make_store(), Part(ids, one_run(30)))
    np.testing.assert_allclose(found[0], naive.logits(ids)[-1], **CLOSE)


@pytest.mark.parametrize(
    ("scaling", "said"),
    [
        ({"rope_type": "yarn", "factor": 2.0}, "'yarn' is not supported"),
        ({"type": "linear"}, "lacks a usable 'factor'"),
    ],
)
def test_other_rope_scaling_is_refused(scaling: dict[str, object], said: str) -> None:
    with pytest.raises(ModelError, match=said):
        read_divisors(scaling, 10000.0, 64, "m")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"num_layers": 0}, "num_layers is 0"),
        ({"num_kv_heads": 3}, "4 query heads, 3 KV heads"),
        ({"head_dim": 15}, "of an even width"),
        ({"rope_divisors": (1.0,)}, "1 RoPE divisors"),
    ],
)
def test_a_config_that_does_not_fit_together_is_refused(
    change: dict[str, object], said: str
) -> None:
    with pytest.raises(ModelError, match=said):
        replace(CONFIG, **change)


def test_a_store_without_pages_is_refused() -> None:
    with pytest.raises(ModelError, match="0 pages of 4 slots"):
        KVStore(CONFIG, 0, 4)


@pytest.mark.parametrize("pages", [1 << 45, 1 << 60])
def test_a_store_larger_than_memory_says_its_size(pages: int) -> None:
    with pytest.raises(ModelError, match=r"no memory for .* \(\d+\.\d GB\)"):
        KVStore(CONFIG, pages, 16)
