"""The keys that a configuration may have, read off the models."""

from collections.abc import Iterator
from dataclasses import dataclass
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le
from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

from warmroute.proxy.config.draft import Path, dotted


@dataclass(frozen=True, slots=True)
class Key:
    """Describe what may stand at one place: a section, a list, or a value."""

    annotation: Any
    field: FieldInfo | None = None

    @property
    def section(self) -> type[BaseModel] | None:
        """The model of a mapping that may stand here."""
        for leaf in _leaves(self.annotation):
            if isinstance(leaf, type) and issubclass(leaf, BaseModel):
                return leaf
        return None

    @property
    def item(self) -> "Key | None":
        """What the items of a list may be, if a list may stand here."""
        for leaf in _leaves(self.annotation):
            if get_origin(leaf) is list:
                return Key(get_args(leaf)[0])
        return None

    @property
    def is_secret(self) -> bool:
        """Whether the value must not be shown."""
        return SecretStr in _leaves(self.annotation)

    @property
    def is_open(self) -> bool:
        """Whether keys beyond the named ones are taken, as a policy's options."""
        section = self.section
        return section is not None and section.model_config.get("extra") == "allow"

    @property
    def words(self) -> list[str]:
        """The words of which the value must be one; empty if it is free."""
        leaves = _leaves(self.annotation)
        return [
            word
            for leaf in leaves
            if get_origin(leaf) is Literal
            for word in get_args(leaf)
        ]

    @property
    def limits(self) -> str:
        """The range of a number in words, such as ``from 1 to 5``; may be empty."""
        bounds = self.field.metadata if self.field else []
        low = [f"from {one.ge}" for one in bounds if isinstance(one, Ge)]
        low += [f"above {one.gt}" for one in bounds if isinstance(one, Gt)]
        high = [f"to {one.le}" for one in bounds if isinstance(one, Le)]
        return " ".join([*low, *high])

    def children(self) -> dict[str, "Key"]:
        """Return the named keys of the section that may stand here."""
        section = self.section
        if section is None:
            return {}
        return {
            field.alias or name: Key(field.annotation, field)
            for name, field in section.model_fields.items()
        }

    def child(self, step: str | int) -> "Key | None":
        """Return what may stand one step further, or None for an unknown key."""
        if isinstance(step, int):
            return self.item
        known = self.children().get(step)
        return known or (Key(Any) if self.is_open else None)

    def at(self, path: Path) -> "Key | None":
        """Return what may stand at *path* below this key."""
        key: Key | None = self
        for step in path:
            key = key and key.child(step)
        return key

    def homes(self, name: str) -> list[str]:
        """List the sections below this key that have a key of that name."""
        places = {path[:-1] for path, _ in self.walk() if path[-1] == name}
        return sorted(dotted(place).replace("[0]", "[]") for place in places)

    def walk(self, path: Path = ()) -> Iterator[tuple[Path, "Key"]]:
        """Yield every key below this one with its path; a list's items are 0."""
        for name, key in self.children().items():
            yield (*path, name), key
            yield from key.walk((*path, name))
            if key.item:
                yield from key.item.walk((*path, name, 0))


def _leaves(annotation: Any) -> list[Any]:
    origin = get_origin(annotation)
    if origin is Annotated:
        return _leaves(get_args(annotation)[0])
    if origin is Union or origin is UnionType:
        return [leaf for part in get_args(annotation) for leaf in _leaves(part)]
    return [annotation]
