"""The memo: never a wrong answer, never above its cap."""

import tracemalloc
from array import array
from collections import OrderedDict
from threading import Thread

from hypothesis import given, settings
from hypothesis import strategies as st

from warmroute.proxy.prompt.memo import TokenMemo, _weight

TEXTS = st.text("abé世", min_size=1, max_size=40)


def tokens_of(text: str) -> "array[int]":
    return array("I", list(text.encode()))


def test_what_is_stored_is_found_for_its_owner_only():
    memo = TokenMemo()
    memo.store(1, ["a", "b"], [tokens_of("a"), tokens_of("b")])
    assert memo.find(1, ["b", "c", "a"]) == [tokens_of("b"), None, tokens_of("a")]
    assert memo.find(2, ["a"]) == [None]
    assert (memo.num_found, memo.num_stored) == (2, 2)


def test_the_oldest_use_goes_first():
    memo = TokenMemo(5 * _weight("a", tokens_of("a")))
    for text in "abcde":
        memo.store(1, [text], [tokens_of(text)])
        memo.find(1, ["a"])
    memo.store(1, ["f"], [tokens_of("f")])
    assert [text for text in "abcdef" if memo.find(1, [text])[0]] == list("acdef")


def test_a_text_above_a_quarter_of_the_cap_is_not_kept():
    memo = TokenMemo(4000)
    memo.store(1, ["x" * 900], [tokens_of("x")])
    assert memo.find(1, ["x" * 900]) == [None]
    assert memo.num_bytes == 0


@settings(max_examples=200, deadline=None)
@given(st.lists(st.lists(TEXTS, min_size=1, max_size=5), max_size=30))
def test_it_answers_as_a_plain_dictionary_with_the_same_cap(rounds):
    memo = TokenMemo(2000)
    model: OrderedDict[str, array[int]] = OrderedDict()
    for texts in rounds:
        found = memo.find(7, texts)
        for text, known in zip(texts, found, strict=True):
            assert known == model.get(text)
            if text in model:
                model.move_to_end(text)
        new = list(dict.fromkeys(text for text in texts if text not in model))
        memo.store(7, new, [tokens_of(text) for text in new])
        for text in new:
            if _weight(text, tokens_of(text)) <= 500:
                model[text] = tokens_of(text)
        while sum(_weight(text, kept) for text, kept in model.items()) > 2000:
            model.popitem(last=False)
        assert memo.num_bytes == sum(_weight(t, kept) for t, kept in model.items())
        assert memo.num_bytes <= 2000


def test_threads_leave_its_books_in_order():
    memo = TokenMemo(20_000)

    def work(seed: int) -> None:
        for at in range(2000):
            text = str((at * 31 + seed) % 200)
            if memo.find(1, [text])[0] is None:
                memo.store(1, [text], [tokens_of(text)])

    threads = [Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    kept = memo._known.items()
    assert memo.num_bytes == sum(_weight(key[1], tokens) for key, tokens in kept)
    assert memo.num_bytes <= 20_000


def test_it_takes_no_more_memory_than_it_says():
    """Measured by the interpreter's own account, over 20,000 entries."""
    texts = [f"{at} " + "x" * (at % 50) for at in range(20_000)]
    tracemalloc.start()
    try:
        memo = TokenMemo()
        before, _ = tracemalloc.get_traced_memory()
        for text in texts:
            memo.store(1, [text[:-1]], [tokens_of(text)])
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before <= memo.num_bytes <= 1.5 * (after - before)
