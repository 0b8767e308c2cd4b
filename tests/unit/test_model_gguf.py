"""Models in one GGUF file: what is read, and what is said of other files."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFWriter
from unit.model_files import write_gguf
from unit.model_rig import (
    CONFIG,
    NaiveLlama,
    Part,
    draw_ids,
    halved_tensors,
    make_store,
    one_run,
    run,
)

from warmroute.adapters.embedded.model.loading import load_model
from warmroute.adapters.tokens.errors import ModelError


def adding(key: str, value: str) -> dict[str, Callable[[GGUFWriter], None]]:
    return {"change": lambda writer: writer.add_string(key, value)}


@pytest.mark.parametrize(
    ("kind", "tolerance"),
    [(GGMLQuantizationType.F32, 2e-4), (GGMLQuantizationType.Q8_0, 0.2)],
)
def test_gguf_gives_the_logits_of_its_weights(
    tmp_path: Path, kind: GGMLQuantizationType, tolerance: float
) -> None:
    loaded = load_model(str(write_gguf(tmp_path / "m.gguf", kind=kind)))
    ids = draw_ids(21)
    found = run(loaded.model, make_store(), Part(ids, one_run(21)))[0]
    expected = NaiveLlama(halved_tensors()).logits(ids)[-1]
    np.testing.assert_allclose(found, expected, atol=tolerance)
    assert loaded.name == "m"
    assert loaded.tokenizer.eos_ids == (2,)
    assert loaded.tokenizer.render([{"content": "x"}]) == "<|im_start|>x"


def test_words_are_merged_and_digits_are_not(tmp_path: Path) -> None:
    tokenizer = load_model(str(write_gguf(tmp_path / "m.gguf"))).tokenizer
    ids = tokenizer.encode("hi 42<|im_end|>")
    texts = [tokenizer.token(token_id) for token_id in ids]
    assert texts == ["hi", " ", "4", "2", "<|im_end|>"]


@pytest.mark.parametrize(
    ("splitting", "expected"),
    [
        ("llama-bpe", ["hi", " ", "1", "2", "3", "4", "\n", "\n"]),
        ("default", ["hi", " ", "1", "2", "3", "4", "\n", "\n"]),
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_other_ways_of_splitting_words_are_known(
    tmp_path: Path, splitting: str, expected: list[str]
) -> None:
    change = adding("tokenizer.ggml.pre", splitting)
    tokenizer = load_model(str(write_gguf(tmp_path / "m.gguf", **change))).tokenizer
    ids = tokenizer.encode("hi 1234\n\n")
    assert [tokenizer.token(token_id) for token_id in ids] == expected
    assert tokenizer.decode(ids) == "hi 1234\n\n"


def test_merges_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    def change(writer: GGUFWriter) -> None:
        writer.add_token_merges(["h o"])

    path = write_gguf(tmp_path / "m.gguf", change)
    with pytest.raises(ModelError, match="merges do not fit its vocabulary"):
        load_model(str(path))


def test_the_factors_of_a_gguf_file_stretch_rope(tmp_path: Path) -> None:
    divisors = np.linspace(1, 8, CONFIG.head_dim // 2, dtype=np.float32)
    path = write_gguf(
        tmp_path / "m.gguf",
        lambda writer: writer.add_tensor("rope_freqs.weight", divisors),
    )
    assert load_model(str(path)).model.config.rope_divisors == tuple(divisors)


def test_gguf_may_ask_for_a_first_token(tmp_path: Path) -> None:
    path = write_gguf(
        tmp_path / "m.gguf", lambda writer: writer.add_add_bos_token(True)
    )
    tokenizer = load_model(str(path)).tokenizer
    assert tokenizer.encode("a")[0] == 1
    assert tokenizer.encode("a", add_special=False)[0] != 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"architecture": "gpt2"}, r"'gpt2' is not Llama-shaped \(allowed: 'llama'\)"),
        (
            {"skip": "model.layers.1.self_attn.v_proj.weight"},
            "1 of 21 tensors are missing: model.layers.1.self_attn.v_proj.weight",
        ),
        ({"skip": "tokenizer"}, "no 'tokenizer.ggml.tokens'"),
        (
            adding("tokenizer.ggml.model", "llama"),
            r"tokenizer 'llama' is not supported \(allowed: 'gpt2'",
        ),
        (
            adding("tokenizer.ggml.pre", "qwen2"),
            "words are split as 'qwen2'",
        ),
        (
            adding("llama.rope.scaling.type", "yarn"),
            "rope scaling 'yarn' is not supported",
        ),
        (
            {
                "change": lambda writer: writer.add_tensor(
                    "blk.0.ffn_gate_exps.weight", np.zeros((2, 2), np.float32)
                )
            },
            "ffn_gate_exps.weight does not belong to a plain Llama",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_gguf_file_that_will_not_do_says_why(
    tmp_path: Path, options: dict[str, Any], said: str
) -> None:
    path = write_gguf(tmp_path / "m.gguf", **options)
    with pytest.raises(ModelError, match=said):
        load_model(str(path))


@pytest.mark.parametrize("kept", [0, 10, 2000, 60000, -100])
def test_a_truncated_gguf_file_is_refused(tmp_path: Path, kept: int) -> None:
    path = write_gguf(tmp_path / "m.gguf")
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(ModelError, match="not a whole GGUF file"):
        load_model(str(path))


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.bin"
    path.write_bytes(b"PK\3\4" + bytes(4096))
    with pytest.raises(ModelError, match="not a whole GGUF file"):
        load_model(str(path))
