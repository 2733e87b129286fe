"""Pages of the site that are made of the code: verbs with all that they take, and the keys of a recipe."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any


def verbs() -> Iterator[str]:
    """Lines of Markdown: each verb with what it does and takes, as its ``--help`` says it."""
    import typer

    from trainmaster.cli.app import app

    yield "# Verbs and options\n"
    yield "All that the command line takes, as `--help` says it. [The command line](cli.md) says more.\n"
    yield "```console\n$ trainmaster run --help\n```\n"
    yield from _verbs("trainmaster", typer.main.get_command(app), 2)


def _verbs(name: str, command: Any, depth: int) -> Iterator[str]:  # noqa: ANN401 - Click's own type
    for word, verb in getattr(command, "commands", {}).items():
        if verb.hidden:
            continue
        yield f"{'#' * depth} `{name} {word}`\n"
        yield _text(verb.help) + "\n"
        if taken := [each for each in verb.params if each.name != "help"]:
            yield "| takes | |\n|---|---|"
            for each in taken:
                is_option = each.param_type_name == "option"
                names = ", ".join((*each.opts, *each.secondary_opts)) if is_option else each.name.upper()
                yield f"| `{names}` | {_text(each.help)} |"
            yield ""
        yield from _verbs(f"{name} {word}", verb, min(depth + 1, 4))


def keys() -> Iterator[str]:
    """Lines of Markdown: every key of a recipe, by the schema that editors use."""
    from trainmaster.spec.schema import recipe_schema

    schema = recipe_schema()
    yield "# Keys of a recipe, one by one\n"
    yield "Every key with what it takes, as `trainmaster schema` gives it to editors."
    yield "[The recipe](recipe.md) explains them.\n"
    yield "```console\n$ trainmaster schema -o recipe.schema.json\n```\n"
    for title, part in (("Recipe", schema), *schema["$defs"].items()):
        if properties := part.get("properties"):
            yield f"## {title}\n\n| key | takes | |\n|---|---|---|"
            for key, each in properties.items():
                yield f"| `{key}` | {_kind(each)} | {_text(each.get('description', ''))} |"
            yield ""


def _kind(schema: Mapping[str, Any]) -> str:
    """What a key takes, in a few words."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "const" in schema or "enum" in schema:
        return ", ".join(f"`{json.dumps(each)}`" for each in schema.get("enum", [schema.get("const")]))
    if several := schema.get("anyOf") or schema.get("oneOf"):
        return " or ".join(dict.fromkeys(map(_kind, several)))
    kinds = schema.get("type", "anything")
    kinds = [kinds] if isinstance(kinds, str) else [each for each in kinds if each != "boolean"]
    if "string" in kinds:
        return "text"
    of = schema.get("items") or schema.get("additionalProperties")
    inside = f" of {_kind(of)}" if isinstance(of, dict) else ""
    return " or ".join({"array": "list", "object": "map"}.get(each, each) for each in kinds) + inside


def _text(text: str | None) -> str:
    return re.sub(r"\s+", " ", text or "").replace("|", "\\|").replace("[", "\\[").strip()
