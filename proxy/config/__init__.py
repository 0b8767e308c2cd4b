"""The configuration: what may stand in the file, and how it is read."""

from warmroute.proxy.config.address import Address
from warmroute.proxy.config.backend import BackendConfig, KVEventsConfig
from warmroute.proxy.config.model import Config, ModelConfig
from warmroute.proxy.config.policy import PolicyConfig
from warmroute.proxy.config.sections import (
    DrainConfig,
    HealthConfig,
    TimeoutsConfig,
    TLSConfig,
)
from warmroute.proxy.config.source import (
    ConfigSource,
    backend_config,
    changed_listeners,
    differences,
    load_config,
)

__all__ = [
    "Address",
    "BackendConfig",
    "Config",
    "ConfigSource",
    "DrainConfig",
    "HealthConfig",
    "KVEventsConfig",
    "ModelConfig",
    "PolicyConfig",
    "TLSConfig",
    "TimeoutsConfig",
    "backend_config",
    "changed_listeners",
    "differences",
    "load_config",
]
