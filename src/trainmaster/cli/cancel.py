"""``trainmaster cancel``."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Annotated, Final

import typer

from trainmaster.api import ClientProtocol
from trainmaster.api.run import ending
from trainmaster.cli.labels import selected
from trainmaster.cli.opening import open_client
from trainmaster.cli.options import Labels, RunOrNone, WhereText
from trainmaster.cli.output import driver_advice, driver_line, print_json, say

#: So often it is looked for why a run does not end, in seconds.
_LOOK_EVERY_S: Final = 2.0


def cancel(
    run: RunOrNone = None,
    tasks: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TASK]...",
            help="End only these, such as sweep/3, or 3 in a run of one experiment: all else goes on.",
        ),
    ] = None,
    label: Labels = None,
    where: WhereText = None,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print the run as JSON, of several a line each; of tasks each of them."),
    ] = False,
) -> None:
    """End a run, or tasks of it: SIGTERM, time to save, then SIGKILL. It can be resumed."""
    client = open_client(goes_on=False)
    found = selected(client, run, label, where, goes_on=True)
    if tasks and found:
        _end_tasks(client, found[0], tasks, as_json=as_json)
        return
    for each in found if len(found) > 1 else ():  # all begin to end before one is waited for
        client.cancel(each)
    for each in found:
        _end(client, each, was_asked=len(found) > 1)
        if as_json:
            for _ in client.watch_run(each):  # until its driver has let go of it, its time grows
                pass
            print_json(client.status(each).json)


def _end(client: ClientProtocol, run: str, *, was_asked: bool) -> None:
    ended_before = not was_asked and client.brief(run)["state"] == "DONE"
    told, say_news = False, None if ended_before else _notes_from_now(client, run)
    for line in ending(client, run):
        if say_news is not None:
            say_news()
        if not told and line["driver"] is not None and (trouble := driver_line(line)):
            told = True
            say(f"{run}: {trouble}")
    say(f"{run} had ended already: {line['reason']}" if ended_before else f"{run}: {line['reason']}")


def _notes_from_now(client: ClientProtocol, run: str) -> Callable[[], None]:
    """A function that says what is waited for: the notes of a run that are new at each call."""
    known, looked = client.highlights(run).notes, time.monotonic()

    def say_news() -> None:
        nonlocal known, looked
        if time.monotonic() - looked < _LOOK_EVERY_S:
            return
        notes, looked = client.highlights(run).notes, time.monotonic()
        for note in notes:
            if note not in known:
                say(f"{run}: {note.message}")
        known = (*known, *notes)

    return say_news


def _end_tasks(client: ClientProtocol, run: str, tasks: Sequence[str], *, as_json: bool) -> None:
    """What waits for its turn is not waited for, nor what has no driver."""
    watching = client.watch_run(run)
    next(watching)  # from here on: what happens between the wish and the first look is not missed
    say_news = _notes_from_now(client, run)
    before = found = client.cancel_tasks(run, tasks)
    names = {(each["experiment"], each["task"]) for each in found}
    while any(each["state"] not in ("DONE", "WAITING") for each in found):
        watched = next(watching, None)
        line = client.brief(run) if watched is None else watched.brief
        if watched is None or driver_advice(line):  # a machine of its own that drives it hears of it soon
            say(f"{run}: {driver_line(line)}")
            break
        ended = {(each.experiment, each.task) for each in watched.events if each.after == "DONE"}
        if names & ended or line["state"] == "DONE":  # a run may end just after its events were read
            found = client.cancel_tasks(run, tasks)
        else:
            say_news()
    for was, each in zip(before, found, strict=True):
        name = f"{run}: {each['experiment']}/{each['task']}"
        if as_json:
            print_json(each)
        elif was["state"] == "DONE":
            say(f"{name} had ended already: {was['reason']}")
        elif each["state"] == "WAITING":
            say(f"{name} will not begin")
        else:
            say(f"{name}: {each['reason']}" if each["reason"] else f"{name} is to end")
