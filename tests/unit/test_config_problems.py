"""The configuration: what is refused, and in which words."""

from pathlib import Path

import pytest
from unit.config_files import MINIMAL, Files

from warmroute.policies.errors import ConfigError
from warmroute.proxy.config import (
    load_config,
)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


class TestProblems:
    def test_message_names_line_path_value_allowed_and_likely(
        self, files: Files
    ) -> None:
        problems = files.problems(
            """\
            backends:
              - url: http://a
              - name: b
                url: http://b
                engine: vlm
            """
        )
        assert len(problems) == 1
        assert problems[0].startswith(
            "config.yaml:5: backends[1].engine: unknown engine 'vlm' (known: auto, "
        )
        assert problems[0].endswith("; did you mean 'vllm'?")

    @pytest.mark.parametrize(
        "written",
        [
            "{endpoint: 'tcp://*:5557'}",
            "{endpoint: 'tcp://*:5557', bind: true, replay: 'tcp://*:5557'}",
        ],
    )
    def test_kv_events_of_every_interface_cannot_be_connected_to(
        self, files: Files, written: str
    ) -> None:
        text = f"backends:\n  - url: http://a\n    kv_events: {written}\n"
        (problem,) = files.problems(text)
        assert problem.startswith(
            "config.yaml:3: backends[0].kv_events: nobody can connect to "
            "'tcp://*:5557' (allowed: the engine's host in place of *; "
        )
        events = "{endpoint: 'tcp://*:1', bind: true}"
        files.load(f"backends: [{{url: http://a, kv_events: {events}}}]")

    @pytest.mark.parametrize(
        ("address", "fault"),
        [
            ("tcp://nope", "'tcp://nope' has no port from 1 to 65535"),
            ("tcp://127.0.0.1:99999", "'tcp://127.0.0.1:99999' has no port from 1 to"),
            ("tcp://127.0.0.1:0", "'tcp://127.0.0.1:0' has no port from 1 to 65535"),
            ("tcp://a:x", "'tcp://a:x' has no port from 1 to 65535"),
            ("tcp://:5557", "'tcp://:5557' has no host"),
            ("udp://a:5557", "'udp://a:5557' is no ZMQ address"),
            ("ipc://", "'ipc://' is no ZMQ address"),
        ],
    )
    @pytest.mark.parametrize("key", ["endpoint", "replay"])
    def test_an_address_of_kv_events_can_be_one(
        self, files: Files, address: str, fault: str, key: str
    ) -> None:
        """No port, or one that does not exist, would never be connected."""
        given = {"endpoint": "tcp://a:1", key: address}
        events = ", ".join(f"{name}: '{value}'" for name, value in given.items())
        (problem,) = files.problems(
            f"backends: [{{url: http://a, kv_events: {{{events}}}}}]"
        )
        place = f"config.yaml:1: backends[0].kv_events.{key}: {fault}"
        assert problem.startswith(place)
        assert "(allowed: tcp://host:port, ipc://path)" in problem

    def test_addresses_of_kv_events_may_be_of_every_form(self, files: Files) -> None:
        for text in ("tcp://[::1]:5557", "ipc:///run/kv.sock", "tcp://a.b:65535"):
            files.load(
                f"backends: [{{url: http://a, kv_events: {{endpoint: '{text}'}}}}]"
            )

    @pytest.mark.parametrize(
        ("pattern", "reason"),
        [
            ("Content-Length", "warmroute writes content-length itself"),
            ("transfer-encoding", "warmroute writes transfer-encoding itself"),
            ("host", "warmroute writes host itself"),
            ("connection", "warmroute writes connection itself"),
            ("content-*", "warmroute writes content-length itself"),
            ("content-type", "engines read the body by content-type"),
            ("authorization", "a backend's api_key takes the place of authorization"),
            ("auth*", "a backend's api_key takes the place of authorization"),
        ],
    )
    def test_what_a_request_needs_is_not_stripped(
        self, files: Files, pattern: str, reason: str
    ) -> None:
        (problem,) = files.problems(f"{MINIMAL}headers: {{strip: ['{pattern}']}}")
        place = "config.yaml:2: headers.strip[0]"
        assert problem == f"{place}: '{pattern}' cannot be stripped: {reason}"

    def test_tls_of_a_backend_goes_with_https(self, files: Files) -> None:
        tls = "tls: {verify: false}"
        (problem,) = files.problems(f"backends: [{{url: http://a, {tls}}}]")
        assert problem == (
            "config.yaml:1: backends[0].tls: 'http://a' is plain HTTP, where tls does "
            "nothing; write https, or leave tls out"
        )
        files.load(f"backends: [{{url: HTTPS://a, {tls}}}]")
        files.load("backends: [{url: http://b, tls: {verify: true}}]")

    def test_a_backend_of_no_models_is_refused(self, files: Files) -> None:
        """It looks like none, and would mean all."""
        (problem,) = files.problems("backends: [{url: http://a, models: []}]")
        assert problem == (
            "config.yaml:1: backends[0].models: must not be empty (Models to route "
            "here; left out, those that the engine lists)"
        )

    @pytest.mark.parametrize("written", ["{place}", "{{path: {place}}}"])
    def test_records_go_to_a_file_in_a_folder_that_is_there(
        self, files: Files, tmp_path: Path, written: str
    ) -> None:
        """Else each request would be dropped from the records, for days."""
        key = "records.path" if "path" in written else "records"
        for place, fault in (
            (tmp_path, "is a folder; name a file in it"),
            (
                tmp_path / "none" / "r.jsonl",
                f"cannot be written: no folder '{tmp_path / 'none'}'",
            ),
            (
                files.path / "r.jsonl",
                f"cannot be written: no folder '{files.path}'",
            ),
        ):
            text = f"{MINIMAL}records: {written.format(place=place)}"
            with pytest.raises(ConfigError) as caught:
                files.load(text)
            problem = f"{files.path}:2: {key}: '{place}' {fault}"
            assert str(caught.value) == problem
        for text in ("r.jsonl", "off", "/dev/null"):
            files.load(f"{MINIMAL}records: {text}")

    def test_all_problems_come_at_once_in_the_order_of_the_file(
        self, files: Files
    ) -> None:
        problems = files.problems(
            """\
            listn: :80
            policy: {name: expected_tft}
            backends:
              - {url: http://a, engine: vlm}
              - {name: a, url: http://b}
              - {}
            timeouts:
              header_s: -1
              header_s: soon
            log: {level: chatty}
            """
        )
        places = [problem.split(": ")[:2] for problem in problems]
        assert places == [
            ["config.yaml:1", "listn"],
            ["config.yaml:2", "policy.name"],
            ["config.yaml:4", "backends[0].engine"],
            ["config.yaml:5", "backends[1].name"],
            ["config.yaml:6", "backends[2].url"],
            ["config.yaml:8", "timeouts.header_s"],
            ["config.yaml:9", "timeouts.header_s"],
            ["config.yaml:10", "log.level"],
        ]

    @pytest.mark.parametrize(
        ("addition", "problem"),
        [
            ("listn: x", "2: listn: unknown key 'listn' (known: admin, admin_token,"),
            (
                "log: {levl: x}",
                "2: log.levl: unknown key 'levl' (known: format, level)",
            ),
            ("log: chatty", "2: log: expected a mapping, got 'chatty'"),
            ("log: [1]", "2: log: expected a mapping, got a list"),
            ("models: {a: b}", "2: models: expected a list, got a mapping"),
            ("models: [null]", "2: models[0]: expected a mapping, got nothing"),
            ("models: [{name: 1}]", "2: models[0].name: expected a string, got 1; put"),
            ("retry: {attempts: 9}", "2: retry.attempts: 9 is out of range (allowed: "),
            (
                "retry: {attempts: yes}",
                "2: retry.attempts: expected a number, got true",
            ),
            (
                "retry: {attempts: 1.5}",
                "2: retry.attempts: expected an integer, got 1.5",
            ),
            ("retry: {attempts: x}", "2: retry.attempts: expected an integer, got 'x'"),
            ("drain: {delay_s: .nan}", "2: drain.delay_s: expected a finite number"),
            ("reload: {watch: maybe}", "2: reload.watch: expected true or false, got"),
            (
                "truth: {usage: observ}",
                "2: truth.usage: unknown value 'observ' (known:",
            ),
            (
                "index: {max_bytes: 1}",
                "2: index.max_bytes: 1 is out of range (allowed:",
            ),
            (
                "index: {max_bytes: 1XB}",
                "2: index.max_bytes: '1XB' is no size (allowed",
            ),
            ("limits: {headers: 20000}", "2: limits.headers: 20000 is out of range"),
            ("headers: {strip: [a b]}", "2: headers.strip[0]: 'a b' is no header name"),
            ("listen: 1.2.3.4", "2: listen: no port in '1.2.3.4' (allowed: host:port,"),
            ("listen: off", "2: listen: expected an address (allowed: host:port"),
            ("tls: {certificate: no.pem}", "2: tls.key: missing key 'key' (PEM file"),
            (
                "tls: {certificate: no.pem}",
                "2: tls.certificate: 'no.pem' cannot be read",
            ),
            ("policy: {bound: 2}", "2: policy.bound: unknown option 'bound' (known: "),
            (
                "policy: {stall_weight: 99}",
                "2: policy.stall_weight: 99 is out of range",
            ),
            (
                "policy: {name: sesion}",
                "2: policy.name: unknown policy 'sesion' (known:",
            ),
            ("policy: 7", "2: policy: expected a mapping, got 7"),
            (
                "timeouts: {header_s: 0}",
                "2: timeouts.header_s: 0 is out of range (allowed: above 0 to 86400)",
            ),
            (
                "retry: {attempts: 6}",
                "2: retry.attempts: 6 is out of range (allowed: from 0 to 5)",
            ),
            (
                "timeouts: {idle_s: 5m}",
                "2: timeouts.idle_s: expected a number of seconds, got '5m'",
            ),
            (
                "truth: {usage: on}",
                "2: truth.usage: expected one of observe, inject, off, got true; "
                "YAML reads a bare on, off, yes or no as true or false",
            ),
            (
                "index: 256MiB",
                "2: index: expected a mapping, got '256MiB'; "
                "did you mean `index: {max_bytes: 256MiB}`?",
            ),
            (
                "retry: 2",
                "2: retry: expected a mapping, got 2; "
                "did you mean `retry: {attempts: 2}`?",
            ),
            (
                "kv_events: auto",
                "2: kv_events: unknown key 'kv_events' (known: ",
            ),
            ("1: x", "2: key '1' must be a string; put it in quotes"),
            ("[a]: x", "2: a key must be a string"),
            ("log: !!python/name:os.system x", "2: log: tag '!!python/name:os.system'"),
            ("admin: :9090", "2: admin: :9090 can be reached from other machines and"),
            ("listen: 9090", "2: listen"),
            (
                "backends: []",
                "2: backends: duplicate key 'backends', first given on line",
            ),
        ],
    )
    def test_each_mistake_has_its_line(
        self, files: Files, addition: str, problem: str
    ) -> None:
        if addition == "listen: 9090":
            problem = "2: admin: 127.0.0.1:9090 is taken by listen; choose another port"
            addition = "admin: 127.0.0.1:9090\nlisten: 9090"
        problems = files.problems(MINIMAL + addition)
        assert any(line.startswith(f"config.yaml:{problem}") for line in problems)

    @pytest.mark.parametrize(
        ("own", "url"),
        [
            ("listen: 127.0.0.1:18232", "http://127.0.0.1:18232"),
            ("listen: 127.0.0.1:18232", "http://localhost:18232/prefix"),
            ("listen: 127.0.0.1:18232", "http://LocalHost.:18232"),
            ("listen: 127.0.0.1:18232", "http://0.0.0.0:18232"),
            ("listen: localhost:18232", "http://127.0.0.1:18232"),
            ("listen: localhost:18232", "http://[::1]:18232"),
            ("listen: :18232", "http://127.0.0.3:18232"),
            ("listen: '[::]:18232'", "http://[::1]:18232"),
            ("listen: 10.0.0.7:443", "https://10.0.0.7"),
            ("listen: proxy:80", "http://Proxy"),
            ("admin: 127.0.0.1:18232", "http://localhost:18232"),
        ],
    )
    @pytest.mark.parametrize("form", ["{}", "{{url: '{}'}}"])
    def test_a_backend_at_an_own_address_is_told(
        self, files: Files, own: str, url: str, form: str
    ) -> None:
        (line,) = files.problems(f"{own}\nbackends:\n  - {form.format(url)}\n")
        key = own.partition(":")[0]
        assert line.startswith("config.yaml:3: backends[0].url: ")
        assert f"is this warmroute's own address ({key}: " in line

    @pytest.mark.parametrize(
        "url",
        [
            *("http://127.0.0.1:18233", "http://127.0.0.2:18232"),
            *("https://127.0.0.1", "http://[::1]:18232", "http://host:18232"),
        ],
    )
    def test_other_addresses_may_be_backends(self, files: Files, url: str) -> None:
        files.load(f"listen: 127.0.0.1:18232\nbackends: ['{url}']\n")

    @pytest.mark.parametrize(
        ("addition", "home"),
        [
            ("kv_events: auto", "it belongs under `backends[]`"),
            ("stripp: []", "known: admin, "),
            ("log: {admin: off}", "it belongs under the top level"),
            ("max_bytes: 1", "it belongs under `decisions` or `index`"),
        ],
    )
    def test_a_key_in_the_wrong_place_is_told_its_own(
        self, files: Files, addition: str, home: str
    ) -> None:
        (line,) = files.problems(MINIMAL + addition)
        assert home in line

    @pytest.mark.parametrize(
        ("url", "problem"),
        [
            ("127.0.0.1:8101", "did you mean 'http://127.0.0.1:8101'?"),
            ("http://a/v1", "did you mean 'http://a'?"),
            ("http://a:99999", "Port out of range 0-65535"),
            ("http://a:0", "has no valid host and port (allowed: 1 to 65535)"),
            ("ftp://a", "is no URL (allowed: http://host:port, https://host:port)"),
            ("http://", "is no URL (allowed: http://host:port, https://host:port)"),
            ("http://a?x=1", "has a query or fragment; leave it out"),
            ("http://[::1", "is no URL: Invalid IPv6 URL"),
        ],
    )
    def test_urls(self, files: Files, url: str, problem: str) -> None:
        (line,) = files.problems(f'- "{url}"')
        assert line.startswith("config.yaml:1: backends[0].url: ")
        assert line.endswith(problem)

    def test_credentials_in_a_url_are_refused_and_not_shown(self, files: Files) -> None:
        (line,) = files.problems("- http://me:hunter2@a")
        assert "hunter2" not in line
        assert line.endswith("use api_key")

    def test_duplicate_names_name_both_lines(self, files: Files) -> None:
        named = "- http://a\n- http://b\n- {name: a, url: http://c}\n"
        assert files.problems(named) == [
            "config.yaml:3: backends[2].name: duplicate name 'a', first given at "
            "config.yaml:1; names must differ"
        ]

    def test_duplicate_keys_name_both_lines(self, files: Files) -> None:
        text = "log:\n  level: info\n  level: debug\n"
        assert files.problems(MINIMAL + text) == [
            "config.yaml:4: log.level: duplicate key 'level', first given on line 3"
        ]


class TestFiles:
    def test_empty_backends(self, files: Files) -> None:
        (line,) = files.problems("backends: []")
        assert line.startswith("config.yaml:1: backends: must not be empty (")

    @pytest.mark.parametrize("text", ["", "# nothing\n", "---\n", "null\n"])
    def test_empty_file(self, files: Files, text: str) -> None:
        (line,) = files.problems(text)
        assert line == (
            "config.yaml: is empty; expected a mapping with `backends`, "
            "or a list of backend URLs"
        )

    def test_file_that_is_a_string(self, files: Files) -> None:
        (line,) = files.problems("http://a")
        assert line.endswith("or a list of backend URLs, got 'http://a'")

    @pytest.mark.parametrize(
        ("text", "problem"),
        [
            ("a: b: c", "config.yaml:1:5: mapping values are not allowed"),
            ("a:\n\tb: 1", "config.yaml:2:1: while scanning for the next token from"),
            ("a: [1\n", "config.yaml:2:1: "),
            ("a: *x", "config.yaml:1:4: found undefined alias"),
            (
                "a: 1\n---\nb: 2",
                "config.yaml:2:1: expected a single document in the stream",
            ),
            ("a: \x07", "config.yaml:1:4: character U+0007 is not allowed in YAML"),
            ("[" * 5000, "config.yaml:1:"),
            (b"a: 1\nb: \xff", "config.yaml:2: byte 0xff is not UTF-8; save the file"),
            ("a: &a {<<: *a}", "config.yaml:1: nested deeper than 32 levels"),
            ("a: &a [*a]", "config.yaml:1: nested deeper than 32 levels"),
        ],
    )
    def test_files_that_are_no_yaml(
        self, files: Files, text: str | bytes, problem: str
    ) -> None:
        (line,) = files.problems(text)
        assert line.startswith(problem)

    def test_tabs_are_named(self, files: Files) -> None:
        (line,) = files.problems("a:\n\tb: 1")
        assert line.endswith("; indent with spaces, not with tabs")

    def test_syntax_errors_do_not_quote_the_file(self, files: Files) -> None:
        assert "hunter2" not in "".join(files.problems("api_key: 'hunter2\nx: y: z"))

    def test_aliases_cannot_blow_up(self, files: Files) -> None:
        lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
        for level in range(1, 9):
            aliases = ", ".join([f"*a{level - 1}"] * 10)
            lines += [f"a{level}: &a{level} [{aliases}]"]
        (line,) = files.problems("\n".join(lines))
        assert line.endswith("expands to more than 100000 values; use fewer aliases")

    def test_missing_file(self, tmp_path: Path) -> None:
        with pytest.raises(
            ConfigError, match=r"no\.yaml: cannot be read: no such file"
        ):
            load_config(tmp_path / "no.yaml", {})

    def test_directory_in_place_of_a_file(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="cannot be read: is a directory"):
            load_config(tmp_path, {})
