"""Pages of the docs that are made of the code: verbs with all that they take, and the keys of a recipe."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

DOCS: Final = Path(__file__).resolve().parents[1] / "docs"
#: Between these the table of verbs stands in that page.
_TABLE: Final = re.compile(
    r"(?<=<!-- verbs: python scripts/reference_pages.py -->\n\n).*?(?=\n<!-- end -->)", re.DOTALL
)
#: Keys that `recipe.md` and `serving.md` have all of, in tables of their own.
_IN_RECIPE: Final = ("Experiment", "Search", "Requirement", "Serve")
#: A line that so many verbs have stands once.
_OFTEN: Final = 3
#: Where more is said of a verb, or of one of its own verbs.
_MORE: Final = {
    "run": "#run", "check": "#check", "quote": "quotes.md", "resume": "#resume", "cancel": "#cancel",
    "examples": "models.md#models-that-come-with-trainmaster", "export": "capsule.md",
    "convert": "migrate.md", "logs": "#logs", "approve": "recipe.md#a-persons-yes",
    "label": "labels-and-cost.md", "note": "labels-and-cost.md",
    "views": "labels-and-cost.md#conditions", "compare": "labels-and-cost.md#what-differs-between-two-runs",
    "cost": "labels-and-cost.md#what-did-it-cost", "score": "quotes/kept.md#how-quotes-turned-out",
    "metrics": "#metrics-export",
    "doctor": "how/places-checked.md",
    "tensorboard": "apps.md", "open": "apps.md#ports-of-members", "queue": "server/budgets.md#the-queue",
    "budget": "server/budgets.md", "ssh": "#ssh", "exec": "#exec-port-forward-cp", "apps": "apps.md",
    "cp": "#exec-port-forward-cp", "port-forward": "#exec-port-forward-cp", "notebook": "apps/notebooks.md",
    "models": "models.md",
    "serve": "serving.md", "services": "serving.md", "volume": "volumes.md", "df": "retention.md",
    "rm": "retention.md", "prune": "retention.md", "offers": "offers.md", "recommend": "recommend.md",
    "predict": "advisor.md", "clusters": "clusters.md", "image": "machine-images.md", "lab": "lab.md",
    "server": "server.md",
    "login": "server/login.md", "context": "server/login.md", "mcp": "assistants.md",
    "workflows": "workflows.md", "token": "server/teams.md", "team": "server/teams.md",
    "user": "server/teams.md", "secret": "server/secrets.md", "init": "first-recipe.md",
    "schema": "configuration.md#an-editor-that-knows-the-keys", "config": "configuration.md",
}  # fmt: skip


def table() -> str:
    """A line for each kind of verb, with where more of each stands."""
    from trainmaster.cli.app import PANELS

    return "\n".join(f"- **{title}**: {', '.join(map(_link, names))}" for title, names in PANELS.items())


def _link(name: str) -> str:
    return f"[`{name}`]({_MORE.get(name, f'verbs.md#trainmaster-{name}')})"


def cli_page() -> str:
    """The page of the command line with its table as it is now."""
    found = table()
    return _TABLE.sub(lambda _: found, (DOCS / "cli.md").read_text())


def verbs() -> Iterator[str]:
    """Lines of Markdown: each verb with what it does and takes, as its ``--help`` says it."""
    import typer

    from trainmaster.cli.app import app

    made: Any = typer.main.get_command(app)
    every = list(_verbs("trainmaster", made, 2))
    often = Counter(line for *_, taken in every for line in taken)
    shared: dict[str, str] = {}
    for line, times in often.most_common():
        if times >= _OFTEN and not line.startswith("- `NAME`"):  # that means something else in each family
            shared.setdefault(line.split(":")[0], line)
    yield "# Verbs and options\n"
    yield "Every verb with all that it takes, as `--help` says it. [The command line](cli.md) says more,"
    yield "[JSON](json.md) what those print that take `--json`.\n"
    yield "```console\n$ trainmaster run --help\n```\n"
    yield "Written by `scripts/reference_pages.py`. What many verbs take, and others name only:\n"
    yield from sorted(shared.values())
    for title, told, names, taken in every:
        here = [line.split(":")[0][2:] for line in taken if line in shared.values()] + names
        yield f"\n{title}\n\n{told}" + (f" Takes {', '.join(here)}." if here else "")
        if own := [line for line in taken if line not in shared.values()]:
            yield ""
            yield from own


def _verbs(name: str, command: Any, depth: int) -> Iterator[tuple[str, str, list[str], list[str]]]:  # noqa: ANN401 - Click's own type
    """Of each verb: heading, what it does, names that need no word, a line for each thing that it takes."""
    for word, verb in getattr(command, "commands", {}).items():
        if verb.hidden:
            continue
        lines = []
        for each in verb.params:
            if each.name == "help" or each.opts == ["--json"] or getattr(each, "hidden", False):
                continue
            is_option = each.param_type_name == "option"
            names = ", ".join((*each.opts, *each.secondary_opts)) if is_option else each.name.upper()
            shown = f"Default: `{each.default}`." if _is_said(each.default) else ""
            lines.append(f"- `{names}`: {' '.join(filter(None, (_text(each.help), shown)))}")
        as_json = ["`--json`"] * any(each.opts == ["--json"] for each in verb.params)
        yield f"{'#' * depth} `{name} {word}`", _text(verb.help), as_json, lines
        yield from _verbs(f"{name} {word}", verb, min(depth + 1, 4))


def _is_said(default: object) -> bool:
    """Whether it is worth a word: a number, or a text that is the same on every machine."""
    return not isinstance(default, bool) and isinstance(default, int | float | str) and default != ""


def keys() -> Iterator[str]:
    """Lines of Markdown: every key of a recipe, by the schema that editors use."""
    from trainmaster.spec.schema import recipe_schema

    schema = recipe_schema()
    yield "# Keys of a recipe, one by one\n"
    yield "The parts of a recipe with what each key takes, as `trainmaster schema` gives it to editors."
    yield "Keys of the recipe itself, of experiments, searches and gates are in [the recipe](recipe.md), of"
    yield "services in [serving](serving.md#keys).\n"
    yield "```console\n$ trainmaster schema -o recipe.schema.json\n```\n"
    yield "Written by `scripts/reference_pages.py`.\n"
    for title, part in schema["$defs"].items():
        if title not in _IN_RECIPE and (properties := _keys_of(part)):
            yield f"## {title}\n\n| key | takes | |\n|---|---|---|"
            for key, each in properties.items():
                yield f"| `{key}` | {_kind(each, schema['$defs'])} | {_text(each.get('description', ''))} |"
            yield ""


def _kind(schema: Mapping[str, Any], parts: Mapping[str, Any]) -> str:
    """What a key takes, in a few words; `parts` are those that have a table."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        part = parts[name]
        others = [each for each in part.get("anyOf") or part.get("oneOf") or () if "properties" not in each]
        here = f"[{name}](#{name.lower()})" if _keys_of(part) else ""
        return " or ".join(filter(None, (here, *dict.fromkeys(_kind(each, parts) for each in others))))
    if "const" in schema or "enum" in schema:
        return ", ".join(f"`{json.dumps(each)}`" for each in schema.get("enum", [schema.get("const")]))
    if several := schema.get("anyOf") or schema.get("oneOf"):
        found = [word for each in several for word in _kind(each, parts).split(" or ")]
        return " or ".join(dict.fromkeys(found))
    kinds = schema.get("type", "anything")
    kinds = [kinds] if isinstance(kinds, str) else [each for each in kinds if each != "boolean"]
    if "string" in kinds:
        return "text"
    of = schema.get("items") or schema.get("additionalProperties")
    inside = f" of {_kind(of, parts)}" if isinstance(of, dict) else ""
    return " or ".join({"array": "list", "object": "map"}.get(each, each) for each in kinds) + inside


def _keys_of(part: Mapping[str, Any]) -> Mapping[str, Any]:
    """The keys of a part of the schema, also of one that is a text or a mapping."""
    inside = [each for each in part.get("anyOf") or part.get("oneOf") or () if "properties" in each]
    found: Mapping[str, Any] = part.get("properties") or (inside[0]["properties"] if inside else {})
    return found


def _text(text: str | None) -> str:
    return re.sub(r"\s+", " ", text or "").replace("|", "\\|").replace("[", "\\[").strip()


def pages() -> dict[str, str]:
    """Each page by its name, as it is now."""
    return {
        "cli.md": cli_page(),
        "verbs.md": "\n".join(verbs()) + "\n",
        "keys.md": "\n".join(keys()).rstrip() + "\n",
    }


if __name__ == "__main__":
    for page, text in pages().items():
        (DOCS / page).write_text(text)
