"""What a server keeps for how long."""

from __future__ import annotations

import os
import re
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from trainmaster.artifacts import publish
from trainmaster.db import AcceptedRun, ClosedAttempt, Database, RunChange, TaskChange, registry, tables
from trainmaster.db import removals as rows
from trainmaster.db.registry_rows import NewVersionRow, RunModel
from trainmaster.service.driving.replicas import send_code
from trainmaster.service.retention import DAY_S, KEPT, VARIABLE, Retention, kept, told
from trainmaster.spec.errors import UsageError
from trainmaster.spec.states import EndReason, State

DOCS = Path(__file__).parents[3] / "docs" / "server" / "kept.md"
NEW = AcceptedRun("r-1", "r", "{}", "r.yaml", "aws", "code", "file:///s", [("main", 1)], home_id="h")


@pytest.fixture
def database(home):
    found = Database(home.database_url)
    yield found
    found.close()


def snapshot(home, digest):
    place = home.snapshots / digest
    place.mkdir(parents=True)
    (place / "train.py").write_text(digest)
    return place


def age(home, digest, days):
    path = Path(home.store_url.removeprefix("file://")) / "code" / f"{digest}.tar.gz"
    at = path.stat().st_mtime - days * DAY_S
    os.utime(path, (at, at))
    return path


def test_code_goes_that_no_run_names(home, database):
    for digest in ("named", "unused", "young"):
        send_code(home.store_url, snapshot(home, digest))
    database.create_run(replace(NEW, code_path=f"{home.snapshots}/named", can_move=True), 1.0)
    old = [age(home, "named", 8), age(home, "unused", 8)]
    assert Retention(home, database, {}).sweep() == {"code": 1}
    assert [path.exists() for path in old] == [True, False]
    assert Retention(home, database, {}).sweep() == {}


def test_code_that_might_just_go_is_put_there_again(home, database):
    place = snapshot(home, "c0de")
    send_code(home.store_url, place)
    age(home, "c0de", 8)
    send_code(home.store_url, place)  # of a run that is just accepted, and not written down yet
    assert Retention(home, database, {}).sweep() == {}


def test_the_clock_is_that_of_the_database(home, database, monkeypatch):
    entry = {"name": "ann", "team": None, "address": "", "action": "GET /", "status": 200, "token": None}
    entry["at"] = database.clock_s() - 364 * DAY_S
    database.write(lambda connection, _: connection.execute(tables.audit.insert().values(entry)))
    assert Retention(home, database, {}).sweep() == {}
    now = database.clock_s()
    monkeypatch.setattr(database, "clock_s", lambda *_: now + 2 * DAY_S)
    assert Retention(home, database, {}).sweep()["audit"] == 1


def test_files_of_a_removed_model_are_kept_for_thirty_days(home, database, monkeypatch):
    folder, uri = home.root / "files", home.model_uri("r-1", "main", 0)
    folder.mkdir()
    (folder / "weights").write_text("1")
    publish({"": folder}, uri, kind="model")
    lease = database.create_run(NEW, 1.0)
    closes = ClosedAttempt(1, EndReason.SUCCEEDED, "", 1.0, 2.0, None, "[]")
    runs, ends = {"creates": True, "opens": True, "fields": {"model_uri": uri}}, {"closes": closes}
    task = [
        TaskChange("main", 0, 1, State.WAITING, State.RUNNING, **runs),
        TaskChange("main", 0, 1, State.RUNNING, State.DONE, EndReason.SUCCEEDED, **ends),
    ]
    database.commit(lease, [*task, RunChange(State.WAITING, State.DONE, EndReason.SUCCEEDED)], 3.0)
    new = NewVersionRow("", "digits", RunModel("r-1", "main", 0, uri), "ann")
    number, _ = registry.register(database, new, None, 1.0)
    registry.remove_version(database, "", "digits", number)
    now = database.clock_s()
    for days, removed in ((29, {}), (31, {"models": 1})):
        monkeypatch.setattr(database, "clock_s", lambda *_, at=now + days * DAY_S: at)
        assert Retention(home, database, {}).sweep() == removed


def test_a_variable_says_otherwise():
    found = {each.kind: each.seconds for each in kept({VARIABLE: "audit=730d, sealed=1h"})}
    assert (found["audit"], found["sealed"], found["code"]) == (730 * DAY_S, 3600.0, 7 * DAY_S)
    assert told({}).startswith("audit 365 days, sealed 30 days, code 7 days")
    for wrong in ("audit", "invites=1d", "audit=soon", "quotes=1d"):
        with pytest.raises(UsageError, match=VARIABLE):
            kept({VARIABLE: wrong})


def test_it_sweeps_at_once_and_ends(home, database, monkeypatch):
    swept = threading.Event()
    found = Retention(home, database, {})
    monkeypatch.setattr(found, "sweep", lambda: swept.set() or {})
    found.start()
    assert swept.wait(60)
    found.stop()


def test_all_kinds_are_in_the_table_and_in_the_docs():
    assert {each.kind for each in KEPT} == {*rows.KINDS, "code", "models"}
    text = DOCS.read_text()
    told_there = dict(re.findall(r"^\| `(\w+)` \|[^|]*\| (?:at once|(\d+) days?) \|", text, re.MULTILINE))
    assert told_there == {each.kind: f"{each.seconds / DAY_S:.0f}" if each.seconds else "" for each in KEPT}
