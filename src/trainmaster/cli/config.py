"""``trainmaster config``: what recipes leave open, and where that is said."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from trainmaster.cli._groups import DefaultGroup
from trainmaster.cli.opening import context, open_client, unpacked
from trainmaster.cli.options import AsJson
from trainmaster.cli.output import print_json, say, show, table
from trainmaster.spec.errors import RecipeError, UsageError, fails_as

app = typer.Typer(
    cls=DefaultGroup,
    help="What recipes leave open, and where that is said.",
    invoke_without_command=True,
)


@app.command("list", hidden=True)
@app.command("show")
def show_values(
    recipe: Annotated[
        Path | None, typer.Argument(help="What holds for it; without, what holds in this directory.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Each value, and the file and line that says so."""
    from trainmaster.spec.configuration import configured_rows, recipe_rows
    from trainmaster.spec.recipe import read_recipe
    from trainmaster.spec.recipe_source import configuration_files

    if recipe is None:
        rows = configured_rows(configuration_files(Path.cwd(), os.environ))
    else:
        found = read_recipe(unpacked(recipe))
        rows = recipe_rows(found.tree(), found.file)
    server = context()
    of_server = [] if server is None else open_client().configuration(".")
    if as_json:
        print_json({"values": rows, "server": of_server})
        return
    show(table(["key", "value", "from"], [_told(each) for each in rows]))
    if server is not None and of_server:
        say(f"{server.url} takes these where nothing above says otherwise:")
        show(table(["key", "value", "from"], [_told(each) for each in of_server]))


@app.command("set")
def set_value(
    key: Annotated[str, typer.Argument(help="Such as provider, or budget.total.")],
    value: Annotated[str, typer.Argument(help="As in config.toml; a text needs no quotes.")],
) -> None:
    """Write a value into your own config.toml; all else there stays."""
    from trainmaster.spec.configuration import read_settings, with_setting
    from trainmaster.spec.private_files import write_private
    from trainmaster.spec.recipe_source import user_file

    file = user_file(os.environ)
    with fails_as(str(file), "XDG_CONFIG_HOME names another place."):
        source = file.read_text(encoding="utf-8-sig") if file.exists() else ""
        text = with_setting(source, key, value)
        try:
            list(read_settings(file, text))
        except RecipeError as error:
            raise UsageError(
                error.args[0], "Nothing was written; the lines are those that it would have."
            ) from None
        write_private(file, text.encode())
    say(f"{key} is in {file}")


@app.command("path")
def path() -> None:
    """The files that are read in this directory, the first one first."""
    from trainmaster.spec.recipe_source import configuration_files, user_file

    own = user_file(os.environ)
    for each in configuration_files(Path.cwd(), os.environ):
        show(str(each))
    if not own.is_file():
        show(f"{own} (not there)")


def _told(row: dict[str, Any]) -> list[str]:
    from trainmaster.spec.configuration import shown_value

    value = "-" if row["value"] is None else shown_value(row["value"])
    return [row["key"], value, "built in" if row["file"] is None else f"{row['file']}:{row['line']}"]
