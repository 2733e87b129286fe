from __future__ import annotations

import pytest

from trainmaster.api import run as module
from trainmaster.api.results import RunStatus
from trainmaster.api.run import Run
from trainmaster.spec import errors
from trainmaster.spec.states import EndReason, State


class Answers:
    """A `ClientProtocol` with one run, as far as these tests ask."""

    undriven_s = 3.0

    def __init__(self, *briefs, status=None, pieces=()):
        self.briefs = list(briefs)
        self.found = status
        self.pieces = pieces
        self.asked = []

    def brief(self, run):
        return self.briefs.pop(0) if len(self.briefs) > 1 else self.briefs[0]

    def status(self, run):
        return RunStatus.of(self.found)

    def models(self, run):
        return []

    def logs(self, run, query):
        self.asked.append(query)
        return iter(self.pieces)

    def events(self, run, after):
        return []

    def cancel(self, run):
        self.asked.append("cancel")


def brief(state, reason=None, driven=True, **more):
    return {"state": state, "reason": reason, "driven": driven, **more}


def status(reason, message=""):
    experiment = {"state": "DONE", "reason": reason, "message": message, "tasks": {"total": 1}}
    found = {"run": "r-1", "state": "DONE", "reason": reason, "seconds": 1.0, "cost_usd": 0.5}
    return {**found, "experiments": {"main": experiment}, "models": []}


RUNNING, DONE = brief("RUNNING"), brief("DONE", "SUCCEEDED", driven=False)


@pytest.fixture(autouse=True)
def _no_sleep(monkeypatch):
    monkeypatch.setattr(module, "_POLL_S", 0.0)


def test_wait_ends_with_the_run():
    run = Run(Answers(RUNNING, RUNNING, DONE), "r-1")
    assert run.wait() is run
    assert (run.state, run.reason, run.succeeded) == (State.DONE, EndReason.SUCCEEDED, True)


def test_wait_gives_up_when_it_is_told_to():
    with pytest.raises(TimeoutError) as caught:
        Run(Answers(RUNNING), "r-1").wait(timeout_s=0)
    assert isinstance(caught.value, errors.WaitTimeoutError)
    assert (caught.value.run, caught.value.hint) == ("r-1", "It goes on: wait() again, or cancel() it.")


def test_a_run_that_nobody_drives_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(Answers, "undriven_s", -1.0)
    alone = brief("RUNNING", driven=False)
    with pytest.raises(errors.UndrivenError, match="nobody drives it"):
        Run(Answers(alone), "r-1").wait()
    with pytest.raises(errors.UndrivenError):
        list(Run(Answers(alone), "r-1").events(follow=True))
    with pytest.raises(errors.UndrivenError):
        list(Run(Answers(alone), "r-1").logs(follow=True))


def test_a_task_does_not_wait_for_a_run_that_waits_for_it(monkeypatch):
    queued = brief("RUNNING", queued={"held": {"outer-1": 2}})
    monkeypatch.setenv("TRAINMASTER_RUN", "outer-1")
    with pytest.raises(errors.RunError, match=r"cores that outer-1 holds(.|\n)*a home of its own"):
        Run(Answers(queued), "r-1").wait()
    monkeypatch.setenv("TRAINMASTER_RUN", "another-1")
    Run(Answers(queued, DONE), "r-1").wait()


def test_check_says_why():
    assert Run(Answers(DONE, status=status("SUCCEEDED")), "r-1").check().id == "r-1"
    with pytest.raises(errors.RunFailedError, match="r-1: USER_ERROR: exit code 3"):
        Run(Answers(DONE, status=status("USER_ERROR", "exit code 3")), "r-1").check()
    with pytest.raises(errors.RunError, match=r"wait\(\) for it"):
        Run(Answers(RUNNING, status={**status(None), "state": "RUNNING"}), "r-1").check()


def test_logs_are_lines():
    answers = Answers(DONE, pieces=[b"one\ntw", b"o\n\xff", b" three"])
    assert list(Run(answers, "r-1").logs(tail=3)) == ["one", "two", "\ufffd three"]
    assert answers.asked[0].tail == 3


@pytest.mark.parametrize(
    ("lines", "again_s", "times"),
    [
        ([RUNNING, brief("STOPPING"), brief("STOPPING"), DONE], 60.0, 1),
        ([brief("STOPPING"), brief("STOPPING"), DONE], 0.0, 1),
        ([RUNNING, DONE], 0.0, 2),
        ([brief("STOPPING", driven=False), DONE], 0.0, 2),
    ],
)
def test_cancel_asks_once_and_again_if_it_does_not_stop(lines, again_s, times, monkeypatch):
    monkeypatch.setattr(module, "_AGAIN_S", again_s)
    answers = Answers(*lines)
    Run(answers, "r-1").cancel()
    assert answers.asked == ["cancel"] * times


def test_a_run_that_was_removed_is_not_one_without_models():
    class Gone(Answers):
        def brief(self, run):
            raise errors.NotFoundError(f"there is no run {run!r}")

    assert Run(Answers(DONE), "r-1").models == []
    with pytest.raises(errors.NotFoundError, match="there is no run 'r-1'"):
        _ = Run(Gone(), "r-1").models
