"""What `run` and `resume` share: drive a run here, or attach to one."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

from trainmaster.cli.output import (
    best_text,
    bill,
    driver_line,
    duration,
    left_lines,
    print_json,
    quote_text,
    say,
    say_error,
    searched,
)
from trainmaster.cli.watching import MachineLossFilter, PlainDisplay, told_events
from trainmaster.spec.errors import AccessError, InterruptedByUser, TrainmasterError
from trainmaster.spec.states import EndReason, State

if TYPE_CHECKING:
    from trainmaster.api import Accepted, ClientProtocol
    from trainmaster.api.results import Watched

#: Another process that drives it says whether its quote was kept when its machines are kept, or given back.
_JUDGED_S, _LOOK_S = 15.0, 0.5


def see_to_end(client: ClientProtocol, accepted: Accepted, left_to: str, *, as_json: bool) -> int:
    """See a run that was just accepted to its end, and show it; or leave it. The exit code.

    Args:
        client: has accepted it.
        accepted: what it said.
        left_to: what to say when it is left to a driver of its own; empty to stay.
        as_json: print the run.
    """
    run = accepted.run
    for note in accepted.notes:
        say(f"note: {note}")
    if left_to:
        client.detach_run(run)
        say(left_to)
        if as_json:
            print_json(client.status(run).json)
        return 0
    interrupted: InterruptedByUser | None = None
    with _display(rents=accepted.rents) as display:
        stream = client.drive_run(run, display.view_every_s)
        if accepted.server:
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.default_int_handler)
            said = f"runs on {accepted.server} (Ctrl-C leaves it there, `trainmaster cancel {run}` ends it)"
        else:
            catch_signals(
                stream.interrupt, f"{run} has not ended: `trainmaster resume {run}` goes on with it"
            )
            said = f"started (stop it with Ctrl-C, go on with `trainmaster resume {run}`)"
        try:
            display.say(f"{run}: {said}")  # now it is true
            for told in stream:
                display.say(told) if isinstance(told, str) else display.show(told)
        except InterruptedByUser as error:
            interrupted = error
        except AccessError:  # a token ends, and no run with it
            display.say(f"{run} goes on; `trainmaster logs -f {run}` shows its output, with another token")
            raise
        except KeyboardInterrupt:
            display.say(f"{run} goes on; `trainmaster logs -f {run}` shows its output")
            return 130
    if accepted.moves and client.brief(run)["state"] != State.DONE:
        say(f"{run}: its first machine drives it from now on; this one may be turned off")
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.default_int_handler)
        try:
            return attach(client, client.resolve(run), as_json=as_json)
        except KeyboardInterrupt:
            say(f"{run} goes on; `trainmaster logs -f {run}` shows its output")
            return 130
    code = finish(client, run, as_json=as_json)
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


def attach(
    client: ClientProtocol, run: str, *, as_json: bool, look: Callable[[Watched], None] = lambda _: None
) -> int:
    """Show a run that another process drives until it ends; the exit code.

    Args:
        client: of the home or server.
        run: whose end is awaited.
        as_json: print the run.
        look: is told what was seen of it, each time.
    """
    known, losses = "working", MachineLossFilter(waits=False)
    for seen in client.watch_run(run):
        losses.waits = seen.rents
        for line in told_events(seen.events, losses):
            say(line)
        if seen.brief["state"] == State.DONE:
            for line in losses.due(time.monotonic(), is_over=True):
                say(line)
            return finish(client, run, as_json=as_json)
        driver = seen.brief["driver"]
        if driver is not None and driver["state"] != known:
            known = driver["state"]
            say(f"{run}: {driver_line(seen.brief) or 'its driver goes on'}")
        look(seen)
    raise TrainmasterError(
        f"the process that drove {run} is gone", f"`trainmaster resume {run}` goes on with it."
    )


def finish(client: ClientProtocol, run: str, *, as_json: bool) -> int:
    """Show how a run ended; 0 if it succeeded, else 1."""
    summary, until = client.status(run).json, time.monotonic() + _JUDGED_S
    while (
        summary["reason"] and summary.get("quote", {}).get("actual", "") is None and time.monotonic() < until
    ):
        time.sleep(_LOOK_S)
        summary = client.status(run).json
    for name, experiment in summary["experiments"].items():
        if experiment.get("best"):
            say(best_text(name, experiment["best"], searched(experiment)))
        if "promotion" in experiment:  # what its gate has said was told when it did
            say(experiment["promotion"])
    highlights = client.highlights(run)
    for line in left_lines(run, summary, highlights):
        say(line)
    say(f"{run}: {summary['reason']} after {duration(summary['seconds'])}, cost {bill(summary['cost_usd'])}")
    if "quote" in summary:
        say(quote_text(summary["quote"]))
    if summary["reason"] == EndReason.BUDGET:
        # In the words of `Allowance`: a larger cap gives it none of that.
        is_month = any("month's budget" in each.message for each in highlights.bad)
        how = f"{run}` goes on" if is_month else f"{run} --total USD` goes on with more money"
        when = ", once the month has money again" if is_month else ""
        say(f"`trainmaster resume {how}, from its newest checkpoints{when}")
    elif summary["reason"] not in (EndReason.SUCCEEDED, EndReason.CANCELLED):
        say(
            f"`trainmaster logs {run}` shows what the tasks wrote. `trainmaster resume {run}` tries again "
            "with its code; what you have changed since takes a new `trainmaster run`"
        )
    if as_json:
        print_json(summary)
    return 0 if summary["reason"] == EndReason.SUCCEEDED else 1


def catch_signals(interrupt: Callable[[], int], left: str = "") -> None:
    """Let Ctrl-C, SIGTERM and the closing of the terminal end the run in order.

    Args:
        interrupt: passes it on, and tells how often that was done; 0: there is nothing yet that could end.
        left: what to say then.
    """

    def stop(number: int, _frame: FrameType | None) -> None:
        count = interrupt()
        if not count:
            os.write(2, f"{left}\n".encode() if left else b"")
            os._exit(128 + number)
        if count == 1:  # print() may be in the middle of a line: a handler must not use it
            os.write(2, b"stopping: the members are asked to end (Ctrl-C again: do not wait for them)\n")

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if number is signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
            continue  # nohup
        signal.signal(number, stop)
