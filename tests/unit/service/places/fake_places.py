"""Places that answer as a test says, and a run that moves between them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trainmaster.cluster.record import ClusterRecord, new_record
from trainmaster.cluster.renting.plan_clusters import pinned
from trainmaster.control.task.layout import Home
from trainmaster.db import AcceptedRun
from trainmaster.providers.base import NoCapacityError, NodeRequest
from trainmaster.service.driving.execution_backend import Session
from trainmaster.service.driving.moving import moved
from trainmaster.service.places.settling import settled_place
from trainmaster.service.renting import cheapest
from trainmaster.service.service import Service
from trainmaster.spec import Recipe
from trainmaster.spec.errors import ProviderError, UsageError

RECIPE = """\
name: places
provider: [{places}]
experiments:
  train:
    command: "true"
    hardware: {{cpus: 1}}
"""
FULL = NoCapacityError("all hosts are in use", "")
AWAY = ProviderError("it does not answer", "")
REFUSED = UsageError("no such partition", "")


class FakeProvider:
    """A place that gives machines after a while, or says why not."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer

    def close(self) -> None:
        """It was asked."""

    def check_settings(self) -> None:
        """They are right."""

    def check_up(self) -> None:
        """It answers, or does not."""
        if isinstance(self._answer, ProviderError) and not isinstance(self._answer, NoCapacityError):
            raise self._answer

    def preflight(self, requests: Sequence[NodeRequest]) -> list[str]:
        """What could never be had is refused."""
        assert requests
        if isinstance(self._answer, UsageError):
            raise self._answer
        return []

    def queue_wait_s(self, requests: Sequence[NodeRequest]) -> float | None:
        """How long they would wait."""
        if isinstance(self._answer, NoCapacityError):
            raise self._answer
        assert not isinstance(self._answer, Exception)
        return self._answer(sum(each.count for each in requests)) if callable(self._answer) else self._answer


class FakeHosts(FakeProvider):
    """Some of which are in use."""

    def free_nodes(self, requests: Sequence[NodeRequest]) -> list[int]:
        """How many are not."""
        return [min(each.count, self._answer.free) for each in requests]


@contextlib.contextmanager
def open_places(tmp_path: Path) -> Iterator[Service]:
    """Of a home whose places all have one kind of machine; without code, or quotes would read all of ours."""
    root, code = tmp_path / "home", tmp_path / "code"
    root.mkdir()
    code.mkdir()
    (root / "hosts.yaml").write_text("hosts: [{address: 192.0.2.1, slots: 2}]\n")
    (root / "slurm.yaml").write_text("machines:\n  node: {cpus: 2, memory: 2GB, usd_per_hour: 0.5}\n")
    (root / "ray.yaml").write_text("address: auto\nmachines:\n  seat: {cpus: 2, memory: 2GB}\n")
    home = Home(root, tmp_path / "cache", f"file://{tmp_path}/store", f"sqlite:///{root}/trainmaster.db")
    with contextlib.chdir(code), contextlib.closing(Service(home)) as found:
        yield found


SWEEP = """\
name: places
provider: [{places}]
experiments:
  train:
    parameters: {{x: [1, 2, 3, 4, 5, 6]}}
    workers: {workers}
    command: "true"
"""


class MovingRun:
    """One that has asked its first place for machines, which another run's would have kept for a minute."""

    def __init__(self, service: Service, text: str) -> None:
        self.service, self.told, self.finished = service, list[str](), list[object]()
        recipe = settled_place(service, Recipe.from_text(text), {}, self.told.append)
        plans = cheapest.plans_of(service, recipe, {})
        home = service.home.identity()
        clusters = [replace(new_record("r", plan, home), keep_s=60.0).as_row() for plan in plans]
        new = AcceptedRun(
            "r", "places", recipe.model_dump_json(), "r.yaml", "hosts", "code", "file:///s",
            [("train", 1)], home_id=home, clusters=clusters,
        )  # fmt: skip
        self.session = Session("r", service.database.create_run(new, 1.0), pinned(recipe, plans))

    def moved(self) -> Session | None:
        """As its driver has it move."""
        task = SimpleNamespace(experiment="train", attempt=1)
        controller = SimpleNamespace(run_state=SimpleNamespace(live_tasks=lambda: [task]))
        world = SimpleNamespace(finish=self.finished.append)
        return moved(self.service, self.session, world, controller, {}, "in use", self.told.append)  # type: ignore[arg-type]

    def records(self) -> list[ClusterRecord]:
        """Of its clusters."""
        return [ClusterRecord.of_row(row) for row in self.service.database.clusters_of("r")]


def have_places(monkeypatch: pytest.MonkeyPatch, answers: dict[str, Any]) -> None:
    """Providers answer like that, whoever asks them."""

    def get_provider(name: str, _place: object) -> FakeProvider:
        return (FakeHosts if hasattr(answers[name], "free") else FakeProvider)(answers[name])

    for module in ("trainmaster.providers", "trainmaster.service.driving.provider_connection"):
        monkeypatch.setattr(f"{module}.get_provider", get_provider)
