"""`Renter`: a user of the lab who runs recipes on rented machines."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from command_server import TRAINMASTER, commands

#: Counts steps, saves them now and then and when it is told to stop, and goes on from what was saved. A later
#: attempt may count faster: nothing happens to it any more.
STEPS = """
import json, os, signal, sys, time
from pathlib import Path

total, pause_s = int(sys.argv[1]), float(sys.argv[2 if os.environ["TRAINMASTER_ATTEMPT"] == "1" else -1])
place, index = Path(os.environ["TRAINMASTER_CHECKPOINT_DIR"]), os.environ["TRAINMASTER_INDEX"]
mine = place / f"step-{index}"
step = int(mine.read_text()) if mine.exists() else 0
print(f"attempt {os.environ['TRAINMASTER_ATTEMPT']} starts at {step}", flush=True)


def save():
    draft = place.parent / f"draft-{index}"
    draft.write_text(str(step))
    draft.replace(mine)


def stop(*_):
    save()
    print("told to stop at", step, flush=True)
    sys.exit(3)


signal.signal(signal.SIGTERM, stop)
while step < total:
    time.sleep(pause_s)
    step += 1
    if step % 10 == 0:
        save()
    with open(os.environ["TRAINMASTER_METRICS"], "a") as file:
        file.write(json.dumps({"step": step}) + "\\n")
print("done at", step, flush=True)
(Path(os.environ["TRAINMASTER_OUTPUT_DIR"]) / "model.txt").write_text(f"trained {step}")
"""
GANG = """
name: steps
experiments:
  train:
    distributed: {{strategy: allreduce, workers: {workers}}}
    framework: plain
    hardware: {{instance: m4.xlarge{more}}}
    checkpoint: {{every: {every:g}s}}
    grace: 5s
    command: python3 steps.py {steps} {pause}
"""
#: Of all recipes here that name none; where Ray is the point, the test says so. To begin, a node of Ray's
#: takes two seconds of a processor more.
ENGINE = os.environ.get("TRAINMASTER_TESTS_ENGINE", "auto")
#: Beyond which something hangs; the machine may be slow, and others may use it.
DEADLINE_S = 400.0
#: How small machines of the lab are here.
SCALE = ["--cpu-scale", "0.25", "--memory-scale", "0.125", "--network-scale", "0.125", "--stop-grace", "15"]


def with_engine(text: str, engine: str = ENGINE) -> str:
    """A recipe that says which engine it is run with."""
    return text if re.search(r"^engine:", text, re.MULTILINE) else f"engine: {engine}\n{text.lstrip()}"


class Renting:
    """A `trainmaster run` or `resume` under way."""

    def __init__(self, command: list[str], env: Mapping[str, str], log: Path) -> None:
        self.log = log
        self.out_file = log.with_suffix(".out")
        with log.open("wb") as err, self.out_file.open("wb") as out:
            self.process = commands.start(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=env, start_new_session=True
            )

    @property
    def text(self) -> str:
        return self.log.read_text(errors="replace")

    @property
    def out(self) -> str:
        return self.out_file.read_text(errors="replace")

    @property
    def run(self) -> str:
        found = self.until(
            lambda: re.search(r"^(steps-\w+): (?:started|runs on)", self.text, re.MULTILINE), "its id"
        )
        return str(found.group(1))

    def until(self, condition: Callable[[], Any], what: str, timeout_s: float = DEADLINE_S) -> Any:
        deadline = time.monotonic() + timeout_s
        while True:
            began = time.monotonic()
            if value := condition():
                return value
            now = time.monotonic()
            assert self.process.poll() is None, f"it ended before {what}:\n{self.text}"
            assert now < deadline, f"not within {timeout_s:.0f} s: {what}\n{self.text}"
            time.sleep(min(max(0.05, 9 * (now - began)), 1.5))  # looking may cost

    def until_said(self, pattern: str, timeout_s: float = DEADLINE_S) -> re.Match[str]:
        found: re.Match[str] = self.until(
            lambda: re.search(pattern, self.text, re.MULTILINE), pattern, timeout_s
        )
        return found

    def kill(self) -> None:
        """With signal 9."""
        self.process.kill()
        self.process.wait()

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def end(self, code: int | None = 0, timeout_s: float = DEADLINE_S) -> dict[str, Any]:
        """Its JSON, after it has ended so."""
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still there after {timeout_s:.0f} s:\n{self.text}") from None
        assert not re.search(r'File ".*/trainmaster/.*", line', self.text), self.text
        assert code is None or self.process.returncode == code, (self.process.returncode, self.text)
        lines = self.out.strip().splitlines()
        found: dict[str, Any] = json.loads(lines[-1]) if lines else {}
        return found


class Renter:
    """Somebody with a home, a lab and a folder of code."""

    def __init__(self, lab: Any, work: Path) -> None:
        self.lab = lab
        self.work = work
        self.env = {**lab.env, "TRAINMASTER_NODE_PATIENCE": "25s", "COLUMNS": "200"}
        (work / "steps.py").write_text(STEPS)
        self.store_pid = 0  # of the fixture `store`
        self._count = 0
        self._begun: list[Renting] = []

    def gang(
        self,
        *,
        workers: int = 2,
        steps: int = 40,
        pause: float = 0.15,
        later: float = 0.02,
        more: str = "",
        every: float = 10.0,
        engine: str = ENGINE,
    ) -> Path:
        """Members that pause between steps, in later attempts less.

        A checkpoint each ``every`` seconds starts processes on all machines: seldom where a test needs none.
        """
        pauses = f"{pause} {later}"
        text = GANG.format(workers=workers, steps=steps, pause=pauses, more=more, every=every)
        return self.recipe(text, engine)

    def recipe(self, text: str, engine: str = ENGINE) -> Path:
        path = self.work / "recipe.yaml"
        path.write_text(with_engine(text, engine))
        return path

    def start(self, *arguments: object, **env: str) -> Renting:
        """``trainmaster ...`` in the background."""
        self._count += 1
        command = [TRAINMASTER, *map(str, arguments)]
        begun = Renting(command, {**self.env, **env}, self.work.parent / f"call-{self._count}.log")
        self._begun.append(begun)
        return begun

    def run(self, recipe: Path, *options: object, provider: str = "lab", **env: str) -> Renting:
        return self.start("run", recipe, "--provider", provider, "--yes", "--json", *options, **env)

    def call(self, *arguments: object, code: int | None = 0, **env: str) -> subprocess.CompletedProcess[str]:
        done = commands.run([TRAINMASTER, *arguments], env={**self.env, **env}, timeout=DEADLINE_S)
        assert code is None or done.returncode == code, (done.returncode, done.stdout, done.stderr)
        return done

    def attempts(self, run: str, experiment: int = 0) -> list[str]:
        """Reasons of the attempts of the first task of an experiment, counted from 0, in their order."""
        with sqlite3.connect(self.lab.home / "trainmaster.db") as connection:
            rows = connection.execute(
                "SELECT a.reason FROM attempt a JOIN experiment e ON a.experiment_id = e.id "
                "WHERE e.run_id = ? AND e.ordinal = ? AND a.task = 0 ORDER BY a.number",
                [run, experiment],
            ).fetchall()
        return [row[0] for row in rows]

    def machines(self, run: str, *, spot: bool = False) -> dict[str, str]:
        """Live machines by seat, as the cluster's row has them; `spot`: only those that may be taken back."""
        with sqlite3.connect(self.lab.home / "trainmaster.db") as connection:
            rows = connection.execute("SELECT data FROM cluster WHERE run_id = ?", [run]).fetchall()
        machines = [machine for row in rows for machine in json.loads(row[0])["machines"]]
        wanted = [m for m in machines if m["rental"]["spot"] or not spot]
        return {m["seat"]: m["id"] for m in wanted if m["id"] and not m["is_over"]}

    def checkpoints(self, run: str) -> dict[int, dict[str, str]]:
        """What is in the complete checkpoints of the first task, by number."""
        found = {}
        for path in (self.lab.home / "store" / "checkpoints" / run / "train" / "0").glob("*/manifest.json"):
            with contextlib.suppress(FileNotFoundError):  # an older one that makes room
                files = json.loads(path.read_text())["files"]
                texts = {file["path"]: (path.parent / file["object"]).read_text() for file in files}
                found[int(path.parent.name)] = texts
        return found

    def saved_at(self, run: str) -> list[float]:
        """When each checkpoint of the first task was published on the S3 of `store`, Unix seconds."""
        import boto3

        env = self.env
        client = boto3.client(
            "s3",
            endpoint_url=env["AWS_ENDPOINT_URL"],
            region_name=env.get("AWS_REGION", "us-east-1"),
            aws_access_key_id=env["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=env["AWS_SECRET_ACCESS_KEY"],
        )
        bucket, _, prefix = env["TRAINMASTER_STORE"].removeprefix("s3://").partition("/")
        found = client.list_objects_v2(Bucket=bucket, Prefix=f"{prefix}/checkpoints/{run}/train/0/")
        return sorted(
            each["LastModified"].timestamp()
            for each in found.get("Contents", ())
            if each["Key"].endswith("manifest.json")
        )

    def starts(self, run: str, member: str = "worker-0") -> list[tuple[int, int]]:
        """(attempt, step) at which a member has started."""
        text = self.call("logs", run, "--member", member).stdout
        return [(int(a), int(s)) for a, s in re.findall(r"attempt (\d+) starts at (\d+)", text)]

    def kill_all(self) -> bool:
        """Whatever of it is still there; whether there was something."""
        left = [begun for begun in self._begun if begun.process.poll() is None]
        for begun in left:
            with contextlib.suppress(ProcessLookupError):  # it has ended since
                os.killpg(begun.process.pid, signal.SIGKILL)
            begun.process.wait()
        return bool(left)


def drivers(run: str) -> list[int]:
    """Processes on machines of the lab, or of another place on this machine, that drive a run."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            words = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdigit() else []
            if b"trainmaster.service.on_cluster.machine_driver" in words and run.encode() in words[-2]:
                found.append(int(entry.name))
    return found
