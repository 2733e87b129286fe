"""What nothing needs goes, kind by kind; what takes room is told once, by whose it is."""

from __future__ import annotations

import os
import time

import pytest
from test_run_removal import (
    OTHER,
    RUN,
    home,
    left_of,
    register,
    service,
    set_row,
    snapshot,
    store_url,
    works_by_name,
)  # fmt: skip

from trainmaster.artifacts import publish
from trainmaster.db.queries import ALL_RUNS
from trainmaster.service.retention import VARIABLE, Retention
from trainmaster.service.runs.run_names import owner_of
from trainmaster.service.storage import pruning
from trainmaster.service.storage.pruning import KINDS, OF_RUNS, Pruning
from trainmaster.service.storage.storage import Storage, StorageUsage
from trainmaster.service.users.caller import ForbiddenError, caller
from trainmaster.spec import Recipe
from trainmaster.spec.errors import UsageError

__all__ = ["home", "service", "store_url"]
DAY_S = 86400.0


def prune(service, *kinds, trial=False, **kept_s):
    found = Pruning(service, ALL_RUNS, "ann", kept_s=kept_s, is_trial=trial).prune(kinds)
    return {kind: each["count"] for kind, each in found["kinds"].items() if each["count"]}


def checkpoints(service, run, *numbers):
    place = service.home.root / "left-more"
    place.mkdir(exist_ok=True)
    for number in numbers:
        (place / "c").write_bytes(bytes(number))
        uri = f"{service.home.checkpoints_uri(run, 'main', 0)}/{number:06d}"
        owner = owner_of(service.database.run_row(run), service.home)
        publish({"": place}, uri, kind="checkpoint", extra={"attempt": 1}, owner=owner)


def there(service, run):
    place = service.home.root / "store" / "checkpoints" / run / "main" / "0"
    return sorted(each.name for each in place.iterdir() if any(each.iterdir()))


def recipe_with(service, run, **keys):
    recipe = Recipe.from_dict({"name": "job", "experiments": {"main": {"command": "true", **keys}}})
    set_row(service, run, recipe=recipe.model_dump_json())


def old(place, days=3):
    at = time.time() - days * DAY_S
    os.utime(place, (at, at))
    return place


def made(root, name, days=3):
    place = root / name
    place.mkdir(parents=True)
    (place / "ready").write_text("1")
    old(place / "ready", days)
    return old(place, days)


def test_checkpoints_beyond_those_that_are_kept_go(service):
    checkpoints(service, RUN, 2, 3, 4)
    assert prune(service, "checkpoints", trial=True) == {"checkpoints": 3}
    assert there(service, RUN) == ["000001", "000002", "000003", "000004"]
    assert prune(service, "checkpoints") == {"checkpoints": 3}  # of one that has succeeded one is kept after
    assert there(service, RUN) == ["000004"]
    assert prune(service, "checkpoints") == {}


@pytest.mark.parametrize(
    ("keys", "row", "left"),
    [
        ({"checkpoint": {"keep_after": 0}}, {}, []),
        ({"checkpoint": {"keep_after": 2}}, {}, ["000002", "000003"]),
        ({}, {"state": "RUNNING", "reason": None}, ["000001", "000002", "000003"]),
        ({}, {"lease_owner": "x", "lease_expires_at": 1e12}, ["000001", "000002", "000003"]),
        ({}, {"away": "{}"}, ["000001", "000002", "000003"]),
    ],
)
def test_a_recipe_says_how_many_stay_and_what_goes_on_keeps_all(service, keys, row, left):
    recipe_with(service, RUN, **keys)
    checkpoints(service, RUN, 2, 3)
    set_row(service, RUN, **({"note": ""} | row))
    prune(service, "checkpoints")
    assert there(service, RUN) == left


def test_files_that_no_model_is_go_and_named_ones_stay(service):
    register(service)
    stray = service.home.model_uri(RUN, "main", 0, 2)
    publish({"": service.home.root / f"left-{RUN}"}, stray, kind="model")
    assert prune(service, "models", trial=True) == {"models": 1}
    assert prune(service, "models") == {"models": 1}
    assert [each["uri"] for each in service.models(RUN)] == [service.home.model_uri(RUN, "main", 0)]
    assert prune(service, "models") == {}


def test_code_that_no_run_has_goes(service):
    named, unused, young = (snapshot(service, each) for each in ("named", "unused", "young"))
    set_row(service, RUN, code_path=str(named))
    os.utime(young)
    assert prune(service, "code", trial=True) == {"code": 1}
    assert prune(service, "code") == {"code": 1}
    assert [each.exists() for each in (named, unused, young)] == [True, False, True]


def test_caches_that_were_not_used_of_late_go(service, monkeypatch):
    cache = service.home.cache
    gone = [
        made(cache / "environments", "old"),
        made(cache / "data", "old"),
        made(cache / "chunks", "65536"),
        made(cache / "volumes" / "tables", "old"),
        made(cache / "images", f"{OTHER}-0123456789ab"),
        made(cache / "capsules", "old"),
    ]
    stay = [made(cache / each, "new", days=0) for each in ("environments", "data", "capsules")]
    used = made(cache / "environments", "used")
    monkeypatch.setattr(pruning, "in_use", lambda places: {used} & set(places))
    kinds = ("environments", "data", "chunks", "images")
    counts = {"environments": 1, "data": 1, "chunks": 2, "images": 2}
    assert prune(service, *kinds, trial=True) == counts
    assert prune(service, *kinds) == counts
    assert [each.exists() for each in (*gone, *stay, used)] == [False] * 6 + [True] * 4
    assert prune(service, *kinds) == {}


def test_what_a_run_that_goes_on_has_stays(service):
    cache, url = service.home.cache, "https://example.org/a.csv"
    recipe_with(service, RUN, data={"a": {"url": url}, "v": {"volume": "pets"}}, setup="true", container="x")
    set_row(service, RUN, state="RUNNING", reason=None)
    from trainmaster.control.attempt.data_urls import url_directory

    needed = [
        made(cache / "data", url_directory(cache, url).name),
        made(cache / "chunks", "65536"),
        made(cache / "environments", "any"),
        made(cache / "images", f"{RUN}-0123456789ab"),
    ]
    found = Pruning(service, ALL_RUNS, "ann", kept_s={}).prune(("data", "chunks", "environments", "images"))
    assert all(each.exists() for each in needed)
    assert "reads volumes" in found["kinds"]["chunks"]["trouble"]
    assert "done in an image" in found["kinds"]["environments"]["trouble"]


def test_runs_and_checkpoints_go_that_are_kept_for_a_time_only(service, monkeypatch):
    register(service)
    assert Retention(service.home, service.database, {}).sweep() == {}
    now = service.database.clock_s()
    set_row(service, RUN, OTHER, ended_at=now - 2 * DAY_S)
    keep = {VARIABLE: "runs=3d,checkpoints=1d"}
    assert Retention(service.home, service.database, keep).sweep() == {"checkpoints": 2}
    keep = {VARIABLE: "runs=1d"}
    assert Retention(service.home, service.database, keep).sweep() == {"runs": 2}
    assert [each["run"] for each in service.runs()["runs"]] == [RUN]  # its record, as its model has a name
    assert left_of(service, OTHER) == []
    assert Retention(service.home, service.database, keep).sweep() == {}


def test_the_last_checkpoint_stays_that_a_run_begins_with_which_may_go_on(service):
    now = service.database.clock_s()
    set_row(service, RUN, ended_at=now - 2 * DAY_S)
    named = {"checkpoint": {"from": f"{RUN}/main/0@1"}}
    recipe_with(service, OTHER, **named)
    set_row(service, OTHER, reason="USER_ERROR", ended_at=now)
    assert prune(service, "checkpoints", checkpoints=DAY_S) == {}
    assert there(service, RUN) == ["000001"]
    set_row(service, OTHER, reason="SUCCEEDED")
    assert prune(service, "checkpoints", checkpoints=DAY_S) == {"checkpoints": 1}


@pytest.mark.parametrize(
    ("keys", "kept_s", "left"),
    [
        ({"keep": 3, "keep_after": 3}, {"checkpoints": DAY_S}, ["000002", "000003"]),
        ({"keep_after": 0}, {}, ["000002"]),
    ],
    ids=["when the time is over", "as its recipe keeps none"],
)
@pytest.mark.parametrize("name", ["{}/main/0@2", "{}@2"], ids=["as a run has it", "as a workflow may"])
def test_a_checkpoint_that_a_recipe_names_stays_and_is_said(service, keys, kept_s, left, name):
    now = service.database.clock_s()
    recipe_with(service, RUN, checkpoint=keys)
    checkpoints(service, RUN, 2, 3)
    set_row(service, RUN, ended_at=now - 2 * DAY_S)
    recipe_with(service, OTHER, checkpoint={"from": name.format(RUN)})
    set_row(service, OTHER, state="WAITING", reason=None, ended_at=None)
    found = Pruning(service, ALL_RUNS, "ann", kept_s=kept_s).prune(["checkpoints"])
    assert there(service, RUN) == left
    assert found["kinds"]["checkpoints"]["stays"] == [f"{RUN}/main/0@2: the recipe of {OTHER} names it"]
    set_row(service, OTHER, state="DONE", reason="SUCCEEDED", ended_at=now)
    assert prune(service, "checkpoints", checkpoints=DAY_S) == {"checkpoints": len(left)}
    assert there(service, RUN) == []


def test_a_number_of_tasks_that_a_search_goes_on_with_is_no_checkpoint(service):
    """`search: {from: RUN/EXPERIMENT@2}` is the first two tasks; the checkpoint 2 of each stayed."""
    now = service.database.clock_s()
    recipe_with(service, RUN, checkpoint={"keep_after": 0})
    checkpoints(service, RUN, 2, 3)
    set_row(service, RUN, ended_at=now - 2 * DAY_S)
    search = {"metric": "loss", "goal": "min", "from": f"{RUN}/main@2"}
    recipe_with(service, OTHER, parameters={"x": {"range": "0-1"}}, samples=4, search=search)
    set_row(service, OTHER, state="WAITING", reason=None, ended_at=None)
    found = Pruning(service, ALL_RUNS, "ann", kept_s={}).prune(["checkpoints"])
    assert found["kinds"]["checkpoints"].get("stays", []) == []
    assert there(service, RUN) == []


def test_a_checkpoint_stays_that_a_workflow_names_by_what_its_run_is_called(service):
    recipe_with(service, RUN, checkpoint={"keep_after": 0})
    checkpoints(service, RUN, 2, 3)
    set_row(service, RUN, ended_at=service.database.clock_s() - 2 * DAY_S)
    works_by_name(service)
    found = Pruning(service, ALL_RUNS, "ann", kept_s={}).prune(["checkpoints"])
    assert found["kinds"]["checkpoints"]["stays"] == [
        f"{RUN}/main/0@2: workflow nightly names it, as baseline"
    ]
    assert there(service, RUN) == ["000002"]


def test_a_kind_that_cannot_be_looked_at_hides_nothing_of_the_others(service, monkeypatch):
    monkeypatch.setattr(pruning.ObjectStore, "folders", _away)
    unused = snapshot(service, "unused")
    found = Pruning(service, ALL_RUNS, "ann", kept_s={}).prune()
    assert "away" in found["kinds"]["checkpoints"]["trouble"]
    assert not unused.exists()
    with pytest.raises(UsageError, match="nothing that is pruned"):
        Pruning(service, ALL_RUNS, "ann", kept_s={}).prune(["nosuch"])


def _away(*_):
    raise UsageError("the store is away", "")


def test_a_team_prunes_and_sees_what_its_runs_have(service):
    set_row(service, RUN, team="red")
    of_red = Storage(service, caller("ann", "red", ["read", "run"]), {})
    assert set(of_red.prune(dry_run=True)["kinds"]) == set(OF_RUNS)
    with pytest.raises(ForbiddenError):
        of_red.prune(["environments"])
    seen = of_red.usage()
    assert [each["run"] for each in seen["runs"]] == [RUN]
    assert {each["kind"] for each in seen["kinds"]} == {"files", "checkpoints", "models"}
    assert "places" not in seen
    assert set(Storage(service, caller("chief", None, ["admin"]), {}).prune(dry_run=True)["kinds"]) == {
        *KINDS
    }


def test_all_that_takes_room_counts_once_and_the_largest_run_comes_first(service):
    checkpoints(service, OTHER, 2, 3)
    (service.home.root / "store" / "checkpoints" / OTHER / "main" / "0" / "big").write_bytes(bytes(90_000))
    snapshot(service, "c0de", RUN)
    made(service.home.cache / "environments", "any")
    made(service.home.cache / "lab", "image")
    found = StorageUsage(service.home).count().found({RUN: None, OTHER: "red"})
    assert [(each["run"], each["team"]) for each in found["runs"]] == [(OTHER, "red"), (RUN, None)]
    assert found["bytes"] == sum(each["bytes"] for each in found["kinds"])
    sizes = {(each["where"], each["kind"]): each["bytes"] for each in found["kinds"]}
    assert sizes["store", "checkpoints"] == sum(each["parts"]["checkpoints"] for each in found["runs"])
    assert {("home", "code"), ("cache", "environments"), ("home", "database")} <= set(sizes)
    assert ("cache", "lab") in sizes, "the image of its hosts is much, and has a name"
    assert StorageUsage(service.home).count().found({RUN: None}, 0)["more_runs"] == 1
    lost = StorageUsage(service.home).count().found({RUN: None})
    assert {each["kind"] for each in lost["kinds"]} >= {"of no run here"}
    assert lost["bytes"] == found["bytes"]
