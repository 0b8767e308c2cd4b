"""The tokenizer that a configuration names for a model."""

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from warmroute.policies.errors import ConfigError

if TYPE_CHECKING:
    from warmroute.adapters.tokens.files import TokenizerFiles

WORDS = ("engine", "none")
"""What may stand in place of a path."""

_FILES = (
    *("tokenizer.json", "tokenizer_config.json"),
    *("special_tokens_map.json", "chat_template.jinja"),
)


def read_tokenizer(path: Path) -> "TokenizerFiles":
    """Read the tokenizer at *path*: a folder, its tokenizer.json, or a GGUF file.

    What was read last is remembered until a file changes: checking a configuration
    and taking it over cost one reading, which is seconds for the largest.

    Raises:
        ConfigError: An extra is not installed, or the files are not usable.
    """
    return _read(path, _stamps(path))


def _stamps(path: Path) -> tuple[tuple[str, int, int], ...]:
    folder = path if path.is_dir() else path.parent
    named = [folder / name for name in _FILES] + [path]
    files = [*named, *(folder / "additional_chat_templates").glob("*.jinja")]
    stats = [(str(one), one.stat()) for one in files if one.exists()]
    return tuple((name, stat.st_mtime_ns, stat.st_size) for name, stat in stats)


@lru_cache(maxsize=16)
def _read(path: Path, stamps: object) -> "TokenizerFiles":
    try:
        from warmroute.adapters.tokens.chat_template import ChatTemplate
        from warmroute.adapters.tokens.errors import ModelError
        from warmroute.adapters.tokens.files import read_files
    except ImportError as error:
        raise ConfigError(
            f"a tokenizer needs the package {error.name}, which is not installed; "
            "run `pip install 'warmroute[tokenize]'`, or use `engine` or `none`"
        ) from error
    try:
        if path.is_dir():
            files = read_files(path)
        elif path.name == "tokenizer.json":
            files = read_files(path.parent)
        elif path.suffix == ".gguf" and path.is_file():
            files = _read_gguf(path)
        else:
            reason = "is neither" if path.exists() else "is not there; it must be"
            raise ConfigError(
                f"'{path}' {reason} a directory with tokenizer.json, that file, or a "
                f"GGUF file (allowed besides: {', '.join(WORDS)})"
            )
        for source in files.templates.values():
            ChatTemplate(source, files.named)
    except OSError as error:
        raise ConfigError(f"'{path}' cannot be read: {error.strerror}") from error
    except ModelError as error:
        raise ConfigError(str(error)) from error
    return files


def _read_gguf(path: Path) -> "TokenizerFiles":
    try:
        from warmroute.adapters.embedded.model.gguf_weights import GGUFFile
        from warmroute.adapters.tokens.gguf_tokenizer import build_files
    except ImportError as error:
        raise ConfigError(
            f"a GGUF file needs the package {error.name}, which is not installed; "
            "run `pip install 'warmroute[embedded]'`, or name a directory with "
            "tokenizer.json"
        ) from error
    return build_files(GGUFFile(path).metadata, str(path))
