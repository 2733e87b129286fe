"""A destination that is away or hangs holds up no other one."""

from __future__ import annotations

import threading

import pytest
import typer
from test_sink_feeding import RECIPE, Place

from trainmaster.cli import metrics
from trainmaster.service.notifications.webhook_targets import ReceiverResponse
from trainmaster.service.sinks import feed, feeding, sink_thread, wandb
from trainmaster.service.sinks.feeding import Destination, SinkFeeder
from trainmaster.service.sinks.sink_thread import SinkThread
from trainmaster.testing.waits import until


@pytest.fixture
def gate():
    found = threading.Event()
    yield found
    found.set()  # threads that hang end


def test_mlflow_has_all_while_weights_and_biases_hangs(tmp_path, monkeypatch, gate):
    place = Place(tmp_path, RECIPE.replace("shapes}", "shapes}, wandb: {project: shapes}"))
    begun = threading.Event()

    class Hangs(feeding.WandbFeed):
        def feed(self):
            begun.set()
            gate.wait()
            return True

    monkeypatch.setattr(feeding, "FEEDS", {**feeding.FEEDS, "wandb": Hangs})
    monkeypatch.setattr(wandb, "wandb_python", lambda: "python")
    monkeypatch.setattr(sink_thread, "LOOK_S", 0.01)
    place.report(0, range(3))
    thread = SinkThread(place.feeder(), "job-a")
    thread.start()
    try:
        assert begun.wait(60)
        until(lambda: len(place.mlflow.sent) == 3, "values in MLflow")
        place.report(0, range(3, 5))
        place.end()
        until(lambda: len(place.mlflow.sent) == 5, "what came while the other one hung")
        gate.set()
        assert "wandb sync" in thread.finish()
    finally:
        thread.stop()
        place.service.close()


def test_at_the_end_what_was_away_is_asked_at_once_though_it_was_to_be_left_alone(tmp_path, monkeypatch):
    place = Place(tmp_path)
    monkeypatch.setattr(sink_thread, "LOOK_S", 0.01)
    monkeypatch.setattr(type(place.service.database), "clock_s", lambda *_: 1000.0)
    place.mlflow.trouble = ReceiverResponse(503, "HTTP 503")
    place.report(0, range(3))
    thread = SinkThread(place.feeder(), "job-a")
    thread.start()
    try:
        until(lambda: place.row["failures"] == 1, "its first failure")
        place.report(0, range(3, 5))
        place.end()
        place.mlflow.trouble = None
        assert thread.finish() == ""
        assert len(place.mlflow.sent) == 5
    finally:
        thread.stop()
        place.service.close()


def test_what_is_still_away_at_the_end_is_asked_once_and_the_rest_is_sent_by_hand(
    tmp_path, monkeypatch, capsys
):
    place = Place(tmp_path)
    monkeypatch.setattr(sink_thread, "LOOK_S", 0.01)
    monkeypatch.setattr(feed.Feed, "last_s", 60.0)
    place.mlflow.trouble = ReceiverResponse(503, "HTTP 503")
    place.report(0, range(3))
    place.end()
    assert place.feeder().feed("job-a")
    feeder, looks = place.feeder(), []
    monkeypatch.setattr(type(place.service.database), "clock_s", lambda *_: 1000.0)  # it is to be left alone

    def has_looked_often():
        looks.append(place.row["failures"])
        return looks.count(2) > 20

    thread = SinkThread(feeder, "job-a")
    thread.start()
    try:
        assert "`trainmaster metrics sync job-a` sends the rest" in thread.finish(has_looked_often)
        assert place.row["failures"] == 2
    finally:
        thread.stop()
        place.service.close()
    monkeypatch.setattr(feeding, "SinkFeeder", lambda opened, _: SinkFeeder(opened, {}, place.mlflow.post))
    monkeypatch.setenv("TRAINMASTER_HOME", str(tmp_path))
    monkeypatch.setattr(feed.Feed, "last_s", 0.05)
    with pytest.raises(typer.Exit) as ended:
        metrics.sync("job-a")
    assert ended.value.exit_code == 1
    monkeypatch.setattr(feed.Feed, "last_s", 60.0)
    place.mlflow.trouble = None
    for said in ("", "nothing is left to be sent"):
        metrics.sync("job-a")
        assert said in capsys.readouterr().err
    assert len(place.mlflow.sent) == 3


def test_a_team_with_many_that_hang_leaves_threads_for_others(monkeypatch, gate):
    red = {Destination("red", "mlflow", f"https://{number}.example.org") for number in range(20)}
    blue, fed = Destination("blue", "mlflow", "https://blue.example.org"), []

    class Feeder:
        def destinations(self, run):
            return red | {blue}

        def feed(self, run, to, *, is_at_once):
            assert not is_at_once
            fed.append(to)
            if to in red:
                gate.wait()
            return True

    monkeypatch.setattr(sink_thread, "LOOK_S", 0.01)
    thread = SinkThread(Feeder())
    thread.start()
    try:
        until(lambda: fed.count(blue) > 3, "turns of the other team")
        assert sum(to in red for to in fed) == 8
    finally:
        thread.stop()
