"""A publisher killed at any moment leaves nothing visible or a whole artifact, and a repeat succeeds."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from trainmaster import artifacts
from trainmaster.objects.object_store import ObjectStore

PUBLISH = """
import sys
from pathlib import Path
from trainmaster import artifacts
import trainmaster.artifacts.publishing
print("ready", flush=True)
sys.stdin.readline()
artifacts.publish({"": Path(sys.argv[1])}, sys.argv[2], kind="model")
print("done", flush=True)
"""
SERIES = """
import sys
from pathlib import Path
from trainmaster import artifacts
artifacts.CheckpointSeries
print("ready", flush=True)
sys.stdin.readline()
series = artifacts.CheckpointSeries(sys.argv[2])
while True:
    series.publish({"": Path(sys.argv[1])}, attempt=1)
    series.prune(2)
"""
FETCH = """
import sys
from pathlib import Path
from trainmaster import artifacts
artifacts.fetch
print("ready", flush=True)
sys.stdin.readline()
artifacts.fetch(sys.argv[2], Path(sys.argv[1]), overwrite=True)
"""
SNAPSHOT = """
import sys
from pathlib import Path
from trainmaster import artifacts
artifacts.take_snapshot
print("ready", flush=True)
sys.stdin.readline()
taken = artifacts.take_snapshot(".", Path(sys.argv[1]), Path(sys.argv[2]))
artifacts.materialise(taken.path, Path(sys.argv[2], "copy"))
"""


@pytest.fixture
def source(tmp_path):
    (tmp_path / "source/sub").mkdir(parents=True)
    for number in range(30):
        (tmp_path / f"source/sub/{number}").write_bytes(os.urandom(300_000))
    return tmp_path / "source"


def kill_after(program: str, delay_s: float | None, *arguments: Path) -> bool:
    """Starts a program and kills it, unless the delay is None; says whether it had not ended before."""
    with subprocess.Popen(
        [sys.executable, "-c", program, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as process:
        assert process.stdout.readline() == b"ready\n"
        process.stdin.write(b"\n")
        process.stdin.flush()
        if delay_s is None:
            assert process.wait() == 0
            return False
        time.sleep(delay_s)
        process.kill()
        return process.wait() == -signal.SIGKILL


def delays(count: int, program: str, *arguments: Path) -> list[float]:
    """Moments of a program's life at which to kill it, on a machine as fast as this one."""
    began = time.monotonic()
    kill_after(program, None, *arguments)
    # Most of it is starting Python, which is over when the clock of a victim begins.
    longest_s = (time.monotonic() - began) / 2
    return [random.Random(number).uniform(0, longest_s) for number in range(count)]


def same(first: Path, second: Path) -> bool:
    return subprocess.run(["diff", "-r", str(first), str(second)], check=False).returncode == 0


def test_publishing(source, tmp_path):
    killed = 0
    for number, delay_s in enumerate(delays(6, PUBLISH, source, tmp_path / "first")):
        uri = str(tmp_path / f"store/{number}")
        killed += kill_after(PUBLISH, delay_s, source, uri)
        before = artifacts.read_manifest(uri)
        if before is not None:
            artifacts.fetch(uri, tmp_path / f"early-{number}")
            assert same(source, tmp_path / f"early-{number}")
        after = artifacts.publish({"": source}, uri, kind="model")
        assert before in (None, after)
        assert len(ObjectStore(uri).folders()) == 1, "nothing is left of the one that was killed"
        artifacts.fetch(uri, tmp_path / f"back-{number}")
        assert same(source, tmp_path / f"back-{number}")
    assert killed >= 1


def test_a_series(source, tmp_path):
    series = artifacts.CheckpointSeries(str(tmp_path / "store"))
    newest = 0
    for number, delay_s in enumerate(random.Random(0).uniform(0, 0.3) for _ in range(5)):
        assert kill_after(SERIES, delay_s, source, tmp_path / "store")
        now = series.newest() or 0
        assert now >= newest, "what was published does not disappear"
        newest = now
        for complete in series.complete():
            series.restore(complete, tmp_path / f"back-{number}-{complete}")
            assert same(source, tmp_path / f"back-{number}-{complete}")
    assert series.publish({"": source}, attempt=2) == newest + 1
    series.prune(1)
    assert list(ObjectStore(series.uri).folders()) == [f"{newest + 1:06d}"]


def test_fetching(source, tmp_path):
    uri = str(tmp_path / "store/m")
    artifacts.publish({"": source}, uri, kind="model")
    target = tmp_path / "fetched/back"
    target.mkdir(parents=True)
    (target / "old").write_text("old")
    for delay_s in delays(6, FETCH, tmp_path / "first", uri):
        kill_after(FETCH, delay_s, target, uri)
        assert {entry.name for entry in target.iterdir()} in ({"old"}, {"sub"}), "the old or the new, whole"
    artifacts.fetch(uri, target, overwrite=True)
    assert same(source, target)
    assert [entry.name for entry in target.parent.iterdir()] == ["back"]


def test_snapshots(source, tmp_path):
    for number, delay_s in enumerate(delays(6, SNAPSHOT, source, tmp_path / "first")):
        root = tmp_path / f"snapshots-{number}"
        kill_after(SNAPSHOT, delay_s, source, root)
        for path in root.glob("[0-9a-f]*"):
            assert same(source, root / path)
        if (root / "copy").exists():
            assert same(source, root / "copy")
        taken = artifacts.take_snapshot(".", source, root)
        artifacts.materialise(taken.path, root / "copy")
        assert same(source, taken.path)
        assert same(source, root / "copy")
        assert {entry.name for entry in root.iterdir()} == {taken.digest, "copy"}
