"""What `run` and `resume` share: drive a run here, or attach to one."""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from trainmaster.cli.output import (
    SHOWN_MODELS,
    best_text,
    bill,
    driver_line,
    duration,
    model_text,
    print_json,
    quote_text,
    say,
    say_error,
    unsaved_text,
    without_model_text,
)
from trainmaster.cli.watching import Losses, PlainDisplay, told_events
from trainmaster.service import Controller, Service, Session, capabilities_of
from trainmaster.spec.errors import InterruptedByUser, TrainmasterError
from trainmaster.spec.states import EndReason, State

ATTACH_POLL_S = 0.3


def drive_to_end(service: Service, session: Session, *, as_json: bool) -> int:
    """Drive a run in this process and show it; the exit code."""
    from trainmaster.service.run_watcher import RunWatcher

    say(f"{session.run}: started (stop it with Ctrl-C, go on with `trainmaster resume {session.run}`)")
    gc.freeze()
    gc.enable()
    interrupted: InterruptedByUser | None = None
    with _display(rents=not capabilities_of(session.recipe.provider).is_here) as display:
        try:
            watcher = RunWatcher(service, session, display)
            service.drive(session, os.environ, watcher, on_start=catch_signals)
        except InterruptedByUser as error:
            interrupted = error
    code = finish(service, session.run, as_json=as_json)
    if interrupted is not None and code != 0:
        say_error(interrupted)
        return interrupted.exit_code
    return code


@contextmanager
def _display(*, rents: bool) -> Iterator[PlainDisplay]:
    """A live view if standard error is a terminal, else plain lines."""
    if not sys.stderr.isatty():
        yield PlainDisplay(rents=rents)
        return
    from trainmaster.cli.live import LiveDisplay

    with LiveDisplay(rents=rents) as display:
        yield display


def attach(service: Service, run: str, *, as_json: bool) -> int:
    """Show a run that another process drives until it ends; the exit code."""
    gc.enable()  # `main` turned it off for quick verbs
    seen = service.last_event(run)
    known = "working"
    losses = Losses(waits=not capabilities_of(service.database.run_row(run)["provider"]).is_here)
    while True:
        driven = service.is_driven(run)  # looked at first: it may end while we look
        seen, lines = told_events(service, run, seen, losses)
        for line in lines:
            say(line)
        summary = service.status(run)
        if summary["state"] == State.DONE:
            for line in losses.due(time.monotonic(), is_over=True):
                say(line)
            return finish(service, run, as_json=as_json)
        if not driven:
            raise TrainmasterError(
                f"the process that drove {run} is gone", f"`trainmaster resume {run}` goes on with it."
            )
        if summary["driver"] is not None and summary["driver"]["state"] != known:
            known = summary["driver"]["state"]
            say(f"{run}: {driver_line(summary) or 'who drives it goes on'}")
        time.sleep(ATTACH_POLL_S)


def finish(service: Service, run: str, *, as_json: bool) -> int:
    """Show how a run ended; 0 if it succeeded, else 1."""
    summary = service.status(run)
    for name, experiment in summary["experiments"].items():
        if experiment.get("best"):
            say(best_text(name, experiment["best"]))
    for model in summary["models"][:SHOWN_MODELS]:
        say(model_text(model))
    if len(summary["models"]) > SHOWN_MODELS:
        say(f"... {len(summary['models'])} models in all: `trainmaster models {run}`")
    for left in service.without_model(run):
        say(without_model_text(**left))
    for unsaved in summary.get("unsaved", ())[:SHOWN_MODELS]:
        say(unsaved_text(unsaved))
    say(f"{run}: {summary['reason']} after {duration(summary['seconds'])}, cost {bill(summary['cost_usd'])}")
    if "quote" in summary:
        say(quote_text(summary["quote"]))
    if summary["reason"] not in (EndReason.SUCCEEDED, EndReason.CANCELLED):
        say(f"`trainmaster logs {run}` shows what the tasks wrote, `trainmaster resume {run}` tries again")
    if as_json:
        print_json(summary)
    return 0 if summary["reason"] == EndReason.SUCCEEDED else 1


def catch_signals(controller: Controller) -> None:
    """Let Ctrl-C, SIGTERM and the closing of the terminal end the run in order."""

    def stop(_signal: int, _frame: FrameType | None) -> None:
        controller.interrupt()
        if controller.interrupts == 1:  # print() may be in the middle of a line: a handler must not use it
            os.write(2, b"stopping: the members are asked to end (Ctrl-C again: do not wait for them)\n")

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if number is signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
            continue  # nohup
        signal.signal(number, stop)
