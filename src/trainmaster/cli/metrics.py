"""``trainmaster metrics``: what tasks have reported, for other tools."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from trainmaster.cli.opening import open_client
from trainmaster.cli.options import AsJson, RunId
from trainmaster.cli.output import print_json, say
from trainmaster.spec.errors import UsageError, fails_as

app = typer.Typer(help="Give what tasks have reported to other tools.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Give what tasks have reported to other tools."""


@app.command("export", no_args_is_help=True)
def export(
    run: RunId,
    to_csv: Annotated[
        str | None, typer.Option("--csv", metavar="FILE", help="One table; `-` is standard output.")
    ] = None,
    tensorboard: Annotated[
        Path | None,
        typer.Option("--tensorboard", metavar="DIR", help="Event files for TensorBoard, a folder per task."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write what the tasks of a run have reported until now into a CSV file, event files, or as JSON."""
    from trainmaster.service.runs.metric_export import EventFiles, in_json, write_csv

    if (to_csv is not None) + (tensorboard is not None) + as_json != 1:
        raise UsageError("give one of --csv, --tensorboard and --json", "Such as --csv points.csv.")
    if tensorboard is not None and tensorboard.exists() and not tensorboard.is_dir():
        raise UsageError(f"{tensorboard} is a file", "Name a directory that is empty or not there.")
    if tensorboard is not None and tensorboard.is_dir() and any(tensorboard.iterdir()):
        raise UsageError(
            f"{tensorboard} is not empty", "Values would be there twice: name a directory that is not there."
        )
    client = open_client()
    run = client.resolve(run)
    reports = client.metrics(run)
    if not reports:
        how = "with trainmaster.report(step=10, loss=0.5), or by printing `step 10 loss 0.5`"
        say(f"{run} has reported nothing yet; tasks do {how}")
    if as_json:
        print_json({"run": run, "reports": list(in_json(reports))})
        return
    if to_csv == "-":
        write_csv(reports, sys.stdout)
        return
    with fails_as(f"{to_csv or tensorboard} cannot be written", "Name another place."):
        if to_csv is not None:
            with Path(to_csv).open("w", encoding="utf-8", newline="") as file:
                lines = write_csv(reports, file)
            say(f"{lines} lines in {to_csv}")  # closed by now: a full disk is noticed there
        elif tensorboard is not None:
            tensorboard.mkdir(parents=True, exist_ok=True)
            say(f"{EventFiles(tensorboard).write(reports)} values in {tensorboard}")


@app.command("sync", no_args_is_help=True)
def sync(
    run: RunId,
) -> None:
    """Send to the sinks of a run that is over what could not be sent before; trains nothing."""
    client = open_client()
    run = client.resolve(run)
    if client.brief(run)["driven"]:
        say(f"{run} goes on: its driver sends what its tasks report")
        return
    if left := client.deliver_left(run):
        say(left)
        raise typer.Exit(1)
    say(f"{run}: nothing is left to be sent from here")
