"""Load a model with its tokenizer, wherever it comes from."""

from dataclasses import dataclass
from pathlib import Path

from warmroute.adapters.embedded.model.folder_config import (
    read_config,
    read_tokenizer,
)
from warmroute.adapters.embedded.model.gguf_weights import GGUFFile
from warmroute.adapters.embedded.model.llama import Llama
from warmroute.adapters.embedded.model.packaged import find_packaged
from warmroute.adapters.embedded.model.safetensors_weights import read_folder
from warmroute.adapters.embedded.model.tiny import TINY, tiny_model, tiny_tokenizer
from warmroute.adapters.embedded.model.weights import fuse_weights
from warmroute.adapters.tokens.errors import ModelError
from warmroute.adapters.tokens.gguf_tokenizer import build_files
from warmroute.adapters.tokens.tokenizer import ChatTokenizer

PACKAGED = "smollm2-135m"
"""The name of the model that is loaded when none is asked for."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model that can be talked to, under the name it is served by."""

    model: Llama
    tokenizer: ChatTokenizer
    name: str


def load_model(path: str | None = None) -> LoadedModel:
    """Load a model into memory as float32; takes seconds for 135 M weights.

    Args:
        path: A GGUF file; a folder with safetensors, config.json and
            tokenizer.json; ``tiny`` for a random model made in code; None for
            SmolLM2-135M-Instruct, fetched once (see `packaged`).

    Raises:
        ModelError: There is no such model, it is damaged, or it is not
            Llama-shaped.
    """
    if path is None:
        return _load_gguf(find_packaged(), PACKAGED)
    if path == TINY:
        return LoadedModel(tiny_model(), tiny_tokenizer(), TINY)
    place = Path(path).expanduser()
    if place.is_dir():
        return _load_folder(place)
    if place.is_file():
        return _load_gguf(place, place.stem)
    raise ModelError(
        f"no model at {path} (allowed: a GGUF file, a folder with safetensors, "
        f"config.json and tokenizer.json, or {TINY!r}); check the path"
    )


def _load_gguf(path: Path, name: str) -> LoadedModel:
    file = GGUFFile(path)
    tensors, divisors = file.tensors()
    config = file.config(divisors)
    files = build_files(file.metadata, str(path))
    tokenizer = ChatTokenizer.from_files(files, config.eos_ids)
    return LoadedModel(Llama(config, fuse_weights(tensors, config)), tokenizer, name)


def _load_folder(folder: Path) -> LoadedModel:
    config = read_config(folder)
    tokenizer = read_tokenizer(folder, config)
    tensors = read_folder(folder, config)
    model = Llama(config, fuse_weights(tensors, config))
    return LoadedModel(model, tokenizer, folder.resolve().name)
