"""Which prompts bring blocks back from host memory.

vLLM loads from the host when it admits a request, and only then. So blocks are
restored by a request of one token whose prompt ends with them.
"""

from collections.abc import Iterator, Sequence

from warmroute.adapters.kv_plugin.verbs import Chain
from warmroute.adapters.vllm.plugin.contents import Contents
from warmroute.adapters.vllm.plugin.host import HostTier
from warmroute.adapters.vllm.plugin.naming import BlockNaming
from warmroute.adapters.vllm.plugin.notes import Content

MAX_CHAINS = 64
"""Most prompts that one call makes; blocks of further chains stay where they are."""

_SLICE = 512


class Restoring:
    """Find the prompts of named blocks that are on the host and on no page.

    Args:
        contents: Knows the tokens of blocks.
        host: Has the blocks.
        naming: Proves that a prompt really names its blocks.
        longest: Most tokens that a request may have.
    """

    __slots__ = ("_contents", "_host", "_longest", "_naming")

    def __init__(
        self, contents: Contents, host: HostTier, naming: BlockNaming, longest: int
    ) -> None:
        self._contents = contents
        self._host = host
        self._naming = naming
        self._longest = longest

    def __repr__(self) -> str:
        return f"<Restoring from {self._host!r}>"

    def chains(self, keys: Sequence[int]) -> Iterator[Chain | None]:
        """Yield a prompt for each chain, and None after each slice without one."""
        wanted: set[int] = set()
        parents: set[int | None] = set()
        for at, key in enumerate(keys, 1):
            if self._is_away(key):
                wanted.add(key)
                parents.add(self._parent(key))
            if at % _SLICE == 0:
                yield None
        leaves: list[int] = []
        for at, key in enumerate(keys, 1):
            if key in wanted and key not in parents:
                leaves.append(key)
            if at % _SLICE == 0:
                yield None
        for leaf in leaves[:MAX_CHAINS]:
            yield from self._chain(leaf, wanted)

    def _chain(self, leaf: int, wanted: set[int]) -> Iterator[Chain | None]:
        path: list[tuple[int, Content]] = []
        for one in self._path(leaf):
            if one is None:
                return  # a block in front of it is nowhere
            path.append(one)
            if len(path) % _SLICE == 0:
                yield None
        path = path[::-1][: (self._longest - 2) // self._contents.block_size]
        tokens: list[int] = []
        for at, (_, content) in enumerate(path, 1):
            tokens += content.tokens
            if at % _SLICE == 0:
                yield None
        salt, keys = _salt(path[0][1]), list[int]()
        for some in self._naming.hash_prompt(tokens, salt):
            keys += some
            yield None
        if keys == [key for key, _ in path]:
            # The last token is always computed: one more makes all blocks usable.
            back = [key for key in keys if key in wanted]
            tokens.append(tokens[-1])
            yield tokens, salt, back
        # Otherwise they belong to an adapter, an image or the like.

    def _path(self, leaf: int) -> Iterator[tuple[int, Content] | None]:
        """Yield the blocks from *leaf* to the root; None for one that is nowhere."""
        key: int | None = leaf
        while key is not None:
            content = self._contents.get(key)
            if content is None or not self._is_somewhere(key):
                yield None
                return
            yield key, content
            key = content.parent

    def _is_away(self, key: int) -> bool:
        return not self._contents.pages(key) and self._on_host(key)

    def _is_somewhere(self, key: int) -> bool:
        return bool(self._contents.pages(key)) or self._on_host(key)

    def _on_host(self, key: int) -> bool:
        block_hash = self._contents.hash_of(key)
        return block_hash is not None and self._host.has(block_hash)

    def _parent(self, key: int) -> int | None:
        content = self._contents.get(key)
        return None if content is None else content.parent


def _salt(root: Content) -> str | None:
    keys = root.extra_keys
    return keys[0] if keys and isinstance(keys[0], str) else None
