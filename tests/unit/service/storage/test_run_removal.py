"""A run that is over goes whole, but for what something needs; killed anywhere, the next call goes on."""

from __future__ import annotations

import json
import os
import time

import pytest

from client_contract_home import record_run
from trainmaster.artifacts import publish
from trainmaster.artifacts.owner import Owner, claim
from trainmaster.control.task.layout import Home
from trainmaster.db import registry, removals, tables
from trainmaster.db.queries import ALL_RUNS
from trainmaster.db.registry_rows import NewVersionRow, RunModel
from trainmaster.objects import ObjectStore
from trainmaster.service import Service
from trainmaster.service.runs.run_names import owner_of
from trainmaster.service.storage import directories, removal
from trainmaster.service.storage.removal import KEPT, REMOVED, TRIMMED, RunRemoval
from trainmaster.service.teams.spending import cost_report
from trainmaster.spec.errors import NotFoundError

RUN, OTHER = "job-aaaa000001", "job-bbbb000002"


@pytest.fixture
def store_url(tmp_path):
    return f"file://{tmp_path}/home/store"


@pytest.fixture
def home(tmp_path, store_url):
    root = tmp_path / "home"
    root.mkdir()
    return Home(root, root / "cache", store_url, f"sqlite:///{root / 'trainmaster.db'}")


@pytest.fixture
def service(home):
    found = Service(home)
    for at, run in enumerate((RUN, OTHER)):
        record_run(found, run, 1000.0 + at)
        place = home.root / f"checkpoint-{run}"
        place.mkdir()
        (place / "c").write_bytes(bytes(1000))
        owner = owner_of(found.database.run_row(run), home)
        claim(home.store_url, owner, {})
        uri = f"{home.checkpoints_uri(run, 'main', 0)}/000001"
        publish({"": place}, uri, kind="checkpoint", extra={"attempt": 1}, owner=owner)
    yield found
    found.close()


def snapshot(service, digest, *runs):
    """Code that was taken long ago, of these runs."""
    place = service.home.snapshots / digest
    place.mkdir(parents=True)
    (place / "train.py").write_text(digest)
    (place / "train.py").chmod(0o555)
    os.utime(place, (1, 1))
    set_row(service, *runs, code_path=str(place))
    return place


def set_row(service, *runs, **values):
    change = tables.run.update().where(tables.run.c.id.in_(runs)).values(**values)
    service.database.write(lambda connection, _: connection.execute(change))


def insert(service, table, **values):
    service.database.write(lambda connection, _: connection.execute(table.insert().values(**values)))


def register(service, run=RUN, alias=None):
    new = NewVersionRow("", "digits", RunModel(run, "main", 0, service.home.model_uri(run, "main", 0)), "ann")
    registry.register(service.database, new, alias, 1.0)


def left_of(service, run=RUN):
    """All that still bears its name, but for what the test has published."""
    found = service.home.root.rglob(f"*{run}*")
    return [path for path in found if not path.name.startswith(("left-", "checkpoint-"))]


def remove(service, *runs, trial=False):
    found = RunRemoval(service).remove(runs or (RUN,), "ann", is_trial=trial)
    return found, [each["outcome"] for each in found["runs"]]


def test_it_goes_with_all_that_it_has_and_its_bill_stays(service):
    place = snapshot(service, "c0de", RUN)
    span = {"p5": 1.0, "p50": 2.0, "p95": 3.0}
    quote = {"run_id": RUN, "kind": "estimate", "made_at": 1.0, "time_s": 1.0, "cost_usd": 0.0, "kept": True}
    insert(service, tables.quote, **quote, data=json.dumps({"time_s": span, "cost_usd": span}))
    insert(service, tables.ledger, run_id=RUN, team="", kind="charge", day="2026-11-26", micro_usd=7, at=1.0)
    trial, outcomes = remove(service, trial=True)
    assert (outcomes, service.status(RUN)["state"]) == ([REMOVED], "DONE")
    found, outcomes = remove(service)
    assert outcomes == [REMOVED]
    assert {**found, "dry_run": True} == trial
    assert found["runs"][0]["parts"].keys() == {"files", "checkpoints", "models"}
    assert found["bytes"] > 1000
    assert found["shared"]["code"] > 0
    assert left_of(service) == []
    assert not place.exists()
    with pytest.raises(NotFoundError, match="there is no run"):
        service.status(RUN)
    assert [each["run"] for each in service.runs()["runs"]] == [OTHER]
    assert [each["run"] for each in service.models()] == [OTHER]
    cost = cost_report(service.database, ALL_RUNS, "run")
    assert {each["key"]: each["usd"] for each in cost["rows"]} == {RUN: 7e-6, OTHER: 0.0}
    assert service.score()["estimate"]["kept"]["n"] == 1
    assert service.database.has_run(RUN)  # its name is never given again
    assert len(service.events(RUN)) == 0


@pytest.mark.parametrize("store_url", ["memory://removal/store"])
def test_on_a_store_without_directories_it_goes_too(service):
    register(service, OTHER)
    store = ObjectStore(service.home.store_url)
    found, outcomes = remove(service, RUN, OTHER)
    assert outcomes == [REMOVED, TRIMMED]
    assert found["runs"][0]["parts"].keys() == {"files", "checkpoints", "models"}
    keys = sorted(each.key for each in store.list(""))
    assert keys
    assert all(key.startswith((f"models/{OTHER}/", f"runs/{OTHER}")) for key in keys)


def rents(service):
    home_id = service.home.identity()
    insert(
        service, tables.cluster, id="c-1", run_id=RUN, provider="aws", home_id=home_id, state="KEPT",
        data="{}", changed_at=1.0,
    )  # fmt: skip


def serves(service, run=RUN, **values):
    row = {"id": f"e-{run}", "name": "ask", "run_id": run, "experiment": "main", "created_at": 1.0, **values}
    insert(service, tables.endpoint, **row)


def shows(service):
    insert(
        service, tables.app, id="te-1", kind="tensorboard", opened_by="ann", runs=json.dumps([RUN]),
        home_id="h", state="RUNNING", created_at=1.0, used_at=1.0,
    )  # fmt: skip


def works(service):
    insert(
        service, tables.workflow, id="w-1", team="", name="nightly", request=json.dumps({"recipe": RUN}),
        concurrency="wait", pushes="[]", state="ENABLED", revision=1, registered_by="ann", created_at=1.0,
        changed_at=1.0,
    )  # fmt: skip


def works_by_name(service):
    """By its label: a run may be called so in a recipe, too."""
    set_row(service, RUN, labels=json.dumps({"name": "baseline"}))
    recipe = (
        "name: nightly\non: webhook\nexperiments: {main: {command: make, checkpoint: {from: baseline@2}}}"
    )
    insert(
        service, tables.workflow, id="w-1", team="", name="nightly", request=json.dumps({"recipe": recipe}),
        concurrency="wait", pushes="[]", state="ENABLED", revision=1, registered_by="ann", created_at=1.0,
        changed_at=1.0,
    )  # fmt: skip


def another_names_it(service):
    recipe = str(service.database.run_row(OTHER)["recipe"]).replace("more.txt", f"store/models/{RUN}/main/0")
    set_row(service, OTHER, recipe=recipe, state="RUNNING", reason=None)


def another_home(service):
    set_row(service, RUN, created_at=999.0)


#: What stands in the way, and what is said of it.
STAYS = {
    "goes on": (lambda service: set_row(service, RUN, state="RUNNING"), "trainmaster cancel"),
    "has a driver": (
        lambda service: set_row(service, RUN, lease_owner="x", lease_expires_at=time.time() + 30),
        "in a moment",
    ),
    "is away": (lambda service: set_row(service, RUN, away="{}"), "in a moment"),
    "has machines": (rents, "trainmaster clusters end c-1"),
    "serves": (serves, "trainmaster services end ask"),
    "is shown": (shows, "trainmaster apps end te-1"),
    "workflow": (works, "trainmaster workflows rm nightly"),
    "workflow by its name": (works_by_name, "trainmaster workflows rm nightly"),
    "another run": (another_names_it, f"trainmaster rm {OTHER}"),
    "another home's": (another_home, "Look there"),
}


@pytest.mark.parametrize("what", STAYS)
def test_what_is_needed_stays_whole_and_says_why(service, what):
    change, said = STAYS[what]
    change(service)
    before = left_of(service)
    for trial in (True, False):
        found, outcomes = remove(service, trial=trial)
        assert outcomes == [KEPT]
        assert said in found["runs"][0]["kept"][0]["hint"]
        assert found["bytes"] == 0
    assert left_of(service) == before


def model_with_a_name(service):
    register(service, alias="production")
    return "digits@1, digits@production"


def model_that_is_served(service):
    serves(service, OTHER, model_uri=service.home.model_uri(RUN, "main", 0))
    return "service ask answers"


@pytest.mark.parametrize("why", [model_with_a_name, model_that_is_served])
def test_a_run_whose_model_is_needed_keeps_its_record_and_that_model(service, why):
    said, code = why(service), snapshot(service, "c0de", RUN)
    found, outcomes = remove(service)
    assert outcomes == [TRIMMED]
    assert said in found["runs"][0]["kept"][0]["why"]
    assert found["runs"][0]["parts"].keys() == {"files", "checkpoints"}
    assert [each["run"] for each in service.models(RUN)] == [RUN]
    assert service.status(RUN)["reason"] == "SUCCEEDED"
    assert code.exists()
    assert not service.home.run_directory(RUN).exists()
    assert "removed its logs" in service.events(RUN)[-1]["message"]


def test_once_the_name_is_gone_the_rest_goes(service):
    register(service)
    assert remove(service)[1] == [TRIMMED]
    registry.remove_version(service.database, "", "digits", 1)
    assert remove(service)[1] == [REMOVED]
    assert left_of(service) == []


def test_a_volume_that_it_made_keeps_its_record(service, monkeypatch):
    monkeypatch.setattr(
        RunRemoval, "_made_volumes", lambda *_: [removals.Reason("it made volume pets@1", "")]
    )
    assert remove(service)[1] == [TRIMMED]
    assert service.models(RUN) == []


def test_a_run_that_another_one_of_them_needs_goes_with_that(service):
    recipe = str(service.database.run_row(OTHER)["recipe"]).replace("more.txt", RUN)
    set_row(service, OTHER, recipe=recipe, reason="USER_ERROR", ended_at=time.time())
    assert remove(service)[1] == [KEPT]
    assert remove(service, RUN, OTHER, trial=True)[1] == [REMOVED, REMOVED]
    assert remove(service, RUN, OTHER)[1] == [REMOVED, REMOVED]


def test_code_of_two_runs_goes_with_the_last_and_counts_once(service):
    place = snapshot(service, "c0de", RUN, OTHER)
    assert remove(service, trial=True)[0]["shared"]["code"] == 0
    both = remove(service, RUN, OTHER, trial=True)[0]["shared"]["code"]
    assert both > 0
    remove(service)
    assert place.exists()
    assert remove(service, OTHER)[0]["shared"]["code"] == both
    assert not place.exists()


def test_code_that_was_just_taken_stays(service):
    place = snapshot(service, "c0de", RUN)
    os.utime(place)
    assert remove(service)[0]["shared"]["code"] == 0
    assert place.exists()


class Killed(BaseException):
    """As by kill -9."""


#: Everything that changes the world or the rows, in the order of a removal.
STEPS = (
    (removal, "remove_tree"),
    (removal.ObjectStore, "delete_all"),
    (removal, "delete"),
    (removals, "empty"),
    (removal.ObjectStore, "delete"),
)


@pytest.mark.parametrize("is_before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("step", range(len(STEPS)))
@pytest.mark.parametrize("is_named", [True, False], ids=["trimmed", "removed"])
def test_killed_at_any_step_it_is_not_shown_as_whole_and_the_next_call_goes_on(
    service, is_named, step, is_before
):
    if is_named:
        register(service)
        uri = service.home.model_uri(RUN, "main", 7)  # an attempt that was given up, or a model with no name
        extra = service.home.root / "extra"
        extra.mkdir()
        (extra / "w").write_text("1")
        publish({"": extra}, uri, kind="model")
    whose, name = STEPS[step]
    real, killed = getattr(whose, name), []

    def dying(*args, **kwargs):
        if not killed and is_before:
            killed.append(True)
            raise Killed
        answer = real(*args, **kwargs)
        if not killed:
            killed.append(True)
            raise Killed
        return answer

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(whose, name, dying)
        try:
            remove(service)
        except Killed:
            assert killed
    if is_named:
        assert [each["uri"] for each in service.models(RUN)] == [service.home.model_uri(RUN, "main", 0)]
        RunRemoval(service).finish_trimmed()
        models = service.home.root / "store" / "models" / RUN / "main"
        assert [path.name for path in models.iterdir() if any(path.iterdir())] == ["0"]
    else:
        with pytest.raises(NotFoundError):
            service.status(RUN)
        RunRemoval(service).finish()
        assert left_of(service) == []
        assert removals.half_removed(service.database) == []
    assert not service.home.run_directory(RUN).exists()
    assert RunRemoval(service).finish() == []


def test_a_resumed_run_is_not_emptied_any_more(service):
    register(service)
    remove(service)
    lease = service.database.acquire(RUN, 2000.0)
    service.database.requeue(lease, 2000.0)
    assert list(removals.trimmed(service.database)) == []


def test_no_driver_takes_it_over_that_saw_it_before(service):
    remove(service)
    with pytest.raises(NotFoundError):
        service.database.acquire(RUN, 2000.0)
    with pytest.raises(NotFoundError):
        register(service)


def test_what_a_script_left_unwritable_goes_and_what_is_mounted_stays(tmp_path, monkeypatch):
    deep = tmp_path / "a" / "b"
    deep.mkdir(parents=True)
    (deep / "file").write_text("1")
    deep.chmod(0o555)
    (tmp_path / "link").symlink_to(deep)
    directories.remove_tree(tmp_path / "a")
    assert not (tmp_path / "a").exists()
    directories.remove_tree(tmp_path / "a")
    (tmp_path / "m").mkdir()
    monkeypatch.setattr(directories, "_mounted_below", lambda place: [f"{place}/x"])
    with pytest.raises(Exception, match="is mounted"):
        directories.remove_tree(tmp_path / "m")


def test_room_counts_what_has_two_names_once(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x").write_bytes(bytes(50_000))
    (tmp_path / "b").mkdir()
    os.link(tmp_path / "a" / "x", tmp_path / "b" / "x")
    room = directories.DiskUse()
    first = room.bytes_below(tmp_path / "a")
    assert first >= 50_000 > room.bytes_below(tmp_path / "b")
    assert directories.DiskUse().bytes_below(tmp_path, but=[tmp_path / "a", tmp_path / "b"]) < 50_000


def test_the_owner_of_a_name_on_the_store(service):
    row = service.database.run_row(RUN)
    assert removal.claimed_by(row["store_url"], owner_of(row, service.home))
    assert not removal.claimed_by(row["store_url"], Owner(RUN, "another", 1000.0))
    assert removal.claimed_by(row["store_url"], Owner("free", "another", 1000.0))
