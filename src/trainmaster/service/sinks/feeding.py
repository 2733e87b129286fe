"""`SinkFeeder`: sends what tasks have reported to the sinks of their runs, from what is stored here.

How far an attempt is is a cursor in the database. Before a batch is sent, its end and its time are written
down, after that its having been taken: who is killed in between has it sent once more, exactly the same.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from ipaddress import ip_network
from typing import TYPE_CHECKING, Final

from trainmaster.control.environment import read_secrets
from trainmaster.db import queries, sinks
from trainmaster.db.leases import LEASE_S, is_alive, this_process
from trainmaster.db.sinks import Cursor
from trainmaster.service.notifications.delivery import pause_s
from trainmaster.service.notifications.webhook_targets import Answer, check_url, networks, post
from trainmaster.service.runs.curves import attempt_reports
from trainmaster.service.runs.metric_export import scalars, step_of, when_of
from trainmaster.service.runs.stored_recipe import stored_recipe
from trainmaster.service.server_loops import Turns
from trainmaster.service.sinks.mlflow import MOST_METRICS, Mlflow, SinkError, Value, batches
from trainmaster.service.teams.team_secrets import TeamSecrets
from trainmaster.spec.clocks import boot_s
from trainmaster.spec.errors import StoreError, TrainmasterError, UsageError, one_line
from trainmaster.spec.states import State

if TYPE_CHECKING:
    from sqlalchemy.engine import RowMapping

    from trainmaster.service.open_home import OpenHome
    from trainmaster.spec import Recipe
    from trainmaster.spec.sinks import MlflowSink

LOOK_S: Final = 5.0
#: At the end of a run its driver waits so long until all is sent.
LAST_S: Final = 10.0
#: Of an answer of the other side.
_MOST_BYTES: Final = 1 << 20
#: The owner of a home may send to his own machine and network.
_EVERYWHERE: Final = (ip_network("0.0.0.0/0"), ip_network("::/0"))

log = logging.getLogger(__name__)


class _TakenOverError(Exception):
    """Another process sends now."""


class SinkFeeder:
    """Those of a home; any number of processes may do this at the same time.

    Args:
        opened: the home.
        environ: of the caller, with the secrets of the owner of the home.
        post_to: sends; replaced in tests.
    """

    def __init__(
        self, opened: OpenHome, environ: Mapping[str, str], post_to: Callable[..., Answer] = post
    ) -> None:
        self._opened, self._environ, self._post = opened, environ, post_to
        self._owner = this_process()

    def feed(self, run: str | None = None) -> bool:
        """Send what is due, of one run or all that were sent to a server; whether anything is left to send.

        Raises:
            StoreError: the database cannot be used.
        """
        database, is_left = self._opened.database, False
        for row in sinks.open_sinks(database, run):
            if run is None and row["submitted_by"] is None:
                continue  # who drives it sends
            is_left = True
            now = database.clock_s()
            if row["try_at"] > now or self._is_anothers(row, now):
                continue
            if not self._is_here(row["run_id"]):
                continue  # the server that has its files sends
            if sinks.claim(database, row, self._owner, now + LEASE_S) and self._feed(row):
                is_left = False
        return is_left

    def trouble(self, run: str | None) -> str:
        """Why something of a run is not sent yet, as far as it is known."""
        with suppress(StoreError):
            found = (row["trouble"] for row in sinks.open_sinks(self._opened.database, run))
            return next((trouble for trouble in found if trouble), "")
        return ""

    def _is_here(self, run: str) -> bool:
        try:
            self._opened.home_of(run)
        except UsageError:
            return False
        return True

    def _is_anothers(self, row: RowMapping, now: float) -> bool:
        owner = row["owner"]
        return owner not in (None, self._owner) and is_alive(owner, row["expires_at"], now)

    def _feed(self, row: RowMapping) -> bool:
        """One sink; whether it has all of its run."""
        database, run, kind = self._opened.database, row["run_id"], row["kind"]
        try:
            feed = _Feed(self._opened, row, self._mlflow(row), self._owner)
            is_whole = feed.feed()
        except _TakenOverError:
            return False
        except StoreError:
            raise
        except TrainmasterError as error:
            failures, trouble = row["failures"] + 1, one_line(error)
            log.info("%s: %s: %s", run, kind, trouble)  # its row says it, and who waits for the run is told
            sinks.change(
                database, run, kind, self._owner, trouble=trouble, failures=failures,
                try_at=database.clock_s() + pause_s(failures), owner=None, expires_at=None,
            )  # fmt: skip
            return False
        state = State.DONE if is_whole else State.RUNNING
        sinks.change(
            database, run, kind, self._owner, trouble=feed.refused, failures=0, try_at=0.0,
            owner=None, expires_at=None, state=state,
        )  # fmt: skip
        return is_whole

    def _mlflow(self, row: RowMapping) -> Mlflow:
        recipe = stored_recipe(self._opened.database.run_row(row["run_id"]))
        wanted, team = _mlflow_of(recipe), row["team"]
        allowed = _EVERYWHERE if team is None else networks(self._environ)

        def post_there(url: str, body: bytes, headers: Mapping[str, str]) -> Answer:
            return self._post(url, body, headers, allowed, most_bytes=_MOST_BYTES)

        values = sink_secrets(self._opened.of_team(team), recipe, self._environ)
        return Mlflow(wanted.url, post_there, values.get(wanted.token, ""), values.get(wanted.login, ""))


def sink_secrets(opened: OpenHome, recipe: Recipe, environ: Mapping[str, str]) -> dict[str, str]:
    """Values of the secrets that the sinks of a recipe need.

    Args:
        opened: the home, as the team sees it whose run it is.
        recipe: names them.
        environ: of the owner of the home.

    Raises:
        UsageError: one is nowhere.
    """
    names = () if recipe.sinks is None else recipe.sinks.secrets
    if opened.team is None:
        found, missing = read_secrets(names, environ, opened.home.secrets_file)
    else:
        found = TeamSecrets(opened.database, opened.home.root, environ).values(opened.team, names)
        missing = [name for name in names if name not in found]
    if missing:
        raise UsageError(
            f"sinks: no value for {', '.join(missing)}",
            "Export it, or put it where other secrets are: see docs/sinks.md.",
        )
    return found


def check_sinks(opened: OpenHome, recipe: Recipe, environ: Mapping[str, str]) -> None:
    """Refuse sinks that can never work, before anything starts.

    Raises:
        UsageError: a secret is nowhere, or nothing is sent to such a URL.
    """
    if recipe.sinks is None:
        return
    sink_secrets(opened, recipe, environ)
    if recipe.sinks.mlflow is not None:
        check_url(recipe.sinks.mlflow.url, _EVERYWHERE if opened.team is None else networks(environ))


def _mlflow_of(recipe: Recipe) -> MlflowSink:
    found = None if recipe.sinks is None else recipe.sinks.mlflow
    assert found is not None, "the row of its sink says so"
    return found


class _Feed:
    """One turn of one sink.

    Args:
        opened: the home.
        row: of the sink.
        to: the other side.
        owner: who sends.

    Attributes:
        refused: why something is left out; empty if nothing is.
    """

    def __init__(self, opened: OpenHome, row: RowMapping, to: Mlflow, owner: str) -> None:
        self._to, self._owner, self._remote = to, owner, row["remote"] or ""
        self.refused = ""
        self._database = opened.database
        self._run, self._kind = row["run_id"], row["kind"]
        run = self._database.run_row(self._run)  # before its tasks: if it is over, so are they
        self._is_over = run["state"] == State.DONE
        self._recipe, self._home = stored_recipe(run), opened.home_of(self._run)
        self._cursors = sinks.cursors(self._database, self._run, self._kind)
        self._renew_at = 0.0

    def feed(self) -> bool:
        """Send what is new; whether that was the last.

        Raises:
            SinkError: the other side has not taken something.
            _TakenOverError: another process sends now.
        """
        attempts = queries.attempts(self._database, self._run)
        newest = {(each["experiment"], each["task"]): each["number"] for each in attempts}
        tasks = {
            (row["experiment"], row["number"]): row
            for name in self._recipe.experiments
            for row in queries.results(self._database, self._run, name)
        }
        for attempt in attempts:
            task = (attempt["experiment"], attempt["task"])
            if not self._cursor(attempt).is_over and task in tasks:
                self._feed(attempt, tasks[task], is_newest=newest[task] == attempt["number"])
        return bool(self._is_over)

    def _feed(self, attempt: RowMapping, task: RowMapping, *, is_newest: bool) -> None:
        if not self._cursor(attempt).remote:
            self._keep(attempt, replace(self._cursor(attempt), remote=self._begin(attempt, task)))
        self._send(attempt)
        if attempt["ended_at"] is None:
            return
        if is_newest:
            if task["state"] != State.DONE:
                return  # it may be tried again, or not
            self._to.end(
                self._cursor(attempt).remote, task["reason"], task["ended_at"] or attempt["ended_at"]
            )
        self._keep(attempt, replace(self._cursor(attempt), is_over=True))

    def _begin(self, attempt: RowMapping, task: RowMapping) -> str:
        """What the other side calls a task: its attempts are one there."""
        for (experiment, number, _), cursor in self._cursors.items():
            if (experiment, number) == (attempt["experiment"], attempt["task"]) and cursor.remote:
                return cursor.remote
        place = self._remote or self._place()
        name = f"{self._run}/{attempt['experiment']}/{attempt['task']}"
        tags = {"trainmaster.run": self._run, "trainmaster.experiment": attempt["experiment"]}
        begun_at = task["started_at"] or self._database.clock_s()
        remote = self._to.begin(place, name, tags, begun_at)
        self._offer(lambda: self._to.describe(remote, json.loads(task["parameters"])))
        return remote

    def _place(self) -> str:
        name = _mlflow_of(self._recipe).experiment or self._recipe.name
        self._remote = self._to.experiment(name)
        sinks.change(self._database, self._run, self._kind, self._owner, remote=self._remote)
        return self._remote

    def _send(self, attempt: RowMapping) -> None:
        """Send what an attempt has reported since."""
        experiment = self._recipe.experiments[attempt["experiment"]]
        place = self._home.attempt(self._run, experiment.name, attempt["task"], attempt["number"])
        found: list[tuple[int, Value]] = []
        number, step = 0, None
        for number, report in enumerate(attempt_reports(experiment, place), 1):
            step = known if (known := step_of(report)) is not None else step
            cursor = self._cursor(attempt)
            if number <= cursor.reports:
                continue
            at = when_of(report, 0.0)
            whole = int(number if step is None else step)
            values = [(number, Value(name, value, whole, at)) for name, value in scalars(report)]
            if found and len(found) + len(values) > MOST_METRICS and not cursor.sending:
                self._flush(attempt, found, number - 1)
                found = []
            found += values
            if number == cursor.sending:  # what was on its way when somebody died goes once more, as it was
                self._flush(attempt, found, number)
                found = []
        if number > self._cursor(attempt).reports:
            self._flush(attempt, found, number)

    def _flush(self, attempt: RowMapping, found: list[tuple[int, Value]], end: int) -> None:
        cursor = self._cursor(attempt)
        if not cursor.sending:
            cursor = replace(cursor, sending=end, sending_at=self._database.clock_s())
            self._keep(attempt, cursor)
        begin = cursor.reports + 1
        timed = [
            value if value.at else replace(value, at=cursor.sending_at + (number - begin) / 1000)
            for number, value in found
        ]
        for piece in batches(timed):
            self._offer(partial(self._to.send, cursor.remote, piece))
        self._keep(attempt, replace(cursor, reports=end, sending=0, sending_at=0.0))

    def _offer(self, send: Callable[[], None]) -> None:
        """Send something that what comes after it is not held up by."""
        try:
            send()
        except SinkError as error:
            if not error.is_final:
                raise
            self.refused = one_line(error)

    def _cursor(self, attempt: RowMapping) -> Cursor:
        return self._cursors.get(_key(attempt), Cursor(""))

    def _keep(self, attempt: RowMapping, cursor: Cursor) -> None:
        expires_at = self._database.clock_s() + LEASE_S
        if not sinks.change(self._database, self._run, self._kind, self._owner, expires_at=expires_at):
            raise _TakenOverError
        sinks.save_cursor(self._database, self._run, self._kind, _key(attempt), cursor)
        self._cursors[_key(attempt)] = cursor


def _key(attempt: RowMapping) -> sinks.Attempt:
    return attempt["experiment"], attempt["task"], attempt["number"]


class SinkThread:
    """Feeds in the background.

    Args:
        feeder: of a home.
        run: only this one; None for all that were sent to a server.
    """

    def __init__(self, feeder: SinkFeeder, run: str | None = None) -> None:
        self._feeder, self._run = feeder, run
        self._last, self._end = threading.Event(), threading.Event()
        self._is_left = True
        self._turns = Turns("sinks")
        self._thread = threading.Thread(target=self._work, name="sinks", daemon=True)

    def start(self) -> None:
        """Begin; who is killed meanwhile loses nothing."""
        self._thread.start()

    def stop(self) -> None:
        """Begin nothing more; what is under way is not waited for."""
        self._end.set()
        self._last.set()

    def finish(self, is_hurried: Callable[[], bool] = lambda: False) -> str:
        """The run has ended: wait for `LAST_S` at most until all is sent; what to tell the user."""
        self._last.set()
        until = time.monotonic() + LAST_S
        while self._thread.is_alive() and time.monotonic() < until and not is_hurried():
            self._thread.join(0.05)
        self.stop()
        if not self._is_left:
            return ""
        why = f" ({trouble})" if (trouble := self._feeder.trouble(self._run)) else ""
        return f"sinks: not all is sent yet{why}; `trainmaster resume {self._run}` sends the rest"

    def _work(self) -> None:
        while not self._end.is_set():
            is_last, begun = self._last.is_set(), boot_s()  # read before it is looked
            with self._turns.turn():
                self._is_left = self._feeder.feed(self._run)
                if not self._is_left and is_last:
                    return
            rest_s = LOOK_S / 10 if is_last else max(LOOK_S, 9 * (boot_s() - begun))
            (self._end if is_last else self._last).wait(rest_s)
