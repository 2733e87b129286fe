"""``trainmaster token``, ``team``, ``user``, ``secret``: who may use the server, and with what."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Annotated, Any

import typer

from trainmaster.cli.opening import open_administration
from trainmaster.cli.options import AsJson
from trainmaster.cli.output import need_yes, print_json, say, show_list, tell, when
from trainmaster.spec.errors import UsageError
from trainmaster.spec.units import counted, dollars, parse_dollars

token_app = typer.Typer(help="Who may use the server in use, or of this home.", no_args_is_help=True)
team_app = typer.Typer(help="Teams that share the server in use, or of this home.", no_args_is_help=True)
user_app = typer.Typer(help="Users of the server in use, or of this home.", no_args_is_help=True)
secret_app = typer.Typer(help="Secrets of teams, for their tasks.", no_args_is_help=True)


@token_app.command("create", no_args_is_help=True)
def create(
    name: Annotated[str, typer.Argument(help="Of the token; never used again.")],
    scopes: Annotated[
        str, typer.Option(help="Of read, run, infer, manage, admin, with commas.")
    ] = "read,run",
    team: Annotated[str | None, typer.Option(help="Whose it is; yours without.")] = None,
    user: Annotated[
        str | None, typer.Option(help="Of this user or service account: never more than its role.")
    ] = None,
    days: Annotated[float, typer.Option(help="How long it is good for.")] = 90,
    at_most: Annotated[
        str | None, typer.Option(metavar="USD", help="A wallet: what all runs may cost that it starts.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make a token; it is shown this once."""
    wanted = [scope.strip() for scope in scopes.split(",") if scope.strip()]
    found = open_administration().create_token(name, wanted, team, user, days, amount_usd(at_most))
    if as_json:
        print_json(found)
        return
    typer.echo(found["token"])
    say("it is shown this once; send it as `Authorization: Bearer TOKEN`")
    if maker := found.get("made_with"):
        say(
            f"it ends when {maker} does, with which it was made, on {when(found['expires_at'])} at the latest"
        )


def amount_usd(at_most: str | None) -> float | None:
    """What ``--at-most`` says, in US dollars.

    Raises:
        UsageError: it is no amount.
    """
    if at_most is None:
        return None
    with suppress(ValueError):
        return parse_dollars(at_most)
    raise UsageError(f"--at-most {at_most!r} is no amount", "Write such as --at-most 20, in US dollars.")


@token_app.command("revoke", no_args_is_help=True)
def revoke(name: Annotated[str, typer.Argument(help="Of the token.")]) -> None:
    """End a token, and the sessions that were opened with it."""
    paused = open_administration().revoke_token(name)
    say(f"{name} is revoked")
    if paused:
        say(f"paused, as they were registered with it: {', '.join(paused)}")
        say("register again what is to go on, or: `trainmaster workflows resume NAME --take-over`")


@token_app.command("list")
def listed(as_json: AsJson = False) -> None:
    """Show the tokens; what they are is kept nowhere."""

    def line(each: dict[str, Any]) -> str:
        of = f", team {each['team']}" if each["team"] else ""
        of += f", {each['account']}" if each["account"] else ""
        of += f", at most {dollars(each['at_most_usd'])} in all" if each["at_most_usd"] else ""
        ended = ", revoked" if each["revoked_at"] else f", until {when(each['expires_at'])}"
        if each.get("made_with") and not each["revoked_at"]:
            ended += f", or until {each['made_with']} ends"
        if each.get("useless") and not each["revoked_at"]:
            ended += f"; allows nothing: {each['useless']}"
        return f"{each['name']}  {each['beginning']}...  {','.join(each['scopes'])}{of}{ended}"

    none = "there is no token yet: `trainmaster token create NAME` makes one"
    _show_lines("tokens", open_administration().tokens(), line, none, as_json=as_json)


@team_app.command("create", no_args_is_help=True)
def create_team(
    name: Annotated[str, typer.Argument(help="Of the team.")],
    monthly_usd: Annotated[float | None, typer.Option(help="What it may spend in a calendar month.")] = None,
    runs_at_once: Annotated[int | None, typer.Option(help="How many of its runs may go on at once.")] = None,
    usd_per_hour: Annotated[float | None, typer.Option(help="What these may cost per hour.")] = None,
    cpus_at_once: Annotated[
        int | None, typer.Option(help="How many cores of the server's own machine its tasks take at once.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make a team, or change its limits: those that are not given stay."""
    limits = {
        "monthly_usd": monthly_usd,
        "runs_at_once": runs_at_once,
        "usd_per_hour": usd_per_hour,
        "cpus_at_once": cpus_at_once,
    }
    found = open_administration().make_team(name, limits)
    tell(found, _line(found), as_json=as_json)


@team_app.command("list")
def teams(as_json: AsJson = False) -> None:
    """Show the teams, and what they have spent this month."""
    none = "there is no team yet: `trainmaster team create NAME` makes one"
    _show_lines("teams", open_administration().teams(), _line, none, as_json=as_json)


@team_app.command("add-member", no_args_is_help=True)
def add_member(
    team: Annotated[str, typer.Argument(help="The team.")],
    user: Annotated[str, typer.Argument(help="The user; made if there is none of that name.")],
    role: Annotated[str, typer.Option(help="viewer, member or manager.")] = "member",
) -> None:
    """Give a user a role in a team, or another one."""
    open_administration().add_member(team, user, role)
    say(f"{user} is {role} of team {team}")


@team_app.command("remove-member", no_args_is_help=True)
def remove_member(
    team: Annotated[str, typer.Argument(help="The team.")],
    user: Annotated[str, typer.Argument(help="The user.")],
) -> None:
    """Take a user out of a team, at once."""
    open_administration().remove_member(team, user)
    say(f"{user} is not in team {team} any more: runs go on and are the team's, workflows are paused")


@team_app.command("members", no_args_is_help=True)
def members(team: Annotated[str, typer.Argument(help="The team.")], as_json: AsJson = False) -> None:
    """Show who is in a team."""

    def line(each: dict[str, Any]) -> str:
        return f"{each['name']}  {each['role']}{', disabled' if each['is_disabled'] else ''}"

    none = f"nobody is in team {team} yet: `trainmaster team add-member {team} USER`"
    _show_lines("members", open_administration().members(team), line, none, as_json=as_json)


@team_app.command("invite", no_args_is_help=True)
def invite(
    team: Annotated[str, typer.Argument(help="The team.")],
    role: Annotated[str, typer.Option(help="viewer, member or manager.")] = "member",
    days: Annotated[float, typer.Option(min=0.01, help="How long it is good for.")] = 7,
    as_json: AsJson = False,
) -> None:
    """Make a link that lets one person into a team."""
    found = open_administration().invite(team, role, days)
    if as_json:
        print_json(found)
        return
    typer.echo(found["path"])
    say("it is shown this once and works once: put the address of the server before it, and send it")


_Team = Annotated[str, typer.Argument(help="The team.")]
_Place = Annotated[str, typer.Argument(help="Name of the provider, such as slurm.")]


@team_app.command("login", no_args_is_help=True)
def put_login(
    team: _Team,
    provider: _Place,
    same_account: Annotated[
        bool, typer.Option(help="Another key of the account in use: runs and machines there go on with it.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Have a team's runs use an account of its own at a place: that which this machine uses there."""
    import os

    from trainmaster.service.teams.team_logins import own_login

    login = own_login(provider, os.environ)
    say(f"sent, and kept sealed for team {team}: the settings of {provider}")
    for words in login.words:
        say(f"  {words}")
    if not yes:
        what = f"this machine's login at {provider} would be sent"
        need_yes("Send it?", what, "not sent", "Nothing was sent.")
    open_administration().put_team_login(team, provider, login, is_same_account=same_account)
    say(f"runs of team {team} use its own login at {provider} from now on")


@team_app.command("logins", no_args_is_help=True)
def logins(team: _Team, as_json: AsJson = False) -> None:
    """Show the places at which a team has an account of its own."""
    none = f"team {team} uses what the server has: `trainmaster team login {team} PROVIDER` changes that"

    def line(each: dict[str, Any]) -> str:
        return f"{each['provider']}  by {each['changed_by']}, since {when(each['changed_at'])}"

    _show_lines("logins", open_administration().team_logins(team), line, none, as_json=as_json)


@team_app.command("logout", no_args_is_help=True)
def remove_login(team: _Team, provider: _Place) -> None:
    """Forget a team's own login: it uses what the server has there."""
    open_administration().remove_team_login(team, provider)
    say(f"team {team} has no login of its own at {provider} any more")


@user_app.command("create", no_args_is_help=True)
def create_user(
    name: Annotated[str, typer.Argument(help="Of the user; never used again.")],
    admin: Annotated[bool, typer.Option("--admin", help="May do everything, in every team.")] = False,
    as_json: AsJson = False,
) -> None:
    """Make a user. `token create NAME --user USER` makes what he logs in with."""
    found = open_administration().create_user(name, is_admin=admin)
    words = f"{name} is a user; `trainmaster team add-member TEAM {name}` puts him into a team"
    tell(found, words, as_json=as_json)


@user_app.command("list")
def users(as_json: AsJson = False) -> None:
    """Show the users and service accounts, and their roles."""

    def line(each: dict[str, Any]) -> str:
        roles = ", ".join(f"{role} of {team}" for team, role in each["teams"].items()) or "in no team"
        is_what = ", admin" if each["is_admin"] else ", for programs" if each["kind"] == "service" else ""
        return f"{each['name']}  {roles}{is_what}{', disabled' if each['disabled_at'] else ''}"

    none = "there is no user yet: `trainmaster user create NAME` makes one"
    _show_lines("users", open_administration().users(), line, none, as_json=as_json)


@user_app.command("disable", no_args_is_help=True)
def disable(name: Annotated[str, typer.Argument(help="Of the user or service account.")]) -> None:
    """Shut a user out, with all tokens and open pages, at once."""
    open_administration().disable_user(name, is_disabled=True)
    say(f"{name} is disabled")


@user_app.command("enable", no_args_is_help=True)
def enable(name: Annotated[str, typer.Argument(help="Of the user or service account.")]) -> None:
    """Let a disabled user in again."""
    open_administration().disable_user(name, is_disabled=False)
    say(f"{name} is enabled")


@secret_app.command("set", no_args_is_help=True)
def set_secret(
    team: Annotated[str, typer.Argument(help="The team.")],
    name: Annotated[str, typer.Argument(help="Of the variable that its tasks get.")],
) -> None:
    """Keep a value that is typed or piped in; it is never shown again."""
    import sys

    value = typer.prompt(name, hide_input=True) if sys.stdin.isatty() else sys.stdin.read().rstrip("\n")
    open_administration().put_secret(team, name, value)
    say(f"tasks of team {team} get {name} where their recipes name it in `secrets`")


@secret_app.command("list", no_args_is_help=True)
def secrets(team: Annotated[str, typer.Argument(help="The team.")], as_json: AsJson = False) -> None:
    """Show the names of a team's secrets."""
    none = f"team {team} has no secret yet: `trainmaster secret set {team} NAME` keeps one"

    def line(each: dict[str, Any]) -> str:
        return f"{each['name']}  by {each['changed_by']}"

    _show_lines("secrets", open_administration().secrets(team), line, none, as_json=as_json)


@secret_app.command("remove", no_args_is_help=True)
def remove_secret(
    team: Annotated[str, typer.Argument(help="The team.")],
    name: Annotated[str, typer.Argument(help="Of the secret.")],
) -> None:
    """Forget a value."""
    open_administration().remove_secret(team, name)
    say(f"team {team} has no {name} any more")


def _show_lines(
    key: str, found: list[dict[str, Any]], line: Callable[[dict[str, Any]], str], none: str, *, as_json: bool
) -> None:
    show_list(key, found, lambda some: "\n".join(map(line, some)), none, as_json=as_json)


def _line(team: dict[str, Any]) -> str:
    """What a team has spent, and its limits.

    >>> spent = {"team": "vision", "monthly_usd": 200.0, "spent_usd": 0.0, "reserved_usd": 0.0}
    >>> _line({**spent, "runs_at_once": 2, "usd_per_hour": 20.0, "cpus_at_once": None})
    'vision: $0 of $200.00 spent this month, $0 reserved; at most 2 runs at once, $20.00 per hour'
    """
    limit = "" if team["monthly_usd"] is None else f" of {dollars(team['monthly_usd'])}"
    spent = f"{dollars(team['spent_usd'])}{limit} spent this month"
    runs, usd, cores = (team.get(key) for key in ("runs_at_once", "usd_per_hour", "cpus_at_once"))
    bounds = [] if runs is None else [f"{counted(runs, 'run')} at once"]
    bounds += [] if usd is None else [f"{dollars(usd)} per hour"]
    bounds += [] if cores is None else [f"{counted(cores, 'core')} at once"]
    most = ", ".join(bounds)
    return f"{team['team']}: {spent}, {dollars(team['reserved_usd'])} reserved" + f"; at most {most}" * bool(
        most
    )
