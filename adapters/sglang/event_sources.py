"""Where SGLang says that it publishes KV events."""

from dataclasses import replace
from typing import TypeGuard

import msgspec

from warmroute.adapters.kv_events.address import EventAddress, resolve

MAX_RANKS = 1024
MAX_PORT = 65_535

_EVERYWHERE = "*"


class _Config(msgspec.Struct):
    bind: bool | None = None


_read_config = msgspec.json.Decoder(_Config).decode


def read_sources(
    described: object, host: str, config: object = None
) -> list[EventAddress]:
    """Read ``kv_events`` of ``/server_info``; empty if it says nothing usable.

    Each data-parallel rank publishes at its own port, the base and its number.

    Args:
        described: The publishers as SGLang describes them; None without any.
        host: Where the engine is reached.
        config: The engine's ``--kv-events-config``, which tells what the description
            leaves out: whether it binds an address without a star.
    """
    if not isinstance(described, dict):
        return []
    base, ranks = described.get("endpoint_port_base"), described.get("dp_size", 1)
    if not _is_port(base) or not isinstance(ranks, int):
        return []
    replay, topic = described.get("replay_endpoint_port_base"), described.get("topic")
    ports = range(base, min(base + min(ranks, MAX_RANKS), MAX_PORT + 1))
    addresses = [
        EventAddress(
            _at(described.get("endpoint_host"), port),
            _at(described.get("replay_endpoint_host"), replay + rank)
            if _is_port(replay)
            else None,
            topic if isinstance(topic, str) else "",
            rank,
        )
        for rank, port in enumerate(ports)
    ]
    found = [resolve(one, host) for one in addresses]
    return [replace(one, binds=False) for one in found] if _binds(config) else found


def _at(host: object, port: int) -> str:
    name = host if isinstance(host, str) and host else _EVERYWHERE
    bracketed = f"[{name}]" if ":" in name and not name.startswith("[") else name
    return f"tcp://{bracketed}:{port}"


def _binds(config: object) -> bool:
    try:
        return isinstance(config, str) and _read_config(config).bind is True
    except (ValueError, RecursionError):
        return False


def _is_port(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and 0 < value <= MAX_PORT
