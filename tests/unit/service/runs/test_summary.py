"""Lists of runs, and which run is meant."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from trainmaster.api import Client
from trainmaster.control.task.layout import Home
from trainmaster.db import AcceptedRun, Database, tables
from trainmaster.db.run_rows import Submission
from trainmaster.service import Service
from trainmaster.service.runs import summary
from trainmaster.service.teams.team_runs import TeamRuns
from trainmaster.service.users.caller import Caller
from trainmaster.spec import Recipe, processes
from trainmaster.spec.errors import AccessError, NotFoundError, UsageError

NEWEST_FIRST = ["job-4", "job-3", "job-2", "other-1", "other-0"]


@pytest.fixture
def service(tmp_path):
    home = Home.from_environment({"TRAINMASTER_HOME": str(tmp_path)})
    database = Database(home.database_url)
    for number, run in enumerate(reversed(NEWEST_FIRST)):
        lease = database.create_run(
            AcceptedRun(run, "job", '{"experiments": {}}', "", "local", "", "file:///x", [("main", 1)]),
            1e9 + number,
        )
        if number % 2:
            database.release(lease, 1e9 + number + 3)
    service = Service(home)
    yield service
    service.close()


def ids(found):
    return [row["run"] for row in found["runs"]]


def test_all_are_listed_as_one_by_one(service, monkeypatch):
    monkeypatch.setattr(summary, "_PAGE", 2)
    found = service.runs()
    assert list(found) == ["runs"]
    assert ids(found) == NEWEST_FIRST
    assert [row["driven"] for row in found["runs"]] == [True, False, True, False, True]
    one_by_one = [service.brief(run) for run in NEWEST_FIRST]
    assert [set(row) for row in one_by_one] == [set(row) for row in found["runs"]]
    ended = [row for row in found["runs"] if not row["driven"]]
    assert ended == [row for row in one_by_one if not row["driven"]]


@pytest.mark.parametrize("page", [1, 2, 1000])
def test_a_page_says_how_many_are_older(service, monkeypatch, page):
    monkeypatch.setattr(summary, "_PAGE", page)
    first = service.runs(2)
    assert (ids(first), first["older"]) == (NEWEST_FIRST[:2], 3)
    second = service.runs(limit=3, after=ids(first)[-1])
    assert (ids(second), second["older"]) == (NEWEST_FIRST[2:], 0)
    assert service.runs(10, NEWEST_FIRST[-1]) == {"runs": [], "older": 0}
    with pytest.raises(NotFoundError, match="nosuch"):
        service.runs(2, "nosuch")
    with pytest.raises(UsageError, match="0 is no number"):
        service.runs(0)


def test_a_client_has_pages_too(service):
    client = Client(service.home.root)
    page = client.runs(limit=2)
    assert [run.id for run in page] == NEWEST_FIRST[:2]
    assert [run.id for run in client.runs(after=page[-1])] == NEWEST_FIRST[2:]
    assert [run.id for run in client.runs(after="other-1")] == NEWEST_FIRST[4:]
    client.close()


def test_a_page_looks_for_each_driver_once_and_no_others(service, monkeypatch):
    looked = []
    alive = processes.is_alive
    monkeypatch.setattr(processes, "is_alive", lambda pid, start: looked.append(pid) or alive(pid, start))
    service.runs(3)
    assert len(looked) == 2, "of three runs two have a driver"


@pytest.mark.parametrize(("text", "run"), [("job-3", "job-3"), ("latest", "job-4"), ("other-0", "other-0")])
def test_the_run_that_is_meant(service, text, run):
    assert service.resolve(text) == run


def test_latest_is_ones_own(service):
    for number, (by, team) in enumerate([("ann", "vision"), ("anna", "vision"), ("ann", "audio")]):
        sent = AcceptedRun(
            f"sent-{number}", "job", "{}", "", "local", "", "file:///x", [("main", 1)],
            submission=Submission(by, team),
        )  # fmt: skip
        service.database.create_run(sent, 2e9 + number)
    by_itself = AcceptedRun(
        "nightly", "job", "{}", "", "local", "", "file:///x", [("main", 1)],
        submission=Submission("ann", "vision"),
    )  # fmt: skip
    service.database.create_run(by_itself, 2e9 + 9)
    at_once = replace(by_itself, id="at-once", submission=Submission("bea", "vision"))
    service.database.create_run(at_once, 2e9 + 10)
    workflow = {"id": "w", "team": "vision", "name": "night", "revision": 1, "request": "{}", "pushes": "[]",
                "registered_by": "ann", "state": "ENABLED", "created_at": 0.0, "changed_at": 0.0,
                "concurrency": "wait"}  # fmt: skip
    firing = {"workflow_id": "w", "trigger": "schedule", "cause": "3:00", "at": 0.0, "state": "STARTED",
              "run_id": "nightly", "due_at": 0.0}  # fmt: skip
    service.database.write(
        lambda connection, _: [
            connection.execute(tables.workflow.insert().values(**workflow)),
            connection.execute(tables.workflow_firing.insert().values(**firing)),
            connection.execute(
                tables.workflow_firing.insert().values(
                    **{**firing, "trigger": "by hand", "cause": "now-9d1c", "run_id": "at-once"}
                )
            ),
        ]
    )
    assert service.resolve("latest") == "job-4", "at home it is what was begun there, not what was sent"
    read, everything = frozenset({"read"}), frozenset({"read", "admin"})
    for who, run in [
        (Caller("ann", "vision", read, account="u1"), "sent-0"),
        (Caller("anna", "vision", everything, account="u2"), "sent-1"),
        (Caller("bea", "vision", read, account="u4"), "at-once"),  # `run --now`: she has sent it just now
        (Caller("owner", None, everything), "job-4"),
    ]:
        assert TeamRuns(service, who).resolve("latest") == run
    for who in (Caller("bob", "vision", read), Caller("bob", None, everything, account="u3")):
        with pytest.raises(NotFoundError, match="you started none here"):
            TeamRuns(service, who).resolve("latest")


def test_no_run_or_several_are_meant(service):
    with pytest.raises(NotFoundError, match="several runs begin with 'job': job-4, job-3, job-2"):
        service.resolve("job")
    for text in ("JOB-3", "job-5", ""):
        with pytest.raises(NotFoundError):
            service.resolve(text)


def test_a_run_is_meant_by_the_name_that_a_person_gave_it(service):
    def call(run, name):
        change = tables.run.update().where(tables.run.c.id == run).values(labels=json.dumps({"name": name}))
        service.database.write(lambda connection, _: connection.execute(change))

    call("job-3", "baseline")
    call("job-2", "job")  # a name is meant before a beginning of ids
    assert [service.resolve(text) for text in ("baseline", "job")] == ["job-3", "job-2"]
    call("job-2", "job-4")
    assert service.resolve("job-4") == "job-4", "an id means the same run for ever"
    call("job-2", "baseline")
    with pytest.raises(NotFoundError, match="several runs are called 'baseline': job-3, job-2"):
        service.resolve("baseline")


def test_a_run_is_closed_once_its_driver_lets_go_of_it(service, monkeypatch):
    looks = []
    monkeypatch.setattr("trainmaster.service.service.is_alive", lambda *_: looks.append(1) or len(looks) < 3)
    service.await_close("job-4")
    assert len(looks) == 3
    monkeypatch.setattr("trainmaster.service.service._CLOSED_WITHIN_S", 0.0)
    service.await_close("job-4")
    assert len(looks) == 3, "nobody waits for ever"


@pytest.mark.parametrize("where", ["label:project = x", "not label:a or run ~ o", "state = WAITING"])
def test_a_team_finds_and_changes_only_its_own_runs(service, where):
    recipe = Recipe.from_text("name: job\nexperiments: {main: {command: 'true'}}\n")
    for team in ("red", "blue"):
        new = AcceptedRun(
            f"of-{team}", "job", recipe.model_dump_json(), "", "local", "", "file:///x", [("main", 1)],
            submission=Submission("ann", team), labels='{"project": "x"}',
        )  # fmt: skip
        service.database.create_run(new, 2e9, waits=True)
    red = TeamRuns(service, Caller("ann", "red", frozenset({"read"})))
    assert ids(red.page(where=where)) == ["of-red"]
    assert [row["key"] for row in red.cost("run", "", where)["rows"]] == ["of-red"]
    with pytest.raises(AccessError):
        red.describe("of-red", {"a": "b"}, None, {})
    red = TeamRuns(service, Caller("ann", "red", frozenset({"read", "run"})))
    assert red.describe("of-red", {"a": "b"}, "x", {})["labels"] == {"a": "b", "project": "x"}
    with pytest.raises(NotFoundError):
        red.describe("of-blue", {"a": "b"}, None, {})
