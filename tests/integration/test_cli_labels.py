"""Labels, notes and conditions through the command line: written, found, kept; and never a secret in them."""

from __future__ import annotations

import json

RECIPE = """\
name: toy
labels: {project: vision, owner: ann}
secrets: [TOKEN]
experiments:
  train:
    retries: 0
    parameters: {lr: [0.1, 0.001]}
    command: 'echo step 1 loss={{lr}}; test -e $NOTES/fine'
"""


def test_runs_are_labelled_found_resumed_and_exported(tm):
    env = {**tm.env, "TOKEN": "a-secret-value"}
    recipe = tm.recipe(RECIPE)
    refused = tm.call("run", recipe, "--label", "x=see a-secret-value", code=2, env=env)
    assert "labels.x holds the value of a secret" in refused.err
    assert tm.runs() == []
    tm.call("run", recipe, "--label", "project=audio", "--label", "n=1", "--json", code=1, env=env)
    run = tm.runs()[0]["run"]
    assert tm.status(run)["labels"] == {"n": "1", "owner": "ann", "project": "audio"}
    tm.call("label", run, "owner-", "stage=x a-secret-value", env=env)
    noted = tm.call("note", run, "why a-secret-value", "--json", env=env)
    assert noted.json["labels"] == {"n": "1", "project": "audio", "stage": "x ***"}
    assert noted.json["note"] == "why ***"
    shown = tm.call("status", "--where", "loss < 0.01 and lr < 0.01", "--label", "project=audio").out
    assert "n=1, project=audio, stage=x ***" in shown
    head, line = shown.splitlines()
    assert head.split() == ["run", "state", "took", "cost", "age", "loss", "lr", "labels"]
    assert " 0.001  0.001 to 0.1  " in line
    assert "note: why ***" in tm.call("status", run).out
    assert "no run fits" in tm.call("status", "--label", "project=vision").err
    tm.call("views", "save", "best", "--where", "loss < 0.01", "--sort", "-cost")
    assert tm.call("views", "--json").json["views"][0]["query"] == "where=loss+%3C+0.01&sort=-cost"
    both = tm.call("status", "--view", "best", "--label", "project=audio", "--json")
    assert [each["run"] for each in both.json["runs"]] == [run]
    tm.call("views", "rm", "best")
    assert "no view 'best'" in tm.call("status", "--view", "best", code=2).err
    wrong = tm.call("status", "--where", "loss <", code=2).err
    assert "where, column 7" in wrong
    assert "        ^" in wrong
    assert "which run?" in tm.call("cancel", code=2).err
    assert "not both" in tm.call("cancel", run, "--label", "n=1", code=2).err
    over = tm.call("cancel", "--label", "n=1").err
    assert "1 run fits, and had ended already" in over
    assert run not in over
    (tm.notes / "fine").touch()
    tm.call("resume", "--label", "n=1", env=env)
    tm.until(lambda: tm.status(run)["reason"] == "SUCCEEDED", "its end")
    assert tm.status(run)["note"] == "why ***"
    capsule = tm.root / "c.zip"
    tm.call("export", run, capsule)
    again = tm.call("run", capsule, "--json", env=env)
    assert again.json["labels"] == {"n": "1", "project": "audio", "stage": "x ***"}
    costs = tm.call("cost", "--by", "label:project", "--json").json
    assert [(row["key"], row["runs"], row["usd"]) for row in costs["rows"]] == [("audio", 2, 0.0)]
    assert tm.call("cost", "--label", "n=1", "--since", "1d").out.split()[-7:-5] == ["2", "$0"]
    assert tm.call("cost", "--by", "run", "--csv").out.count("\n") == 3
    assert "a-secret-value" not in json.dumps(tm.runs())
