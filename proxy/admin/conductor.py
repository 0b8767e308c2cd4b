"""``/api/conductor``: what it did and why, and its kill switch."""

from typing import Protocol

from aiohttp import web

from warmroute.policies.errors import ClientError
from warmroute.proxy.admin.json_answer import json_answer
from warmroute.proxy.config.sections import ConductorConfig


class Conductor(Protocol):
    """What is shown and stopped."""

    config: ConductorConfig

    def describe(self) -> dict[str, object]:
        """Return the JSON of its state and newest actions."""
        ...

    def start(self) -> None:
        """Let it act again."""
        ...

    async def stop(self) -> None:
        """Let it act no more, and let go of what it holds."""
        ...


def conductor_routes(conductor: Conductor) -> list[web.RouteDef]:
    """Return the routes over *conductor*."""

    async def show(request: web.Request) -> web.Response:
        return json_answer(conductor.describe())

    async def start(request: web.Request) -> web.Response:
        if not conductor.config.enabled:
            raise ClientError(
                409,
                "conductor_off",
                "the configuration has the conductor switched off; set "
                "conductor.enabled: true and reload",
            )
        conductor.start()
        return json_answer(conductor.describe())

    async def stop(request: web.Request) -> web.Response:
        await conductor.stop()
        return json_answer(conductor.describe())

    return [
        web.get("/api/conductor", show),
        web.post("/api/conductor/start", start),
        web.post("/api/conductor/stop", stop),
    ]
