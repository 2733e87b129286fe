"""Where attempts ran, as it is told by `status`, REST and the history of a run."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trainmaster.cluster.record import Machine, new_record
from trainmaster.cluster.renting.plan import ClusterPlan, Rental, RolePlan
from trainmaster.control.task.layout import RunFiles
from trainmaster.db import queries
from trainmaster.service.runs import summary, task_places
from trainmaster.service.runs.run_details import RunDetails
from trainmaster.service.runs.task_places import TaskPlaces

RENTED = Rental("m4.large", usd_per_hour=1.0)


def clusters(_run: str) -> list[Any]:
    """Hosts and a rented cluster of one experiment."""
    found = []
    for name, provider, ids in (("train", "hosts", ("gpu1",)), ("train-aws", "aws", ("i-1", "i-2"))):
        plan = ClusterPlan(name, ("train",), provider, (RolePlan("worker", len(ids), (RENTED,)),))
        machines = tuple(Machine(f"worker-{n}", "worker", "t", RENTED, id_) for n, id_ in enumerate(ids))
        found.append(replace(new_record("r", plan, "home"), machines=machines).as_row())
    return [asdict(each) for each in found]


@pytest.fixture
def files(tmp_path: Path) -> RunFiles:
    files = RunFiles(tmp_path)
    for task, attempt, places in (
        (0, 1, {"worker-0": "gpu1"}),
        (1, 1, {"worker-0": "gpu1"}),
        (1, 2, {"worker-0": "i-1", "worker-1": "i-2"}),
        (2, 1, {"worker-0": "i-9"}),
    ):
        place = files.attempt("r", "train", task, attempt).directory
        place.mkdir(parents=True)
        (place / "places.json").write_text(json.dumps(places))
    return files


def test_each_member_has_the_machine_and_the_place_that_gave_it(files: RunFiles) -> None:
    places = TaskPlaces(SimpleNamespace(clusters_of=clusters), files, "r")  # type: ignore[arg-type]
    assert places.machines("train", 1, 2) == [
        {"member": "worker-0", "provider": "aws", "machine": "node-1", "id": "i-1"},
        {"member": "worker-1", "provider": "aws", "machine": "node-2", "id": "i-2"},
    ]
    assert places.machines("train", 2, 1)[0] == {
        "member": "worker-0", "provider": "", "machine": "", "id": "i-9"
    }, "its cluster is not written any more"  # fmt: skip
    assert places.machines("train", 7, 1) == []


def test_machines_of_a_run_name_the_place_that_gave_them() -> None:
    service = SimpleNamespace(database=SimpleNamespace(clusters_of=clusters))
    found = RunDetails(service, "r").machines()  # type: ignore[arg-type]
    assert [(each["provider"], each["name"], each["id"]) for each in found] == [
        ("hosts", "node-1", "gpu1"),
        ("aws", "node-1", "i-1"),
        ("aws", "node-2", "i-2"),
    ]


def test_status_says_how_many_tasks_are_in_each_place(
    files: RunFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [
        {"experiment": "train", "number": n, "attempt": a, "state": "DONE"}
        for n, a in enumerate((1, 2, 1, 0))
    ]
    monkeypatch.setattr(queries, "tasks", lambda *_, **__: rows)
    database: Any = SimpleNamespace(clusters_of=clusters)
    stored = {"experiments": {"train": {"provider": ["hosts", "aws"]}, "test": {"provider": ["hosts"]}}}
    found = summary._place(database, {"id": "r", "provider": "hosts"}, stored, files)["place"]  # type: ignore[arg-type]
    assert found["tasks"] == {"train": {"aws": 1, "hosts": 1}}
    assert found["words"] == "train at hosts (1 task) and aws (1 task); test at hosts"
    monkeypatch.setattr(task_places, "MAX_TASKS", 2)
    assert TaskPlaces(database, files, "r").tasks() == ({"train": {"aws": 1, "hosts": 1}}, True)


def test_where_an_attempt_was_that_is_over_is_read_once(
    files: RunFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [
        {"experiment": "train", "number": n, "attempt": 1, "state": state}
        for n, state in enumerate(("DONE", "RUNNING"))
    ]
    monkeypatch.setattr(queries, "tasks", lambda *_, **__: rows)
    for moved in ("gpu1", "i-1"):
        for n in (0, 1):
            place = files.attempt("r", "train", n, 1).directory / "places.json"
            place.write_text(json.dumps({"worker-0": moved}))
        found = TaskPlaces(SimpleNamespace(clusters_of=clusters), files, "r").tasks()  # type: ignore[arg-type]
    assert found == ({"train": {"aws": 1, "hosts": 1}}, False)
