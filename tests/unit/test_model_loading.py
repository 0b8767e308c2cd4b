"""Models from files: what is read, and what is said of files that will not do."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from unit.model_files import TEMPLATE, write_gguf, write_safetensors
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

from warmroute.adapters.embedded.model import loading
from warmroute.adapters.embedded.model.arrays import F32
from warmroute.adapters.embedded.model.loading import LoadedModel, load_model
from warmroute.adapters.embedded.model.tiny import tiny_tokenizer
from warmroute.adapters.tokens.errors import ModelError

TEXT = "<|im_start|>user\nGrüße, 東京 42!<|im_end|>\n"
HF_CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": CONFIG.vocab_size,
    "hidden_size": CONFIG.hidden_size,
    "intermediate_size": CONFIG.intermediate_size,
    "num_hidden_layers": CONFIG.num_layers,
    "num_attention_heads": CONFIG.num_heads,
    "num_key_value_heads": CONFIG.num_kv_heads,
    "rms_norm_eps": CONFIG.norm_eps,
    "max_position_embeddings": 512,
    "eos_token_id": [2, 5],
    "bos_token_id": 1,
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A whole model as Hugging Face writes it."""
    place = tmp_path / "some-model"
    place.mkdir()
    (place / "config.json").write_text(json.dumps(HF_CONFIG))
    settings = {"bos_token": {"content": "<s>"}, "chat_template": TEMPLATE}
    (place / "tokenizer_config.json").write_text(json.dumps(settings))
    tiny_tokenizer().save(place / "tokenizer.json")
    write_safetensors(place / "model.safetensors", halved_tensors())
    return place


def edit(path: Path, **changes: object) -> None:
    values = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({k: v for k, v in values.items() if v is not None}))


def last_logits(loaded: LoadedModel) -> F32:
    ids = draw_ids(21)
    return run(loaded.model, make_store(), Part(ids, one_run(21)))[0]


EXPECTED = NaiveLlama(halved_tensors()).logits(draw_ids(21))[-1]


@pytest.mark.parametrize(
    ("kind", "tolerance"), [("F32", 2e-4), ("F16", 0.02), ("BF16", 0.15)]
)
def test_safetensors_of_every_float_are_read(
    folder: Path, kind: str, tolerance: float
) -> None:
    write_safetensors(folder / "model.safetensors", halved_tensors(), kind)
    loaded = load_model(str(folder))
    np.testing.assert_allclose(last_logits(loaded), EXPECTED, atol=tolerance)
    assert loaded.name == "some-model"
    assert loaded.model.config.eos_ids == loaded.tokenizer.eos_ids == (2, 5)
    assert loaded.tokenizer.render([{"content": "x"}]) == "<s>x"


def test_sharded_safetensors_are_read_together(folder: Path) -> None:
    tensors = halved_tensors()
    (folder / "model.safetensors").unlink()
    for at, name in enumerate(tensors):
        part = {name: tensors[name]}
        write_safetensors(folder / f"model-{at:05}.safetensors", part)
    np.testing.assert_allclose(
        last_logits(load_model(str(folder))), EXPECTED, atol=2e-4
    )


def test_a_tied_model_uses_its_embedding_as_head(folder: Path) -> None:
    tensors = halved_tensors()
    tensors["model.embed_tokens.weight"] = tensors.pop("lm_head.weight")
    write_safetensors(folder / "model.safetensors", tensors)
    tied = NaiveLlama(
        {**tensors, "lm_head.weight": tensors["model.embed_tokens.weight"]}
    )
    loaded = load_model(str(folder))
    np.testing.assert_allclose(
        last_logits(loaded), tied.logits(draw_ids(21))[-1], atol=2e-4
    )
    weights = loaded.model.weights
    assert weights.head is weights.embedding


def test_the_generation_config_names_the_ends(folder: Path) -> None:
    (folder / "generation_config.json").write_text('{"eos_token_id": 7}')
    (folder / "chat_template.jinja").write_text("file")
    loaded = load_model(str(folder))
    assert loaded.tokenizer.eos_ids == (7,)
    assert loaded.tokenizer.render([]) == "file"


def test_named_templates_give_the_default_one(folder: Path) -> None:
    templates = [
        {"name": "tool_use", "template": "tools"},
        {"name": "default", "template": "plain"},
    ]
    edit(folder / "tokenizer_config.json", chat_template=templates)
    assert load_model(str(folder)).tokenizer.render([]) == "plain"


def test_a_model_without_template_refuses_chats_only(folder: Path) -> None:
    (folder / "tokenizer_config.json").unlink()
    tokenizer = load_model(str(folder)).tokenizer
    assert tokenizer.decode(tokenizer.encode(TEXT), skip_special=False) == TEXT
    with pytest.raises(ModelError, match="no chat template"):
        tokenizer.encode_chat([])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"architectures": ["GPT2LMHeadModel"]},
            r"'GPT2LMHeadModel' is not Llama-shaped \(allowed: LlamaForCausalLM, ",
        ),
        ({"architectures": None, "model_type": None}, "architecture None"),
        ({"attention_bias": True}, r"attention_bias is True \(allowed: False\)"),
        ({"sliding_window": 128}, "sliding_window is 128"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"hidden_size": None}, "lacks a usable 'hidden_size'"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "'yarn' is not supported"),
        ({"vocab_size": 300}, r"embed_tokens.weight has shape \(259, 64\)"),
        (
            {"num_hidden_layers": 3},
            r"9 of 30 tensors are missing",
        ),
        ({"num_attention_heads": 5}, "5 query heads, 2 KV heads"),
    ],
)
def test_a_config_that_will_not_do_is_named(
    folder: Path, changes: dict[str, object], said: str
) -> None:
    edit(folder / "config.json", **changes)
    with pytest.raises(ModelError, match=said):
        load_model(str(folder))


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("config.json", None, "config.json: cannot be read"),
        ("config.json", b"{", "not JSON"),
        ("config.json", b"[]", "no JSON object"),
        ("tokenizer.json", None, "no tokenizer.json"),
        ("tokenizer.json", b"{}", "not a tokenizer"),
        ("model.safetensors", None, r"no \*.safetensors"),
        ("model.safetensors", b"", "not a whole safetensors file"),
        ("model.safetensors", b"\xff" * 20, "the header ends at"),
        ("model.safetensors", b"\2\0\0\0\0\0\0\0[]", "no JSON object"),
        ("model.safetensors", b"\2\0\0\0\0\0\0\0{}", "20 of 20 tensors are missing"),
    ],
)
def test_a_file_that_is_missing_or_damaged_is_named(
    folder: Path, name: str, content: bytes | None, said: str
) -> None:
    (folder / name).unlink() if content is None else (folder / name).write_bytes(
        content
    )
    with pytest.raises(ModelError, match=said):
        load_model(str(folder))


def test_truncated_safetensors_say_which_tensor_is_cut(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ModelError, match=r"tensor .* has \d+ of \d+ bytes"):
        load_model(str(folder))


def test_quantised_safetensors_are_refused(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes().replace(b'"F32"', b'"I32"', 1))
    with pytest.raises(ModelError, match=r"is I32 \(allowed: F32, F16, BF16, F64\)"):
        load_model(str(folder))


def test_a_path_that_is_nothing_says_what_may_be_there() -> None:
    with pytest.raises(ModelError, match=r"no model at no/such \(allowed: a GGUF"):
        load_model("no/such")


def test_a_tokenizer_of_another_kind_is_refused(folder: Path) -> None:
    edit(
        folder / "tokenizer.json",
        decoder={"type": "WordPiece", "prefix": "##", "cleanup": True},
    )
    with pytest.raises(ModelError, match=r"decodes by WordPiece \(allowed: ByteLevel"):
        load_model(str(folder))


def test_the_tiny_model_is_the_same_each_time() -> None:
    first, second = load_model("tiny"), load_model("tiny")
    np.testing.assert_array_equal(last_logits(first), last_logits(second))
    assert first.name == "tiny"
    assert first.tokenizer.vocab_size == first.model.config.vocab_size


def test_no_path_means_the_packaged_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_gguf(tmp_path / "m.gguf")
    monkeypatch.setattr(loading, "find_packaged", lambda: path)
    assert load_model().name == "smollm2-135m"
