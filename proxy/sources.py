"""What makes the view exact: the engines' events, and tokens as engines see them."""

import importlib.util
import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from warmroute.policies.kv.radix import PrefixIndex
from warmroute.proxy.config import ModelConfig
from warmroute.proxy.fleet import Fleet
from warmroute.proxy.fleet.backend import Backend
from warmroute.proxy.prompt.exact import ExactPrompts
from warmroute.proxy.prompt.exact_model import ExactModel, read_models
from warmroute.proxy.prompt.memo import TokenMemo
from warmroute.proxy.router import Router, explained_head
from warmroute.proxy.view import View

if TYPE_CHECKING:
    from warmroute.proxy.view.feeds import Feeds
    from warmroute.proxy.view.stream import Stream

logger = logging.getLogger(__name__)

_NO_ZMQ = "pyzmq is missing: pip install 'warmroute[events]'"


class Sources:
    """Follow KV events, and render and tokenize prompts where a model says how.

    Both need an extra, and cost nothing where they are not used.

    Args:
        fleet: The backends.
        view: Learns who announces its own blocks.
        index: Where announced blocks go.
        router: Is given what makes prompts exact.

    Attributes:
        exact: Makes prompts exact; None while no model has a tokenizer.
    """

    __slots__ = ("_feeds", "_fleet", "_index", "_memo", "_router", "_view", "exact")

    def __init__(
        self, fleet: Fleet, view: View, index: PrefixIndex, router: Router
    ) -> None:
        self._fleet = fleet
        self._view = view
        self._index = index
        self._router = router
        self._memo = TokenMemo()
        self._feeds: Feeds | None = None
        self.exact: ExactPrompts | None = None

    def __repr__(self) -> str:
        return f"<Sources {self._feeds!r} {self.exact!r}>"

    def start(self) -> None:
        """Begin to follow events; needs a running loop."""
        if importlib.util.find_spec("zmq") is None:
            if any(
                one.config.kv_events != "off" for one in self._fleet.backends.values()
            ):
                logger.warning("kv_events_not_followed", extra={"reason": _NO_ZMQ})
            return
        from warmroute.proxy.view.feeds import Feeds

        self._feeds = Feeds(
            self._view, self._index, self._fleet.endpoint, self._fleet.reborn
        )

    async def close(self) -> None:
        """Stop asking and hearing."""
        if self.exact is not None:
            await self.exact.close()
        if self._feeds is not None:
            await self._feeds.close()

    def streams(self) -> "Mapping[str, Sequence[Stream]]":
        """Return the events of every backend that is heard, by name: one a rank."""
        return {} if self._feeds is None else self._feeds.streams()

    def not_followed(self, name: str) -> str | None:
        """Say why KV events that a backend publishes are not followed, if so."""
        backend = self._fleet.backends[name]
        if self._feeds is not None:
            return self._feeds.not_followed(backend)
        return _NO_ZMQ if backend.event_sources else None

    def read(self, models: Sequence[ModelConfig]) -> dict[str, ExactModel]:
        """Read the models' tokenizers; those in force stay if their files do.

        Raises:
            ConfigError: An extra is not installed, or the files are not usable.
        """
        return read_models(models, self._memo, self.exact.models if self.exact else {})

    def configure(self, models: Mapping[str, ExactModel]) -> None:
        """Take over which models' prompts are exact; without any, nothing is asked."""
        if self.exact is None and models:
            roots = self._router.prompts.roots
            self.exact = ExactPrompts(self._fleet, roots, self._memo)
        if self.exact is not None:
            self.exact.configure(models)
        self._router.exact = self.exact if models else None

    def changed(self, backend: Backend) -> None:
        """Note that a backend's state or models changed."""
        if self.exact is not None:
            self.exact.changed(backend)

    def learned(self, backend: Backend) -> None:
        """Note that an engine told something of itself."""
        self.changed(backend)
        if self._feeds is not None:
            self._feeds.learned(backend)

    def restarted(self, backend: Backend) -> None:
        """Note that an engine has started anew."""
        if self._feeds is not None:
            self._feeds.restarted(backend)

    def removed(self, backend: Backend) -> None:
        """Note that a backend is about to be forgotten."""
        if self._feeds is not None:
            self._feeds.removed(backend)
        if self.exact is not None:
            self.exact.removed(backend)

    async def explain(
        self, path: str, headers: Mapping[str, str], body: bytes
    ) -> dict[str, Any]:
        """Decide as for a real request, without sending it.

        Raises:
            ClientError: As for a real request.
        """
        head = explained_head(path, headers)
        prompt = self._router.read(head, body)
        if self.exact is not None:
            await self.exact.read(prompt, body)
        return self._router.explain(head, prompt).explained()
