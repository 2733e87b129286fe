"""Homes of every released schema: what they hold is shown, and what was interrupted there goes on.

``scripts/make_home.py`` has made them with the code of their time.
"""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import tarfile
from contextlib import closing
from pathlib import Path

import pytest
from running_server import RunningServer

from newer_version import newer_version

HOMES = Path(__file__).parent / "homes"
#: Where they were made.
PLACE = "/tmp/trainmaster-released"
REVISIONS = sorted(path.name.partition(".")[0] for path in HOMES.glob("*.tar.gz"))


def put_there(revision: str, root: Path) -> None:
    """Unpack a home, and have it say that it was made here."""
    with tarfile.open(HOMES / f"{revision}.tar.gz") as archive:
        archive.extractall(root, filter="data")
    for path in (
        path for path in root.rglob("*") if path.is_file() and not path.name.startswith("trainmaster.db")
    ):
        content = path.read_bytes()
        if PLACE.encode() in content:
            path.chmod(0o600)
            path.write_bytes(content.replace(PLACE.encode(), str(root).encode()))
    (root / "home/trainmaster.db-shm").unlink(missing_ok=True)  # it is made again from the log
    with closing(sqlite3.connect(root / "home/trainmaster.db")) as database, database:
        for (table,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            for _, column, kind, *_ in database.execute(f'PRAGMA table_info("{table}")').fetchall():
                if kind in ("TEXT", "VARCHAR"):
                    change = f'UPDATE "{table}" SET "{column}" = replace("{column}", ?, ?)'
                    database.execute(change, (PLACE, str(root)))


def measurements(home: Path) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(home / "trainmaster.db")) as database:
        return database.execute("SELECT * FROM measurement").fetchall()


def reports(tm, run: str) -> list[dict[str, object]]:
    """What the tasks of a search have reported, in their order."""
    found = tm.call("metrics", "export", run, "--json").json["reports"]
    return sorted(found, key=lambda row: row["task"])


def test_every_schema_has_its_home():
    schemas = Path(__file__).parents[1] / "unit/db/released"
    assert {path.name.partition(".")[0] for path in schemas.glob("*.sql")} == set(REVISIONS)


@pytest.mark.parametrize("revision", REVISIONS)
def test_a_home_has_the_tables_that_were_released(revision, tmp_path):
    put_there(revision, tmp_path)
    text = (Path(__file__).parents[1] / f"unit/db/released/{revision}.sqlite.sql").read_text()
    with closing(sqlite3.connect(tmp_path / "home/trainmaster.db")) as database:
        found = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    there = {name for (name,) in found if not name.startswith("sqlite_")}
    assert there == set(re.findall(r'CREATE TABLE "?(\w+)', text))


@pytest.mark.parametrize("revision", REVISIONS)
def test_a_home_of_an_older_version(tm, revision):
    put_there(revision, tm.root)
    before = measurements(tm.home)

    runs = {run["run"].partition("-")[0]: run for run in tm.call("status", "--json").json["runs"]}
    assert (runs["ended"]["state"], runs["ended"]["reason"]) == ("DONE", "SUCCEEDED")
    assert runs["interrupted"]["state"] == "RUNNING"
    assert "SUCCEEDED" in tm.call("status", "ended").out
    assert "step 5 after 0" in tm.call("logs", "ended").out

    (model,) = tm.call("models", "ended", "--json").json["models"]
    assert model["metrics"] == {"step": 5, "loss": 0.2}
    tm.call("models", "get", model["uri"], str(tm.root / "got"))
    assert (tm.root / "got/weights").read_text() == "5 steps\n"

    tm.call("score")
    assert len(before) > 1
    assert [row[:6] for row in measurements(tm.home)] == [row[:6] for row in before]

    assert tm.call("resume", "interrupted", "--json").json["reason"] == "SUCCEEDED"
    assert "step 4 after 3" in tm.call("logs", "interrupted").out, "its checkpoint was found"

    tm.call("models", "save", "kept")
    (model,) = tm.call("models", "kept", "--json").json["models"]
    assert model["metrics"] == {"step": 4, "loss": 0.25}

    before = [row for row in reports(tm, "searching") if row["task"] < 3]
    assert len(before) == 3
    assert tm.call("resume", "searching", "--json").json["reason"] == "SUCCEEDED"
    assert reports(tm, "searching")[:3] == before, "what was tried stays tried"
    token = tm.call("token", "create", "ci", "--scopes", "admin", "--json").json["token"]
    server = RunningServer(tm.start, token)
    server.start()
    for name in ("searched", "searching"):
        search = tm.call("status", name, "--json").json["experiments"]["tune"]
        best = min(reports(tm, name), key=lambda row: row["loss"])
        assert search["tasks"]["succeeded"] == 6
        assert search["best"]["task"] == best["task"]
        with server.open("GET", f"/runs/{runs[name]['run']}/sweeps") as page:
            assert f"in task {best['task']}:" in re.sub("<.*?>", "", page.read().decode())

    again = tm.call("run", "ended.yaml", "--json").json
    assert again["reason"] == "SUCCEEDED"
    assert len(tm.call("status", "--json").json["runs"]) == len(runs) + 1


def test_a_run_that_a_newer_version_has_begun(tm):
    """Its supervisor is not understood: that is said at once, with what to do; then the run goes on."""
    newer = {**tm.env, "PYTHONPATH": str(newer_version(tm.root / "newer"))}
    recipe = tm.task("echo $TRAINMASTER_ATTEMPT >> $NOTES/begun; until test -e $NOTES/go; do sleep 0.1; done")
    call = tm.start("run", recipe, env=newer)
    run = call.run_id()
    tm.until_marks("begun")
    call.kill()
    said = tm.call("resume", run, code=1, timeout_s=30).err
    assert "was started by another version of Trainmaster\nGo on with that one." in said
    (command,) = re.findall(r"kill \$\(cat (.+)\)", said)
    assert tm.status(run)["state"] != "DONE"
    (tm.notes / "go").touch()
    os.kill(int(Path(command).read_text()), signal.SIGTERM)
    tm.until(lambda: not tm.supervisors(), "it has ended")
    assert tm.resume(run)["reason"] == "SUCCEEDED"
    assert tm.marks("begun") == ["1", "2"]


@pytest.mark.crossings
def test_a_server_tells_of_a_run_that_a_newer_version_has_begun(tm):
    """Once, with what to do; it looks again, ever less often, and goes on when that is done."""
    newer = {**tm.env, "PYTHONPATH": str(newer_version(tm.root / "newer"))}
    token = tm.call("token", "create", "ci", "--scopes", "admin", "--json").json["token"]
    server = RunningServer(lambda *words: tm.start(*words, env=newer), token)
    server.start()
    script = "import os, time\nwhile not os.path.exists(os.environ['NOTES'] + '/go'): time.sleep(0.1)\n"
    recipe = f"name: job\nexperiments: {{main: {{env: {{NOTES: {tm.notes}}}, command: python train.py}}}}\n"
    run = server.send(script, {"recipe": recipe})[1]["run"]
    tm.until(lambda: tm.status(run)["experiments"]["main"]["tasks"]["running"], "it runs")
    drivers = [pid for pid, command in tm.processes().items() if " _driver " in command]
    for pid in [server.process.process.pid, *drivers]:
        os.kill(pid, signal.SIGKILL)
    server.begin = tm.start
    server.start()

    def told():
        notes = server.ask("GET", f"/runs/{run}/highlights")[1]["notes"]
        return [each["message"] for each in notes if "another version of Trainmaster" in each["message"]]

    tm.until(told, "it is told")
    with server.open("GET", f"/runs/{run}") as page:
        assert "was started by another version of Trainmaster" in page.read().decode()
    (command,) = re.findall(r"kill \$\(cat (.+?)\)", told()[0])
    (tm.notes / "go").touch()
    os.kill(int(Path(command).read_text()), signal.SIGTERM)
    tm.until(lambda: tm.status(run)["reason"] == "SUCCEEDED", "it goes on")
