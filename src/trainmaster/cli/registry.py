"""The verbs of ``trainmaster models`` for models that have names: versions, aliases."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from trainmaster.cli.opening import open_client
from trainmaster.cli.options import AsJson
from trainmaster.cli.output import metrics_text, number, print_json, say, show, show_list, table, tell, when
from trainmaster.spec.errors import UsageError
from trainmaster.spec.model_reference import ANY_VERSION

_Version = Annotated[
    str, typer.Argument(metavar="NAME@VERSION", help="Such as digits@3, digits@staging, or digits@newest.")
]
_Alias = Annotated[str, typer.Argument(metavar="NAME@ALIAS", help="Such as digits@production.")]
_Expected = Annotated[
    int | None,
    typer.Option("--from", metavar="VERSION", help="Only if the alias means this version now."),
]
_Tags = Annotated[list[str] | None, typer.Option("--tag", metavar="KEY=VALUE", help="Say more of it.")]


def register(
    model: Annotated[
        str, typer.Argument(metavar="RUN[/EXPERIMENT[/TASK]]", help="A run with one model, or which of them.")
    ],
    name: Annotated[str, typer.Argument(metavar="NAME", help="What it is called from now on.")],
    alias: Annotated[
        str | None, typer.Option("--alias", help="That is to mean this version, such as production.")
    ] = None,
    tags: _Tags = None,
    as_json: AsJson = False,
) -> None:
    """Make a model of a run the next version of a registered model."""
    found = open_client().registry.register(model, name, alias, _tags(tags))
    what = "is version" if found["new"] else "was registered before: version"
    words = f"{found['model']} {what} {found['version']} of {name}{_meant(found)}"
    tell(found, words, as_json=as_json)


def promote(
    version: _Version,
    alias: Annotated[str, typer.Argument(metavar="ALIAS", help="Such as production.")],
    expected: _Expected = None,
    as_json: AsJson = False,
) -> None:
    """Have an alias such as `production` mean a version: `models promote digits@3 production`."""
    _moved(
        open_client().registry.promote(version, alias, ANY_VERSION if expected is None else expected),
        alias,
        as_json,
    )


def rollback(alias: _Alias, expected: _Expected = None, as_json: AsJson = False) -> None:
    """Have an alias mean the version that it meant before."""
    found = open_client().registry.rollback(alias, ANY_VERSION if expected is None else expected)
    _moved(found, alias.partition("@")[2], as_json)


def show_model(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[NAME[@VERSION]]", help="Of a model, or of a version; all without."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show registered models: versions, what aliases mean, who moved them; what a version was made of."""
    registry = open_client().registry
    if name is not None and "@" in name:
        made = registry.made_of(name)
        print_json(made) if as_json else show(table(["made of", ""], _made_of(made)))
        return
    if name is None:
        models = registry.models()
        rows = [[m["name"], str(m["versions"]), _aliases(m["aliases"]), m["description"]] for m in models]
        text = table(["model", "versions", "aliases", "description"], rows)
        none = "none is registered: `trainmaster models register RUN NAME` does it"
        show_list("models", models, lambda _: text, none, as_json=as_json)
        return
    found = registry.show(name)
    if as_json:
        print_json(found)
        return
    for line in filter(None, [found["description"], _pairs(found["tags"])]):
        show(line)
    rows = [
        [
            f"{name}@{each['version']}",
            " ".join(each["aliases"]),
            each["model"],
            metrics_text(each["metrics"]),
            _pairs(each["tags"]),
        ]
        for each in found["versions"]
    ]
    show(table(["version", "aliases", "model", "metrics", "tags"], rows))
    if found["moves"]:
        show("")
        show(table(["alias", "from", "to", "how", "by", "when"], [_move(each) for each in found["moves"]]))


def _made_of(made: dict[str, Any]) -> list[list[str]]:
    """A version, and what it was made of.

    >>> made = {"model": "job-1/main/0", "created_by": "ann", "created_at": 0.0, "lineage": {
    ...     "code": "c0de" * 16, "seed": 7, "workflow": None, "data": [
    ...         {"name": "x", "kind": "volume", "source": "pets@1", "newest": 3, "made_by": "clean-1"}]}}
    >>> for row in _made_of(made):
    ...     print(*row)
    model job-1/main/0, registered by ann, 1970-01-01 00:00 UTC
    data x volume pets@1, made by clean-1; there is version 3 by now
    code c0dec0dec0de
    seed 7
    """
    lineage = made["lineage"]
    rows = [["model", f"{made['model']}, registered by {made['created_by']}, {when(made['created_at'])}"]]
    for each in lineage["data"]:
        said = f"{each['kind']} {each['source']}"
        said += f", made by {each['made_by']}" if "made_by" in each else ""
        said += f"; there is version {each['newest']} by now" if "newest" in each else ""
        rows.append([f"data {each['name']}", said])
    rows += [["code", lineage["code"][:12]], ["seed", str(lineage["seed"])]]
    if start := lineage["workflow"]:
        rows.append(["started by", f"workflow {start['workflow']}: {start['trigger']}, {start['cause']}"])
    return rows


def remove(
    version: Annotated[
        str, typer.Argument(metavar="NAME@VERSION", help="A number, or an alias with --alias.")
    ],
    is_alias: Annotated[
        bool, typer.Option("--alias", help="Take the alias away; the version that it means stays.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Take a version out of the registry; the model of the run stays. Refused while an alias means it."""
    if is_alias:
        open_client().registry.remove_alias(version)
        say(f"{version} was deleted")
        return
    found = open_client().registry.remove(version)
    tell(found, f"{version} was deleted; its run keeps it: {found['model']}", as_json=as_json)


def describe(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Of the registered model.")],
    description: Annotated[str | None, typer.Argument(metavar="[TEXT]", help="What it is for.")] = None,
    tags: _Tags = None,
    as_json: AsJson = False,
) -> None:
    """Say what a registered model is for."""
    registry = open_client().registry
    both = {**registry.show(name)["tags"], **_tags(tags)} if tags else None
    found = registry.describe(name, description, both)
    tell(found, f"{name}: {found['description']} {_pairs(found['tags'])}".rstrip(), as_json=as_json)


def diff(
    a: Annotated[str, typer.Argument(metavar="A", help="NAME@VERSION, or RUN/EXPERIMENT/TASK.")],
    b: Annotated[str, typer.Argument(metavar="B", help="The other model, written as A.")],
    as_json: AsJson = False,
) -> None:
    """Show in what two models differ: metrics, parameters, code, data, seed, recipe."""
    found = open_client().registry.diff(a, b)
    if as_json:
        print_json(found)
        return
    rows = [[f"{key}: {name}", *map(_text, pair)] for key in _NAMED for name, pair in found[key].items()]
    rows += [[key, *map(_text, found[key])] for key in ("code", "seed") if found.get(key)]
    show(table(["", found["a"], found["b"]], rows) if rows else "they are made of the same, with no metrics")
    if found["recipe"]:
        show("\n".join(["", *found["recipe"]]))


_NAMED = ("metrics", "parameters", "data", "environment")


def add_commands(app: typer.Typer) -> None:
    """Put them beside the other verbs of models."""
    app.command("register")(register)
    app.command("promote")(promote)
    app.command("rollback")(rollback)
    app.command("show")(show_model)
    app.command("diff")(diff)
    app.command("describe")(describe)
    app.command("rm")(remove)


def _tags(given: list[str] | None) -> dict[str, str]:
    pairs = [text.partition("=") for text in given or ()]
    if wrong := next(("".join(pair) for pair in pairs if not (pair[0] and pair[1])), None):
        raise UsageError(f"--tag {wrong}: no KEY=VALUE", "Write such as --tag owner=vision.")
    return {key: value for key, _, value in pairs}


def _moved(found: dict[str, Any], alias: str, as_json: bool) -> None:
    how = "means" if found["moved"] else "meant this already:"
    words = f"{found['name']}@{alias} {how} version {found['version']}, {found['model']}"
    tell(found, words, as_json=as_json)


def _meant(found: dict[str, Any]) -> str:
    return "".join(f", {found['name']}@{alias}" for alias in found["aliases"])


def _aliases(aliases: dict[str, int]) -> str:
    return " ".join(f"{alias}={version}" for alias, version in aliases.items())


def _pairs(tags: dict[str, str]) -> str:
    return " ".join(f"{key}={value}" for key, value in tags.items())


def _move(move: dict[str, Any]) -> list[str]:
    versions = ["-" if move[key] is None else str(move[key]) for key in ("before", "version")]
    by = move["run_id"] or move["moved_by"]
    at = when(move["moved_at"])
    return [move["alias"], *versions, move["kind"], by, at]


def _text(value: object) -> str:
    return "-" if value is None else number(value)
