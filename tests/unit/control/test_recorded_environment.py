"""With what members have worked is written down once, wherever they were."""

from __future__ import annotations

import json
import subprocess
import sys
from types import SimpleNamespace

import pytest

from trainmaster.cluster.node_files.staging import NodeStaging
from trainmaster.control.attempt.local_site import LocalSite
from trainmaster.control.attempt.recorded_environment import (
    PROGRAM,
    environment_at,
    note_found,
)
from trainmaster.service.runs.capsule import differences
from trainmaster.spec.errors import UsageError
from trainmaster.spec.facts import Fact, RunFacts
from trainmaster.transport.base import Result


@pytest.fixture
def context(home):
    home.run_directory("r").mkdir(parents=True)
    experiment = SimpleNamespace(name="main", container=None, data={})
    return SimpleNamespace(
        home=home, run="r", experiment=experiment, venv=None, members=[],
        facts=RunFacts(),
    )  # fmt: skip


def noted(context):
    def nothing():
        raise UsageError("nothing was noted", "")

    try:
        return json.loads(context.facts.settled(Fact.ENVIRONMENT, "main", nothing))
    except UsageError:
        return None


def begin(context, prepare=None):
    site = LocalSite()
    site._images = SimpleNamespace(prepare=prepare)
    site.began(context)


def test_on_this_machine_it_is_that_of_this_python_and_the_first_one_stays(context):
    begin(context)
    assert noted(context) == environment_at()
    note_found(context, lambda: {"python": "other"})
    assert noted(context) == environment_at()


def test_of_a_container_it_is_the_image_and_its_digest(context):
    context.experiment.container = "python:3.12"
    begin(context, lambda _: SimpleNamespace(id="sha256:abc"))
    assert (noted(context)["image"], noted(context)["digest"]) == ("python:3.12", "sha256:abc")
    assert differences(noted(context), environment_at()) == [
        "it ran in the container python:3.12, sha256:abc"
    ]


def test_a_machine_tells_the_same_of_its_own_python(context):
    said = subprocess.run([sys.executable, "-E", "-s", "-c", PROGRAM], capture_output=True, text=True)
    found = json.loads(said.stdout)
    here = environment_at()
    assert (found["python"], found["platform"]) == (here["python"], here["platform"])
    assert found["packages"]["pytest"] == here["packages"]["pytest"]


@pytest.mark.parametrize(("code", "out"), [(1, ""), (0, "no JSON")])
def test_a_node_is_asked_by_its_python_and_one_that_cannot_tell_stops_nothing(context, code, out):
    asked = []

    def shell(_, command):
        asked.append(command)
        return Result(code, out, "")

    staging = NodeStaging(SimpleNamespace(shell=shell), None, None, None)
    node = SimpleNamespace(target=SimpleNamespace(python="/opt/python3"))
    staging.note_environment(node, context)
    assert noted(context) is None
    assert asked[0].startswith("/opt/python3 -E -s -c ")
    out = json.dumps(environment_at())
    code = 0
    staging.note_environment(node, context)
    assert noted(context) == environment_at()


def test_a_node_has_its_members_begin_before_it_is_asked_for_its_python(context, monkeypatch, tmp_path):
    asked, timers = [], []

    class Timer:
        def __init__(self, seconds, work):
            timers.append((seconds, work))

        def start(self):
            assert self.daemon

    monkeypatch.setattr("trainmaster.cluster.node_files.staging.threading.Timer", Timer)
    context.place = SimpleNamespace(checkpoint=tmp_path / "none")
    files = SimpleNamespace(make=lambda *_: None, shell=lambda *_: asked.append(1) or Result(1, "", ""))
    paths = SimpleNamespace(there=str)
    NodeStaging(files, None, paths, None).bring(SimpleNamespace(target=SimpleNamespace(python="")), context)
    ((seconds, work),) = timers
    assert (seconds, asked) == (1.0, [])
    work()
    assert asked == [1]


def test_an_image_that_cannot_be_had_is_for_staging_to_tell(context):
    def refuse(_):
        raise UsageError("there is no such image", "")

    context.experiment.container = "python:3.12"
    begin(context, refuse)
    assert noted(context) is None
