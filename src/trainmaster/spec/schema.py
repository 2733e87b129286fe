"""`recipe_schema`: the JSON Schema of recipes, made of what the readers of their keys say they take."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from typing import Any, Final

from trainmaster.spec.reading import Noun, Reader, keys_of
from trainmaster.spec.recipe import Recipe

#: First line of a recipe, for editors with YAML's language server.
EDITOR_LINE: Final = "# yaml-language-server: $schema="
_NUMBER: Final = r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)"
_MEASURES: Final = {
    "duration": rf"^\s*(?:(?:{_NUMBER}\s*(?:ms|min|s|m|h|d|w)\s*)+|{_NUMBER}(?:[eE][-+]?[0-9]+)?\s*)$",
    "size": rf"^\s*{_NUMBER}\s*(?:[kmgtpKMGTP][iI]?[bB]?|[bB])\s*$",
    "money": rf"^\s*(?:(?:[uU][sS])?\$\s*{_NUMBER}(?:\s*[uU][sS][dD])?|{_NUMBER}\s*(?:[uU][sS][dD]|\$)|"
    rf"[uU][sS][dD]\s*{_NUMBER})\s*$",
}
_SCALAR: Final = ["string", "number", "boolean"]
_ATTRIBUTE: Final = re.compile(r"^    (\w+(?:, \w+)*): (.*)$")
_OWN_KEYS: Final = {"^x-": True}


def recipe_schema() -> dict[str, Any]:
    """The schema (draft 2020-12); what it cannot say is in docs/configuration.md."""
    schemas = _Schemas()
    root = schemas.of_noun(Recipe)
    root.pop("required", None)
    answers = {"anyOf": [{"required": ["command"]}, {"required": ["model"]}]}
    serves = {"required": ["serve"], "properties": {"serve": answers}}
    whole = {"anyOf": [{"required": ["command"]}, serves]}
    wheel = {"required": ["code"], "properties": {"code": {"type": "string", "pattern": r"\.whl$"}}}
    include = {"required": ["include"]}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Recipe of Trainmaster",
        **root,
        "if": {"not": include},
        "then": {"required": ["experiments"]},
        "allOf": [
            {
                "if": {"not": {"anyOf": [include, wheel]}},
                "then": {"properties": {"experiments": {"additionalProperties": whole}}},
            },
            {
                "if": {"required": ["code"]},
                "then": {"properties": {"experiments": {"additionalProperties": {"minProperties": 1}}}},
            },
        ],
        "$defs": schemas.definitions,
    }


class _Schemas:
    """Makes schemas; each noun is there once."""

    def __init__(self) -> None:
        self.definitions: dict[str, Any] = {}

    def of_noun(self, noun: type[Noun]) -> dict[str, Any]:
        told = descriptions_of(noun)
        keys = keys_of(noun)
        properties = {key.name: self._described(self.of(key.read), told.get(name, "")) for name, key in keys}
        properties |= {name: self.of(read) for name, read in noun.hoisted}
        found: dict[str, Any] = {
            "type": "object",
            "properties": properties,
            "patternProperties": _OWN_KEYS,
            "additionalProperties": False,
        }
        if required := [key.name for _, key in keys if key.required]:
            found["required"] = required
        if noun.one_of:
            found["oneOf"] = [{"required": [name]} for name in noun.one_of]
        return found

    def of(self, read: Reader[Any] | Mapping[str, Any]) -> dict[str, Any]:
        """What a reader takes; a mapping is a schema already."""
        if isinstance(read, Mapping):
            return dict(read)
        shape: Mapping[str, Any] = vars(read)["shape"]
        if "same" in shape:
            return self.of(shape["same"])
        if "any" in shape:
            return {"anyOf": [self.of(each) for each in shape["any"]]}
        if "noun" in shape:
            return self._reference(shape["noun"])
        if "items" in shape:
            item = self.of(shape["items"])
            several = {"type": "array", "items": item, "uniqueItems": True}
            return {"anyOf": [several, item]} if shape["single"] else several
        if "values" in shape:
            return {
                "type": "object",
                "additionalProperties": self.of(shape["values"]),
                "propertyNames": {"pattern": shape["names"], "maxLength": 100},
                "minProperties": shape.get("fewest", 0),
            }
        if "text" in shape:
            return _text(shape["text"]) | {key: each for key, each in shape.items() if key != "text"}
        if "measured" in shape:
            return _measure(shape["measured"], may_be_zero=shape["may_be_zero"])
        return {"type": _SCALAR} if "scalar" in shape else dict(shape)

    def _reference(self, noun: type[Noun]) -> dict[str, Any]:
        name = noun.__name__
        if name not in self.definitions:
            self.definitions[name] = {}  # a noun may hold itself
            own = self.of_noun(noun)
            others = [self.of(each) for each in noun.also]
            self.definitions[name] = {"anyOf": [own, *others]} if others else own
        return {"$ref": f"#/$defs/{name}"}

    @staticmethod
    def _described(schema: dict[str, Any], description: str) -> dict[str, Any]:
        return schema | ({"description": description} if description else {})


def _text(pattern: str) -> dict[str, Any]:
    """Numbers, true and false count as they are written, where such texts are taken."""
    kinds = [kind for kind, text in (("number", "1"), ("boolean", "true")) if re.search(pattern, text)]
    return {"type": ["string", *kinds], "pattern": pattern}


def _measure(kind: str, *, may_be_zero: bool) -> dict[str, Any]:
    pattern = _MEASURES[kind] if may_be_zero else rf"(?=.*[1-9]){_MEASURES[kind]}"
    text = {"type": "string", "pattern": pattern}
    if kind != "duration":
        return text
    bound = {"minimum": 0} if may_be_zero else {"exclusiveMinimum": 0}
    return {"anyOf": [{"type": "number", **bound}, text]}


def descriptions_of(noun: type[Noun]) -> dict[str, str]:
    """What the docstring of a noun says of its fields.

    >>> from trainmaster.spec.sections import Checkpoint
    >>> descriptions_of(Checkpoint)["keep"]
    'the newest ones that stay.'
    """
    lines = inspect.cleandoc(noun.__doc__ or "").partition("Attributes:\n")[2].splitlines()
    found: dict[str, str] = {}
    names: list[str] = []
    for line in lines:
        if begin := _ATTRIBUTE.match(line):
            names = begin[1].split(", ")
            found |= dict.fromkeys(names, begin[2])
        elif line.startswith("        "):
            found |= {name: f"{found[name]} {line.strip()}" for name in names}
        else:
            break
    return {name: text.replace("``", "`") for name, text in found.items()}
