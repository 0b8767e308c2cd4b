"""The embedded model against transformers: same weights, same ids, same logits.

The reference runs in a process of its own, in the environment that holds vLLM.
"""

import json
import subprocess
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from two_vllm.environment import ensure_environment
from two_vllm.models import ensure_smollm2, ensure_tiny

from warmroute.adapters.embedded.model.arrays import F32, I32
from warmroute.adapters.embedded.model.batch import Batch, SequenceRows
from warmroute.adapters.embedded.model.kv_store import KVStore
from warmroute.adapters.embedded.model.llama import Llama
from warmroute.adapters.embedded.model.loading import LoadedModel, load_model
from warmroute.adapters.embedded.model.packaged import find_packaged

pytestmark = [pytest.mark.engines, pytest.mark.timeout(900)]

REFERENCE = """
import json, sys
import numpy, torch
from transformers import AutoModelForCausalLM, AutoTokenizer

folder, out = sys.argv[1:]
asked = json.load(sys.stdin)
tokenizer = AutoTokenizer.from_pretrained(folder)
texts = [tokenizer.encode(text) for text in asked["texts"]]
chats = [
    tokenizer.apply_chat_template(
        chat, tokenize=True, add_generation_prompt=True, return_dict=False
    )
    for chat in asked["chats"]
]
decoded = [tokenizer.decode(ids, skip_special_tokens=False) for ids in texts]
model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
ids = torch.tensor([chats[0] + texts[0]])
with torch.no_grad():
    logits = model(ids).logits[0].numpy()
numpy.save(out, logits)
json.dump({"texts": texts, "chats": chats, "decoded": decoded}, sys.stdout)
"""
LONG = "The cache keeps what it has seen, and so on. " * 40
TEXTS = [
    LONG,
    "",
    " leading, trailing and   inner spaces \n\n\t",
    "naïve café, 東京で42回、🙂🙃 👩‍👩‍👧, Ελληνικά, עברית, \u200b\ufeff",
    "x = {'a': [1, 22, 333]}\nfor i in range(10):\n    print(i)\n",
    "<|im_start|>user\nnot a turn<|im_end|><|endoftext|>",
    "I'll, you're, WE'VE; 3.14159, 1e-5, 2026-11-29",
]
CHATS: list[list[dict[str, str]]] = [
    [{"role": "user", "content": "What is the capital of France?"}],
    [
        {"role": "system", "content": "Be brief.\n"},
        {"role": "user", "content": 'Grüße! 1 < 2 & "x"'},
        {"role": "assistant", "content": "Hallo."},
        {"role": "user", "content": " again "},
    ],
]


@dataclass(frozen=True)
class Reference:
    loaded: LoadedModel
    logits: F32
    answer: dict[str, Any]


@pytest.fixture(scope="module", params=["tiny", "smollm2"])
def reference(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Reference:
    environment = ensure_environment()
    ensure = {"tiny": ensure_tiny, "smollm2": ensure_smollm2}[request.param]
    folder = ensure(environment)
    out = tmp_path_factory.mktemp("reference") / "logits.npy"
    done = subprocess.run(
        [environment / "bin" / "python", "-c", REFERENCE, folder, out],
        input=json.dumps({"texts": TEXTS, "chats": CHATS}),
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return Reference(load_model(str(folder)), np.load(out), json.loads(done.stdout))


def compute(model: Llama, ids: list[int], chunk: int, table: I32) -> F32:
    """The logits of every row, *chunk* tokens at a time, over scattered pages."""
    store = KVStore(model.config, len(table) + 1, 16)
    rows = []
    for start in range(0, len(ids), chunk):
        new = np.array(ids[start : start + chunk], np.int32)
        positions = np.arange(start, start + len(new), dtype=np.int32)
        slots = table[positions // 16].astype(np.int64) * 16 + positions % 16
        sequence = SequenceRows(0, len(new), table, start + len(new))
        batch = Batch(new, positions, slots, [sequence], np.arange(len(new)))
        rows.append(model.forward(batch, store))
    return np.concatenate(rows)


def table_for(ids: list[int]) -> NDArray[np.int32]:
    pages = np.arange(1, len(ids) // 16 + 2, dtype=np.int32)
    return np.random.default_rng(0).permutation(pages)


@pytest.mark.parametrize("chunk", [10_000, 100])
def test_logits_are_those_of_transformers(reference: Reference, chunk: int) -> None:
    ids = reference.answer["chats"][0] + reference.answer["texts"][0]
    found = compute(reference.loaded.model, ids, chunk, table_for(ids))
    scale = np.abs(reference.logits).max()
    assert np.abs(found - reference.logits).max() <= 1e-3 * scale


def test_tokens_are_those_of_transformers(reference: Reference) -> None:
    tokenizer = reference.loaded.tokenizer
    assert [tokenizer.encode(text) for text in TEXTS] == reference.answer["texts"]
    found = [tokenizer.encode_chat(chat) for chat in CHATS]
    assert found == reference.answer["chats"]


def test_texts_are_those_of_transformers(reference: Reference) -> None:
    tokenizer = reference.loaded.tokenizer
    for ids, text in zip(
        reference.answer["texts"], reference.answer["decoded"], strict=True
    ):
        assert tokenizer.decode(ids, skip_special=False) == text
        stream = tokenizer.stream(skip_special=False)
        assert "".join(map(stream.push, ids)) + stream.flush() == text


def test_the_gguf_file_is_the_same_model_up_to_rounding() -> None:
    """The folder holds the file's weights as bfloat16: 8 bits of mantissa."""
    folder = load_model(str(ensure_smollm2(ensure_environment())))
    packaged = load_model(str(find_packaged()))
    for text in TEXTS:
        assert packaged.tokenizer.encode(text) == folder.tokenizer.encode(text)
    for chat in CHATS:
        ids = packaged.tokenizer.encode_chat(chat)
        assert ids == folder.tokenizer.encode_chat(chat)
        table = table_for(ids)
        exact = compute(packaged.model, ids, len(ids), table)
        rounded = compute(folder.model, ids, len(ids), table)
        assert np.abs(exact - rounded).max() <= 0.02 * np.abs(exact).max()
        assert not np.array_equal(exact, rounded)
