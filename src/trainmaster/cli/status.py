"""``trainmaster status``."""

from __future__ import annotations

import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainmaster.cli.labels import labels_text, none_fits
from trainmaster.cli.opening import context, open_client
from trainmaster.cli.options import AsJson, Labels, RunOrNone, WhereText, condition
from trainmaster.cli.output import (
    best_text,
    bill,
    driver_advice,
    driver_line,
    driver_trouble,
    duration,
    left_lines,
    metrics_text,
    number,
    parameters_text,
    phases_text,
    print_json,
    queue_text,
    quote_text,
    say,
    searched,
    show,
    table,
    usage_text,
    verdict_lines,
)
from trainmaster.spec.errors import UsageError
from trainmaster.spec.states import counted_ends
from trainmaster.spec.units import counted, worked_s

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trainmaster.api import ClientProtocol
    from trainmaster.service.runs.highlights import TaskLine

_LISTED_RUNS = 20
_WATCH_S = 2.0
#: Of a failure in the list of runs; `status RUN` and its log have all of it.
_WHY_CHARACTERS = 160
_COUNTERS = ("succeeded", "failed", "running", "waiting", "pruned", "skipped", "cancelled")


def status(
    run: RunOrNone = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw a run's searches, or its tasks' metrics (.svg, .png, .pdf).")
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Show it again every two seconds, until the run has ended.")
    ] = False,
    limit: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="At most so many runs; 20 by default, with --json all."),
    ] = None,
    label: Labels = None,
    where: WhereText = None,
    view: Annotated[
        str | None, typer.Option(metavar="NAME", help="Runs of a view that `trainmaster views` lists.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the runs, or one run with its experiments and models."""
    wanted = condition(label, where)
    if (wanted or view) and run is not None:
        options = "--label, --where or --view"
        raise UsageError(f"{run}, and {options}", "Name a run, or choose by options; not both.")
    client = open_client()
    if view is not None:
        from trainmaster.cli.views import of_view

        its = of_view(client, view)
        wanted = f"({wanted}) and ({its})" if wanted and its else wanted or its
    if watch:
        if as_json or plot is not None:
            raise UsageError("--watch shows text", "Leave out --json and --plot.")
        _watch(client, run, limit, wanted)
        return
    if plot is not None:
        _plot(client, run, plot)
    if run is None:
        if as_json:
            print_json(client.listed(limit, where=wanted))
            return
        _show_runs(client, limit, wanted, with_overview=not wanted)
        return
    summary = client.status(client.resolve(run)).json
    print_json(summary) if as_json else _show_run(client, summary)


def _watch(client: ClientProtocol, run: str | None, limit: int | None, where: str) -> None:
    """Anew on the same screen, or one below the other where there is none."""
    found = None if run is None else client.resolve(run)
    while True:
        if sys.stdout.isatty():
            sys.stdout.write("\x1b[H\x1b[2J")
        show(time.strftime("%H:%M:%S"))
        if found is None:
            _show_runs(client, limit, where)
        else:
            summary = client.status(found).json
            _show_run(client, summary)
            if summary["state"] == "DONE":
                return
        time.sleep(_WATCH_S)


def _plot(client: ClientProtocol, run: str | None, file: Path) -> None:
    from trainmaster.cli.plotting import check_format, draw_run

    if run is None:
        raise UsageError("--plot needs a run", "Write `trainmaster status RUN --plot FILE`.")
    check_format(file)
    found = client.resolve(run)
    picture = client.picture(found)
    draw_run(found, picture.searches, picture.curves, file, client.targets(found))
    say(f"drawn: {file}")


def _overview_lines(seen: Mapping[str, Any]) -> list[str]:
    """At one look, what the first page of a server has; empty where nothing has happened."""
    needs = seen["needs_you"]
    paused = needs["workflows"]
    lines = [f"needs you: {run['run']}: {_why(run)}" for run in needs["runs"]]
    more = needs["count"] - len(needs["runs"])
    lines += [f"needs you: {counted(more, 'more run')}"] * (more > 0)
    lines += [f"needs you: workflow {each['workflow']}: {each['why']}" for each in paused]
    more = needs["workflow_count"] - len(paused)
    lines += [f"needs you: {counted(more, 'more workflow')}"] * (more > 0)
    for run in seen["running"]["runs"]:
        far = [f"{100 * run['progress']:.0f} %"] if "progress" in run else []
        far += [f"{duration(run['left_s'])} left"] if "left_s" in run else []
        lines += [f"running: {run['run']}: {', '.join(far)}"] if far else []
    ended = counted_ends({reason: its["runs"] for reason, its in seen["ended"].items()})
    usd = sum(its["usd"] for its in seen["ended"].values())
    lines += [f"ended within a day: {ended}, {bill(usd)}"] if ended else []
    month, quotes = seen["month"], seen["quotes"]
    if month["spent_usd"]:
        of = f" of {bill(month['monthly_usd'])}" if month["monthly_usd"] is not None else ""
        lines.append(f"this month: {bill(month['spent_usd'])}{of}, at this pace {bill(month['pace_usd'])}")
    if quotes["runs"]:
        apart = f"; {hand} ended by hand" if (hand := quotes.get("ended_by_hand")) else ""
        lines.append(f"quotes kept within 90 days: {quotes['kept']} of {quotes['runs']}{apart}")
    return [*lines, ""] if lines else []


def _why(run: Mapping[str, Any]) -> str:
    last: str = (run["why"].splitlines() or [_state(run)])[-1]
    return last if len(last) <= _WHY_CHARACTERS else f"{last[: _WHY_CHARACTERS - 1]}…"


def _no_runs() -> str:
    """That there are none, and why there may be some elsewhere: then a new run would be in neither list."""
    from trainmaster.service import Home

    folders = Home.from_environment(makes=False).root / "runs"
    if context() is None and folders.is_dir() and any(folders.iterdir()):
        return (
            f"no runs in this home's database, but {folders} has files of some: if TRAINMASTER_DATABASE "
            "named another database when they were started, name it again"
        )
    return "no runs yet: `trainmaster run RECIPE` starts one"


def _show_runs(client: ClientProtocol, limit: int | None, where: str, *, with_overview: bool = False) -> None:
    listed = client.listed(limit or _LISTED_RUNS, where=where, sort="best" if where else "")
    runs = listed["runs"]
    if with_overview and (runs or context() is not None):  # a server may have workflows that need somebody
        for line in _overview_lines(client.overview()):
            show(line)
    if not runs:
        say(none_fits(client, where) if where else _no_runs())
        return
    labelled = any("labels" in r for r in runs)
    has_owners = len({r.get("owner") for r in runs}) > 1
    named = list(dict.fromkeys(column for r in runs for column in r.get("values", ())))
    rows = [
        [
            r["run"],
            ", ".join(filter(None, (_state(r), driver_trouble(r)))),
            duration(worked_s(r)),
            bill(r["cost_usd"]),
            duration(time.time() - r["created_at"]),
            *(_value_text(r.get("values", {}).get(column, "-")) for column in named),
            *([r.get("owner", "-")] if has_owners else []),
            *([labels_text(r)] if labelled else []),
        ]
        for r in runs
    ]
    heads = [column.partition(":")[2] for column in named] + ["by"] * has_owners + ["labels"] * labelled
    show(table(["run", "state", "took", "cost", "age", *heads], rows))
    for r in runs:
        if advice := driver_advice(r):
            say(advice)
    if listed["older"]:
        which = "more that fit" if where else "older ones"
        say(f"... and {listed['older']} {which} (`--json` lists all)")


def _value_text(value: Any) -> str:  # noqa: ANN401 - of a metric or parameter
    """Of a parameter both ends, where tasks differ."""
    return " to ".join(map(number, value)) if isinstance(value, list | tuple) else number(value)


def _show_run(client: ClientProtocol, summary: Mapping[str, Any]) -> None:
    run = summary["run"]
    trouble = driver_line(summary)
    state = _run_state(summary) + (f" ({trouble})" if trouble else "")
    queued = f" ({duration(summary['queued_s'])} of them waiting)" if "queued_s" in summary else ""
    show(f"{run}: {state}, {duration(summary['seconds'])}{queued}, {bill(summary['cost_usd'])}")
    for name, text in (("labels", labels_text(summary)), ("note", summary.get("note", ""))):
        if text:
            show(f"  {name}: {text}")
    if "trimmed_at" in summary:
        show("  its logs, output and checkpoints were removed; what is needed of it is there")
    if "place" in summary:
        show(f"  {summary['place']['words']}")
    if "queued" in summary:
        show(f"  {queue_text(summary['queued'])}")
        for name in summary["queued"].get("approval", ()):
            show(f"  `trainmaster approve {run} {name}` says yes; with --deny, no")
    if "kept_usd" in summary:
        show(f"  and {bill(summary['kept_usd'])} for the machines that it keeps warm, until now")
    if "quote" in summary:
        show(f"  {quote_text(summary['quote'], summary['cost_usd'])}")
    if phases := phases_text(summary):
        show(f"  phases: {phases}")
    if start := summary.get("workflow"):
        show(f"  started by workflow {start['workflow']}: {start['trigger']}, {start['cause']}")
    rows = []
    for name, experiment in summary["experiments"].items():
        counters = ", ".join(
            f"{experiment['tasks'][key]} {key}" for key in _COUNTERS if experiment["tasks"][key]
        )
        rows.append([name, _state(experiment), counters])
    show(table(["experiment", "state", "tasks"], rows))
    for service in summary.get("services", ()):
        show(f"  {_service_text(service)}")
    for name, experiment in summary["experiments"].items():
        for place, best in enumerate(experiment.get("top", ()), 1):
            show(f"  {best_text(name, best, searched(experiment), place)}")
        for line in verdict_lines(name, experiment):
            show(f"  {line}")
    for name, experiment in summary["experiments"].items():
        if experiment.get("usage"):
            show(f"  {name} used: {usage_text(experiment['usage'])}")
    if summary["state"] != "DONE" and any("until" in each for each in summary["experiments"].values()):
        for target in client.targets(run):
            show(f"  {target['words']}")
    seen = client.highlights(run)
    for task in seen.running:
        metrics = metrics_text(task.metrics) or "no metrics yet"
        show(f"  {task.experiment}/{task.task}{_with(task)} attempt {task.attempt}{_at(task)}  {metrics}")
    for task in seen.bad:
        why = f": {task.message}" if task.message else ""
        show(f"  {task.experiment}/{task.task}{_with(task)} {task.reason}{_at(task)}{why}")
    for note in seen.notes:
        about = "" if note.task is None else f"{note.experiment}/{note.task}: "
        show(f"  {duration(max(time.time() - note.at, 0.0))} ago: {about}{note.message}")
    for line in left_lines(run, summary, seen):
        show(f"  {line}")


def _at(task: TaskLine) -> str:
    return f" at {task.place}" if task.place else ""


def _with(task: TaskLine) -> str:
    return f" ({parameters_text(task.parameters)})" if task.parameters else ""


def _service_text(service: Mapping[str, Any]) -> str:
    """Its replicas by state, and which model they have."""
    states = Counter(each["state"].lower() for each in service["replicas"])
    none = "asleep until the next request" if service.get("asleep") else "no replicas"
    replicas = ", ".join(f"{states[state]} {state}" for state in sorted(states)) or none
    version = f", {service['version']}" if service["version"] else ""
    refused = f"; {service['refused']} did not become healthy" if service["refused"] else ""
    busy = sum(each["in_flight"] for each in service["replicas"])
    requests = f"{counted(busy, 'request')} in flight"
    return f"service {service['name']}: {replicas}{version}, {requests}{refused}"


def _run_state(summary: Mapping[str, Any]) -> str:
    """That of a run in which nothing runs any more, but something is still being saved, is ``saving``."""
    going = [each for each in summary["experiments"].values() if each["tasks"]["running"]]
    is_saving = bool(going) and all(_state(each) == "saving" for each in going)
    return "saving" if is_saving and summary["state"] != "DONE" else _state(summary)


def _state(thing: Mapping[str, Any]) -> str:
    if "queued" in thing:
        return "QUEUED"
    if thing["state"] != "DONE" and (saving := thing.get("saving")) and saving == thing["tasks"]["running"]:
        return "saving"
    return str(thing["reason"] or thing["state"])
