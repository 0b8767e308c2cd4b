"""Seeds of the block hash chains: one for each separate cache."""

from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from warmroute.adapters.base import ModelCard
from warmroute.policies.kv.blocks import Grade, root_hash
from warmroute.proxy.prompt.bodies import Body

MAX_ROOTS: Final = 1024
_MAX_NAME_CHARS: Final = 256


def event_root(
    models: Mapping[str, ModelCard], lora: str | None, salt: str | None
) -> int:
    """Return the seed under which an engine's announced blocks are known.

    Args:
        models: Those that the engine serves; the first one that is no adapter is
            what its blocks are of.
        lora: Name of the adapter, or None.
        salt: The cache salt, or None.
    """
    base = next((one.id for one in models.values() if one.parent is None), "")
    return root_hash(base, lora=lora, salt=salt)


class Roots:
    """Find the seed of a body's chains; remembers 1024 models a grade.

    Attributes:
        known_text: Returns the remembered seed of a model's texts, which holds for
            bodies without salt, adapter and extra key; None when there is none.
    """

    __slots__ = ("_seeds", "known_text")

    def __init__(self) -> None:
        texts: dict[str, int] = {}
        self._seeds: dict[Grade, dict[str, int]] = {"exact": {}, "estimated": texts}
        self.known_text: Callable[[str], int | None] = texts.get

    def __repr__(self) -> str:
        return f"<Roots [{sum(map(len, self._seeds.values()))} remembered]>"

    def find(self, model: str, grade: Grade, fields: Body, media: str = "") -> int:
        """Return the seed for a body; *media* are digests that separate it."""
        if (
            media
            or fields.cache_salt is not None
            or fields.lora_path is not None
            or fields.extra_key is not None
            or len(model) > _MAX_NAME_CHARS
        ):
            return _separate(model, grade, fields, media)
        seeds = self._seeds[grade]
        seed = seeds.get(model)
        if seed is None:
            seed = root_hash(model, grade=grade)
            if len(seeds) >= MAX_ROOTS:
                del seeds[next(iter(seeds))]
            seeds[model] = seed
        return seed


def _separate(model: str, grade: Grade, fields: Body, media: str) -> int:
    extra = [f"media={media}"] if media else []
    if (key := _name(fields.extra_key)) is not None:
        extra.append(f"extra_key={key}")
    lora, salt = _name(fields.lora_path), _name(fields.cache_salt)
    return root_hash(model, lora=lora, salt=salt, grade=grade, extra=extra)


def _name(value: object) -> str | None:
    if value is None or value == "":
        return None
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
