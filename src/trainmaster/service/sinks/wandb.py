"""`WandbFeed`: tasks go to Weights & Biases by the user's own `wandb`, in processes of its own (`Wandb`).

W&B documents no interface for others, so its own program writes offline runs and sends them (`wandb sync`).
A run that is sent again from its beginning replaces itself there: it has the same id, and each report the
same number.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from trainmaster.dataclass import dataclass
from trainmaster.db import queries
from trainmaster.service.runs.curves import attempt_reports
from trainmaster.service.runs.metric_export import scalars, step_of, when_of
from trainmaster.service.sinks.feed import Feed, SinkContext, SinkError
from trainmaster.spec.errors import MissingPartError, UsageError
from trainmaster.spec.private_files import make_private
from trainmaster.spec.states import FINISHED, State

if TYPE_CHECKING:
    from sqlalchemy.engine import RowMapping

    from trainmaster.service.open_home import OpenHome
    from trainmaster.spec.sinks import WandbSink

#: An answer that takes longer is none: `wandb` itself would try for days.
_LONGEST_S: Final = 120.0
_LOOK_S: Final = 5.0
_WRITER: Final = Path(__file__).with_name("wandb_writer.py")
#: What of our environment it gets: nothing that says where else to log in.
_KEPT: Final = (
    "PATH",
    "LANG",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "HTTPS_PROXY",
    "https_proxy",
    "NO_PROXY",
    "no_proxy",
)
_WANDB: Final = "https://api.wandb.ai"
#: The one other W&B server that runs of a server's teams may be sent to; `wandb` finds its address by itself.
WANDB_VARIABLE: Final = "TRAINMASTER_WANDB_URL"
#: Of tasks that go on: each time all of them is sent, so not often.
_PAUSE_S: Final = 60.0
#: At once.
_MOST_TASKS: Final = 20
_NO_ID: Final = re.compile(r"[^A-Za-z0-9_-]")


def wandb_python() -> str:
    """The Python that has `wandb`: ours, or that of the `wandb` on PATH.

    Raises:
        MissingPartError: there is none.
    """
    if find_spec("wandb") is not None:
        return sys.executable
    command = shutil.which("wandb")
    python = Path(command).resolve().with_name("python") if command else None
    if python is None or not python.exists():
        raise MissingPartError(
            "sinks.wandb: W&B is not installed",
            "Run: pip install 'trainmaster[wandb]', or have any `wandb` on PATH (`pipx install wandb`).",
        )
    return str(python)


@dataclass(frozen=True, slots=True)
class Wandb:
    """The program.

    Attributes:
        url: of the server.
        key: to log in with; empty: nothing is sent.
        python: has `wandb`.
        place: a directory of ours, its home.
    """

    url: str
    key: str
    python: str
    place: Path

    def write(self, places: Sequence[Path], alive: Callable[[], None]) -> None:
        """Write offline runs; see `wandb_writer`.

        Args:
            places: of what is to be written.
            alive: called now and then.

        Raises:
            SinkError: it does not work.
        """
        self._run(["-c", _WRITER.read_text()], "".join(f"{place}\n" for place in places), alive)

    def sync(self, runs: Sequence[Path], alive: Callable[[], None]) -> None:
        """Send offline runs.

        Args:
            runs: their directories.
            alive: called now and then.

        Raises:
            SinkError: the server has not taken all of them.
        """
        said = self._run(["-m", "wandb", "sync", *map(str, runs)], "", alive)
        if any(not list(each.glob("*.wandb.synced")) for each in runs):
            raise SinkError(f"W&B has not taken all: {_last_words(said)}")

    def _run(self, words: Sequence[str], text: str, alive: Callable[[], None]) -> str:
        self.place.mkdir(mode=0o700, parents=True, exist_ok=True)
        until = time.monotonic() + _LONGEST_S
        with tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as given:
            given.write(text.encode())
            given.seek(0)
            working = subprocess.Popen(
                [self.python, *words], stdin=given, stdout=said, stderr=subprocess.STDOUT,
                cwd="/", env=self._environment(os.environ), start_new_session=True,
            )  # fmt: skip
            try:
                while True:
                    try:
                        code = working.wait(_LOOK_S)
                        break
                    except subprocess.TimeoutExpired:
                        alive()
                    if time.monotonic() > until:
                        raise SinkError(f"W&B does not answer: {_last_words(_read(said))}")
            finally:
                if working.poll() is None:
                    os.killpg(working.pid, 9)
                    working.wait()
            found = _read(said)
        if code:
            raise SinkError(f"W&B: {_last_words(found) or f'it ended with {code}'}")
        return found

    def _environment(self, ours: Mapping[str, str]) -> dict[str, str]:
        kept = {name: ours[name] for name in _KEPT if name in ours}
        # Else the directory of the caller, and on old Pythons ours, are looked into for `wandb`.
        own = {
            "PYTHONSAFEPATH": "1",
            "HOME": str(self.place),
            "WANDB_BASE_URL": self.url,
            "WANDB_ERROR_REPORTING": "false",
        }
        return {**kept, **own, **({"WANDB_API_KEY": self.key} if self.key else {})}


def _read(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


def _last_words(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")[:300]


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
        context: what it sends with.
    """

    last_s = 60.0  # `wandb` is slow to start
    pause_s = _PAUSE_S

    def __init__(self, opened: OpenHome, row: RowMapping, owner: str, context: SinkContext) -> None:
        super().__init__(opened, row, owner, context)
        key = context.secrets.get(self._sink.key, "")
        self._to = Wandb(self._sink.url, key, wandb_python(), context.place / "wandb")

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
