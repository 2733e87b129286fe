"""The sink for Weights & Biases: offline runs are written whole, and sent; an outage loses nothing."""

from __future__ import annotations

import json
import sys

import pytest
from test_sink_feeding import Place

from trainmaster.service.sinks import wandb
from trainmaster.service.sinks.feed import SinkError
from trainmaster.service.sinks.feeding import check_sinks
from trainmaster.service.sinks.sink_thread import SinkThread
from trainmaster.service.sinks.wandb import Wandb, wandb_python
from trainmaster.spec.errors import MissingPartError, UsageError
from trainmaster.spec.states import State

RECIPE = """
name: job
sinks: {wandb: {project: shapes, key: WANDB_API_KEY}}
experiments:
  main: {command: 'true', parameters: {lr: [0.1, 0.2]}}
"""


class FakeWandb:
    """What is written and sent, by name of the run."""

    def __init__(self):
        self.runs = {}
        self.sent = {}
        self.trouble = None

    def write(self, program, places, alive):
        for place in places:
            said = json.loads((place / "run.json").read_text())
            rows = [json.loads(line) for line in (place / "reports.jsonl").read_text().splitlines()]
            (place / "wandb" / "offline-run-1").mkdir(parents=True)
            self.runs[said["init"]["name"]] = said, rows
        alive()

    def sync(self, program, runs, alive):
        if self.trouble is not None:
            raise self.trouble
        for each in runs:
            said = json.loads((each.parent.parent / "run.json").read_text())
            self.sent[said["init"]["name"]] = self.runs[said["init"]["name"]]


@pytest.fixture
def fake(monkeypatch):
    found = FakeWandb()
    monkeypatch.setattr(wandb, "wandb_python", lambda: sys.executable)
    monkeypatch.setattr(Wandb, "write", lambda *given: found.write(*given))
    monkeypatch.setattr(Wandb, "sync", lambda *given: found.sync(*given))
    return found


@pytest.fixture
def place(tmp_path, fake):
    found = Place(tmp_path, RECIPE)
    yield found
    found.service.close()


def feeder(place):
    return place.feeder(WANDB_API_KEY="a" * 40)


def test_a_task_becomes_an_offline_run_which_is_sent(place, fake):
    place.report(0, range(3), _odd=1.0, time=7.5)
    assert feeder(place).feed("job-a"), "the run goes on"
    said, rows = fake.sent["job-a/main/0"]
    assert said["init"]["id"] == "job-a-main-0"
    assert (said["init"]["project"], said["init"]["config"], said["exit_code"]) == ("shapes", {"lr": 0.1}, 0)
    assert rows[2] == {"step": 2, "loss": 1 / 3, "odd_": 1.0, "attempt": 1, "_timestamp": 7.5}
    place.report(0, range(3, 5))
    assert feeder(place).feed("job-a")
    assert len(fake.sent["job-a/main/0"][1]) == 3, "not so often"
    place.end()
    assert not feeder(place).feed("job-a")
    assert len(fake.sent["job-a/main/0"][1]) == 5
    assert fake.sent["job-a/main/1"][0]["exit_code"] == 1
    assert place.row["state"] == State.DONE
    assert (place.service.home_of("job-a").run_directory("job-a") / "wandb" / "main-0" / "wandb").is_dir()


def test_an_outage_of_wandb_loses_nothing(place, fake, monkeypatch):
    place.report(0, range(4))
    place.end()
    now = [1000.0]
    monkeypatch.setattr(type(place.service.database), "clock_s", lambda *_: now[0])
    fake.trouble = SinkError("W&B does not answer: no route")
    for _ in range(3):
        assert feeder(place).feed("job-a")
        now[0] += 600
    assert (place.row["failures"], fake.sent) == (3, {})
    assert "no route" in feeder(place).trouble("job-a")
    fake.trouble = None
    assert not feeder(place).feed("job-a")
    assert {name: len(rows) for name, (_, rows) in fake.sent.items()} == {
        "job-a/main/0": 4,
        "job-a/main/1": 0,
    }


def test_who_is_killed_between_writing_and_sending_does_both_again(place, fake):
    place.report(0, range(4))
    place.end()
    fake.trouble = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        feeder(place).feed("job-a")
    fake.trouble = None
    place.report(0, range(4, 6))
    feeder(place).feed("job-a")
    assert len(fake.sent["job-a/main/0"][1]) == 6


def test_without_a_key_runs_are_written_and_the_user_is_told_how_to_send_them(tmp_path, fake):
    place = Place(tmp_path, RECIPE.replace(", key: WANDB_API_KEY", ""))
    place.report(0, range(4))
    place.end()
    thread = SinkThread(place.feeder(), "job-a")
    thread.start()
    assert f"wandb sync {tmp_path}/runs/job-a/wandb/" in thread.finish()
    assert (len(fake.runs), fake.sent) == (2, {})
    place.service.close()


def test_what_cannot_work_is_refused_before_the_run(place, monkeypatch):
    with pytest.raises(UsageError, match="WANDB_API_KEY"):
        check_sinks(place.service, place.recipe, {})
    check_sinks(place.service, place.recipe, {"WANDB_API_KEY": "x"})
    elsewhere = RECIPE.replace("project: shapes, key: WANDB_API_KEY", "url: 'http://127.0.0.1:8080'")
    recipe = type(place.recipe).from_text(elsewhere, directory=place.service.home.root)
    check_sinks(place.service, recipe, {})
    with pytest.raises(UsageError, match="TRAINMASTER_WANDB_URL"):
        check_sinks(place.service.of_team("red"), recipe, {})
    check_sinks(place.service.of_team("red"), recipe, {"TRAINMASTER_WANDB_URL": "http://127.0.0.1:8080"})


def test_a_machine_without_wandb_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr(wandb, "find_spec", lambda _: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingPartError, match="W&B is not installed"):
        wandb_python()
    (tmp_path / "wandb").write_text("#!/bin/sh\n")
    (tmp_path / "wandb").chmod(0o700)
    (tmp_path / "python").touch()
    assert wandb_python() == str(tmp_path / "python")


def stand_in(tmp_path, script):
    """A Python that is none."""
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o700)
    return Wandb("https://w.example.org", "secret", str(python), tmp_path / "place")


def test_only_what_has_a_mark_was_taken_and_last_words_are_told(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "disabled")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not for it")
    run = tmp_path / "offline-run-1"
    run.mkdir()
    program = stand_in(tmp_path, f'env > {tmp_path}/env; echo "$@" > {tmp_path}/words; echo denied')
    with pytest.raises(SinkError, match="denied"):
        program.sync([run], lambda: None)
    assert (tmp_path / "words").read_text() == f"-m wandb sync {run}\n"
    environ = dict(line.split("=", 1) for line in (tmp_path / "env").read_text().splitlines())
    assert environ["WANDB_API_KEY"] == "secret"
    assert environ["HOME"] == str(tmp_path / "place")
    assert not {"WANDB_MODE", "AWS_SECRET_ACCESS_KEY"} & set(environ)
    (run / "run-1.wandb.synced").touch()
    program.sync([run], lambda: None)
    with pytest.raises(SinkError, match="no such module"):
        stand_in(tmp_path, "echo no such module >&2; exit 3").write([run], lambda: None)


def test_a_wandb_that_does_not_answer_is_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(wandb, "_LONGEST_S", -1.0)
    monkeypatch.setattr(wandb, "_LOOK_S", 0.01)
    renewed = []
    with pytest.raises(SinkError, match="does not answer"):
        stand_in(tmp_path, "exec sleep 1000").write([], lambda: renewed.append(1))
    assert renewed
