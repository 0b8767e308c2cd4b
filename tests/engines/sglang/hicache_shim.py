"""Runs inside SGLang: what HiCache takes of CUDA, done by a CPU.

Stock HiCache asks for CUDA to pin its host memory and to copy pages. Memory needs no
pinning here, streams and events have nothing to wait for, and pages are copied by
index. It is good for what the cache does, and says nothing about transfers.
"""

import importlib
from typing import Any

STREAM_METHODS = (
    "synchronize",
    "wait_stream",
    "wait_event",
    "record",
    "record_event",
    "wait",
)


class Event:
    """What has happened by the time it is asked."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        pass

    def record(self, *arguments: Any) -> None:
        pass

    def wait(self, *arguments: Any) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def query(self) -> bool:
        return True

    def elapsed_time(self, other: "Event") -> float:
        return 0.0


def register() -> None:
    """Stand in for CUDA, in each process of SGLang."""
    torch: Any = importlib.import_module("torch")
    for name in STREAM_METHODS:
        if not hasattr(torch.cpu.Stream, name):
            setattr(torch.cpu.Stream, name, _nothing)
    if not hasattr(torch.cpu.Stream, "query"):
        torch.cpu.Stream.query = lambda self: True
    torch.cpu.Event = Event
    hooks: Any = importlib.import_module("sglang.srt.plugins.hook_registry")
    hooks.HookRegistry.register(
        "sglang.srt.mem_cache.pool_host.common._cuda_host_register",
        _nothing,
        hooks.HookType.REPLACE,
    )
    pool: Any = importlib.import_module("sglang.srt.mem_cache.pool_host.mha")
    pool.transfer_kv_direct = copy_pages


def copy_pages(
    src_layers: Any, dst_layers: Any, src_indices: Any, dst_indices: Any, page_size: int
) -> None:
    """Copy the named rows of each layer."""
    for source, target in zip(src_layers, dst_layers, strict=True):
        target[dst_indices] = source[src_indices]


def _nothing(*arguments: Any, **options: Any) -> None:
    pass
