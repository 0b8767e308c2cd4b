"""Sequences under a token budget, on the tiny model."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from warmroute.adapters.embedded.budget.host_attention import HostAttention
from warmroute.adapters.embedded.budget.options import (
    METHODS,
    BudgetOptions,
    BudgetRefused,
)
from warmroute.adapters.embedded.budget.rules import TokenRules
from warmroute.adapters.embedded.model.batch import Batch, SequenceRows
from warmroute.adapters.embedded.model.kv_store import KVStore
from warmroute.adapters.embedded.model.tiny import tiny_model

BLOCK = 4
PROMPT, NEW = 30, 12
MODEL = tiny_model()
IDS = np.random.default_rng(7).integers(3, 200, PROMPT + NEW).astype(np.int32)
LAYERS, HEADS = MODEL.config.num_layers, MODEL.config.num_kv_heads


class Decoding:
    """One sequence: a prefill in scattered pages, then a token a step."""

    def __init__(self, options: BudgetOptions | None, private_step: int = 1) -> None:
        self.store = KVStore(MODEL.config, 64, BLOCK)
        self.table = np.array([9, 3, 4, 12, 1, 20, 2, 17, 5, 11, 30], np.int32)
        self.scores = np.zeros((LAYERS, HEADS, PROMPT), np.float32)
        self.logits = [self._prefill()]
        self.attention = None
        if options is not None:
            rules = TokenRules()
            pages = rules.pages_needed(options, PROMPT, PROMPT + NEW, BLOCK)
            self.private = [40 + private_step * at for at in range(pages)]
            self.attention = rules.start(
                options,
                MODEL,
                self.store,
                self.table.tolist(),
                self.private,
                PROMPT,
                self.scores if rules.is_observed(options) else None,
            )
            for page in self.table:  # given back: somebody else writes there now
                self.store.write_page(page, np.full((1, 1, 1, BLOCK, 1), np.nan))

    def run(self) -> np.ndarray:
        self.logits += [self._step(at) for at in range(PROMPT, PROMPT + NEW)]
        return np.array(self.logits)

    def _slot(self, position: int) -> int:
        return int(self.table[position // BLOCK]) * BLOCK + position % BLOCK

    def _prefill(self) -> np.ndarray:
        slots = np.array([self._slot(at) for at in range(PROMPT)])
        rows = SequenceRows(0, PROMPT, self.table, PROMPT, None, self.scores)
        positions = np.arange(PROMPT, dtype=np.int32)
        last = np.array([PROMPT - 1])
        batch = Batch(IDS[:PROMPT], positions, slots, [rows], last)
        return MODEL.forward(batch, self.store)[0]

    def _step(self, at: int) -> np.ndarray:
        rows = SequenceRows(0, 1, self.table, at + 1, self.attention)
        slots = np.array([self._slot(at)])
        position = np.array([at], np.int32)
        batch = Batch(IDS[at : at + 1], position, slots, [rows], np.array([0]))
        return MODEL.forward(batch, self.store)[0]


@pytest.fixture(scope="module")
def full() -> np.ndarray:
    return Decoding(None).run()


@pytest.mark.parametrize("method", ["window", "sinks", "h2o", "infinigen"])
@pytest.mark.parametrize("tokens", [PROMPT + NEW, 500])
def test_a_budget_that_is_never_reached_changes_nothing(method, tokens, full):
    decoding = Decoding(BudgetOptions(method, tokens=tokens, alpha=np.inf))
    np.testing.assert_allclose(decoding.run(), full, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("method", ["window", "sinks", "h2o", "infinigen"])
def test_a_smaller_budget_changes_the_logits(method, full):
    logits = Decoding(BudgetOptions(method, tokens=8)).run()
    assert np.isfinite(logits).all()
    assert np.abs(logits - full).max() > 1e-3


def test_full_keeps_every_token_in_pages_of_its_own(full):
    decoding = Decoding(BudgetOptions("full"))
    assert len(decoding.private) == -(-(PROMPT + NEW) // BLOCK)
    np.testing.assert_allclose(decoding.run(), full, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("method", ["window", "h2o", "infinigen"])
def test_scattered_private_pages_give_the_same_logits(method):
    options = BudgetOptions(method, tokens=10)
    together = Decoding(options).run()
    apart = Decoding(options, private_step=2).run()
    np.testing.assert_allclose(apart, together, rtol=1e-5, atol=1e-5)


def test_a_window_equals_attention_to_the_newest_tokens_only():
    """Recompute the first layer's output of one step by hand."""
    decoding = Decoding(BudgetOptions("window", tokens=8))
    attention = decoding.attention
    heads = MODEL.config.num_heads
    random = np.random.default_rng(5)
    width = MODEL.config.head_dim
    keys = random.normal(size=(10, HEADS, width)).astype(np.float32)
    values = random.normal(size=(10, HEADS, width)).astype(np.float32)
    queries = random.normal(size=(10, heads, width)).astype(np.float32)
    for at in range(10):
        for layer in range(LAYERS):
            out = attention.attend(layer, None, queries[at], keys[at], values[at])
    for head in range(heads):
        group = head // (heads // HEADS)
        scores = keys[2:, group] @ queries[9, head] / width**0.5
        weights = np.exp(scores) / np.exp(scores).sum()
        np.testing.assert_allclose(out[head], weights @ values[2:, group], rtol=1e-4)


def test_h2o_keeps_what_the_prefill_attended_to():
    """The prompt's heavy hitters survive in the heads whose scores name them."""
    decoding = Decoding(BudgetOptions("h2o", tokens=8))
    for layer, kept in enumerate(decoding.attention._kept):
        for head in range(HEADS):
            scores = decoding.scores[layer, head, : PROMPT - 3]
            heavy = set(np.argsort(-scores)[:5].tolist())
            assert heavy < set(kept.positions[head].tolist())


class TestInfiniGen:
    def start(self, **fields: object) -> Decoding:
        return Decoding(BudgetOptions("infinigen", **fields))

    def test_it_moves_what_it_fetches_and_no_more_than_the_cap(self):
        decoding = self.start(tokens=9, alpha=np.inf)
        decoding.run()
        assert isinstance(decoding.attention, HostAttention)
        token = 2 * HEADS * MODEL.config.head_dim * 4
        assert decoding.attention.fetched_bytes == NEW * LAYERS * 8 * token

    def test_a_small_alpha_moves_less(self):
        narrow, wide = self.start(tokens=20, alpha=0.5), self.start(tokens=20, alpha=9)
        narrow.run()
        wide.run()
        assert narrow.attention.fetched_bytes < wide.attention.fetched_bytes

    def test_a_token_passed_over_comes_back_when_it_matters(self):
        """Eviction is recoverable: the first token is far, then fetched again."""
        decoding = self.start(tokens=8, alpha=np.inf, partial=1.0)
        attention, width = decoding.attention, MODEL.config.head_dim
        heads, hidden = MODEL.config.num_heads, MODEL.config.hidden_size
        needle = np.zeros((HEADS, width), np.float32)
        needle[:, -1] = 40  # the slowest pair: hardly turned
        quiet = np.zeros((heads, width), np.float32)
        seek = np.repeat(needle, heads // HEADS, axis=0)
        inputs = np.zeros(hidden, np.float32)
        marked = np.ones((HEADS, width), np.float32)

        def step(queries, keys, values):
            out = attention.attend(0, inputs, queries, keys, values)
            for layer in range(1, LAYERS):
                attention.attend(layer, inputs, quiet, 0 * keys, 0 * values)
            return out

        step(quiet, needle, marked)
        for _ in range(20):
            step(-seek, 0 * needle, 0 * marked)
        out = step(seek, 0 * needle, 0 * marked)
        np.testing.assert_allclose(out, 1, atol=1e-3)

    @pytest.mark.parametrize("victims", ["counter", "fifo", "lru"])
    @pytest.mark.parametrize("host_tokens", [16, PROMPT + 4])
    def test_host_memory_keeps_its_limit(self, victims, host_tokens):
        decoding = self.start(tokens=10, host_tokens=host_tokens, victims=victims)
        assert np.isfinite(decoding.run()).all()
        for layer in decoding.attention._layers:
            assert layer.part.shape[1] == host_tokens
            layer._pool.check_integrity()

    def test_a_limit_far_away_takes_no_memory(self, full):
        """Memory grows with the sequence, whatever limit a client names."""
        decoding = self.start(tokens=500, alpha=np.inf, host_tokens=10**15)
        np.testing.assert_allclose(decoding.run(), full, rtol=1e-4, atol=1e-4)

    def test_closing_lets_go_of_host_memory(self):
        decoding = self.start(tokens=10)
        decoding.attention.close()
        assert "0 layers" in repr(decoding.attention)

    def test_one_preparation_serves_all_sequences_of_a_model(self):
        rules, options = TokenRules(), BudgetOptions("infinigen", tokens=8)
        store = KVStore(MODEL.config, 8, BLOCK)
        for _ in range(2):
            rules.start(options, MODEL, store, [1, 2], [3, 4], 6, None)
        assert repr(rules) == "<TokenRules, 1 prepared>"

    def test_shares_that_clients_make_up_do_not_pile_up(self):
        rules, store = TokenRules(), KVStore(MODEL.config, 8, BLOCK)
        for partial in (0.1, 0.4, 0.401, 0.6, 0.9):
            options = BudgetOptions("infinigen", tokens=8, partial=partial)
            rules.start(options, MODEL, store, [1, 2], [3, 4], 6, None)
        assert repr(rules) == "<TokenRules, 2 prepared>"


class TestBudgetOptions:
    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            ({"method": "h20", "tokens": 64}, "method: unknown method 'h20'.*'h2o'"),
            ({"method": "h2o"}, "neither is given"),
            ({"method": "h2o", "tokens": 64, "share": 0.2}, "both are given"),
            ({"method": "full", "tokens": 64}, "leave tokens and share out"),
            ({"method": "h2o", "share": 0.0}, "share: 0.0"),
            ({"method": "h2o", "share": 1.5}, "share: 1.5"),
            ({"method": "h2o", "share": float("nan")}, "share: nan"),
            ({"method": "h2o", "tokens": 7}, "tokens: 7 .*8 or more"),
            ({"method": "h2o", "tokens": 8, "sinks": 5}, "tokens: 8 .*10 or more"),
            ({"method": "h2o", "tokens": 8, "recent": 9}, "tokens: 8 .*9 or more"),
            ({"method": "window", "tokens": 8, "sinks": 4}, "sinks: 4 with .*'window'"),
            ({"method": "sinks", "tokens": 8, "recent": 4}, "recent: 4 with .*'sinks'"),
            ({"method": "h2o", "tokens": 64, "sinks": -1}, "sinks: -1"),
            ({"method": "h2o", "tokens": 64, "host_tokens": 64}, "with infinigen"),
            ({"method": "infinigen", "tokens": 64, "alpha": -1.0}, "alpha: -1.0"),
            ({"method": "infinigen", "tokens": 64, "partial": 0.0}, "partial: 0.0"),
            ({"method": "infinigen", "tokens": 64, "victims": "fif"}, "'fifo'"),
            ({"method": "infinigen", "tokens": 64, "host_tokens": 4}, "host_tokens: 4"),
        ],
    )
    def test_nonsense_is_refused_with_the_field_and_the_remedy(self, fields, message):
        with pytest.raises(BudgetRefused, match=message) as caught:
            BudgetOptions(**fields)
        assert caught.value.status == 400
        assert caught.value.code == "invalid_kv_budget"

    @pytest.mark.parametrize(
        ("fields", "budget"),
        [
            ({"method": "h2o", "tokens": 64}, 64),
            ({"method": "h2o", "share": 0.2}, 21),
            ({"method": "h2o", "share": 0.01}, 8),
            ({"method": "sinks", "share": 0.01, "sinks": 10}, 20),
            ({"method": "full"}, 300),
        ],
    )
    def test_the_budget_counts_tokens(self, fields, budget):
        assert BudgetOptions(**fields).budget(101, 300) == budget

    @pytest.mark.parametrize(("tokens", "pages"), [(8, 1), (17, 2), (33, 3), (500, 5)])
    def test_a_sequence_has_pages_for_its_budget_or_for_all_its_tokens(
        self, tokens, pages
    ):
        options = BudgetOptions("h2o", tokens=tokens)
        assert TokenRules().pages_needed(options, 60, 80, 16) == pages

    def test_only_what_goes_by_attention_is_observed(self):
        rules = TokenRules()
        observed = {
            method: rules.is_observed(BudgetOptions(method, tokens=64))
            for method in ("window", "sinks", "h2o", "infinigen")
        }
        assert [name for name, is_it in observed.items() if is_it] == ["h2o"]
        limited = BudgetOptions("infinigen", tokens=64, host_tokens=64)
        assert rules.is_observed(limited)
        assert rules.is_whole(BudgetOptions("full"))


@pytest.mark.parametrize(
    "name", [field.name for field in dataclasses.fields(BudgetOptions)] + list(METHODS)
)
def test_fields_and_methods_of_a_budget_are_documented(name):
    page = Path(__file__).parents[2] / "docs" / "token-eviction.md"
    assert f"`{name}`" in page.read_text()
