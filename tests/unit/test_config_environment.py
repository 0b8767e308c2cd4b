"""The configuration: variables, references, flags and secrets."""

from pathlib import Path

import pytest
from unit.config_files import MINIMAL, Files

from warmroute.policies.errors import ConfigError
from warmroute.proxy.config import (
    ConfigSource,
    differences,
)
from warmroute.proxy.config.address import Address


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


class TestInterpolation:
    def test_variable_default_and_literal(self, files: Files) -> None:
        config = files.load(
            """\
            - url: http://${HOST}:${PORT:-8000}
              name: $${x}
              class: ${EMPTY:-h100}
            """,
            {"HOST": "a", "EMPTY": ""},
        )
        backend = config.backends[0]
        assert (backend.url, backend.name, backend.speed_class) == (
            "http://a:8000",
            "${x}",
            "h100",
        )

    def test_numbers_booleans_and_words(self, files: Files) -> None:
        config = files.load(
            MINIMAL
            + "retry: {attempts: '${N}'}\nreload: {watch: '${W}'}\nadmin: ${A}\n"
            + "policy: {stall_weight: '${S}'}\nlisten: ${P}",
            {"N": "3", "W": "on", "A": "off", "S": "0.5", "P": "8081"},
        )
        assert (config.retry.attempts, config.reload.watch) == (3, True)
        assert (config.admin, config.listen.port) == (None, 8081)
        assert config.policy.options == {"stall_weight": 0.5}

    def test_unset_variable_makes_one_line(self, files: Files) -> None:
        assert files.problems(MINIMAL + "retry: {attempts: '${N}'}") == [
            "config.yaml:2: retry.attempts: environment variable N is not set; "
            "set it, or write ${N:-default}"
        ]

    @pytest.mark.parametrize("text", ["${", "${1}", "a${x", "${}"])
    def test_malformed_reference(self, files: Files, text: str) -> None:
        (line,) = files.problems(f"- {{url: http://a, class: '{text}'}}")
        assert "backends[0].class: '${' begins no reference (allowed: ${VAR}" in line


class TestEnvironment:
    def test_overrides_win_over_the_file(self, files: Files) -> None:
        config = files.load(
            MINIMAL + "log: {level: error}",
            {
                "WARMROUTE_LOG__LEVEL": "debug",
                "WARMROUTE_BACKENDS__0__NAME": "one",
                "WARMROUTE_BACKENDS__0__KV_EVENTS": "off",
                "WARMROUTE_BACKENDS__1__URL": "http://two",
                "WARMROUTE_LISTEN": "[::1]:80",
                "WARMROUTE_HEADERS__STRIP": "[x-a, X-B-*]",
                "WARMROUTE_POLICY__STALL_WEIGHT": "0.5",
                "OTHER": "x",
            },
        )
        assert config.log.level == "debug"
        assert [b.name for b in config.backends] == ["one", "two"]
        assert config.backends[0].url == "http://127.0.0.1:8101"
        assert config.backends[0].kv_events == "off"
        assert config.listen == Address("::1", 80)
        assert config.headers.strip == ["x-a", "x-b-*"]
        assert config.policy.options == {"stall_weight": 0.5}

    def test_items_are_added_in_the_order_of_numbers(self, files: Files) -> None:
        environ = {f"WARMROUTE_BACKENDS__{n}__URL": f"http://b{n}" for n in range(12)}
        assert [b.name for b in files.load(MINIMAL, environ).backends] == [
            f"b{n}" for n in range(12)
        ]

    def test_short_form_is_opened_by_an_override(self, files: Files) -> None:
        environ = {"WARMROUTE_POLICY__BOUND": "2"}
        policy = files.load(MINIMAL + "policy: session", environ).policy
        assert (policy.name, policy.options) == ("session", {"bound": 2})

    @pytest.mark.parametrize(
        ("name", "value", "problem"),
        [
            ("POLCY", "x", "names no key of the configuration; did you mean"),
            ("LOG_LEVEL", "x", "did you mean 'WARMROUTE_LOG__LEVEL'?"),
            ("BACKENDS__0__ULR", "x", "did you mean 'WARMROUTE_BACKENDS__0__URL'?"),
            (
                "BACKENDS__7__URL",
                "x",
                "index 7 is past the end; the next free one is 1",
            ),
            ("LOG__LEVEL", "debgu", "log.level: unknown value 'debgu' (known: debug,"),
            ("RETRY__ATTEMPTS", "x", "retry.attempts: expected an integer, got 'x'"),
            ("HEADERS__STRIP", "[a", "headers.strip: "),
            ("HEADERS__STRIP", "{a: 1, a: 2}", "duplicate key 'a'"),
            ("POLICY__BOND", "1", "policy.bond: unknown option 'bond'"),
            ("BACKENDS__99999999__URL", "x", "names no key"),
            ("", "x", "names no key"),
        ],
    )
    def test_problem_names_the_variable(
        self, files: Files, name: str, value: str, problem: str
    ) -> None:
        (line, *_) = files.problems(MINIMAL, {f"WARMROUTE_{name}": value})
        assert line.startswith(f"WARMROUTE_{name}: ")
        assert problem in line

    @pytest.mark.parametrize("name", ["FOO__BAR", "HOME", "CACHE_DIR"])
    def test_a_variable_far_from_any_key_has_no_suggestion(
        self, files: Files, name: str
    ) -> None:
        """The prefix that all share makes none of them near."""
        (line,) = files.problems(MINIMAL, {f"WARMROUTE_{name}": "x"})
        assert line == (
            f"WARMROUTE_{name}: the variable names no key of the configuration; see "
            "`warmroute schema --markdown`"
        )

    def test_service_links_of_kubernetes_are_passed_over(self, files: Files) -> None:
        files.load(
            MINIMAL,
            {
                "WARMROUTE_CACHE": "/var/cache",
                "WARMROUTE_SERVICE_HOST": "10.0.0.1",
                "WARMROUTE_SERVICE_PORT": "80",
                "WARMROUTE_SERVICE_PORT_HTTP": "80",
                "WARMROUTE_PORT": "tcp://10.0.0.1:80",
                "WARMROUTE_PORT_80_TCP": "tcp://10.0.0.1:80",
                "WARMROUTE_PORT_80_TCP_ADDR": "10.0.0.1",
                "WARMROUTE_ADMIN_SERVICE_HOST": "10.0.0.1",
                "WARMROUTE_ADMIN_PORT_9090_TCP_PROTO": "tcp",
            },
        )

    def test_variable_that_the_file_refers_to_is_known(self, files: Files) -> None:
        config = files.load("- http://${WARMROUTE_PEER}", {"WARMROUTE_PEER": "a"})
        assert config.backends[0].name == "a"

    def test_override_is_not_interpolated(self, files: Files) -> None:
        config = files.load(MINIMAL, {"WARMROUTE_BACKENDS__0__NAME": "${x}"})
        assert config.backends[0].name == "${x}"

    def test_override_replaces_a_reference_to_an_unset_variable(
        self, files: Files
    ) -> None:
        text = "- {url: http://a, api_key: '${NOPE}'}"
        config = files.load(text, {"WARMROUTE_BACKENDS__0__API_KEY": "12345"})
        key = config.backends[0].api_key
        assert key is not None
        assert key.get_secret_value() == "12345"

    def test_flags_win_over_the_environment(self, files: Files) -> None:
        files.path.write_text(MINIMAL)
        source = ConfigSource(files.path, flags={"listen": ":1", "log.level": "error"})
        config = source.load({"WARMROUTE_LISTEN": ":2", "WARMROUTE_LOG__LEVEL": "info"})
        assert (config.listen, config.log.level) == (Address("", 1), "error")

    def test_bad_flag_is_named(self) -> None:
        source = ConfigSource(urls=["http://a"], flags={"log.level": "x"})
        with pytest.raises(
            ConfigError, match=r"--log-level: log\.level: unknown value"
        ):
            source.load({})


class TestSecrets:
    SECRET = "sk-hunter2"

    def test_secrets_are_never_shown(self, files: Files) -> None:
        config = files.load(
            "admin: :9090\nbackends: [{url: http://a, api_key: '${K}'}]",
            {"K": self.SECRET, "WARMROUTE_ADMIN_TOKEN": self.SECRET},
        )
        shown = f"{config!r} {config} {config.model_dump()} {config.model_dump_json()}"
        assert self.SECRET not in shown
        assert config.admin_token is not None
        assert config.admin_token.get_secret_value() == self.SECRET

    @pytest.mark.parametrize("value", ["sk-hunter2\nx", "sk-hunter2é", "sk-hunter2\t1"])
    def test_secrets_are_not_in_problems(self, files: Files, value: str) -> None:
        text = "- {url: http://a, api_key: '${K}', tls: x}"
        problems = files.problems(text, {"K": value})
        assert len(problems) == 2
        assert self.SECRET not in "".join(problems)

    def test_secret_under_a_misspelt_key_is_not_shown(self, files: Files) -> None:
        (line,) = files.problems(f"- {{url: http://a, api_kye: {self.SECRET}}}")
        assert line.endswith("did you mean 'api_key'?")
        assert self.SECRET not in line

    def test_number_as_a_secret_is_not_shown(self, files: Files) -> None:
        (line,) = files.problems("- {url: http://a, api_key: 424242}")
        assert line.endswith("api_key: expected a string; put it in quotes")

    def test_empty_secret_is_none(self, files: Files) -> None:
        config = files.load("- {url: http://a, api_key: '${K:-}'}")
        assert config.backends[0].api_key is None

    def test_empty_token_does_not_open_the_admin_port(self, files: Files) -> None:
        text = MINIMAL + "admin: 0.0.0.0:9090\nadmin_token: ${T:-}"
        (line,) = files.problems(text)
        assert line.endswith("or listen on 127.0.0.1, or say `admin: off`")

    def test_differences_name_a_secret_without_showing_it(self, files: Files) -> None:
        old = files.load("- {url: http://a, api_key: one}")
        new = files.load("- {url: http://a, api_key: two}")
        assert differences(old, new) == ["backends[0].api_key: a secret -> a secret"]
