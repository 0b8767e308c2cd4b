"""Seeds of the block hash chains: one for each separate cache."""

from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from warmroute.policies.kv.blocks import Grade, root_hash
from warmroute.proxy.prompt.bodies import Body
from warmroute.proxy.prompt.names import Cards, Names, Resolved, find_base

MAX_ROOTS: Final = 1024
_MAX_NAME_CHARS: Final = 256


def event_root(models: Cards, lora: str | None, salt: str | None) -> int:
    """Return the seed under which an engine's announced blocks are known.

    It is that of an exact prompt which names one of the engine's models; see `Names`.

    Args:
        models: Those that the engine serves; the first one that is no adapter is
            what its blocks are of.
        lora: Name of the adapter, or None.
        salt: The cache salt, or None.
    """
    return root_hash(find_base(models), lora=lora or None, salt=salt or None)


class Roots:
    """Find the seed of a body's chains; remembers 1024 models a grade.

    Attributes:
        known_text: Returns the remembered seed of a model's texts, which holds for
            bodies without salt, adapter and extra key; None when there is none.
        names: What the models' names stand for.
    """

    __slots__ = ("_seeds", "known_text", "names")

    def __init__(self) -> None:
        texts: dict[str, int] = {}
        self._seeds: dict[Grade, dict[str, int]] = {"exact": {}, "estimated": texts}
        self.known_text: Callable[[str], int | None] = texts.get
        self.names = Names()

    def __repr__(self) -> str:
        return f"<Roots [{sum(map(len, self._seeds.values()))} remembered]>"

    def learn(self, fleet: Iterable[Cards]) -> None:
        """Take over the models of all engines."""
        if self.names.learn(fleet):
            for seeds in self._seeds.values():
                seeds.clear()

    def find(self, model: str, grade: Grade, fields: Body, media: str = "") -> int:
        """Return the seed for a body; *media* are digests that separate it."""
        if (
            media
            or fields.cache_salt is not None
            or fields.lora_path is not None
            or fields.extra_key is not None
            or len(model) > _MAX_NAME_CHARS
        ):
            return _separate(self.names.resolve(model), grade, fields, media)
        seeds = self._seeds[grade]
        seed = seeds.get(model)
        if seed is None:
            base, lora = self.names.resolve(model)
            seed = root_hash(base, lora=lora, grade=grade)
            if len(seeds) >= MAX_ROOTS:
                del seeds[next(iter(seeds))]
            seeds[model] = seed
        return seed


def _separate(named: Resolved, grade: Grade, fields: Body, media: str) -> int:
    extra = [f"media={media}"] if media else []
    if (key := _name(fields.extra_key)) is not None:
        extra.append(f"extra_key={key}")
    base, lora = named
    lora, salt = _name(fields.lora_path) or lora, _name(fields.cache_salt)
    return root_hash(base, lora=lora, salt=salt, grade=grade, extra=extra)


def _name(value: object) -> str | None:
    if value is None or value == "":
        return None
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
