"""``trainmaster serve``: a model behind an address; and ``trainmaster services``: what is served."""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from trainmaster.api import ClientProtocol
from trainmaster.cli._groups import DefaultGroup
from trainmaster.cli.opening import context, open_client
from trainmaster.cli.options import AgreesToCost, AsJson
from trainmaster.cli.output import print_json, say, show, show_list, table
from trainmaster.spec.errors import NotFoundError, UsageError

app = typer.Typer(
    cls=DefaultGroup, help="List services, show where one is asked, or end one.", invoke_without_command=True
)

_Name = Annotated[str, typer.Argument(metavar="NAME", help="As listed.")]
_Port = Annotated[int, typer.Option(help="Of this machine, without a server; 0: any that is free.")]
_STATES = {"READY": "ready", "STARTING": "starts", "DONE": "over"}
_LOOK_S = 0.5


def serve(
    model: Annotated[
        str,
        typer.Argument(help="A registered model such as digits@production, or RUN, or RUN/EXPERIMENT/TASK."),
    ],
    replicas: Annotated[int, typer.Option(min=1, help="How many answer.")] = 1,
    provider: Annotated[str, typer.Option(help="Where they run.")] = "local",
    name: Annotated[str, typer.Option(help="Of the service, instead of the model's.")] = "",
    command: Annotated[
        str, typer.Option(help="What answers at {{port}}, instead of what knows the model's format.")
    ] = "",
    health: Annotated[
        str,
        typer.Option(help="The command's health check: a path, or '{path: /generate, body: {inputs: hi}}'."),
    ] = "",
    code: Annotated[
        Path | None,
        typer.Option(
            exists=True, file_okay=False, help="Directory of the command, or of a serve.py of yours."
        ),
    ] = None,
    port: _Port = 0,
    yes: AgreesToCost = False,
    detach: Annotated[bool, typer.Option(help="Drive it in the background and return at once.")] = False,
    as_json: AsJson = False,
) -> None:
    """Serve a model: a run whose replicas answer requests until you cancel it."""
    from trainmaster.cli.driving import see_to_end
    from trainmaster.cli.measuring import start_made
    from trainmaster.service import capabilities_of
    from trainmaster.service.endpoints.serving_recipe import must_be_servable, service_name, serving_recipe
    from trainmaster.spec.serve import SERVICE_NAME, SERVICE_NAME_RIGHT

    if name and not re.fullmatch(SERVICE_NAME, name):  # else the file that is made of it is at fault
        raise UsageError(f"--name {name}: no name of a service", f"{SERVICE_NAME_RIGHT.capitalize()}.")
    client = open_client(starts=True, runs_here=capabilities_of(provider).is_here and not detach)
    reference, found = _model(client, model)
    if not command:
        must_be_servable(found, code)
    text = serving_recipe(
        reference, name, replicas=replicas, provider=provider, command=command, health=health,
        code="" if code is None else str(code.resolve()), model_files=found,
    )  # fmt: skip
    name = name or service_name(reference)
    if not detach:
        client.services.listen(port)
    with tempfile.TemporaryDirectory(prefix="trainmaster-serve-") as directory:
        file = Path(directory) / "recipe.yaml"
        file.write_text(text, encoding="utf-8")
        _, accepted = start_made(client, file, yes=yes)
    told = ""
    if detach:
        where = f"`trainmaster services open {name}` says where it is asked"
        told = f"{accepted.run} runs in the background; {where}, `trainmaster services stop {name}` ends it"
    else:
        tell = say if as_json else show  # standard output is the object's alone
        path = "" if command else f"v2/models/{name}"
        _say_where(client.services.url(name, port), path, tell, needs_token=context() is not None)
    raise typer.Exit(see_to_end(client, accepted, told, as_json=as_json))


def _model(client: ClientProtocol, text: str) -> tuple[str, list[str]]:
    """A model as recipes name it, and the paths of its files."""
    if "/" not in text:
        try:
            return text, client.model_files(client.registry.version(text)["model"])
        except NotFoundError:
            if "@" in text:
                raise
    uri = client.find_model(text)
    run = client.resolve(text.partition("/")[0])
    model = next(each for each in client.models(run) if each.uri == uri)
    reference = f"{run}/{model.experiment}/{model.task}"
    return reference, client.model_files(reference)


def _say_where(url: str, path: str, tell: Callable[[str], None], *, needs_token: bool) -> None:
    """Its address, and how to ask it; what a command of the user's own understands is not known."""
    tell(url)
    token = ' -H "Authorization: Bearer $TOKEN"' if needs_token else ""
    say(f"as soon as a replica is ready: curl {url}{path}{token}")


@app.command("list", hidden=True)
def list_services(
    as_json: AsJson = False,
    over: Annotated[bool, typer.Option("--all", help="Also those that are over, behind the others.")] = False,
) -> None:
    """List services that are not over; as JSON all, as REST does."""
    found = open_client().services.listed()
    shown = [each for each in found if over or as_json or each["state"] != "DONE"]
    none = "nothing is served yet: `trainmaster serve MODEL` serves a model"
    if found:
        none = "nothing is served now"
    show_list("services", shown, _table, none, as_json=as_json)
    if len(shown) < len(found):
        say(f"left out: {len(found) - len(shown)} that ended; `trainmaster services --all` shows them")


def _table(found: Sequence[dict[str, Any]]) -> str:
    return table(["service", "state", "model", "replicas", "run"], [_row(each) for each in found])


def _row(found: dict[str, Any]) -> list[str]:
    ready = sum(each["state"] == "READY" for each in found["replicas"])
    count = f"{ready} of {len(found['replicas'])} ready" if found["replicas"] else "0"
    return [
        found["name"],
        "asleep" if found.get("asleep") else _STATES[found["state"]],
        found["version"] or found["model"] or "-",
        count,
        found["run"],
    ]


@app.command("show")
def show_service(name: _Name, as_json: AsJson = False) -> None:
    """Show a service and its replicas."""
    found = open_client().services.show(name)
    if as_json:
        print_json(found)
        return
    show(_table([found]))
    if found["url"]:
        show(found["url"])
    if found["refused"]:
        say(f"{found['refused']} did not become healthy: the version before goes on")
    rows = [
        [str(each["task"]), each["state"].lower(), each["version"] or "-", each["node"] or "here",
         str(each["port"] or "-"), str(each["in_flight"]), each["said"]]
        for each in found["replicas"]
    ]  # fmt: skip
    if rows:
        show(table(["replica", "state", "model", "machine", "port", "in flight", "health check"], rows))


@app.command("open")
def open_service(name: _Name, port: _Port = 0) -> None:
    """Say where a service is asked; without a server it is asked there until Ctrl-C."""
    client = open_client()
    is_remote = context() is not None
    found = client.services.show(name)
    _say_where(client.services.url(name, port), found["path"], show, needs_token=is_remote)
    if is_remote:
        return
    say("Ctrl-C ends this, not the service")
    try:
        while client.services.show(name)["state"] != "DONE":
            time.sleep(_LOOK_S)
    except KeyboardInterrupt:
        return
    say(f"{name} is over")


@app.command()
def stop(name: _Name) -> None:
    """End a service: its run is cancelled."""
    client = open_client()
    found = client.services.show(name)
    if found["state"] == "DONE":
        say(f"{name} is over already")
        return
    client.cancel(found["run"])
    say(f"{found['run']} ends, and {name} with it")
