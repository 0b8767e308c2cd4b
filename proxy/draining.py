"""The data port's end: it takes no more clients, and waits for those it has."""

import asyncio
import logging

from warmroute.adapters.stopping import Stopping
from warmroute.proxy.config import DrainConfig
from warmroute.proxy.port import DataPort

logger = logging.getLogger(__name__)


async def drain(port: DataPort, config: DrainConfig, stopping: Stopping) -> None:
    """Return once no client is left, time is over, or there is no time."""
    port.own.is_draining = True
    logger.info(
        "drain_started",
        extra={"delay_s": config.delay_s, "at_most": config.timeout_s},
    )
    # Load balancers learn of the end later than we do: go on accepting.
    await stopping.unless_hurried(asyncio.sleep(config.delay_s))
    if not stopping.is_hurried:
        port.refuse_new()
        await stopping.unless_hurried(port.drained(config.timeout_s))
