"""The configuration: whatever is thrown at it loads or is refused."""

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from unit.config_files import MINIMAL, Files

from warmroute.policies.errors import ConfigError
from warmroute.proxy.config import (
    Config,
)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


KEYS = st.sampled_from(
    [*Config.model_fields, "url", "name", "engine", "kv_events", "api_key", "ca"]
) | st.text(max_size=8)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=12)
    | st.sampled_from(["${X}", "${Y:-z}", "$${", "http://a", ":80", "~nobody/x", "1e3"])
    | st.dates()
    | st.binary(max_size=4)
)
TREES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(KEYS | SCALARS, inner, max_size=5)
    ),
    max_leaves=20,
)


class TestFuzz:
    @settings(
        max_examples=150,
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture],
    )
    @given(tree=TREES | st.dictionaries(KEYS, TREES, max_size=6))
    def test_any_document_loads_or_is_refused(self, files: Files, tree: Any) -> None:
        self.load_or_refuse(files, yaml.safe_dump(tree).encode(), {})

    @settings(
        max_examples=150,
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture],
    )
    @given(data=st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
    def test_any_bytes_load_or_are_refused(self, files: Files, data: bytes) -> None:
        self.load_or_refuse(files, data, {})

    @settings(
        max_examples=150,
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture],
    )
    @given(
        environ=st.dictionaries(
            st.lists(
                st.sampled_from([*(k.upper() for k in Config.model_fields), "0", "1"])
                | st.text("ABC_019", max_size=4),
                min_size=1,
                max_size=3,
            ).map(lambda steps: "WARMROUTE_" + "__".join(steps)),
            st.text(max_size=12) | st.sampled_from(["[a, b]", "{a: b}", "'x", "off"]),
            max_size=4,
        )
    )
    def test_any_variables_load_or_are_refused(
        self, files: Files, environ: dict[str, str]
    ) -> None:
        self.load_or_refuse(files, MINIMAL.encode(), environ)

    def load_or_refuse(
        self, files: Files, data: bytes, environ: Mapping[str, str]
    ) -> None:
        with contextlib.suppress(ConfigError):
            assert isinstance(files.load(data, environ), Config)
