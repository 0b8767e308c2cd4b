"""Tensors of a folder with ``*.safetensors``, as Hugging Face writes it.

The format: 8 bytes with the length of a JSON header, the header, the data. NumPy has
no bfloat16, so its 16 bits become the upper half of a float32.
"""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warmroute.adapters.embedded.model.arrays import F32
from warmroute.adapters.embedded.model.config import LlamaConfig
from warmroute.adapters.embedded.model.rope import pair_up
from warmroute.adapters.tokens.errors import ModelError

Bytes = NDArray[np.uint8]

_LENGTH_BYTES = 8
_DTYPES = {"F32": "<f4", "F16": "<f2", "BF16": "<u2", "F64": "<f8"}


def read_folder(folder: Path, config: LlamaConfig) -> dict[str, F32]:
    """Read all tensors of *folder* as float32, Q and K in RoPE pairs.

    Raises:
        ModelError: No file, a damaged one, or numbers of an unknown type.
    """
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ModelError(
            f"{folder}: no *.safetensors (allowed: a GGUF file, or a folder with "
            "safetensors, config.json and tokenizer.json)"
        )
    heads = {"q_proj": config.num_heads, "k_proj": config.num_kv_heads}
    tensors = {}
    for file in files:
        for name, tensor in _read_file(file):
            part = name.removesuffix(".weight").rpartition(".")[2]
            if part in heads and tensor.ndim == 2:
                tensor = _paired(name, tensor, heads[part])
            tensors[name] = tensor
    return tensors


def _paired(name: str, tensor: F32, num_heads: int) -> F32:
    if len(tensor) % (2 * num_heads):
        raise ModelError(
            f"tensor {name} has {len(tensor)} rows, which are not {num_heads} heads "
            "of an even width; config and weights are of different models"
        )
    return pair_up(tensor, num_heads)


def _read_file(path: Path) -> Iterator[tuple[str, F32]]:
    try:
        data: Bytes = np.memmap(path, np.uint8, mode="r")
        header, start = _read_header(data)
        for name, entry in header.items():
            if name != "__metadata__":
                first, stop = entry["data_offsets"]
                yield name, _decode(data[start:][first:stop], entry, path, name)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(
            f"{path}: not a whole safetensors file ({error}); fetch it again"
        ) from error


def _read_header(data: Bytes) -> tuple[dict[str, Any], int]:
    start = _LENGTH_BYTES + int.from_bytes(data[:_LENGTH_BYTES].tobytes(), "little")
    if start > len(data):
        raise ValueError(f"the header ends at {start}, the file at {len(data)}")
    header = json.loads(data[_LENGTH_BYTES:start].tobytes())
    if not isinstance(header, dict):
        raise ValueError("the header is no JSON object")
    return header, start


def _decode(data: Bytes, entry: dict[str, Any], path: Path, name: str) -> F32:
    kind, shape = entry["dtype"], entry["shape"]
    dtype = _DTYPES.get(kind)
    if dtype is None:
        raise ModelError(
            f"{path}: tensor {name} is {kind} (allowed: {', '.join(_DTYPES)}); choose "
            "weights that are not quantised, or a GGUF file"
        )
    size = math.prod(shape) * np.dtype(dtype).itemsize
    if len(data) != size:
        raise ValueError(f"tensor {name} has {len(data)} of {size} bytes")
    numbers = np.frombuffer(data, dtype)
    if kind == "BF16":
        numbers = (numbers.astype(np.uint32) << 16).view(np.float32)
    return numbers.astype(np.float32, copy=False).reshape(shape)
