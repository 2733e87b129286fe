"""Runs are removed by REST and on their page by those of their team who may, and the audit says who did."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest
from sqlalchemy import text

pytest.importorskip("fastapi", reason="the extra `server` is not installed")
from served_home import Served

from trainmaster.db.removals import half_removed
from trainmaster.service.storage.storage import StorageUsage


@pytest.fixture
def own(tmp_path):
    found = Served(tmp_path)
    yield found
    found.service.close()


def test_a_team_removes_its_own_runs_and_a_name_is_a_conflict_until_it_is_taken_away(own):
    run = "/api/v1/runs/job-red"
    assert own.ask("blue-user", "DELETE", run).status_code == 404
    assert own.ask("red-read", "DELETE", run).status_code == 403
    both = {"runs": ["job-red", "job-blue"]}
    assert own.ask("red-user", "POST", "/api/v1/storage/remove-runs", json=both).status_code == 404
    plan = own.ask("red-user", "DELETE", f"{run}?dry_run=1").json()
    assert plan["outcome"] == "REMOVED"
    chosen = {"where": "state = SUCCEEDED", "dry_run": True}
    found = own.ask("red-user", "POST", "/api/v1/storage/remove-runs", json=chosen).json()["runs"]
    assert [each["run"] for each in found] == ["job-red"]
    lease = own.service.database.acquire("job-red", 10.0)
    refused = own.ask("red-user", "DELETE", run)
    assert (refused.status_code, refused.json()["title"]) == (
        409,
        "job-red stays: its driver has not let go of it yet",
    )
    own.service.database.release(lease, 10.0)
    assert own.ask("red-user", "DELETE", run).json()["outcome"] == "REMOVED"
    assert own.ask("red-user", "DELETE", run).json()["bytes"] == 0  # a request that was repeated
    assert own.ask("blue-user", "DELETE", run).status_code == 404
    assert own.ask("red-user", "GET", run).status_code == 404
    rows = own.ask("admin", "GET", "/api/v1/audit").json()["audit"]
    done = [(row["token"], row["status"]) for row in rows if row["action"] == f"DELETE {run}"]
    assert ("u", 200) in done
    assert ("red-read", 403) in done


def test_what_others_have_removed_goes_without_being_named(own):
    """Of a removal that was cut off something is left."""
    half = text("UPDATE run SET removed_at = 5 WHERE id LIKE 'job-%'")
    own.service.database.write(lambda connection, _: connection.execute(half))
    for body in ({"dry_run": True}, {}):
        answer = own.ask("red-user", "POST", "/api/v1/storage/prune", json=body).json()
        assert answer["kinds"]["runs"]["names"] == ["job-red"]
    assert half_removed(own.service.database) == []


def test_the_page_asks_first_and_says_what_takes_room(own, monkeypatch):
    monkeypatch.setattr("trainmaster.web.storage._WAIT_S", 60.0)
    page = own.ask("red-user", "GET", "/runs/job-red").text
    assert 'href="/remove?run=job-red"' in page
    asked = own.ask("red-user", "GET", "/remove?run=job-red").text
    assert "Delete it for good" in asked
    assert "together" in asked
    assert "job-red" in own.ask("red-user", "GET", "/storage").text
    assert "job-red" not in own.ask("blue-user", "GET", "/storage").text
    assert own.ask("red-read", "POST", "/remove", data={"run": "job-red"}).status_code == 403
    done = own.ask("red-user", "POST", "/remove", data={"run": "job-red"})
    assert (done.status_code, done.headers["location"]) == (303, "/runs")
    assert own.ask("red-user", "GET", "/runs/job-red").status_code == 404
    body = {"kinds": ["environments"]}
    assert own.ask("red-user", "POST", "/api/v1/storage/prune", json=body).status_code == 403
    assert own.ask("admin", "POST", "/api/v1/storage/prune", json={}).json()["kinds"].keys() >= {"code"}


def test_the_page_of_what_takes_room_waits_for_no_count_of_many_files(own, monkeypatch):
    begun, done, counts, count = threading.Event(), threading.Event(), [], StorageUsage.count
    now = [0.0]

    def slow(usage):
        now[0] += 100.0  # longer than what was counted is shown
        counts.append(usage)
        begun.set()
        done.wait(60)
        return count(usage)

    monkeypatch.setattr("trainmaster.service.storage.storage.time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(StorageUsage, "count", slow)
    monkeypatch.setattr("trainmaster.web.storage._WAIT_S", 0.01)
    for _ in range(3):
        assert "It is being counted" in own.ask("red-user", "GET", "/storage").text
    done.set()
    monkeypatch.setattr("trainmaster.web.storage._WAIT_S", 60.0)
    assert "job-red" in own.ask("red-user", "GET", "/storage").text
    assert "job-blue" in own.ask("blue-user", "GET", "/storage").text, "one count is enough for all teams"
    for who, dry_run in (("red-read", False), ("admin", True)):  # what removes nothing
        own.ask(who, "POST", "/api/v1/storage/prune", json={"dry_run": dry_run})
        own.ask(who, "GET", "/storage")
    assert len(counts) == 1
    own.ask("red-user", "POST", "/remove", data={"run": "job-red"})
    assert "job-red" not in own.ask("red-user", "GET", "/storage").text
    assert len(counts) == 2, "what was removed counts no more"
    now[0] += 61.0
    begun.clear(), done.clear()
    monkeypatch.setattr("trainmaster.web.storage._WAIT_S", 0.01)
    assert "It is being counted" in own.ask("admin", "GET", "/storage").text
    assert begun.wait(60)
    own.ask("blue-user", "POST", "/remove", data={"run": "job-blue"})
    assert "It is being counted" in own.ask("admin", "GET", "/storage").text
    assert len(counts) == 3, "one at a time"
    done.set()
    monkeypatch.setattr("trainmaster.web.storage._WAIT_S", 60.0)
    assert "job-blue" not in own.ask("admin", "GET", "/storage").text
    assert len(counts) == 4, "what was removed meanwhile counts no more"
