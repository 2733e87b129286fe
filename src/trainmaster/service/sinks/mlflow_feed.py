"""`MlflowFeed`: sends what tasks report to an MLflow server.

Before a batch is sent, its end and its time are written down, after that its having been taken: a kill
in between has it sent once more, exactly the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from trainmaster.db import queries, sinks
from trainmaster.service.notifications.webhook_targets import check_url, networks
from trainmaster.service.runs.curves import attempt_reports
from trainmaster.service.runs.metric_export import scalars, step_of, when_of
from trainmaster.service.sinks.feed import EVERYWHERE, Feed, Means, SinkError
from trainmaster.service.sinks.mlflow import MOST_METRICS, Mlflow, Value, batches
from trainmaster.spec.errors import one_line
from trainmaster.spec.states import State

if TYPE_CHECKING:
    from sqlalchemy.engine import RowMapping

    from trainmaster.service.open_home import OpenHome
    from trainmaster.spec.sinks import MlflowSink


class MlflowFeed(Feed["MlflowSink"]):
    """See `Feed`.

    Args:
        opened: the home.
        row: of the sink.
        owner: that sends.
        means: what it sends with.
    """

    def __init__(self, opened: OpenHome, row: RowMapping, owner: str, means: Means) -> None:
        super().__init__(opened, row, owner, means)
        token, login = (means.secrets.get(name, "") for name in (self._sink.token, self._sink.login))
        self._to, self._remote = Mlflow(self._sink.url, means.post, token, login), row["remote"] or ""

    @staticmethod
    def check(sink: MlflowSink, environ: Mapping[str, str], *, is_team: bool) -> None:
        """See `Feed`."""
        check_url(sink.url, networks(environ) if is_team else EVERYWHERE)

    def feed(self) -> bool:
        """See `Feed`."""
        attempts = queries.attempts(self._database, self._run)
        newest = {(each["experiment"], each["task"]): each["number"] for each in attempts}
        tasks = self._tasks()
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
        name = self._sink.experiment or self._recipe.name
        self._remote = self._to.experiment(name)
        sinks.change(self._database, self._run, self._kind, self._owner, remote=self._remote)
        return self._remote

    def _send(self, attempt: RowMapping) -> None:
        """Send what an attempt has reported since."""
        experiment = self._recipe.experiments[attempt["experiment"]]
        place = self._files.attempt(self._run, experiment.name, attempt["task"], attempt["number"])
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
