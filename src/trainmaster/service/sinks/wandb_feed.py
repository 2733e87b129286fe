"""`WandbFeed`: writes tasks as offline runs of Weights & Biases, and sends these if there is a key.

What has grown is written anew, from its first report on: after a kill anywhere the same is done once more.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from trainmaster.dataclass import dataclass
from trainmaster.db import queries
from trainmaster.service.runs.curves import attempt_reports
from trainmaster.service.runs.metric_export import scalars, step_of, when_of
from trainmaster.service.sinks.feed import Feed, Means
from trainmaster.service.sinks.wandb import Wandb, wandb_python
from trainmaster.spec.errors import UsageError
from trainmaster.spec.private_files import make_private
from trainmaster.spec.states import FINISHED, State

if TYPE_CHECKING:
    from sqlalchemy.engine import RowMapping

    from trainmaster.service.open_home import OpenHome
    from trainmaster.spec.sinks import WandbSink

_WANDB: Final = "https://api.wandb.ai"
#: The one other W&B server that runs of a server's teams may be sent to; `wandb` finds its address by itself.
WANDB_VARIABLE: Final = "TRAINMASTER_WANDB_URL"
#: Of tasks that go on: each time all of them is sent, so not often.
_PAUSE_S: Final = 60.0
#: At once.
_MOST_TASKS: Final = 20
_NO_ID: Final = re.compile(r"[^A-Za-z0-9_-]")


@dataclass(slots=True)
class _Written:
    """A task as it was written.

    Attributes:
        place: of what we have written for `wandb`.
        attempts: with how many reports of each there are.
        is_over: there will be nothing more of it.
    """

    place: Path
    attempts: list[tuple[RowMapping, int]]
    is_over: bool


class WandbFeed(Feed["WandbSink"]):
    """See `Feed`.

    Args:
        opened: the home.
        row: of the sink.
        owner: that sends.
        means: what it sends with.
    """

    last_s = 60.0  # `wandb` is slow to start
    pause_s = _PAUSE_S

    def __init__(self, opened: OpenHome, row: RowMapping, owner: str, means: Means) -> None:
        super().__init__(opened, row, owner, means)
        key = means.secrets.get(self._sink.key, "")
        self._to = Wandb(self._sink.url, key, wandb_python(), means.place / "wandb")

    @staticmethod
    def check(sink: WandbSink, environ: Mapping[str, str], *, is_team: bool) -> None:
        """See `Feed`."""
        wandb_python()
        if is_team and sink.url not in (_WANDB, environ.get(WANDB_VARIABLE)):
            raise UsageError(
                f"sinks.wandb: nothing is sent to {sink.url} from this server",
                f"Leave url out, or have the administrator name it in {WANDB_VARIABLE}.",
            )

    @staticmethod
    def unsent(sink: WandbSink, place: Path) -> str:
        """Offline runs without a key."""
        if sink.key:
            return ""
        return f"sinks: offline runs of W&B: `wandb sync {place}/wandb/*/wandb/offline-run-*` sends them"

    def feed(self) -> bool:
        """See `Feed`."""
        attempts: dict[tuple[str, int], list[RowMapping]] = {}
        for each in queries.attempts(self._database, self._run):
            attempts.setdefault((each["experiment"], each["task"]), []).append(each)
        written = []
        for key, task in self._tasks().items():
            found = attempts.get(key, [])
            if not found or all(self._cursor(each).is_over for each in found):
                continue
            written += [one] if (one := self._written(task, found)) else []
            if len(written) == _MOST_TASKS:
                self._send(written)
                written = []
        if written:
            self._send(written)
        return bool(self._is_over)

    def _written(self, task: RowMapping, attempts: Sequence[RowMapping]) -> _Written | None:
        """What `wandb` is to read of a task; None if it has all of it."""
        experiment = self._recipe.experiments[task["experiment"]]
        place = self._to.place / f"{experiment.name}-{task['number']}"
        draft = place.with_name(f"{place.name}.draft")
        shutil.rmtree(draft, ignore_errors=True)
        make_private(draft)
        counts = []
        with (draft / "reports.jsonl").open("w") as file:
            for attempt in attempts:
                where = self._files.attempt(self._run, experiment.name, task["number"], attempt["number"])
                number, step = 0, None
                for number, report in enumerate(attempt_reports(experiment, where), 1):
                    step = known if (known := step_of(report)) is not None else step
                    at = when_of(report, 0.0)
                    values = {_key(name): value for name, value in scalars(report)}
                    row = {**values, "step": number if step is None else step, "attempt": attempt["number"]}
                    file.write(json.dumps({**row, "_timestamp": at} if at else row) + "\n")
                counts.append((attempt, number))
        is_over = task["state"] == State.DONE
        if not is_over and all(count == self._cursor(attempt).reports for attempt, count in counts):
            shutil.rmtree(draft)
            return None
        said = {"init": self._init(task), "exit_code": 0 if task["reason"] in (None, *FINISHED) else 1}
        (draft / "run.json").write_text(json.dumps(said))
        return _Written(draft, counts, is_over)

    def _init(self, task: RowMapping) -> dict[str, Any]:
        wanted = self._sink
        name = f"{self._run}/{task['experiment']}/{task['number']}"
        return {
            "id": _NO_ID.sub("-", name),
            "name": name,
            "group": self._run,
            "job_type": task["experiment"],
            "project": wanted.project or self._recipe.name,
            "entity": wanted.entity or None,
            "config": json.loads(task["parameters"]),
        }

    def _send(self, written: Sequence[_Written]) -> None:
        self._to.write([each.place for each in written], self._renew)
        runs = []
        for each in written:
            final = each.place.with_suffix("")
            shutil.rmtree(final, ignore_errors=True)
            each.place.rename(final)
            runs += list((final / "wandb").glob("offline-run-*"))
        if self._to.key:
            self._to.sync(runs, self._renew)
        for each in written:
            for attempt, count in each.attempts:
                cursor = replace(self._cursor(attempt), reports=count, is_over=each.is_over)
                self._keep(attempt, cursor)


def _key(name: str) -> str:
    """A name that means nothing to W&B by itself.

    >>> _key("_step")
    'step_'
    """
    return f"{name.lstrip('_')}_" if name.startswith("_") else name
