"""A destination that is away or hangs holds up no other one."""

from __future__ import annotations

import threading

import pytest
from test_sink_feeding import RECIPE, Place

from trainmaster.service.sinks import feeding, sink_thread
from trainmaster.service.sinks.feeding import Destination
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

    monkeypatch.setattr(feeding, "WandbFeed", Hangs)
    monkeypatch.setattr(feeding, "wandb_python", lambda: "python")
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


def test_a_team_with_many_that_hang_leaves_threads_for_others(monkeypatch, gate):
    red = {Destination("red", "mlflow", f"https://{number}.example.org") for number in range(20)}
    blue, fed = Destination("blue", "mlflow", "https://blue.example.org"), []

    class Feeder:
        def destinations(self, run):
            return red | {blue}

        def feed(self, run, to):
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
