"""Event files of tasks on other machines: brought as they grow, and nothing else of what machines say."""

from __future__ import annotations

import json
import subprocess

import pytest

from trainmaster.cluster.member_places import PLACES
from trainmaster.control.task.layout import Home
from trainmaster.db import AcceptedRun
from trainmaster.providers.base import root_on_nodes
from trainmaster.service import Service
from trainmaster.service.apps import tensorboard
from trainmaster.service.apps.tensorboard import NodeEvents
from trainmaster.spec import Recipe

RECIPE = "name: job\nprovider: lab\nexperiments:\n  main: {command: 'true'}\n"


class Machines:
    """Directories that answer as machines do."""

    def __init__(self, root):
        home = Home(root, root / "cache", f"file://{root}/store", f"sqlite:///{root / 'trainmaster.db'}")
        self.service, self.root, self.lie = Service(home), root / "machines", None
        recipe = Recipe.from_text(RECIPE, directory=root).model_dump_json()
        new = AcceptedRun(
            "job-a", "job", recipe, "r.yaml", "lab", "c", home.store_url, [("main", 1)],
            home=str(root), home_id=home.identity(),
        )  # fmt: skip
        self.service.database.create_run(new, 1.0)
        place = home.attempt("job-a", "main", 0, 2).directory
        place.mkdir(parents=True)
        (place / PLACES).write_text(json.dumps({"worker-0": "m-1", "worker-1": "m-2"}))
        self.there = root_on_nodes(home.identity())
        self.asked = 0

    def path(self, machine, name):
        found = self.root / machine / "runs/job-a" / name
        found.parent.mkdir(parents=True, exist_ok=True)
        return found

    def ask(self, machine, command):
        self.asked += 1
        if self.lie is not None:
            return self.lie
        here = command.replace(self.there, str(self.root / machine))
        return subprocess.run(["sh", "-c", here], capture_output=True, check=False).stdout

    def events(self, most_bytes=1 << 20):
        return NodeEvents(self.service, "job-a", self.root / "here", {}, most_bytes, self.ask)


@pytest.fixture
def machines(tmp_path, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(tensorboard, "boot_s", lambda: now[0])
    found = Machines(tmp_path)
    found.now = now
    yield found
    found.service.close()


def files(machines):
    here = machines.root / "here"
    return {str(path.relative_to(here)): path.read_bytes() for path in here.rglob("*") if path.is_file()}


def test_event_files_grow_here_as_they_grow_there(machines):
    events = machines.events()
    first = machines.path("m-1", "tasks/main/0/2/output/events.out.tfevents.1 $x")
    first.write_bytes(b"abc")
    machines.path("m-1", "tasks/main/0/2/output/model.bin").write_bytes(b"no")
    machines.path("m-2", "code/logs/events.out.tfevents.2").write_bytes(b"code")
    assert events.look() == 2
    asked = machines.asked
    assert (events.look(), machines.asked) == (0, asked), "machines are not asked again at once"
    first.write_bytes(b"abcdef")
    machines.now[0] += tensorboard.LOOK_S
    assert events.look() == 1
    assert files(machines) == {
        "main/0/output/events.out.tfevents.1 $x": b"abcdef",
        "logs/events.out.tfevents.2": b"code",
    }


def test_what_is_too_large_is_left_there(machines):
    machines.path("m-1", "tasks/main/0/2/a.tfevents").write_bytes(b"x" * 100)
    assert machines.events(most_bytes=99).look() == 0
    assert machines.events(most_bytes=100).look() == 1


def test_a_file_of_two_machines_is_that_of_the_first(machines):
    for machine in ("m-1", "m-2"):
        machines.path(machine, "tasks/main/0/2/a.tfevents").write_bytes(machine.encode())
    assert machines.events().look() == 1
    assert files(machines) == {"main/0/a.tfevents": b"m-1"}


@pytest.mark.parametrize(
    "said",
    [
        b"5 tasks/main/0/2/../../../../../x.tfevents\n",
        b"5 /etc/x.tfevents\n",
        b"5 tasks/x.tfevents\n",
        b"5 tasks/main/0/2/passwd\n",
        b"-5 tasks/main/0/2/x.tfevents\n",
        b"99999999999999999999 tasks/main/0/2/x.tfevents\n",
        b"\xff\xfe nonsense\n\n5\n",
    ],
)
def test_a_machine_that_lies_writes_nothing_elsewhere(machines, said):
    machines.lie = said
    assert machines.events().look() == 0
    assert files(machines) == {}


def test_a_run_that_is_over_is_not_asked(machines):
    from trainmaster.db import tables as t

    machines.service.database.write(lambda c, _: c.execute(t.run.update().values(state="DONE")))
    assert machines.events().look() == 0
    assert machines.asked == 0
