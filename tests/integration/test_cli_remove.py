"""Runs that are over are removed, with what nothing else needs."""

from __future__ import annotations

RECIPE = {
    "name": "first",
    "experiments": {
        "train": {"command": "echo 1 > $TRAINMASTER_OUTPUT_DIR/w; echo 2 > $TRAINMASTER_CHECKPOINT_DIR/c"}
    },
}


def test_a_run_is_removed_once_that_was_agreed_to(tm):
    run = tm.call("run", tm.recipe(RECIPE), "--json").json["run"]
    told = tm.call("rm", "latest", "--dry-run", "--json").json
    assert [(each["run"], each["outcome"]) for each in told["runs"]] == [(run, "REMOVED")]
    refused = tm.call("rm", run, code=2)
    assert "no terminal to ask on" in refused.err
    assert run in refused.out
    tm.call("models", "register", run, "digits")
    assert "its model is digits@1" in tm.call("rm", run, "--yes").out
    assert tm.call("status", run, "--json").json["reason"] == "SUCCEEDED"
    assert tm.call("models", "get", "digits@1", tm.root / "got").err
    tm.call("models", "rm", "digits@1")
    shown = tm.call("df", "--json").json
    assert [each["run"] for each in shown["runs"]] == [run]
    assert "models" in tm.call("df").out
    assert tm.call("prune", "checkpoints", "--dry-run", "--json").json["kinds"]["checkpoints"]["count"] == 0
    assert "nothing is left" in tm.call("prune").err
    assert "runs are named, and chosen" in tm.call("rm", run, "--older-than", "3d", code=2).err
    said = tm.call("rm", run, "--yes", "--json")
    gone = said.json
    assert said.out.count("\n") == 1
    assert gone["runs"][0]["outcome"] == "REMOVED"
    assert gone["bytes"] == gone["runs"][0]["bytes"] + sum(gone["shared"].values()) > 0
    assert "there is no run" in tm.call("status", run, code=2).err
    assert "no run that is over fits" in tm.call("rm", "--older-than", "1h").err
    other = tm.call("run", tm.recipe(RECIPE | {"labels": {"paper": "draft"}}), "--json").json["run"]
    assert "no run that is over fits" in tm.call("rm", "--label", "paper=final").err
    assert other in tm.call("rm", "--label", "paper=draft", "--older-than", "0s", "--yes").out
    assert "which runs?" in tm.call("rm", code=2).err
