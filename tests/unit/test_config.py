"""The configuration: what is taken, and how two compare."""

from pathlib import Path

import pytest
from unit.config_files import MINIMAL, Files
from unit.token_files import tiny_files, write_files

from warmroute.policies.errors import ConfigError
from warmroute.proxy.config import (
    Config,
    KVEventsConfig,
    backend_config,
    changed_listeners,
    differences,
    load_config,
)
from warmroute.proxy.config.address import Address


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


class TestForms:
    def test_list_of_urls_is_a_whole_file(self, files: Files) -> None:
        config = files.load("- http://127.0.0.1:8101\n- http://b/\n")
        assert [(b.name, b.url) for b in config.backends] == [
            ("127.0.0.1:8101", "http://127.0.0.1:8101"),
            ("b", "http://b"),
        ]

    def test_backends_may_be_plain_urls(self, files: Files) -> None:
        config = files.load("backends: [http://a, http://b]")
        assert [b.name for b in config.backends] == ["a", "b"]

    def test_reference_sample_is_valid(self, files: Files) -> None:
        write_files(files.path.parent / "models" / "smollm2", tiny_files())
        config = files.load(
            """\
            listen: 127.0.0.1:8080
            admin: 127.0.0.1:9090
            policy: {name: expected_ttft}
            models:
              - name: smol
                tokenizer: ./models/smollm2
            backends:
              - name: a
                url: http://127.0.0.1:8101
                engine: vllm
                kv_events: auto
            tracing: {endpoint: http://127.0.0.1:4318, sample: 1.0}
            """
        )
        assert config.backends[0].engine == "vllm"
        assert config.tracing is not None
        assert config.tracing.endpoint == "http://127.0.0.1:4318"

    def test_defaults_hold_for_keys_left_out(self, files: Files) -> None:
        config = files.load(MINIMAL)
        assert config.listen == Address("127.0.0.1", 8080)
        assert config.admin == Address("127.0.0.1", 9090)
        assert config.index.max_bytes == 268_435_456
        assert config.backends[0].kv_events == "auto"

    def test_keys_without_a_value_count_as_left_out(self, files: Files) -> None:
        assert not differences(
            files.load(MINIMAL),
            files.load(MINIMAL + "limits:\nlog: {level: }\npolicy:\nadmin_token:\n"),
        )

    @pytest.mark.parametrize(
        ("written", "meant"),
        [
            ("off", "off"),
            ("no", "off"),
            ("false", "off"),
            ("on", "auto"),
            ("true", "auto"),
            ("auto", "auto"),
            ('"off"', "off"),
        ],
    )
    def test_bare_words_of_kv_events(
        self, files: Files, written: str, meant: str
    ) -> None:
        config = files.load(f"backends: [{{url: http://a, kv_events: {written}}}]")
        assert config.backends[0].kv_events == meant

    def test_kv_events_may_say_where_they_are(self, files: Files) -> None:
        config = files.load(
            """\
            backends:
              - url: http://a
                kv_events: {endpoint: tcp://a:5557, replay: tcp://a:5558, topic: kv}
            """
        )
        events = config.backends[0].kv_events
        assert isinstance(events, KVEventsConfig)
        assert (events.endpoint, events.topic) == ("tcp://a:5557", "kv")

    def test_policy_options_are_the_keys_beside_the_name(self, files: Files) -> None:
        text = MINIMAL + "policy: {name: expected_ttft, stall_weight: 0.1}"
        policy = files.load(text).policy
        assert (policy.name, policy.options) == ("expected_ttft", {"stall_weight": 0.1})

    def test_policy_may_be_its_name(self, files: Files) -> None:
        assert files.load(MINIMAL + "policy: session").policy.name == "session"

    def test_sections_may_be_off(self, files: Files) -> None:
        config = files.load(MINIMAL + "tracing: off\ntls: no\nadmin: off")
        assert (config.tracing, config.tls, config.admin) == (None, None, None)

    def test_sizes_may_carry_a_unit(self, files: Files) -> None:
        large = files.load(MINIMAL + "index: {max_bytes: 1TB}")
        assert large.index.max_bytes == 10**12
        config = files.load(MINIMAL + "index: {max_bytes: 1.5 GiB}")
        assert config.index.max_bytes == 3 * 2**29

    def test_anchors_and_merge_keys(self, files: Files) -> None:
        config = files.load(
            """\
            backends:
              - &base {name: a, url: http://a, engine: vllm, class: h100}
              - {<<: *base, name: b, url: http://b}
            """
        )
        assert [(b.name, b.speed_class) for b in config.backends] == [
            ("a", "h100"),
            ("b", "h100"),
        ]

    def test_paths_start_at_the_directory_of_the_file(self, files: Files) -> None:
        (files.path.parent / "ca.pem").write_text("")
        problems = files.problems("backends: [{url: https://a, tls: {ca: ./ca.pem}}]")
        assert problems == [
            "config.yaml:1: backends[0].tls.ca: 'ca.pem' holds no PEM certificates: "
            "NO_CERTIFICATE_OR_CRL_FOUND"
        ]


class TestAddress:
    @pytest.mark.parametrize(
        ("text", "host", "port"),
        [
            ("127.0.0.1:8080", "127.0.0.1", 8080),
            (":8080", "", 8080),
            ("8080", "", 8080),
            ("*:8080", "", 8080),
            ("[::1]:8080", "::1", 8080),
            ("localhost:0", "localhost", 0),
        ],
    )
    def test_forms(self, text: str, host: str, port: int) -> None:
        assert Address.parse(text) == Address(host, port)

    @pytest.mark.parametrize(
        "text", ["", ":", "a", "a:b", "a:70000", "::1:80", "[x]:1", "a b:1", "a:-1"]
    )
    def test_refused_forms(self, text: str) -> None:
        with pytest.raises(ValueError, match=r"allowed|brackets"):
            Address.parse(text)

    @pytest.mark.parametrize("text", ["127.0.0.1:1", "[::1]:1", "localhost:1"])
    def test_loopback(self, text: str) -> None:
        assert Address.parse(text).is_loopback
        assert str(Address.parse(text)) == text

    @pytest.mark.parametrize("text", [":1", "0.0.0.0:1", "[::]:1", "example.org:1"])
    def test_not_loopback(self, text: str) -> None:
        assert not Address.parse(text).is_loopback


class TestChanges:
    def test_changed_listeners_are_named(self, files: Files) -> None:
        old = files.load(MINIMAL)
        new = files.load(MINIMAL + "listen: :1\nadmin: off\nretry: {attempts: 2}")
        assert changed_listeners(old, new) == ["listen", "admin"]
        assert changed_listeners(old, old) == []

    def test_differences_are_described(self, files: Files) -> None:
        old = files.load(MINIMAL)
        new = files.load(MINIMAL + "retry: {attempts: 2}\npolicy: session")
        assert differences(old, new) == [
            "policy.name: 'expected_ttft' -> 'session'",
            "retry.attempts: 1 -> 2",
        ]

    def test_modified_differs_after_a_symlink_swap(self, tmp_path: Path) -> None:
        for name in ("one", "two"):
            (tmp_path / name).write_text(MINIMAL)
        link = tmp_path / "config.yaml"
        link.symlink_to("one")
        config = load_config(link, {})
        before = config.modified()
        link.unlink()
        assert config.modified() is None
        link.symlink_to("two")
        assert config.modified() not in (None, before)

    def test_config_made_in_code_has_no_file(self) -> None:
        assert Config.model_validate({"backends": ["http://a"]}).modified() is None

    def test_backend_from_a_mapping(self) -> None:
        assert backend_config({"url": "http://a", "class": "x"}).speed_class == "x"
        with pytest.raises(ConfigError) as caught:
            backend_config({"url": "http://a", "engine": "vlm", "nam": "x"})
        assert [line.split(": ")[1] for line in str(caught.value).split("\n")] == [
            "backends[0].engine",
            "backends[0].nam",
        ]

    @pytest.mark.parametrize("text", ["${HOME}", "x${HOME:-y}", "$${"])
    def test_a_backend_from_a_request_takes_no_variables(self, text: str) -> None:
        """They would be the server's, which the caller does not see."""
        entry = {"url": "http://a", "api_key": text, "models": ["m", text]}
        with pytest.raises(ConfigError) as caught:
            backend_config(entry)
        reason = "'${' stands for a variable in files alone; give the value itself"
        assert str(caught.value).split("\n") == [
            f"request: backends[0].api_key: {reason}",
            f"request: backends[0].models[1]: {reason}",
        ]
