"""The home that contracts of clients ask about, and what they compare."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from trainmaster.api import ClientProtocol
from trainmaster.api.embedded import EmbeddedClient
from trainmaster.artifacts import publish
from trainmaster.control.task.layout import Home
from trainmaster.db import AcceptedRun, ClosedAttempt, RunChange, TaskChange
from trainmaster.db.changes import Note
from trainmaster.service import Service
from trainmaster.service.runs.run_names import owner_of
from trainmaster.spec import Recipe
from trainmaster.spec.errors import TrainmasterError
from trainmaster.spec.states import EndReason, State

RECIPE: Final = "name: job\nexperiments:\n  main: {command: 'echo hello; cat more.txt', retries: 0}\n"
#: What a task of `record_run` has written.
LOG: Final = "step 1\nstep 2\nstep 3\n"


def record_run(service: Service, run: str, at: float) -> None:
    """Write down a run that has succeeded, with a log, points and a model, as if it had been driven."""
    recipe = Recipe.from_text(RECIPE, directory=service.home.root)
    store = service.home.store_url
    names = (run, "job", recipe.model_dump_json(), "r.yaml", "local", "code", store, [("main", 1)])
    new = AcceptedRun(*names, home=str(service.home.root), home_id=service.home.identity())
    lease = service.database.create_run(new, at)
    place = service.home.attempt(run, "main", 0, 1)
    place.make_directories(["worker-0"])
    place.metrics("worker-0").write_text(
        "".join(json.dumps({"step": n, "loss": 1 / n}) + "\n" for n in (1, 2))
    )
    place.log("worker-0").write_text(LOG)
    left = service.home.root / f"left-{run}"
    (left / "deep").mkdir(parents=True)
    (left / "deep" / "weights ü.bin").write_bytes(bytes(range(256)))
    (left / "deep" / "weights ü.bin").chmod(0o755)
    (left / "newest").symlink_to("deep/weights ü.bin")
    uri = service.home.model_uri(run, "main", 0)
    owner = owner_of(service.database.run_row(run), service.home)
    publish({"": left}, uri, kind="model", owner=owner)
    closes = ClosedAttempt(1, EndReason.SUCCEEDED, "", at, at + 2, None, "[]")
    fields = {"model_uri": uri, "metrics": {"step": 2, "loss": 0.5}}
    service.database.commit(
        lease,
        [
            TaskChange("main", 0, 1, State.WAITING, State.RUNNING, creates=True, opens=True, fields=fields),
            Note("it is told", "main", 0),
            TaskChange("main", 0, 1, State.RUNNING, State.DONE, EndReason.SUCCEEDED, closes=closes),
            RunChange(State.WAITING, State.DONE, EndReason.SUCCEEDED),
        ],
        at + 2,
    )
    service.database.release(lease, at + 2)


def refusal(ask: Callable[[], object]) -> str:
    """What is refused, and how: ``none`` if nothing is."""
    try:
        ask()
    except TrainmasterError as error:
        return f"{type(error).__name__}: {error}"
    return "none"


class ContractHome:
    """Inherited by contracts of clients: a home of its own with two runs that have ended."""

    @pytest.fixture
    def home(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
        """The home that is asked about, with a cache of its own."""
        root = tmp_path / "home"
        monkeypatch.setenv("TRAINMASTER_CACHE", os.fspath(root / "cache"))
        return Home(root, root / "cache", f"file://{root}/store", f"sqlite:///{root / 'trainmaster.db'}")

    @pytest.fixture
    def client(self, home: Home) -> ClientProtocol:
        """The client that is asked, about the home."""
        raise NotImplementedError("give your tests a `client` fixture")

    @pytest.fixture
    def at_home(self, home: Home) -> Any:
        """The home itself: what it answers is right."""
        home.root.mkdir()
        found = EmbeddedClient(home.root)
        for number, run in enumerate(("job-aaaa000001", "job-bbbb000002")):
            record_run(found._service, run, 1000.0 + number)
        yield found
        found.close()
