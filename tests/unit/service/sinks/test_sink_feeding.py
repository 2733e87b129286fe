"""Sinks: what tasks report comes to MLflow once, whatever is killed, and whatever is away."""

from __future__ import annotations

import json
import math
import re
from contextlib import suppress

import pytest
from fake_mlflow import FakeMlflow

from trainmaster.control.task.layout import Home
from trainmaster.db import AcceptedRun, ClosedAttempt, RunChange, TaskChange, sinks
from trainmaster.service import Service
from trainmaster.service.notifications.webhook_targets import ReceiverResponse
from trainmaster.service.sinks import feed
from trainmaster.service.sinks.feeding import SinkFeeder, check_sinks
from trainmaster.spec import Recipe
from trainmaster.spec.errors import RecipeError, UsageError
from trainmaster.spec.states import EndReason, State

RECIPE = """
name: job
sinks: {mlflow: {url: 'http://127.0.0.1:5000', experiment: shapes}}
experiments:
  main: {command: 'true', parameters: {lr: [0.1, 0.2]}}
"""


class Killed(BaseException):
    """The process is gone."""


class Place:
    """A home with a run of two tasks."""

    def __init__(self, root, text=RECIPE):
        home = Home(root, root / "cache", f"file://{root}/store", f"sqlite:///{root / 'trainmaster.db'}")
        self.service = Service(home)
        self.recipe = Recipe.from_text(text, directory=root)
        new = AcceptedRun(
            "job-a", "job", self.recipe.model_dump_json(), "r.yaml", "local", "c", home.store_url,
            [("main", 2)],
            home=str(root), home_id=home.identity(), sinks=tuple(self.recipe.sinks.by_kind),
        )  # fmt: skip
        self.lease = self.service.database.create_run(new, 1.0)
        self.mlflow = FakeMlflow()
        for task in (0, 1):
            fields = {"parameters": {"lr": 0.1 * (task + 1)}}
            self.change(task, State.WAITING, State.RUNNING, creates=True, opens=True, fields=fields)

    def change(self, task, before, after, reason=None, **more):
        self.service.database.commit(
            self.lease, [TaskChange("main", task, 1, before, after, reason, **more)], 2.0
        )

    def report(self, task, steps, **more):
        place = self.service.home.attempt("job-a", "main", task, 1)
        place.make_directories(["worker-0"])
        with place.metrics("worker-0").open("a") as file:
            file.writelines(
                json.dumps({"step": step, "loss": 1 / (step + 1), **more}) + "\n" for step in steps
            )

    def end(self):
        for task, reason in ((0, EndReason.SUCCEEDED), (1, EndReason.USER_ERROR)):
            closes = ClosedAttempt(1, reason, "", 1.0, 2.0, None, "[]")
            self.change(task, State.RUNNING, State.DONE, reason, closes=closes)
        over = RunChange(State.WAITING, State.DONE, EndReason.SUCCEEDED)
        self.service.database.commit(self.lease, [over], 3.0)

    def feeder(self, **environ):
        return SinkFeeder(self.service, environ, self.mlflow.post)

    @property
    def row(self):
        return self.service.database.read(sinks._S.select())[0]


@pytest.fixture
def place(tmp_path):
    found = Place(tmp_path)
    yield found
    found.service.close()


def test_a_task_becomes_a_run_with_its_parameters_values_and_end(place):
    place.report(0, range(3), accuracy=math.nan, name="text", time=7.5)
    assert place.feeder().feed("job-a"), "the run goes on"
    (run,) = [key for key, run in place.mlflow.runs.items() if run["name"] == "job-a/main/0"]
    assert place.mlflow.runs[run]["params"] == {"lr": "0.1"}
    assert place.mlflow.experiments == {"1": "shapes"}
    assert (run, "loss", 2, 7500, 1 / 3) in place.mlflow.values
    assert (run, "accuracy", 2, 7500, "NaN") in place.mlflow.values
    place.report(0, range(3, 5))
    place.end()
    assert not place.feeder().feed("job-a")
    assert len(place.mlflow.sent) == 8
    assert {run["name"]: run["status"] for run in place.mlflow.runs.values()} == {
        "job-a/main/0": "FINISHED",
        "job-a/main/1": "FAILED",
    }
    assert place.row["state"] == State.DONE
    before = len(place.mlflow.headers)
    assert not place.feeder().feed("job-a")
    assert len(place.mlflow.headers) == before, "it is never asked again"


def test_more_than_a_batch_is_sent_in_batches(place):
    place.report(0, range(2500))
    place.end()
    assert not place.feeder().feed("job-a")
    assert len(place.mlflow.values) == len(place.mlflow.sent) == 2500


@pytest.mark.parametrize("action", range(0, 34, 3))
def test_who_is_killed_anywhere_loses_nothing_and_sends_a_batch_twice_at_most(place, monkeypatch, action):
    place.report(0, range(1500))
    place.end()
    count = iter(range(1000))

    def dies(call):
        def maybe(*arguments, **named):
            number = next(count)
            if number == action // 2 and not action % 2:
                raise Killed
            found = call(*arguments, **named)
            if number == action // 2:
                raise Killed
            return found

        return maybe

    with monkeypatch.context() as patch, suppress(Killed):
        patch.setattr(feed.sinks, "save_cursor", dies(sinks.save_cursor))
        SinkFeeder(place.service, {}, dies(place.mlflow.post)).feed("job-a")
    place.report(1, range(5))  # what comes meanwhile does not change what is sent once more
    place.service.database.write(
        lambda connection, _: connection.execute(sinks._S.update().values(state=State.RUNNING))
    )
    place.feeder().feed("job-a")
    loss = {value for value in place.mlflow.values if value[1] == "loss"}
    of_first = [value for value in loss if place.mlflow.runs[value[0]]["name"] == "job-a/main/0"]
    assert len(of_first) == len({step for _, _, step, _, _ in of_first}) == 1500
    assert len(place.mlflow.sent) - len(place.mlflow.values) <= 1000
    assert len(place.mlflow.runs) == 2


def test_an_outage_loses_nothing_and_is_shown(place, monkeypatch):
    place.report(0, range(4))
    place.end()
    place.mlflow.trouble = ReceiverResponse(503, "HTTP 503")
    now = [1000.0]
    monkeypatch.setattr(type(place.service.database), "clock_s", lambda *_: now[0])
    for _ in range(3):
        assert place.feeder().feed("job-a")
        now[0] += 600
    assert place.row["failures"] == 3
    assert "HTTP 503" in place.row["trouble"]
    assert "HTTP 503" in place.feeder().trouble("job-a")
    asked = len(place.mlflow.headers)
    place.mlflow.trouble = None
    now[0] -= 600
    assert place.feeder().feed("job-a"), "it is not asked again at once"
    assert len(place.mlflow.headers) == asked
    now[0] += 1200
    assert not place.feeder().feed("job-a")
    assert (len(place.mlflow.values), place.row["trouble"]) == (4, "")


def test_what_is_refused_for_good_does_not_hold_up_the_rest(place):
    place.report(0, range(4))
    place.end()

    def before(url):
        place.mlflow.trouble = None
        if url.endswith("log-batch") and len(place.mlflow.headers) == 4:
            place.mlflow.trouble = ReceiverResponse(
                400, "HTTP 400", body=b'{"error_code": "INVALID", "message": "x"}'
            )

    place.mlflow.before = before
    assert not place.feeder().feed("job-a")
    assert "INVALID" in place.row["trouble"]
    assert place.row["state"] == State.DONE


@pytest.mark.parametrize("body", [b"<html>", b"{}", b'{"experiments": ["x"]}'])
def test_what_is_no_mlflow_is_named_and_tried_again(place, body):
    place.mlflow.trouble = ReceiverResponse(200, body=body)
    assert place.feeder().feed("job-a")
    assert "its answer has no experiment_id" in place.row["trouble"]
    assert place.row["try_at"] > 0


def test_a_mistake_of_ours_in_one_sink_does_not_hold_up_others(place, caplog):
    place.mlflow.before = {}.__getitem__
    assert place.feeder().feed("job-a")
    assert (place.row["trouble"], place.row["owner"]) == ("internal error: KeyError", None)
    assert "internal error" in caplog.text


def test_a_token_may_end_with_a_newline_and_is_never_told(tmp_path):
    text = RECIPE.replace("experiment: shapes", "experiment: shapes, token: T")
    place = Place(tmp_path, text)
    assert place.feeder(T="abc\n").feed("job-a")
    assert place.mlflow.headers[0]["authorization"] == "Bearer abc"
    place.service.close()


@pytest.mark.parametrize("token", ["a\nb", "\u00fc"])
def test_a_token_that_is_no_header_is_refused_without_its_value(tmp_path, token):
    place = Place(tmp_path, RECIPE.replace("experiment: shapes", "experiment: shapes, token: T"))
    assert place.feeder(T=token).feed("job-a")
    assert place.row["trouble"] == "the token of MLflow has characters that no header may have"
    place.service.close()


def test_who_sends_already_is_left_alone(place):
    place.report(0, range(4))
    row = sinks.open_sinks(place.service.database)[0]
    assert sinks.claim(place.service.database, row, "elsewhere:1:1", place.service.database.clock_s() + 60)
    assert not sinks.claim(place.service.database, row, "other:1:1", 1e12)
    assert place.feeder().feed("job-a")
    assert place.mlflow.headers == []


def test_runs_of_this_machine_are_not_a_servers_to_send(place):
    place.report(0, range(4))
    assert not place.feeder().feed()
    assert place.mlflow.headers == []


def test_secrets_go_into_the_header_only_and_are_asked_for_first(tmp_path):
    place = Place(tmp_path, RECIPE.replace("shapes", "shapes, login: MLFLOW_LOGIN"))
    place.report(0, range(1))
    place.feeder(MLFLOW_LOGIN="ann:pass").feed("job-a")
    assert place.mlflow.headers[0]["authorization"] == "Basic YW5uOnBhc3M="
    with pytest.raises(UsageError, match="MLFLOW_LOGIN"):
        check_sinks(place.service, place.recipe, {})
    check_sinks(place.service, place.recipe, {"MLFLOW_LOGIN": "x"})
    place.service.close()


def test_a_team_sends_by_https_to_no_address_of_the_server(tmp_path):
    place = Place(tmp_path)
    with pytest.raises(UsageError, match="not sent to"):
        check_sinks(place.service.of_team("red"), place.recipe, {})
    allowed = {"TRAINMASTER_WEBHOOK_NETWORKS": "127.0.0.0/8"}
    check_sinks(place.service.of_team("red"), place.recipe, allowed)
    place.service.close()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("sinks: mlflow", "write {mlflow: {url: URL}}"),
        ("sinks: {mlflow: {}}", "write the URL of the MLflow server"),
        ("sinks: {mlflow: {url: 'https://ann:x@mlflow.org'}}", "without a login"),
        ("sinks: {mlflow: {url: 'https://mlflow.org', token: A, login: B}}", "write one of them"),
        ("sinks: {mlflow: {url: 'https://mlflow.org', token: 'a b'}}", "name of a secret"),
        ("sinks: {mlfow: {}}", "mlflow"),
    ],
)
def test_mistakes_in_sinks_are_named(tmp_path, text, said):
    whole = f"name: job\n{text}\nexperiments: {{main: {{command: 'true'}}}}\n"
    with pytest.raises(RecipeError, match=re.escape(said)):
        Recipe.from_text(whole, directory=tmp_path)


def test_who_does_not_have_the_files_of_a_run_leaves_it_to_who_has(place, monkeypatch):
    def elsewhere(*_):
        raise UsageError("its files are on another machine", "")

    place.report(0, range(4))
    with monkeypatch.context() as patch:
        patch.setattr(place.service, "home_of", elsewhere)
        assert place.feeder().feed("job-a")
    assert (place.row["failures"], place.row["owner"], place.mlflow.headers) == (0, None, [])
    place.feeder().feed("job-a")
    assert len(place.mlflow.values) == 4
