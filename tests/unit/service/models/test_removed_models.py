"""Files of models that were taken out of the registry go when nobody needs them, and not before."""

from __future__ import annotations

import pytest

from trainmaster.artifacts import publish
from trainmaster.artifacts.publishing import read_manifest
from trainmaster.db import AcceptedRun, ClosedAttempt, RunChange, TaskChange, registry, tables
from trainmaster.db import registry as rows
from trainmaster.db.registry_rows import NewVersionRow, RunModel, UsedVersion, use
from trainmaster.service import Service, retention
from trainmaster.service.retention import remove_files
from trainmaster.spec.errors import NotFoundError
from trainmaster.spec.states import EndReason, State

LATER = 1e12


@pytest.fixture
def service(home):
    found = Service(home)
    yield found
    found.close()


@pytest.fixture
def left(service, home):
    """A run that has left a model; where that is."""

    def make(run="r-1", reason=EndReason.SUCCEEDED):
        uri = home.model_uri(run, "main", 0)
        folder = home.root / f"files-{run}"
        folder.mkdir()
        (folder / "weights").write_text(run)
        publish({"": folder}, uri, kind="model")
        new = AcceptedRun(run, "r", "{}", "r.yaml", "local", "code", home.store_url, [("main", 1)])
        lease = service.database.create_run(new, 1.0)
        closes = ClosedAttempt(1, EndReason.SUCCEEDED, "", 1.0, 2.0, None, "[]")
        fields = {"model_uri": uri}
        task = [
            TaskChange("main", 0, 1, State.WAITING, State.RUNNING, creates=True, opens=True, fields=fields),
            TaskChange("main", 0, 1, State.RUNNING, State.DONE, EndReason.SUCCEEDED, closes=closes),
        ]
        end = [] if reason is None else [RunChange(State.WAITING, State.DONE, reason)]
        service.database.commit(lease, [*task, *end], 3.0)
        return uri

    return make


def register(service, uri, run="r-1", name="digits", team=""):
    new = NewVersionRow(team, name, RunModel(run, "main", 0, uri), "ann")
    return registry.register(service.database, new, None, 1.0)[0]


def test_the_files_go_after_their_time_and_the_run_says_so(service, home, left):
    uri = left()
    number = register(service, uri)
    assert remove_files(home, service.database, LATER) == 0
    registry.remove_version(service.database, "", "digits", number)
    assert remove_files(home, service.database, 0.0) == 0, "not before its time"
    assert read_manifest(uri) is not None
    assert remove_files(home, service.database, LATER) == 1
    assert read_manifest(uri) is None
    assert service.models("r-1") == []
    assert any("it was digits@1" in event["message"] for event in service.events("r-1"))
    assert remove_files(home, service.database, LATER) == 0
    with pytest.raises(NotFoundError, match="has no model any more"):
        register(service, uri)


@pytest.mark.parametrize("what", ["another name", "again", "its own run"])
def test_what_is_needed_stays(service, home, left, what):
    uri = left(reason=None if what == "its own run" else EndReason.SUCCEEDED)
    number = register(service, uri)
    if what == "another name":
        register(service, uri, name="numbers", team="red")
    registry.remove_version(service.database, "", "digits", number)
    if what == "again":
        assert register(service, uri) == number + 1
    assert remove_files(home, service.database, LATER) == 0
    assert read_manifest(uri) is not None


def test_a_run_that_may_be_gone_on_with_needs_what_it_has_started_from(service, home, left):
    uri = left()
    number = register(service, uri)
    left("r-2", EndReason.USER_ERROR)
    used = [UsedVersion("main", "weights", "", "digits", number)]
    service.database.write(lambda connection, _: use(connection, "r-2", used))
    registry.remove_version(service.database, "", "digits", number)
    old = tables.removed_model.update().values(removed_at=1.0)
    service.database.write(lambda connection, _: connection.execute(old))
    assert remove_files(home, service.database, 2.0) == 0
    assert remove_files(home, service.database, LATER) == 1, "nobody has resumed it for long"


def test_those_that_stay_hold_up_no_others(service, home, left, monkeypatch):
    monkeypatch.setattr(rows, "_PAGE", 1)
    for run in ("r-1", "r-2", "r-3"):
        uri = left(run, None if run == "r-1" else EndReason.SUCCEEDED)
        registry.remove_version(service.database, "", "digits", register(service, uri, run))
    same = tables.removed_model.update().values(removed_at=1.0)
    service.database.write(lambda connection, _: connection.execute(same))
    assert remove_files(home, service.database, LATER) == 2


def test_what_was_begun_is_finished_by_the_next_sweep(service, home, left, monkeypatch):
    uri = left()
    registry.remove_version(service.database, "", "digits", register(service, uri))
    with monkeypatch.context() as patch:
        patch.setattr(retention, "delete", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            remove_files(home, service.database, LATER)
    assert service.models("r-1") == [], "the run has it no more before the first file goes"
    assert remove_files(home, service.database, LATER) == 1
    assert read_manifest(uri) is None
