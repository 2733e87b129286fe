"""``trainmaster workflows``: recipes that a server keeps and starts itself."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from trainmaster.api import ClientProtocol
from trainmaster.cli._groups import DefaultGroup
from trainmaster.cli.opening import context, open_client
from trainmaster.cli.options import AsJson
from trainmaster.cli.output import print_json, say, show, table, tell, when

app = typer.Typer(
    cls=DefaultGroup,
    help="List the recipes that a server starts by itself, or look after one.",
    invoke_without_command=True,
)

_Name = Annotated[str, typer.Argument(metavar="NAME", help="Of the workflow: that of its recipe.")]


@app.command("list", hidden=True)
def list_workflows(as_json: AsJson = False) -> None:
    """List workflows, what starts them and when, and what came of the newest start."""
    found = open_client().workflows.listed()
    if as_json:
        print_json({"workflows": found})
        return
    if not found:
        say("there is none: `trainmaster run` of a recipe with `on` makes one, on a server")
        return
    rows = []
    for each in found:
        triggers = ", ".join(one["trigger"] for one in each["on"])
        times = [one["next"][0] for one in each["on"] if one["next"]]
        last = "-" if each["last"] is None else _last(each["last"])
        at = when(min(times)) if times else "-"
        rows.append([each["workflow"], each["state"].lower(), triggers, at, last])
    show(table(["workflow", "state", "triggers", "next", "last start"], rows))


@app.command("show")
def show_workflow(name: _Name, as_json: AsJson = False) -> None:
    """Show what starts a workflow, and its history."""
    found = open_client().workflows.show(name)
    if as_json:
        print_json(found)
        return
    by, at = found["registered_by"], when(found["changed_at"])
    until = found.get("good_until")
    ends = f"; that token ends {when(until)}" if until else ""
    show(f"{name}: {found['state'].lower()}, revision {found['revision']}, by {by}, {at}{ends}")
    for line in trigger_lines(found, ""):
        show(line)
    if found["history"]:
        rows = [
            [when(each["at"]), each["trigger"], _outcome(each, _cause(each))] for each in found["history"]
        ]
        show("")
        show(table(["when", "trigger", "what came of it"], rows))


@app.command()
def pause(name: _Name, as_json: AsJson = False) -> None:
    """Start nothing any more until `resume`; what comes meanwhile is not made up for."""
    tell(open_client().workflows.pause(name), f"{name} is paused", as_json=as_json)


@app.command()
def resume(
    name: _Name,
    take_over: Annotated[
        bool, typer.Option("--take-over", help="Its runs are started in your name from now on.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Go on, with what comes from now on."""
    found = open_client().workflows.resume(name, take_over=take_over)
    old = (found.get("replaced") or found)["registered_by"]
    whose = ", with the token in use" if take_over else ""
    whose = f", as {found['registered_by']} instead of {old}" if old != found["registered_by"] else whose
    words = f"{name} goes on{whose}"
    if take_over and (secret := found.get("secret")):
        words += (
            f"\nits webhook's secret, shown this once: {secret}\n"
            f"the one before, which {old} knows, is good no more: give the new one to what sends to it"
        )
    tell(found, words, as_json=as_json)


@app.command()
def trigger(name: _Name, as_json: AsJson = False) -> None:
    """Start a run by hand; it waits while another one is under way."""
    found = open_client(starts=True).workflows.trigger(name)
    tell(found, f"{name}: {_coming(found)}; `trainmaster workflows show {name}` has it", as_json=as_json)


@app.command()
def secret(name: _Name, as_json: AsJson = False) -> None:
    """Make a new secret of its webhook; the one before is good no more."""
    found = open_client().workflows.rotate(name)
    tell(found, f"its secret, shown this once: {found['secret']}", as_json=as_json)


@app.command("rm")
def remove(name: _Name) -> None:
    """Forget a workflow and its history; its runs stay."""
    open_client().workflows.remove(name)
    say(f"{name} was deleted; its runs stay")


def register(
    client: ClientProtocol, plan: str, *, starts_now: bool, keep_s: float, queue: bool, as_json: bool
) -> None:
    """Have the server in use keep what was planned, and say what starts it."""
    server = context()
    url = "" if server is None else server.url
    found = client.workflows.register(plan, starts_now=starts_now, keep_s=keep_s, queue=queue)
    if as_json:
        print_json(found)
        return
    name = found["workflow"]
    said = f"{name} is kept by {url or 'the server'}, revision {found['revision']}"
    if old := found.get("replaced"):
        if old["revision"] != found["revision"]:
            said += f", instead of revision {old['revision']} by {old['registered_by']}"
        said += ", and goes on: it was paused" * (old["state"] == "PAUSED")
    say(said)
    for line in trigger_lines(found, url):
        say(f"  {line}")
    if secret := found.get("secret"):
        say(f"its webhook's secret, shown this once: {secret}")
    elif old and old["registered_by"] != found["registered_by"] and found["hook"]:
        say(
            f"its webhook keeps the secret, which {old['registered_by']} knows: "
            f"`trainmaster workflows secret {name}` makes a new one"
        )
    if starts_now:
        say(f"a run is started, too: `trainmaster workflows show {name}`")
    else:
        say(f"nothing runs yet: its triggers start it, or `trainmaster workflows trigger {name}`")


def trigger_lines(found: dict[str, Any], url: str) -> list[str]:
    """What starts a workflow, a line each."""
    lines = []
    for each in found["on"]:
        what = each["trigger"]
        if what == "webhook":
            what = f"webhook  POST {url}{found['hook']}"
        elif each["next"]:
            what = f"{what}  next {when(each['next'][0])}"
        elif what.startswith("volume "):
            what = f"{what}  " + (f"seen version {each['seen']:.0f}" if each["seen"] else "no version yet")
        lines.append(what)
    return lines


def _coming(found: dict[str, Any]) -> str:
    """What becomes of the newest start of a workflow.

    >>> waits = {"state": "WAITING", "run": None}
    >>> _coming({"history": [waits], "under_way": []})
    'a run begins'
    >>> _coming({"history": [waits], "under_way": ["digits-1f2e"], "concurrency": "wait"})
    'a run begins when digits-1f2e has ended'
    """
    newest = found["history"][0]
    if newest["run"] is not None:
        return f"{newest['run']} begins"
    if newest["state"] != "WAITING":
        return str(newest["state"].lower())
    before = ", ".join(found["under_way"])
    words = {
        "wait": f"a run begins when {before} has ended",
        "skip": f"nothing begins, as {before} is under way",
        "cancel": f"{before} is ended, then a run begins",
    }
    return words[found["concurrency"]] if before else "a run begins"


def _last(start: dict[str, Any]) -> str:
    """The newest start on a line of its own: a message's id is nothing to those who did not send it.

    >>> run = {"run": "job-1f2e", "run_reason": "SUCCEEDED", "run_state": "DONE", "message": ""}
    >>> _last({**run, "trigger": "by hand", "cause": "9d1c"})
    'by hand: job-1f2e succeeded'
    >>> _last({**run, "trigger": "volume pets", "cause": "pets@2"})
    'pets@2: job-1f2e succeeded'
    """
    is_told = start["trigger"].startswith(("volume ", "schedule "))
    return _outcome(start, start["cause"] if is_told else start["trigger"])


def _cause(start: dict[str, Any]) -> str:
    """Beside its trigger; a start by hand, or the end of a right, has a key of ours only."""
    return "" if start["trigger"] in ("by hand", "its right") else start["cause"]


def _outcome(start: dict[str, Any], cause: str) -> str:
    became = start["run_reason"] or start["run_state"]
    came = start["state"].lower() if start["run"] is None else f"{start['run']} {became.lower()}"
    said = f" ({start['message']})" if start["message"] else ""
    return f"{cause}: {came}{said}" if cause else f"{came}{said}"
