"""``trainmaster views``: names for what one looks for in the list of runs."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlencode

import typer

from trainmaster.api import ClientProtocol
from trainmaster.cli._groups import DefaultGroup
from trainmaster.cli.opening import open_client
from trainmaster.cli.options import AsJson, Labels, WhereText, condition
from trainmaster.cli.output import say, show_list, table, tell
from trainmaster.spec.errors import NotFoundError, UsageError

app = typer.Typer(
    cls=DefaultGroup,
    help="List your names for what you look for in the list of runs, save or delete one.",
    invoke_without_command=True,
)

_Name = Annotated[str, typer.Argument(metavar="NAME", help="Of the view.")]


@app.command("list", hidden=True)
def list_views(as_json: AsJson = False) -> None:
    """List your views: `status --view NAME` and the page of runs show what one finds."""
    found = open_client().views.listed()
    rows = [[each["name"], each["where"] or "all"] for each in found]
    none = "there is none: `trainmaster views save NAME --where CONDITION` makes one"
    show_list("views", found, lambda _: table(["view", "runs"], rows), none, as_json=as_json)


@app.command()
def save(
    name: _Name,
    label: Labels = None,
    where: WhereText = None,
    sort: Annotated[
        str | None, typer.Option(metavar="BY", help="Of the page: cost, -cost, metric:loss, ...")
    ] = None,
    column: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Of the page: metric:loss, param:lr, ...")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Keep what you look for under a name; an earlier view of that name is gone."""
    asked = [("where", condition(label, where)), ("sort", sort or "")]
    asked += [("column", each) for each in column or ()]
    if not (query := urlencode([each for each in asked if each[1]])):
        raise UsageError(f"{name}: a view of what?", "Give --where, --label, --sort or --column.")
    kept = open_client().views.put(name, query)
    tell({"name": name.strip(), "query": kept}, f"{name.strip()} is saved", as_json=as_json)


@app.command("rm")
def remove(name: _Name) -> None:
    """Forget a view."""
    open_client().views.remove(name)
    say(f"{name} was deleted")


def of_view(client: ClientProtocol, name: str) -> str:
    """The condition of one of the caller's views.

    Raises:
        NotFoundError: there is none of that name.
    """
    found = {each["name"]: each["where"] for each in client.views.listed()}
    if name not in found:
        raise NotFoundError(f"there is no view {name!r}", "`trainmaster views` lists them.")
    return str(found[name])
