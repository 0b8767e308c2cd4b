"""A host tier for vLLM on CPU, where its own refuses to run.

Named in ``--kv-transfer-config`` as the spec of the official ``OffloadingConnector``,
which decides what is stored and loaded; only the copying is done here. On such a
machine both tiers are RAM: it shows what restoring does, not what it saves on a GPU.
vLLM imports this module; nothing else does.
"""

import time
from typing import Any

import torch
from vllm.v1.kv_offload.base import OffloadingWorker, TransferResult
from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec


class HostCopies(OffloadingWorker):  # type: ignore[misc]
    """Copy pages to host chunks and back, at once.

    Args:
        kv_caches: The pages of all layers, as vLLM canonicalises them.
        num_chunks: Chunks of the host tier; one holds one page of every layer.
    """

    def __init__(self, kv_caches: Any, num_chunks: int) -> None:
        self._pages = [one.tensor for one in kv_caches.tensors]
        self._chunks = [
            torch.empty((num_chunks, *pages.shape[1:]), dtype=pages.dtype)
            for pages in self._pages
        ]
        self._finished: list[Any] = []

    def submit_store(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        """Copy pages to chunks."""
        return self._copy(job_id, self._pages, src_spec, self._chunks, dst_spec)

    def submit_load(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        """Copy chunks to pages."""
        return self._copy(job_id, self._chunks, src_spec, self._pages, dst_spec)

    def get_finished(self) -> list[Any]:
        """Return the copies made since the last call."""
        finished, self._finished = self._finished, []
        return finished

    def wait(self, job_ids: set[int]) -> None:
        """Return at once; a copy is made when it is submitted."""

    def _copy(
        self,
        job_id: int,
        sources: list[Any],
        source: Any,
        targets: list[Any],
        target: Any,
    ) -> bool:
        begun, num_bytes = time.perf_counter(), 0
        from_ids = torch.as_tensor(source.block_ids, dtype=torch.long)
        to_ids = torch.as_tensor(target.block_ids, dtype=torch.long)
        for one, other in zip(sources, targets, strict=True):
            copied = one[from_ids]
            other[to_ids] = copied
            num_bytes += copied.numel() * copied.element_size()
        took_s = time.perf_counter() - begun
        self._finished.append(TransferResult(job_id, True, num_bytes, took_s))
        return True


class WarmrouteCpuOffloadingSpec(CPUOffloadingSpec):  # type: ignore[misc]
    """vLLM's host tier with a worker that copies in plain PyTorch."""

    _copies: HostCopies | None = None

    def get_worker(self, kv_caches: Any) -> HostCopies:
        """Return the worker of this process."""
        if self.blocks_per_chunk != 1:
            raise ValueError(
                f"WarmrouteCpuOffloadingSpec: {self.blocks_per_chunk} blocks a chunk "
                f"(allowed: 1); leave block_size out of kv_connector_extra_config"
            )
        if self._copies is None:
            self._copies = HostCopies(kv_caches, self.num_chunks)
        return self._copies
