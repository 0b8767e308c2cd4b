"""The tokenizer of a model: found, read once, or refused with place and remedy."""

import json
import sys
from pathlib import Path

import pytest
from unit.config_files import MINIMAL, Files
from unit.token_files import tiny_files, write_files

from warmroute.policies.errors import ConfigError
from warmroute.proxy.config.tokenizers import read_tokenizer

CONFIG = MINIMAL + "models:\n  - name: m\n    tokenizer: {}\n"


@pytest.fixture
def files(tmp_path: Path) -> Files:
    write_files(tmp_path / "smol", tiny_files())
    return Files(tmp_path)


class TestForms:
    @pytest.mark.parametrize("word", ["engine", "none"])
    def test_words_stay_words(self, files, word):
        (model,) = files.load(CONFIG.format(word)).models
        assert model.tokenizer == word

    @pytest.mark.parametrize("path", ["./smol", "smol/tokenizer.json"])
    def test_paths_start_at_the_file_s_directory(self, files, path):
        (model,) = files.load(CONFIG.format(path)).models
        assert model.tokenizer == str(files.path.parent / path)
        assert read_tokenizer(Path(model.tokenizer)).templates

    def test_files_are_read_again_once_they_changed(self, files):
        folder = files.path.parent / "smol"
        first = read_tokenizer(folder)
        assert read_tokenizer(folder) is first
        (folder / "chat_template.jinja").write_text("{{ messages }}")
        assert read_tokenizer(folder).templates == {"default": "{{ messages }}"}

    def test_the_settings_decide_what_is_put_around_texts(self, files):
        folder = files.path.parent / "smol"
        settings = json.loads((folder / "tokenizer_config.json").read_text())
        for first, last in ((True, True), (False, True), (True, False)):
            asked = {"add_bos_token": first, "add_eos_token": last}
            path = folder / "tokenizer_config.json"
            path.write_text(json.dumps({**settings, **asked}))
            tokens = read_tokenizer(folder).tokenizer.encode("a").tokens
            assert tokens == ["<|im_start|>"] * first + ["a"] + ["<|im_end|>"] * last

    def test_several_templates_keep_their_names(self, files):
        folder = files.path.parent / "smol"
        listed = [{"name": name, "template": name} for name in ("default", "tool_use")]
        path = folder / "tokenizer_config.json"
        path.write_text(json.dumps({"chat_template": listed}))
        names = {"default": "default", "tool_use": "tool_use"}
        assert read_tokenizer(folder).templates == names
        more = folder / "additional_chat_templates"
        more.mkdir()
        (more / "rag.jinja").write_text("rag")
        assert read_tokenizer(folder).templates == {"rag": "rag"}


class TestProblems:
    def test_a_directory_that_is_not_there_is_named_with_its_line(self, files):
        assert files.problems(CONFIG.format("./other")) == [
            "config.yaml:4: models[0].tokenizer: 'other' is not there; it must be a "
            "directory with tokenizer.json, that file, or a GGUF file (allowed "
            "besides: engine, none)"
        ]

    def test_a_directory_without_a_tokenizer_names_the_remedy(self, files):
        (files.path.parent / "empty").mkdir()
        (problem,) = files.problems(CONFIG.format("empty"))
        assert problem.startswith("config.yaml:4: models[0].tokenizer: empty: no ")
        assert "save the tokenizer again" in problem

    @pytest.mark.parametrize(
        ("name", "content"),
        [
            ("tokenizer.json", "{}"),
            ("tokenizer_config.json", "[]"),
            ("tokenizer_config.json", "{"),
            ("chat_template.jinja", "{% for %}"),
        ],
    )
    def test_damaged_files_are_problems(self, files, name, content):
        (files.path.parent / "smol" / name).write_text(content)
        (problem,) = files.problems(CONFIG.format("smol"))
        assert problem.startswith("config.yaml:4: models[0].tokenizer: ")

    @pytest.mark.parametrize(
        ("package", "path", "extra"),
        [("tokenizers", "smol", "tokenize"), ("gguf", "x.gguf", "embedded")],
    )
    def test_a_missing_extra_is_named(self, files, monkeypatch, package, path, extra):
        (files.path.parent / "x.gguf").touch()
        for name in list(sys.modules):
            if name.startswith(("warmroute.adapters.tokens", "warmroute.adapters.emb")):
                monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(ConfigError, match=f"pip install 'warmroute.{extra}.'"):
            read_tokenizer(files.path.parent / path)

    def test_a_damaged_gguf_file_is_a_problem(self, files):
        (files.path.parent / "x.gguf").write_bytes(b"GGUF" + b"0" * 40)
        with pytest.raises(ConfigError, match="GGUF"):
            read_tokenizer(files.path.parent / "x.gguf")
