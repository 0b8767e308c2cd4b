"""How many tokens is a block, and is it the same over the fleet?"""

from collections import defaultdict
from collections.abc import Sequence

from warmroute.proxy.doctor.finding import Finding, ok, skipped, warn
from warmroute.proxy.doctor.patient import Patient

_LARGE = 128


class BlockSize:
    """Compare what the engine says with what its events carry."""

    name = "block size"
    needs: tuple[str, ...] = ("engine",)

    async def examine(self, patient: Patient) -> Finding:
        """The events count: they are about the blocks that can hit."""
        told, size = patient.facts.block_size, patient.block_size
        if size is None:
            return skipped("the engine does not tell it")
        if told is not None and told != size:
            return warn(
                f"its events have blocks of {size} tokens, and it says {told}",
                "nothing to do where a model has several kinds of attention; else "
                "correct the address in kv_events: they are another engine's",
            )
        if size >= _LARGE:
            return warn(
                f"{size} tokens: a prompt shares only whole blocks, so shorter ones "
                "never hit",
                patient.adapter.remedy("block_size", patient.facts.version)
                + ", a smaller one such as 16 or 32",
            )
        return ok(f"{size} tokens")


class SameBlockSize:
    """Compare the block sizes over the backends of a model."""

    name = "same block size"

    def compare(self, patients: Sequence[Patient]) -> Finding:
        """Routing works with several, but predictions count in different units."""
        sizes: dict[int, list[Patient]] = defaultdict(list)
        for patient in patients:
            if patient.block_size is not None:
                sizes[patient.block_size].append(patient)
        num_known = sum(map(len, sizes.values()))
        if num_known < 2:
            return skipped("fewer than two backends tell their block size")
        if len(sizes) == 1:
            return ok(f"{next(iter(sizes))} tokens on {num_known} backends")
        shown = "; ".join(
            f"{size} on {', '.join(one.name for one in those)}"
            for size, those in sorted(sizes.items())
        )
        one = next(iter(sizes.values()))[0]
        return warn(
            f"it differs: {shown}",
            one.adapter.remedy("block_size", one.facts.version),
        )
