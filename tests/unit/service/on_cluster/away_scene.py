"""A home, and the machine that drives its run, in one process."""

from __future__ import annotations

import json
import os
import time
from types import SimpleNamespace
from unittest.mock import patch

import pytest

pytest.importorskip("boto3", reason="boto3 is not installed")

from trainmaster.control.task.layout import Home
from trainmaster.db import AcceptedRun
from trainmaster.db.run_files import SECRETS, private_place
from trainmaster.service import Service
from trainmaster.service.driving.encryption import SealingKey
from trainmaster.service.driving.replicas import send_code
from trainmaster.service.on_cluster import machine_driver
from trainmaster.service.on_cluster.assignment import Assignment, Record
from trainmaster.service.on_cluster.away import AwayRuns
from trainmaster.service.on_cluster.driver_store import DriverStore
from trainmaster.service.on_cluster.hand_over import HandingOver, _Ready
from trainmaster.service.on_cluster.machine_driver import MachineDriver
from trainmaster.service.on_cluster.publication import Publication
from trainmaster.spec import Recipe
from trainmaster.spec.errors import UsageError

WRITTEN = {"name": "r", "provider": "aws", "experiments": {"main": {"command": "true"}}}
RECIPE = Recipe.from_dict(WRITTEN)
RUN = "r-1"


class Scene:
    """A home, and the machine that is to drive its run."""

    run = RUN

    def __init__(self, place, monkeypatch, environ=None):
        monkeypatch.setattr(machine_driver, "_network", dict)
        self.place = place
        self.store_url = f"file://{place}/store"
        self.environ = {"TRAINMASTER_HOME": str(place / "home"), "TRAINMASTER_CACHE": str(place / "cache"),
                        "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret",
                        **(environ or {})}  # fmt: skip
        self.home = Service(Home.from_environment(self.environ))
        snapshot = self.home.home.snapshots / "1a2b"
        snapshot.mkdir(parents=True)
        (snapshot / "train.py").write_text("1")
        send_code(self.store_url, snapshot)
        key = SealingKey.of(self.home.home.root, self.environ)
        sealed = key.seal(json.dumps({"TOKEN": "hush"}).encode(), private_place(RUN, SECRETS))
        new = AcceptedRun(
            RUN, "r", RECIPE.model_dump_json(), "r.yaml", "aws", str(snapshot), self.store_url, [("main", 9)],
            home=str(self.home.home.root), home_id=self.home.home.identity(), can_move=True,
            private={SECRETS: sealed},
        )  # fmt: skip
        self.lease = self.home.database.create_run(new, time.time())
        self.sent: list[Assignment] = []
        self.last: list[Record] = []
        self.while_it_waits = lambda: None
        self.drivers: list[MachineDriver] = []
        self.publications: list[Publication] = []

    def hand_over(self, machine):
        """Hand the run over; ``machine`` is what it does when it is sent all: why it does not drive."""
        handing = self.handing = HandingOver(self.home, RUN, self.environ, lambda _: None)
        store = DriverStore.free(self.store_url, RUN)
        try:
            assignment = Assignment.unpacked(handing._assignment("c-1", "i-1", store).packed())
        except UsageError:  # as `HandingOver._prepare` takes it: it is driven here
            return False

        def begin(record):
            self.sent.append(assignment)
            self.last.append(Record.unpacked(record))
            return machine(self.sent[-1])

        link = SimpleNamespace(begin=begin, is_open=lambda: True)
        handing._ready = _Ready("c-1", "i-1", store.claim, assignment.record.begun, link)
        assert handing.is_due()
        self.while_it_waits()
        return handing.perform(self.lease)

    def driver(self, assignment=None):
        """The machine's driver, or the one after it."""
        with patch.dict(os.environ):
            found = MachineDriver(assignment or self.sent[-1], self.place / "machine")
        self.drivers.append(found)
        return found

    def begins(self, assignment):
        return "" if self.driver(assignment).settle(self.last[-1]) else "another driver has it"

    def drives(self, driver):
        """What it drives with."""
        lease = driver._service.database.acquire(RUN, time.time())
        driver._service.replicas.take_over(lease, driver._environ)
        publication = driver._publication(lease)
        publication._give_up = lambda: None
        self.publications.append(publication)
        return driver._service.database, lease, publication

    def away(self, lost_s=1e9):
        return AwayRuns(self.home, self.environ, lost_s)

    @property
    def row(self):
        return self.home.database.run_row(RUN)

    def is_free(self):
        """Whether this home may drive it."""
        return self.home.database.acquire(RUN, time.time()) is not None

    def silence(self):
        for publication in self.publications:  # their threads would go on until all tests are over
            publication._ended.set()
            publication._over.set()

    def close(self):
        self.silence()
        self.home.close()
        for driver in self.drivers:
            driver._service.close()


def lost_when_it_drives(scene, assignment):
    answer = scene.begins(assignment)
    scene.drives(scene.drivers[-1])[2].begin()
    return answer


def killed(*_, **__):
    raise KeyboardInterrupt
