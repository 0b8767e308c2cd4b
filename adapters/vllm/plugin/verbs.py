"""The verbs of KV control, done to one vLLM engine between its steps.

The engine may step between any two parts of an answer, so each verb takes the cache as
it finds it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import ClassVar, cast

from warmroute.adapters.kv_control import unsupported
from warmroute.adapters.kv_plugin.jobs import Part
from warmroute.adapters.kv_plugin.verbs import Arguments, EngineVerbs, named
from warmroute.adapters.vllm.plugin.block_budget import BlockBudget, read_budget
from warmroute.adapters.vllm.plugin.budgets import Budgets
from warmroute.adapters.vllm.plugin.contents import Contents, key_of
from warmroute.adapters.vllm.plugin.events import Announcer
from warmroute.adapters.vllm.plugin.eviction import SLICE, Evictor
from warmroute.adapters.vllm.plugin.host import HostTier
from warmroute.adapters.vllm.plugin.naming import BlockNaming
from warmroute.adapters.vllm.plugin.ordering import Ordering
from warmroute.adapters.vllm.plugin.ports import Pool
from warmroute.adapters.vllm.plugin.restoring import Restoring
from warmroute.adapters.vllm.plugin.returning import Returning
from warmroute.adapters.vllm.plugin.walk import Found
from warmroute.policies.kv.retention import Retention

_LOOKED_AT = 256


class Verbs(EngineVerbs):
    """Perform the verbs on the cache of one engine.

    Args:
        pool: The engine's pool.
        contents: Knows what is cached.
        announcer: Publishes what changed.
        retention: Holds what is retained.
        ordering: Says who is evicted first.
        naming: Hashes as the engine does.
        faults: Why some verbs do not work here.
        host: The host tier, if there is one.
        restoring: Finds the prompts that bring blocks back from it.
        budgets: Of running sequences, if they can have any.
        returning: Brings back what those gave back.
    """

    __slots__ = (
        "_announcer",
        "_budgets",
        "_contents",
        "_evictor",
        "_host",
        "_naming",
        "_ordering",
        "_pool",
        "_restoring",
        "_retention",
        "_returning",
    )

    asked: ClassVar[tuple[str, ...]] = (
        *EngineVerbs.asked,
        "restorable",
        "resident",
        "bring_back",
        "budget",
        "pages",
    )

    def __init__(
        self,
        pool: Pool,
        contents: Contents,
        announcer: Announcer,
        retention: Retention,
        ordering: Ordering,
        naming: BlockNaming,
        faults: Mapping[str, str],
        host: HostTier | None = None,
        restoring: Restoring | None = None,
        budgets: Budgets | None = None,
        returning: Returning | None = None,
    ) -> None:
        super().__init__(faults)
        self._pool = pool
        self._contents = contents
        self._announcer = announcer
        self._retention = retention
        self._ordering = ordering
        self._naming = naming
        self._host = host
        self._restoring = restoring
        self._budgets = budgets
        self._returning = returning
        self._evictor = Evictor(pool, contents)

    def __repr__(self) -> str:
        return f"<Verbs on {self._contents!r}>"

    def hashes(self, arguments: Arguments) -> Iterator[Part]:
        """Hash the full blocks of a prompt, in slices."""
        tokens = cast(Sequence[int], arguments["token_ids"])
        salt = cast(str | None, arguments.get("cache_salt"))
        for some in self._naming.hash_prompt(tokens, salt):
            yield {"hashes": some}

    def snapshot(self, arguments: Arguments) -> Iterator[Part]:
        """List what is cached at this moment, depths with it, in no order."""
        with_tokens = bool(arguments.get("token_ids"))
        budgets = self._budgets
        seq = self._announcer.announce()  # nothing may come between this and the walk
        with self._contents.walk() as walk:
            yield {
                "seq": seq,
                "block_size": self._contents.block_size,
                "copied_bytes": None if budgets is None else budgets.kept.num_bytes,
            }
            for found in walk.go():
                yield {"rows": _rows(found, with_tokens)}
        for found in walk.taken_down():
            yield {"rows": _rows(found, with_tokens)}
        for _ in self._contents.finish(walk):
            yield {}

    def flush(self, arguments: Arguments) -> Iterator[Part]:
        """Drop everything that nobody uses from pages and host, the tails first."""
        num_used = 0
        for done in self._evictor.drop(self._contents.noted()):
            num_used += sum(reason == "referenced" for _, reason in done.kept)
            yield {"dropped": len(done.evicted)}
        for some in self._contents.noted() if self._host else ():
            for key in some:
                self._drop_on_host(key)
            yield {}
        yield {"used": num_used, "empty": not self._contents.num_cached}

    def evict(self, arguments: Arguments) -> Iterator[Part]:
        """Drop the named blocks from pages and host, suffix first."""
        for part in self._drop(named(arguments)):
            yield part if self._host is None else self._dropped_from_host(part)

    def retain(self, arguments: Arguments) -> Iterator[Part]:
        """Keep the leading resident blocks of those named."""
        keys, ttl_s = named(arguments), cast(float, arguments["ttl_s"])
        num_retained = 0
        for num in self._retention.retain_in_slices(keys, ttl_s, SLICE):
            num_retained += num
            yield {}
        yield {
            "retained": num_retained,
            "total": self._retention.num_blocks,
            "cap": self._retention.cap_blocks,
        }

    def release(self, arguments: Arguments) -> Iterator[Part]:
        """Let go of the named blocks, the tail first."""
        keys = named(arguments)
        for end in range(len(keys), 0, -SLICE):
            yield {"changed": self._retention.release(keys[max(0, end - SLICE) : end])}

    def demote(self, arguments: Arguments) -> Iterator[Part]:
        """Make the named blocks the next victims."""
        for changed in self._evictor.demote(_pieces(named(arguments))):
            yield {"changed": changed}

    def offload(self, arguments: Arguments) -> Iterator[Part]:
        """Give up the pages of blocks that the host has, suffix first."""
        on_host: list[int] = []
        for some in _pieces(named(arguments)):
            on_host += filter(self._is_on_host, some)
            yield {"changed": 0}
        for done in self._evictor.drop(_pieces(on_host)):
            yield {"changed": len(done.evicted)}

    def restorable(self, arguments: Arguments) -> Iterator[Part]:
        """Return the prompts that bring the named blocks back from the host."""
        assert self._restoring is not None, "restore is refused without a host tier"
        for chain in self._restoring.chains(named(arguments)):
            yield {} if chain is None else {"chains": [list(chain)]}

    def resident(self, arguments: Arguments) -> Iterator[Part]:
        """Count those of the named blocks that are on a page."""
        for some in _pieces(named(arguments)):
            yield {"resident": sum(map(bool, map(self._contents.pages, some)))}

    def policy(self, arguments: Arguments) -> Iterator[Part]:
        """Read or change who is evicted first."""
        name = cast(str | None, arguments.get("name"))
        if name is not None:
            options = cast(dict[str, object], arguments.get("options") or {})
            for _ in self._ordering.change(name, options):
                yield {}
        yield {
            "name": self._ordering.name,
            "options": dict(self._ordering.options),
            "available": self._ordering.available(),
        }

    def budget(self, arguments: Arguments) -> Iterator[Part]:
        """Read or change the budget of requests to come."""
        budgets = self._budgets
        assert budgets is not None, "budget is refused where there can be none"
        if arguments.get("method") is not None:
            budget = read_budget(arguments, budgets.block_size)
            fault = None if budget is None else budgets.arm(budget.is_scored)
            if fault is None and budget is not None and budget.host_bytes is not None:
                fault = budgets.keep(budget.host_bytes)
            if fault is not None:
                raise unsupported("budget", fault)
            budgets.default = budget
        yield {"budget": _told(budgets.default), "given_back": budgets.num_given}

    def bring_back(self, arguments: Arguments) -> Iterator[Part]:
        """Bring back what a running request gave back under its budget."""
        assert self._returning is not None, "refused where there is no budget"
        name = cast(str, arguments["request_id"])
        hold_tokens = cast(int | None, arguments.get("hold_tokens"))
        yield from self._returning.bring_back(name, hold_tokens)

    def expire(self, arguments: Arguments) -> Iterator[Part]:
        """Let go of what is due, and say when more will be."""
        while self._retention.expire():
            yield {}
        yield {"due_s": self._retention.due_s}

    def pages(self, arguments: Arguments) -> Iterator[Part]:
        """Count the pages, and those that nobody uses; one page is never given out."""
        yield {
            "total": self._pool.num_gpu_blocks,
            "free": self._pool.get_num_free_blocks(),
        }

    def _drop(self, keys: Sequence[int]) -> Iterator[Part]:
        for done in self._evictor.drop(_pieces(keys)):
            yield {"evicted": done.evicted, "kept": [list(one) for one in done.kept]}

    def _dropped_from_host(self, part: Part) -> Part:
        """Drop from the host what left its pages, and what was there alone."""
        assert self._host is not None
        evicted = cast(list[int], part["evicted"])
        kept: list[object] = []
        for key in evicted:
            self._drop_on_host(key)
        for key, reason in cast(list[tuple[int, str]], part["kept"]):
            if reason == "absent" and self._drop_on_host(key):
                evicted.append(key)
            else:
                kept.append([key, reason])
        return {"evicted": evicted, "kept": kept}

    def _drop_on_host(self, key: int) -> bool:
        block_hash = self._contents.hash_of(key)
        return bool(block_hash and self._host and self._host.drop(block_hash))

    def _is_on_host(self, key: int) -> bool:
        block_hash = self._contents.hash_of(key)
        return bool(block_hash and self._host and self._host.has(block_hash))


def _told(budget: BlockBudget | None) -> dict[str, object]:
    return {"method": "full"} if budget is None else asdict(budget)


def _pieces(keys: Sequence[int]) -> Iterator[Sequence[int]]:
    """Yield keys, so few at a time that looking at them takes no millisecond."""
    for at in range(0, len(keys), _LOOKED_AT):
        yield keys[at : at + _LOOKED_AT]


def _rows(found: Sequence[Found], with_tokens: bool) -> list[object]:
    rows: list[object] = []
    for one in found:
        if one.refs is not None:
            rows.append(_row(one, one.refs, "gpu", with_tokens))
        if one.is_on_host:
            rows.append(_row(one, 0, "host", with_tokens))
    return rows


def _row(one: Found, refs: int, tier: str, with_tokens: bool) -> list[object]:
    content = one.content
    row: list[object] = [
        key_of(one.block_hash),
        content.parent,
        content.depth,
        refs,
        tier,
    ]
    if with_tokens:
        row += [list(content.tokens), content.extra_keys]
    return row
