"""``trainmaster tensorboard`` and ``notebook``, and ``trainmaster apps``: what was opened."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from trainmaster.cli._groups import DefaultGroup
from trainmaster.cli.opening import context, open_client
from trainmaster.cli.options import AgreesToCost, AsJson, run_ids
from trainmaster.cli.output import duration, parsed, print_json, say, show, show_list, table
from trainmaster.spec.errors import RunError, UsageError

if TYPE_CHECKING:
    from trainmaster.api import ClientProtocol

app = typer.Typer(
    cls=DefaultGroup, help="List the apps that were opened, or end one.", invoke_without_command=True
)

_LEAST_IDLE_S: Final = 10.0


def tensorboard(
    runs: Annotated[
        list[str], typer.Argument(autocompletion=run_ids, help="Ids of runs, or `latest`.", metavar="RUN...")
    ],
    as_json: AsJson = False,
) -> None:
    """Open a TensorBoard of runs, also while they go on, and print the address for your browser."""
    client = open_client(starts=True)
    found = client.apps.tensorboard([client.resolve(run) for run in runs])
    lead(client, found, as_json=as_json)


def notebook(
    run: Annotated[
        str | None,
        typer.Argument(autocompletion=run_ids, help="Id of a run, or `latest`; none for an empty one."),
    ] = None,
    provider: Annotated[
        str | None, typer.Option(help="Rent a machine for it, such as at aws; here without.")
    ] = None,
    gpu: Annotated[str | None, typer.Option(help="With --provider: model of its GPUs, such as v100.")] = None,
    cpus: Annotated[int | None, typer.Option(min=1, help="With --provider: at least so many vCPUs.")] = None,
    memory: Annotated[
        str | None, typer.Option(help="With --provider: at least so much, such as 16GB.")
    ] = None,
    instance: Annotated[
        str | None, typer.Option(metavar="TYPE", help="With --provider: this type, such as g5.xlarge.")
    ] = None,
    idle: Annotated[
        str | None, typer.Option(help="With --provider: end it when nothing was done for so long (30m).")
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME[=VALUE]", help="With --provider: a variable there; NAME is a secret's."),
    ] = None,
    yes: AgreesToCost = False,
    as_json: AsJson = False,
) -> None:
    """Open a JupyterLab with a copy of a run's code, its data, models, checkpoints and Python."""
    client = open_client(starts=True)
    wished = {"gpu": gpu, "cpus": cpus, "memory": memory, "instance": instance}
    hardware = {name: value for name, value in wished.items() if value is not None}
    if provider is not None:
        from trainmaster.cli.rented_notebook import rent_notebook
        from trainmaster.spec.units import parse_duration

        idle_s = parsed("--idle", parse_duration, idle or "30m")
        if idle_s < _LEAST_IDLE_S:  # Jupyter takes 0 for never
            raise UsageError(
                f"--idle {idle}: it would end before anybody can use it", "Write 10s or more, such as 30m."
            )
        found_run = None if run is None else client.resolve(run)
        raise typer.Exit(
            rent_notebook(
                client,
                found_run,
                provider,
                hardware,
                idle_s,
                env or [],
                yes=yes,
                as_json=as_json,
            )
        )
    given = [*hardware, *(name for name, value in (("idle", idle), ("env", env)) if value)]
    if given:
        raise UsageError(f"--{given[0]} is of a machine that is rented", "Say where with --provider.")
    if run is not None:
        from trainmaster.cli.rented_notebook import is_rented_notebook, lead_to_rented

        run = client.resolve(run)
        if is_rented_notebook(client, run):
            raise typer.Exit(lead_to_rented(client, run, None, as_json=as_json))
    found = client.apps.notebook(run)
    if not as_json:
        say(f"what you write stays in {found['directory']}")
    lead(client, found, as_json=as_json)


def lead(client: ClientProtocol, found: dict[str, Any], *, as_json: bool) -> None:
    """Wait until it answers, and say where; without a server, until Ctrl-C, which leaves it."""
    name, is_here = found["app"], context() is None
    if not is_here:
        _show_way(client, found, as_json=as_json)
        return
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    try:
        _show_way(client, found, as_json=as_json)
        say("Ctrl-C ends it, unless it is open elsewhere")
        while (found := client.apps.show(name))["state"] != "DONE":
            time.sleep(1)
        say(f"the {found['kind']} is over: {found['reason']}")
    except KeyboardInterrupt:
        pass
    finally:
        client.apps.leave(name)


def _show_way(client: ClientProtocol, found: dict[str, Any], *, as_json: bool) -> None:
    name = found["app"]
    while found["state"] == "WAITING":
        time.sleep(0.2)
        found = client.apps.show(name)
    if found["state"] == "DONE":
        extra = "notebook" if found["kind"] == "notebook" else "apps"
        raise RunError(
            f"the {found['kind']} did not start: {found['reason']}",
            f"`pip install 'trainmaster[{extra}]'` brings what it needs.",
        )
    url = client.apps.enter(name)
    if as_json:
        print_json({**found, "url": url})
    else:
        show(url)
        say("the address lets one browser in, once, within a minute")
        say(f"it ends after {duration(found['idle_s'])} without use, or by `trainmaster apps end {name}`")


@app.command("list", hidden=True)
def list_apps(as_json: AsJson = False) -> None:
    """List apps, the newest first, also those that are over."""
    found = open_client().apps.listed()
    rows = [[a["app"], a["kind"], a["reason"] or a["state"].lower(), ", ".join(a["runs"])] for a in found]
    none = "no app was opened yet: `trainmaster tensorboard RUN` opens one"
    show_list("apps", found, lambda _: table(["app", "kind", "state", "runs"], rows), none, as_json=as_json)


@app.command()
def end(name: Annotated[str, typer.Argument(metavar="APP", help="As listed.")]) -> None:
    """End an app."""
    client = open_client()
    if client.apps.show(name)["state"] == "DONE":
        say(f"{name} is over already")
        return
    client.apps.end(name)
    say(f"{name} ends")
