"""The admin server of a running warmroute: what its routes may ask of the parts."""

from collections.abc import Mapping
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from pydantic import SecretStr

from warmroute.proxy.admin import make_admin
from warmroute.proxy.admin.conductor import conductor_routes
from warmroute.proxy.admin.kv import kv_routes
from warmroute.proxy.admin.listener import AdminListener
from warmroute.proxy.admin.state import AdminState, IndexFacts, Learned
from warmroute.proxy.conductor.exposition import ConductorExposition
from warmroute.proxy.config import Address, backend_config
from warmroute.proxy.event_metrics import EventExposition
from warmroute.proxy.metrics import Exposition, build_registry
from warmroute.proxy.policy_metrics import PolicyExposition
from warmroute.proxy.process import listening
from warmroute.proxy.records.exposition import RecordsExposition

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from warmroute.proxy.app import App

# For last bytes to leave.
_FAREWELL_S = 1.0


class Administration:
    """Offer an app's parts on the admin port, while there is one.

    Attributes:
        listening: Host and port in use; None while it is off.
    """

    __slots__ = ("_app", "_listener", "listening")

    def __init__(self, app: "App") -> None:
        self._app = app
        self._listener: AdminListener | None = None
        self.listening: tuple[str, int] | None = None

    def __str__(self) -> str:
        return str(Address(*self.listening)) if self.listening else "off"

    async def start(self, address: Address, token: SecretStr | None) -> None:
        """Listen.

        Raises:
            WarmrouteError: The address cannot be used.
        """
        secret = token.get_secret_value() if token is not None else None
        admin = make_admin(self._state(address.host, secret))
        with listening("admin", address):
            self._listener = AdminListener(admin, _FAREWELL_S)
            self.listening = await self._listener.start(address.host, address.port)

    async def close(self) -> None:
        """Stop listening; what is being answered gets a moment."""
        if self._listener is not None:
            await self._listener.close()

    def _state(self, host: str, token: str | None) -> AdminState:
        app = self._app
        return AdminState(
            version=version("warmroute"),
            ledger=app.ledger,
            fleet=app.fleet,
            view=app.view,
            explain=app.sources.explain,
            registry=self._registry(),
            index=self._index_facts,
            policy=lambda: app.router.policy.name,
            is_ready=lambda: app.fleet.is_ready and not app.port.own.is_draining,
            add_backend=self._add_backend,
            reload=app.reloader.reload,
            learned=self._learned,
            not_followed=app.sources.not_followed,
            cache_killers=app.onlookers.killers.report,
            kv=app.steering.controls.facts,
            routes=[
                *kv_routes(app.steering.desk),
                *conductor_routes(app.steering.conductor),
            ],
            queue=app.deciding.show_queue,
            shadow=app.deciding.show_shadow,
            host=host,
            token=token,
        )

    def _registry(self) -> "CollectorRegistry":
        app = self._app
        return build_registry(
            Exposition(
                app.ledger,
                app.fleet,
                app.view,
                self._index_facts,
                app.reloader.status,
                version("warmroute"),
                lambda: app.sources.exact,
            ),
            EventExposition(app.sources.streams),
            RecordsExposition(lambda: app.onlookers.recorder),
            PolicyExposition(app.deciding),
            ConductorExposition(app.steering.conductor, app.fleet),
        )

    def _index_facts(self) -> IndexFacts:
        return IndexFacts(**self._app.view.stats())

    def _learned(self, name: str) -> Learned:
        return Learned(*self._app.fleet.backends[name].learned)

    def _add_backend(self, entry: Mapping[str, Any]) -> str:
        config = backend_config(entry)
        self._app.fleet.add(config)
        return config.name
