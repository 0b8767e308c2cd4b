"""One model whose prompts can be exact."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from warmroute.proxy.config import ModelConfig
from warmroute.proxy.config.tokenizers import read_tokenizer
from warmroute.proxy.prompt.memo import TokenMemo

if TYPE_CHECKING:
    from warmroute.adapters.tokens.files import TokenizerFiles
    from warmroute.proxy.prompt.renderer import Renderer


class ExactModel:
    """Know how a model's prompts become tokens, and which engines agree.

    Args:
        name: As configured.
        files: Its own; None to ask the engine.
        memo: What was tokenized before.

    Attributes:
        renderer: Writes its prompts; None without files.
        verdicts: By backend: whether its tokens are ours.
    """

    __slots__ = ("files", "name", "renderer", "verdicts")

    def __init__(
        self, name: str, files: "TokenizerFiles | None", memo: TokenMemo
    ) -> None:
        self.name = name
        self.files = files
        self.renderer = None if files is None else _renderer(files, memo)
        self.verdicts: dict[str, bool] = {}

    def __repr__(self) -> str:
        source = "files" if self.files else "engine"
        return f"<ExactModel {self.name} [{source}, {self.verdicts}]>"

    @property
    def is_trusted(self) -> bool:
        """Whether no engine was found that makes other tokens."""
        return False not in self.verdicts.values()


def read_models(
    configs: Iterable[ModelConfig],
    memo: TokenMemo,
    known: Mapping[str, ExactModel] | None = None,
) -> dict[str, ExactModel]:
    """Read the tokenizers of all models that have one.

    Args:
        configs: All models.
        memo: What was tokenized before.
        known: Models in force; they stay what they are if their files do.

    Raises:
        ConfigError: An extra is not installed, or the files are not usable.
    """
    models = {}
    for config in configs:
        if config.tokenizer == "none":
            continue
        files = None
        if config.tokenizer != "engine":
            files = read_tokenizer(Path(config.tokenizer))
        model = (known or {}).get(config.name)
        if model is None or model.files is not files:
            model = ExactModel(config.name, files, memo)
        models[config.name] = model
    return models


def _renderer(files: "TokenizerFiles", memo: TokenMemo) -> "Renderer":
    from warmroute.proxy.prompt.renderer import Renderer  # needs an extra

    return Renderer(files, memo)
