"""The JSON Schema of the configuration, read off the models and the plugins.

pydantic describes the models; added here are the short forms, the words that YAML
reads as booleans, references to variables, and the options of the policies.
"""

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from warmroute.policies.registry import policies
from warmroute.policies.routing.base import Option, options
from warmroute.proxy.config.checks import engine_names
from warmroute.proxy.config.keys import Key
from warmroute.proxy.config.model import Config

Schema = dict[str, Any]

_REFERENCE = {"type": "string", "pattern": r"\$\{"}
_JSON_TYPES = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
}


def json_schema() -> Schema:
    """Return the JSON Schema of a configuration file, short forms included."""
    schema = Config.model_json_schema(by_alias=True)
    definitions = schema["$defs"]
    for name in ("PolicyConfig", "ShadowConfig"):
        definitions[name] = _policy_schema(definitions[name])
    definitions["BackendConfig"]["properties"]["engine"]["enum"] = engine_names()
    for definition in (*definitions.values(), schema):
        _loosen_properties(definition)
    for section in _sections(Config):
        short_form = getattr(section, "short_form", None)
        if short_form:
            _add_short_form(definitions, section.__name__, short_form)
    root = {key: schema.pop(key) for key in ("properties", "required", "type")}
    root["additionalProperties"] = schema.pop("additionalProperties")
    urls = {"type": "array", "minItems": 1, "items": _ref("BackendConfig")}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "anyOf": [root, urls],
    }


def _ref(name: str) -> Schema:
    return {"$ref": f"#/$defs/{name}"}


def _sections(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    for _, key in Key(model).walk():
        section = key.section or (key.item and key.item.section)
        if section:
            yield section


def _add_short_form(definitions: Schema, name: str, short_form: str) -> None:
    full = definitions[name]
    if "anyOf" in full:
        return
    short = {**full["properties"][short_form]}
    short["description"] = f"Short for a mapping with `{short_form}` alone."
    short.pop("default", None)
    definitions[name] = {
        "title": full.pop("title"),
        "description": full.pop("description"),
        "anyOf": [short, full],
    }


def _loosen_properties(definition: Schema) -> None:
    for name, schema in definition.get("properties", {}).items():
        schema.pop("title", None)
        definition["properties"][name] = _loosened(schema)


def _loosened(schema: Schema) -> Schema:
    kept = ("description", "default")
    words = _words(schema)
    others: list[Schema] = []
    if "off" in words:
        others.append({"type": "boolean"} if "auto" in words else {"const": False})
    branches = schema.get("anyOf", ())
    if {"type": "null"} in branches and any("$ref" in one for one in branches):
        others.append({"enum": ["off", False]})
    if words or schema.get("type") in ("integer", "number", "boolean"):
        others.append(_REFERENCE)
    if not others:
        return schema
    outer = {key: schema.pop(key) for key in kept if key in schema}
    return {**outer, "anyOf": [schema, *others]}


def _words(schema: Schema) -> list[str]:
    branches = schema.get("oneOf", [schema])
    return [word for branch in branches for word in branch.get("enum", ())]


def _policy_schema(schema: Schema) -> Schema:
    schema["properties"]["name"]["enum"] = policies.names()
    schema["additionalProperties"] = False
    for policy in policies.names():
        for option in options(policies.get(policy)):
            known = schema["properties"].setdefault(option.name, _option_schema(option))
            help_text = f"{policy}: {option.help or option.name}"
            earlier = known.get("description")
            known["description"] = f"{earlier} {help_text}" if earlier else help_text
    return schema


def _option_schema(option: Option) -> Schema:
    schema: Schema = {"type": _JSON_TYPES[option.type]}
    if option.limits and option.type in (int, float):
        schema["minimum"] = option.limits.minimum
        schema["maximum"] = option.limits.maximum
    return schema
