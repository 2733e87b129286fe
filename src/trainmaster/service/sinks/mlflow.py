"""`MlflowFeed`: tasks go to an MLflow server, by its REST interface (`Mlflow`); a task is a run there.

Everything may be sent again: a run is found by its tag, parameters and tags are set to what they are, and the
server knows a value by its name, step and time. Before a batch is sent, its end and its time are written
down, after that its having been taken: a kill in between has it sent once more, exactly the same.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from trainmaster.dataclass import dataclass
from trainmaster.db import queries, sinks
from trainmaster.service.notifications.webhook_targets import ReceiverResponse, check_url
from trainmaster.service.runs.curves import attempt_reports
from trainmaster.service.runs.metric_export import scalars, step_of, when_of
from trainmaster.service.sinks.feed import EVERYWHERE, Feed, SinkContext, SinkError
from trainmaster.spec.addresses import named_networks
from trainmaster.spec.errors import one_line
from trainmaster.spec.states import EndReason, State

if TYPE_CHECKING:
    from sqlalchemy.engine import RowMapping

    from trainmaster.service.open_home import OpenHome
    from trainmaster.spec.sinks import MlflowSink

#: Of one `log-batch`, as MLflow documents it; longer texts are cut.
MOST_METRICS: Final = 1000
_MOST_PARAMS: Final = 100
_KEY_LENGTH: Final = 250
_VALUE_LENGTH: Final = 500
#: How it knows again which of its runs a task is.
_TAG: Final = "trainmaster.task"
_NO_KEY: Final = re.compile(r"[^A-Za-z0-9_.\- /]")
_ENDS: Final[Mapping[str, str]] = {
    EndReason.SUCCEEDED: "FINISHED",
    EndReason.UNTIL: "FINISHED",
    EndReason.PRUNED: "FINISHED",
    EndReason.CANCELLED: "KILLED",
}

#: Sends JSON to a path: the status and body.
Post = Callable[[str, bytes, Mapping[str, str]], ReceiverResponse]


@dataclass(frozen=True, slots=True)
class Value:
    """What was reported of one thing.

    Attributes:
        name: of it.
        value: may be infinite, or not a number.
        step: how far the task was.
        at: Unix seconds.
    """

    name: str
    value: float
    step: int
    at: float


class Mlflow:
    """One server.

    Args:
        url: of it.
        post: sends.
        token: what is to be said; empty for nothing.
        login: ``USER:PASSWORD``; empty for none.
    """

    def __init__(self, url: str, post: Post, token: str = "", login: str = "") -> None:
        self._url, self._post = url.rstrip("/"), post
        self._headers = {"content-type": "application/json", "user-agent": "trainmaster"}
        token = token.strip()  # files and pipes end with a newline
        if not (token.isascii() and token.isprintable()):
            raise SinkError("the token of MLflow has characters that no header may have")
        if token:
            self._headers["authorization"] = f"Bearer {token}"
        elif login:
            self._headers["authorization"] = f"Basic {base64.b64encode(login.encode()).decode()}"

    def experiment(self, name: str) -> str:
        """Id of the experiment with a name, which is made if there is none.

        Raises:
            SinkError: the server has not taken it.
        """
        quoted = name.replace("'", "\\'")
        for _ in range(2):
            wanted = {"filter": f"name = '{quoted}'", "max_results": 1, "view_type": "ACTIVE_ONLY"}
            if found := self._ask("experiments/search", wanted).get("experiments"):
                return _id_in("experiments/search", found, 0, "experiment_id")
            try:
                made = self._ask("experiments/create", {"name": name})
                return _id_in("experiments/create", made, "experiment_id")
            except SinkError as error:
                if error.code != "RESOURCE_ALREADY_EXISTS":  # else somebody was quicker
                    raise
        raise SinkError(f"there is no experiment {name!r}, or it was deleted", 404)

    def begin(self, experiment: str, task: str, tags: Mapping[str, str], at: float) -> str:
        """Id of the run of a task, which is made if there is none.

        Raises:
            SinkError: the server has not taken it.
        """
        wanted = {
            "experiment_ids": [experiment],
            "filter": f"tags.`{_TAG}` = '{task}'",
            "max_results": 1,
        }
        if found := self._ask("runs/search", wanted).get("runs"):
            return _id_in("runs/search", found, 0, "info", "run_id")
        made = {
            "experiment_id": experiment,
            "run_name": task,
            "start_time": int(at * 1000),
            "tags": [{"key": key, "value": value} for key, value in {_TAG: task, **tags}.items()],
        }
        return _id_in("runs/create", self._ask("runs/create", made), "run", "info", "run_id")

    def describe(self, run: str, parameters: Mapping[str, object]) -> None:
        """Say with which parameters a task runs.

        Raises:
            SinkError: the server has not taken them.
        """
        params = [
            {"key": _key(name), "value": str(value)[:_VALUE_LENGTH]} for name, value in parameters.items()
        ]
        for begin in range(0, len(params), _MOST_PARAMS):
            self._ask("runs/log-batch", {"run_id": run, "params": params[begin : begin + _MOST_PARAMS]})

    def send(self, run: str, values: Sequence[Value]) -> None:
        """Send values, at most `MOST_METRICS`.

        Raises:
            SinkError: the server has not taken them.
        """
        metrics = [
            {
                "key": _key(each.name),
                "value": _number(each.value),
                "step": each.step,
                "timestamp": int(each.at * 1000),
            }
            for each in values
        ]
        self._ask("runs/log-batch", {"run_id": run, "metrics": metrics})

    def end(self, run: str, reason: str, at: float) -> None:
        """Say how a task has ended.

        Raises:
            SinkError: the server has not taken it.
        """
        status = _ENDS.get(reason, "FAILED")
        self._ask("runs/update", {"run_id": run, "status": status, "end_time": int(at * 1000)})

    def _ask(self, what: str, body: Mapping[str, object]) -> dict[str, Any]:
        url = f"{self._url}/api/2.0/mlflow/{what}"
        answer = self._post(url, json.dumps(body).encode(), self._headers)
        try:
            said = json.loads(answer.body or b"{}")
        except ValueError:
            said = {}
        said = said if isinstance(said, dict) else {}
        if answer.trouble:
            code, message = str(said.get("error_code", "")), str(said.get("message", ""))[:200]
            raise SinkError(
                f"MLflow, {what}: {answer.trouble} {code} {message}".rstrip(), answer.status, code
            )
        return said


def batches(values: Iterable[Value], most: int = MOST_METRICS) -> Iterable[list[Value]]:
    """Pieces of values that may be sent at once."""
    piece: list[Value] = []
    for each in values:
        piece.append(each)
        if len(piece) == most:
            yield piece
            piece = []
    if piece:
        yield piece


def _id_in(what: str, said: Any, *path: str | int) -> str:  # noqa: ANN401 - what somebody has answered
    """An id in an answer.

    Raises:
        SinkError: it is none of MLflow's answers.
    """
    try:
        for name in path:
            said = said[name]
    except (KeyError, IndexError, TypeError):
        raise SinkError(
            f"MLflow, {what}: its answer has no {path[-1]}; is an MLflow server at that URL?"
        ) from None
    return str(said)


def _key(name: str) -> str:
    """A name as MLflow takes it.

    >>> _key("val:loss")
    'val_loss'
    """
    return _NO_KEY.sub("_", name)[:_KEY_LENGTH]


def _number(value: float) -> float | str:
    """As JSON of protocol buffers has it."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


class MlflowFeed(Feed["MlflowSink"]):
    """See `Feed`.

    Args:
        opened: the home.
        row: of the sink.
        owner: that sends.
        context: what it sends with.
    """

    def __init__(self, opened: OpenHome, row: RowMapping, owner: str, context: SinkContext) -> None:
        super().__init__(opened, row, owner, context)
        token, login = (context.secrets.get(name, "") for name in (self._sink.token, self._sink.login))
        self._to, self._remote = Mlflow(self._sink.url, context.post, token, login), row["remote"] or ""

    @staticmethod
    def check(sink: MlflowSink, environ: Mapping[str, str], *, is_team: bool) -> None:
        """See `Feed`."""
        check_url(sink.url, named_networks(environ) if is_team else EVERYWHERE)

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
