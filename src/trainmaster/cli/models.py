"""``trainmaster models``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainmaster.cli import registry
from trainmaster.cli._groups import DefaultGroup
from trainmaster.cli.opening import open_client
from trainmaster.cli.options import AsJson, NewDirectory, RunId
from trainmaster.cli.output import metrics_text, parameters_text, print_json, say, show, table
from trainmaster.spec.errors import UsageError
from trainmaster.spec.units import counted

if TYPE_CHECKING:
    from trainmaster.api import ClientProtocol
    from trainmaster.service.models.unpublished_models import SavedModel

app = typer.Typer(
    cls=DefaultGroup,
    help="List the models that tasks left (`models RUN`: those of one), get one, give them names.",
    invoke_without_command=True,
)


@app.command("list", hidden=True)
def list_models(
    run: Annotated[str | None, typer.Argument(help="Only this run's.")] = None,
    as_json: AsJson = False,
) -> None:
    """List models, newest run first."""
    from dataclasses import asdict

    client = open_client()
    models = client.models(client.resolve(run) if run else None)
    if as_json:
        print_json({"models": [asdict(model) for model in models]})
        return
    if not models:
        is_over = run is not None and client.brief(client.resolve(run))["state"] == "DONE"
        none = "it left no model" if is_over else "no models yet"
        say(f"{none}: what a task writes into TRAINMASTER_OUTPUT_DIR becomes one")
        return
    has = any(m.parameters for m in models)
    rows = [
        [
            *(m.run, f"{m.experiment}/{m.task}"),
            *([parameters_text(m.parameters)] if has else []),
            *(metrics_text(m.metrics), m.uri),
        ]
        for m in models
    ]
    show(table(["run", "task", *(["parameters"] if has else []), "metrics", "uri"], rows))


@app.command("save")
def save(
    run: RunId,
) -> None:
    """Publish the models that a run could not save: they are kept on this machine until then."""
    client = open_client()
    run = client.resolve(run)
    saved = client.save_models(run)
    if not saved:
        say(f"nothing is kept of {run}: `trainmaster models {run}` lists its models")
    if left := client.deliver_left(run):
        say(left)
    if not show_saved(saved):
        raise typer.Exit(1)


def show_saved(saved: Sequence[SavedModel]) -> bool:
    """Tell what became of models that were kept; True if all are saved."""
    for model in saved:
        say(f"saved: model {model.name}  {model.uri}" if model.uri else f"warning: {model.error}")
    return all(model.uri for model in saved)


@app.command("get")
def get(
    uri: Annotated[
        str,
        typer.Argument(
            metavar="URI|RUN[/EXPERIMENT[/TASK]]|NAME@VERSION",
            help="As `models` lists it, a run with one model, or a registered one: digits@production. "
            "RUN/best is the one with the best metric, RUN/EXPERIMENT/best that of an experiment. "
            "All of an experiment, RUN/EXPERIMENT, come into a folder for each task.",
        ),
    ],
    directory: NewDirectory,
) -> None:
    """Download a model and verify every file's hash."""
    import signal

    from trainmaster.service import fetch

    signal.signal(signal.SIGINT, signal.default_int_handler)  # half a download is taken away again
    uri = _named(uri)
    if "://" not in uri and not Path(uri).expanduser().exists():
        client = open_client()
        if "@" in uri:
            uri = client.registry.version(uri)["model"]
        elif tasks := _several(client, uri):
            _get_all(client, tasks, directory)
            return
        try:
            if uri.endswith("/best"):
                say(f"{uri}: {client.find_model(uri)}")
            fetched = client.fetch_model(uri, directory)
        except UsageError as error:  # of several models the command for each, to be copied
            names = error.hint.partition("Name one of them: ")[2].removesuffix(" ...")
            if not names:
                raise
            each = names.split(", ")
            whole = dict.fromkeys(name.rpartition("/")[0] for name in each if not name.endswith("/best"))
            best = [f"{name}/best" for name in whole if not uri.endswith("/best")]
            lines = [f"  trainmaster models get {name} {directory}" for name in (*best, *each, *whole)]
            said = "Name one of them, or all of one experiment:"
            raise UsageError(error.args[0], "\n".join((said, *lines))) from error
        files, total_bytes = fetched.files, fetched.total_bytes
    else:
        manifest = fetch(uri, directory)
        files, total_bytes = sum(bool(entry.sha256) for entry in manifest.files), manifest.total_bytes
    say(f"{counted(files, 'file')}, {total_bytes:,} bytes in {directory}, hashes verified")


def _several(client: ClientProtocol, name: str) -> list[tuple[int, str]]:
    """The tasks of ``RUN/EXPERIMENT``, each with the name of its model; empty if it left one, or none."""
    run, _, experiment = name.strip("/").partition("/")
    if not experiment or "/" in experiment:
        return []
    run = client.resolve(run)
    of_it = sorted(model.task for model in client.models(run) if model.experiment == experiment)
    return [(task, f"{run}/{experiment}/{task}") for task in of_it] if len(of_it) > 1 else []


def _get_all(client: ClientProtocol, tasks: Sequence[tuple[int, str]], directory: Path) -> None:
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise UsageError(f"{directory} is not empty.", "Give another directory; nothing was changed.")
    fetched = [client.fetch_model(name, directory / str(task)) for task, name in tasks]
    files, total_bytes = sum(each.files for each in fetched), sum(each.total_bytes for each in fetched)
    say(
        f"{len(tasks)} models, {counted(files, 'file')}, {total_bytes:,} bytes in {directory}, "
        "in a folder for each task, hashes verified"
    )


def _named(text: str) -> str:
    """A model as one names it, where a server has told its place to a member of a team.

    >>> _named("store:/models/job-1a/main/0-attempt-2"), _named("s3://b/models/job-1a/main/0")
    ('job-1a/main/0', 's3://b/models/job-1a/main/0')
    """
    import re

    return re.sub(r"^store:/models/(.+?)(?:-attempt-\d+)?$", r"\1", text)


@app.command("fsck")
def fsck(
    runs: Annotated[list[str] | None, typer.Argument(metavar="[RUN]...", help="Only these runs'.")] = None,
    deep: Annotated[bool, typer.Option("--deep", help="Read every file, and compare its hash.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was found as JSON.")] = False,
) -> None:
    """Look whether all models and checkpoints of runs are there and whole; changes nothing."""
    client = open_client()
    found = client.check_models([client.resolve(run) for run in runs or ()], is_deep=deep)
    _show_check(found, say if as_json else show)
    if as_json:
        print_json(found)
    if found["damaged"] or found["unread"]:
        raise typer.Exit(1)


def _show_check(found: dict[str, Any], show: Callable[[str], None]) -> None:
    for damage in found["damaged"]:
        show(f"damaged: {damage['uri']}: {damage['fault']}. {damage['advice']}")
    for rest in found["unnamed"]:
        show(f"note: {rest['uri']}: {rest['bytes']:,} bytes there belong to no model or checkpoint")
    for unread in found["unread"]:
        show(f"not looked at: {unread['run']}: {unread['error']}")
    count = len({damage["uri"] for damage in found["damaged"]})
    others = f", {counted(len(found['unread']), 'run')} not looked at" if found["unread"] else ""
    looked = f"{counted(found['models'], 'model')}, {counted(found['checkpoints'], 'checkpoint')}"
    show(f"{looked}, {count:,} damaged{others}")


registry.add_commands(app)
