"""``trainmaster token`` and ``trainmaster team``: who may use the server of this home."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from trainmaster.cli.output import print_json, say

if TYPE_CHECKING:
    from trainmaster.service.access import Access

token_app = typer.Typer(help="Who may use the server of this home.", no_args_is_help=True)
team_app = typer.Typer(help="Teams that share the server of this home.", no_args_is_help=True)
AsJson = Annotated[bool, typer.Option("--json", help="For machines.")]


def _access() -> Access:
    from trainmaster.service import Service
    from trainmaster.service.access import Access

    return Access(Service.from_environment().database)


@token_app.command("create", no_args_is_help=True)
def create(
    name: Annotated[str, typer.Argument(help="Of the token; never used again.")],
    scopes: Annotated[
        str, typer.Option(help="Of read, run, infer, manage, admin, with commas.")
    ] = "read,run",
    team: Annotated[str | None, typer.Option(help="Whose it is; yours without.")] = None,
    days: Annotated[float, typer.Option(help="How long it is good for.")] = 90,
    as_json: AsJson = False,
) -> None:
    """Make a token; it is shown this once."""
    wanted = [scope.strip() for scope in scopes.split(",") if scope.strip()]
    found = _access().create_token(name, wanted, team, days * 86400)
    if as_json:
        print_json(found)
        return
    typer.echo(found["token"])
    say("it is shown this once; send it as `Authorization: Bearer TOKEN`")


@token_app.command("revoke", no_args_is_help=True)
def revoke(name: Annotated[str, typer.Argument(help="Of the token.")]) -> None:
    """End a token, and the sessions that were opened with it."""
    _access().revoke_token(name)
    say(f"{name} is revoked")


@token_app.command("list")
def listed(as_json: AsJson = False) -> None:
    """Show the tokens; what they are is kept nowhere."""
    found = _access().tokens()
    if as_json:
        print_json({"tokens": found})
        return
    for each in found:
        of = f", team {each['team']}" if each["team"] else ""
        ended = ", revoked" if each["revoked_at"] else ""
        typer.echo(f"{each['name']}  {each['beginning']}...  {','.join(each['scopes'])}{of}{ended}")


@team_app.command("create", no_args_is_help=True)
def create_team(
    name: Annotated[str, typer.Argument(help="Of the team.")],
    monthly_usd: Annotated[float | None, typer.Option(help="What it may spend in a calendar month.")] = None,
    as_json: AsJson = False,
) -> None:
    """Make a team, or change what it may spend."""
    found = _access().make_team(name, monthly_usd)
    if as_json:
        print_json(found)
    else:
        say(_line(found))


@team_app.command("list")
def teams(as_json: AsJson = False) -> None:
    """Show the teams, and what they have spent this month."""
    found = _access().teams()
    if as_json:
        print_json({"teams": found})
        return
    for each in found:
        typer.echo(_line(each))


def _line(team: dict[str, object]) -> str:
    limit = "" if team["monthly_usd"] is None else f" of ${team['monthly_usd']:g}"
    spent = f"${team['spent_usd']:.2f}{limit} spent this month"
    return f"{team['team']}: {spent}, ${team['reserved_usd']:.2f} reserved"
