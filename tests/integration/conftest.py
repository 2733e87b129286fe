"""The user's seat: `tm` runs the command line as a process of its own, in a home of its own.

Nothing here imports Trainmaster. Every call is checked for what must never happen: a traceback,
or anything but JSON on standard output where JSON was asked for.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from command_server import TRAINMASTER, Command, commands
from learning import needs

from trainmaster.testing.private_s3 import NoS3Error, PrivateS3
from trainmaster.testing.waits import until

if TYPE_CHECKING:
    from aws_stand_in import AwsBench, StandIn

#: Long enough for a machine that does many other things.
DEADLINE_S = 120.0
COUNTERS = ("succeeded", "failed", "running", "waiting", "pruned", "skipped", "cancelled")


class Result(NamedTuple):
    """How a call of the command line ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """The last line of standard output."""
        return json.loads(self.out.rstrip("\n").rpartition("\n")[2])


class Background:
    """A call of the command line that is under way."""

    def __init__(self, process: Command | subprocess.Popen[bytes], out: Path, err: Path) -> None:
        self.process = process
        self._out, self._err = out, err

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def err(self) -> str:
        return self._err.read_text(errors="replace")

    @property
    def out(self) -> str:
        return self._out.read_text(errors="replace")

    @property
    def over(self) -> bool:
        return self.process.poll() is not None

    def send(self, number: int) -> None:
        """Send a signal to the process, and to nothing else."""
        self.process.send_signal(number)

    def kill(self) -> None:
        """``kill -9``, and wait until it is gone."""
        self.process.kill()
        self.process.wait()

    def wait(self, code: int | None = None, timeout_s: float = DEADLINE_S) -> Result:
        """Wait for its end; it must be orderly."""
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            where = Path(f"/proc/{self.pid}/wchan").read_text()
            pytest.fail(f"{self.process.args} still runs after {timeout_s:.0f} s, in {where}:\n{self.err}")
        result = Result(self.process.returncode, self.out, self.err)
        check_orderly(result, code)
        return result

    def until(self, condition: Callable[[], Any], what: str) -> None:
        """Wait for something while it is under way."""
        until(lambda: condition() or self.over, what)
        assert condition(), f"it ended before {what}:\n{self.err}"

    def run_id(self) -> str:
        """The id of the run that it started, as soon as it says so."""
        pattern = re.compile(r"^(\S+?): started ", re.MULTILINE)
        until(lambda: pattern.search(self.err) or self.over, f"a run id in {self.err!r}")
        found = pattern.search(self.err)
        assert found, self.err
        return found.group(1)


def check_orderly(result: Result, code: int | None) -> None:
    """No traceback of ours ever; the exit code as expected, and one of the documented ones."""
    assert not re.search(r'File ".*/trainmaster/.*", line', result.err), (
        result.err
    )  # a task's own may be echoed
    assert "internal error" not in result.err.lower(), result.err
    if code is not None:
        assert result.code == code, f"exit code {result.code}, not {code}\n{result.err}\n{result.out[-2000:]}"
    assert result.code in (0, 1, 2, 130, -signal.SIGKILL), result


class Trainmaster:
    """One user: a home, a cache, and a folder with code and recipes.

    Attributes:
        root: everything of this test lies below.
        work: the folder with the code; recipes are written there.
        notes: a folder outside the code where tasks may leave marks (``$NOTES`` for them).
        env: environment of every call.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.home, self.cache, self.work, self.notes = (root / n for n in ("home", "cache", "work", "notes"))
        self.work.mkdir()
        self.notes.mkdir()
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("TRAINMASTER_")}
        for name in ("VIRTUAL_ENV", "RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
            self.env.pop(name, None)
        self.env |= {
            "TRAINMASTER_HOME": str(self.home),
            "TRAINMASTER_CACHE": str(self.cache),
            "NOTES": str(self.notes),
            "COLUMNS": "200",
        }
        self._calls = 0
        self._background: list[Background] = []

    # --- the folder ------------------------------------------------------------------------------

    def write(self, name: str, text: str, mode: int = 0o644) -> Path:
        """A file of the user's code."""
        path = self.work / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
        path.chmod(mode)
        return path

    def recipe(self, content: str | dict[str, Any], name: str = "recipe.yaml") -> Path:
        """A recipe, as YAML text or as the same thing in objects (JSON is YAML)."""
        return self.write(
            name, content if isinstance(content, str) else json.dumps(content, indent=1, ensure_ascii=False)
        )

    def task(self, command: str, **keys: Any) -> Path:
        """A recipe ``job`` with one experiment ``main`` that does this."""
        return self.recipe(
            {"name": "job", "experiments": {"main": {"command": textwrap.dedent(command), **keys}}}
        )

    # --- calls -----------------------------------------------------------------------------------

    def start(self, *arguments: object, env: dict[str, str] | None = None, prefix: str = "") -> Background:
        """Begin a call. ``prefix`` is shell text before it, such as ``ulimit -f 10;``."""
        self._calls += 1
        out, err = self.root / f"{self._calls}.out", self.root / f"{self._calls}.err"
        command = [TRAINMASTER, *map(str, arguments)]
        if prefix:
            command = ["bash", "-c", f'{prefix} exec "$@"', "bash", *command]
        with out.open("wb") as stdout, err.open("wb") as stderr:
            process = commands.start(
                command,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                cwd=self.work,
                env=self.env if env is None else env,
            )
        self._background.append(Background(process, out, err))
        return self._background[-1]

    def call(
        self,
        *arguments: object,
        code: int | None = 0,
        timeout_s: float = DEADLINE_S,
        env: dict[str, str] | None = None,
        prefix: str = "",
    ) -> Result:
        """A whole call."""
        return self.start(*arguments, env=env, prefix=prefix).wait(code, timeout_s)

    def run(
        self,
        recipe: Path,
        *arguments: object,
        code: int = 0,
        env: dict[str, str] | None = None,
        timeout_s: float = DEADLINE_S,
    ) -> dict[str, Any]:
        """``run RECIPE --json``: the object, checked for its documented shape."""
        return self.summary(
            self.call("run", recipe, "--json", *arguments, code=code, env=env, timeout_s=timeout_s)
        )

    def resume(
        self, run: str, *, code: int = 0, env: dict[str, str] | None = None, timeout_s: float = DEADLINE_S
    ) -> dict[str, Any]:
        """``resume RUN --json``."""
        return self.summary(self.call("resume", run, "--json", code=code, env=env, timeout_s=timeout_s))

    def status(self, run: str) -> dict[str, Any]:
        """``status RUN --json``."""
        return self.summary(self.call("status", run, "--json"))

    def runs(self) -> list[dict[str, Any]]:
        """``status --json``, newest first."""
        return self.call("status", "--json").json["runs"]

    def logs(self, run: str, *arguments: object) -> str:
        """``logs RUN``."""
        return self.call("logs", run, *arguments).out

    def refused(self, recipe: Path, *arguments: object) -> str:
        """``run`` must exit 2 and write nothing down; the message."""
        result = self.call("run", recipe, "--json", *arguments, code=2)
        assert result.out == "", result.out
        assert not list((self.home / "runs").glob("*"))
        return result.err

    @staticmethod
    def summary(result: Result) -> dict[str, Any]:
        """The one object on standard output, as DESIGN.md documents it."""
        assert result.out.count("\n") == 1, result.out
        found = result.json
        optional = {"message", "labels", "note"}
        if "quote" in found:
            assert {
                "kind",
                "time_s",
                "cost_usd",
                "measurements",
                "kept",
                "outside",
                "actual",
                "ended_by_hand",
            } == found["quote"].keys(), found
        keys = {"run", "state", "reason", "seconds", "cost_usd", "experiments", "models"}
        assert (
            keys
            <= found.keys()
            <= keys
            | optional
            | {"quote", "unsaved", "driver", "queued", "queued_s", "bound_to", "services"}
            | {"phases", "late", "ends"}
        ), found
        assert isinstance(found["seconds"], int | float)
        assert found["seconds"] >= 0
        assert (found["state"] == "DONE") == (found["reason"] is not None), found
        for experiment in found["experiments"].values():
            assert (
                {"state", "reason", "tasks"}
                <= experiment.keys()
                <= {
                    "state",
                    "reason",
                    "tasks",
                    "search",
                    "best",
                    "top",
                    "usage",
                    "saving",
                    "until",
                    "approval",
                    "lost_output",
                    "begins_with",
                    "gate",
                }
                | optional
            )
            tasks = experiment["tasks"]
            assert tasks.keys() == {"total", *COUNTERS}, tasks
            assert sum(tasks[name] for name in COUNTERS) == tasks["total"], tasks
            assert all(tasks[name] >= 0 for name in COUNTERS), tasks
        for model in found["models"]:
            assert model.keys() == {"experiment", "task", "uri", "metrics", "parameters"}, model
        return found

    # --- looking and waiting -----------------------------------------------------------------------

    until = staticmethod(until)

    def marks(self, name: str) -> list[str]:
        """Lines of a file that tasks write below ``$NOTES``."""
        path = self.notes / name
        return path.read_text().splitlines() if path.exists() else []

    def until_marks(self, name: str, count: int = 1) -> list[str]:
        """Wait until tasks have left that many lines."""
        until(lambda: len(self.marks(name)) >= count, f"{count} lines in {name}, not {self.marks(name)}")
        return self.marks(name)

    def processes(self) -> dict[int, str]:
        """Every process of this home and what it is: the supervisor, members, their children."""
        needle = str(self.home).encode()
        found = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            try:
                command = (entry / "cmdline").read_bytes()
                if needle in command or needle in (entry / "environ").read_bytes():
                    found[int(entry.name)] = command.replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue  # gone
        return found

    def supervisors(self) -> list[int]:
        """Process ids of supervisors of this home."""
        return [pid for pid, command in self.processes().items() if "executors.supervisor.program" in command]

    def until_quiet(self) -> None:
        """No process of this home is left, nor comes back."""
        until(lambda: not self.processes(), f"processes left: {self.processes()}")

    def clean_up(self) -> None:
        """End everything, whatever happened."""
        for background in self._background:
            if not background.over:
                background.kill()
        deadline = time.monotonic() + 10
        while (left := self.processes()) and time.monotonic() < deadline:
            for pid in left:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            time.sleep(0.02)


@pytest.fixture
def tm(tmp_path: Path) -> Iterator[Trainmaster]:
    """A user with an empty home."""
    user = Trainmaster(tmp_path)
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup all calls would ignore it
    try:
        yield user
    finally:
        user.clean_up()
        signal.signal(signal.SIGHUP, before)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A browser. Not for longer: while its loop runs, no other one may in this thread."""
    needs("playwright", "axe_playwright_python")
    program = shutil.which("chromium-headless-shell") or shutil.which("chromium")
    if program is None:
        pytest.skip("there is no Chromium: apt-get install chromium-headless-shell")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture(scope="session")
def private_s3() -> Iterator[PrivateS3]:
    """One SeaweedFS for the session; ask it for a `new_bucket`."""
    pytest.importorskip("boto3", reason="buckets are made with boto3")
    try:
        server = PrivateS3()
    except NoS3Error as error:
        pytest.skip(str(error))
    with server:
        yield server


@pytest.fixture(scope="session")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandIn]:
    """One Amazon for all tests, each of which empties it: it takes two seconds of CPU to begin."""
    from aws_stand_in import running

    with running(tmp_path_factory.mktemp("moto") / "log") as found:
        yield found


@pytest.fixture
def bench(stand_in: StandIn, tmp_path: Path) -> Iterator[AwsBench]:
    """An empty account there, and what a home keeps of it."""
    from aws_stand_in import AwsBench

    stand_in.reset()
    found = AwsBench(stand_in, tmp_path)
    yield found
    found.close()
