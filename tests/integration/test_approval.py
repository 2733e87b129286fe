"""A step that waits for a person's yes: at home, on a server by REST and on the page, whatever is killed."""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request

import pytest
from running_server import RunningServer

RECIPE = """
name: release
experiments:
  train:
    command: echo trained
  deploy:
    after: train
    approval: required
    command: touch "$NOTES/deployed"
"""


def release(tm):
    return tm.recipe(
        {
            "name": "release",
            "experiments": {
                "train": {"command": "echo trained >> $NOTES/ran"},
                "deploy": {
                    "after": ["train"],
                    "approval": "required",
                    "command": "echo deployed >> $NOTES/ran",
                },
            },
        }
    )


def approval_of(tm, run):
    return tm.status(run)["experiments"]["deploy"].get("approval", {})


def waits(tm, background):
    """The run, once it asks."""
    run = background.run_id()
    background.until(lambda: approval_of(tm, run) == {"state": "awaited"}, "it asks")
    return run


def test_a_run_waits_for_a_person_also_when_its_driver_is_killed(tm):
    background = tm.start("run", release(tm))
    run = waits(tm, background)
    background.until(lambda: "waits_for" in tm.status(run).get("queued", {}), "it says for what")
    status = tm.status(run)
    assert status["experiments"]["deploy"]["state"] == "WAITING"
    assert status["queued"]["waits_for"] == "a person's approval of deploy"
    assert f"trainmaster approve {run} deploy" in background.err
    assert f"`trainmaster approve {run} deploy` says yes" in (shown := tm.call("status", run).out)
    assert "of them waiting)" in shown
    background.kill()
    refused = tm.call("approve", run, "train", code=2)
    assert "waits for nobody's approval" in refused.err
    unknown = tm.call("approve", run, "nosuch", code=2).err
    assert "it is no experiment of it" in unknown
    assert "Those that wait for it: deploy." in unknown
    again = tm.start("resume", run)
    said = tm.call("approve", run, "--why", "it is good", "--json")
    assert "deploy is approved" in said.err
    again.wait(0)
    assert tm.marks("ran") == ["trained", "deployed"]
    status = tm.status(run)
    assert status["reason"] == "SUCCEEDED"
    assert approval_of(tm, run)["state"] == "approved"
    assert approval_of(tm, run)["why"] == "it is good"
    assert "was answered already" in tm.call("approve", run, "deploy", code=2).err


def test_what_is_denied_ends_so_and_is_asked_anew_by_resume(tm):
    background = tm.start("run", release(tm))
    run = waits(tm, background)
    background.kill()
    tm.call("approve", run, "deploy", "--deny", "--why", "not today")
    tm.call("resume", run, code=1)  # it was denied while nobody drove the run, and that counts
    status = tm.status(run)
    assert status["reason"] == "DENIED"
    assert "not today" in status["experiments"]["deploy"]["message"]
    again = tm.start("resume", run)
    again.until(lambda: approval_of(tm, run) == {"state": "awaited"}, "it asks again")
    tm.call("approve", run)
    again.wait(0)
    assert tm.marks("ran") == ["trained", "deployed"]


def test_people_answer_on_a_server_by_rest_and_on_the_page(tm):
    token = tm.call("token", "create", "me", "--scopes", "admin", "--json").json["token"]
    reader = tm.call("token", "create", "looks", "--scopes", "read", "--json").json["token"]
    server = RunningServer(tm.start, token)
    server.start()
    runs = [server.ask("POST", "/runs", {"recipe": RECIPE})[1]["run"] for _ in range(2)]

    def approval(run):
        return server.ask("GET", f"/runs/{run}")[1]["experiments"]["deploy"].get("approval", {})

    for run in runs:
        server.process.until(lambda run=run: approval(run) == {"state": "awaited"}, "it asks")
    server.process.kill()
    server.start()
    answer = f"/runs/{runs[0]}/experiments/deploy/approval"
    with pytest.raises(urllib.error.HTTPError) as refused:
        RunningServer.ask(
            looking(server, reader), "POST", f"/runs/{runs[0]}/experiments/deploy/approval", {"approve": True}
        )
    assert refused.value.code == 403
    refused.value.close()
    server.ask("POST", answer, {"approve": True})
    with server.open("GET", f"/runs/{runs[1]}") as page:
        shown = page.read().decode()
    assert "Approve deploy" in shown
    assert "trainmaster approve" not in shown  # a command line is for those who have one
    form = urllib.parse.urlencode({"experiment": "deploy", "say": "deny", "why": "no"}).encode()
    server.open(
        "POST", f"/runs/{runs[1]}/approval", form, Content_Type="application/x-www-form-urlencoded"
    ).close()
    for run, reason in zip(runs, ("SUCCEEDED", "DENIED"), strict=True):
        server.process.until(lambda run=run: ended(server, run), "it ends")
        assert server.ask("GET", f"/runs/{run}")[1]["reason"] == reason
    with server.open("GET", f"/runs/{runs[1]}") as page:
        assert page.read().decode().lower().count("denied by me") == 2  # at the top, and of the experiment
    events = server.ask("GET", f"/runs/{runs[0]}/events")[1]["events"]
    assert any(event["message"] == "deploy was approved by me" for event in events)
    actions = json.dumps(server.ask("GET", "/audit")[1]["audit"])
    assert answer in actions


def ended(server, run):
    return server.ask("GET", f"/runs/{run}")[1]["state"] == "DONE"


def looking(server, token):
    found = RunningServer(server.begin, token)
    found.url = server.url
    return found
