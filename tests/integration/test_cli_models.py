"""`models`: what is kept, where, and how it is verified."""

from __future__ import annotations

from pathlib import Path

import pytest

COMMAND = """
    mkdir -p $TRAINMASTER_OUTPUT_DIR/deep/er
    echo weights > $TRAINMASTER_OUTPUT_DIR/model.bin
    echo tokens > "$TRAINMASTER_OUTPUT_DIR/deep/er/name with ä.txt"
    printf '#!/bin/sh\\n' > $TRAINMASTER_OUTPUT_DIR/run.sh; chmod +x $TRAINMASTER_OUTPUT_DIR/run.sh
    echo '{"accuracy": 0.9}' >> $TRAINMASTER_METRICS
"""


def one_model(tm, **env):
    return tm.run(tm.task(COMMAND), env={**tm.env, **env})["models"][0]["uri"]


def test_list_and_get(tm):
    uri = one_model(tm)
    listed = tm.call("models", "--json").json["models"]
    assert [model["uri"] for model in listed] == [uri]
    assert listed[0]["metrics"] == {"accuracy": 0.9}
    assert uri in tm.call("models", listed[0]["run"]).out
    target = tm.root / "got"
    assert "3 files" in tm.call("models", "get", uri, target).err
    files = sorted(str(path.relative_to(target)) for path in target.rglob("*") if path.is_file())
    assert files == ["deep/er/name with ä.txt", "model.bin", "run.sh"]
    assert (target / "model.bin").read_text() == "weights\n"
    assert (target / "run.sh").stat().st_mode & 0o100


def test_an_existing_directory_is_refused(tm):
    uri = one_model(tm)
    target = tm.root / "got"
    target.mkdir()
    (target / "mine.txt").write_text("precious")
    assert str(target) in tm.call("models", "get", uri, target, code=None).err
    assert [path.name for path in target.iterdir()] == ["mine.txt"]
    (target / "mine.txt").unlink()
    tm.call("models", "get", uri, target)  # an empty one is fine


@pytest.mark.parametrize("damage", ["changed", "shorter", "gone", "manifest"])
def test_a_damaged_model_is_refused(tm, damage):
    uri = one_model(tm)
    place = Path(uri.removeprefix("file://"))
    stored = place / "manifest.json" if damage == "manifest" else next(place.rglob("model.bin"))
    if damage == "changed":
        stored.write_text("weightz\n")
    elif damage == "shorter":
        stored.write_text("w")
    elif damage == "gone":
        stored.unlink()
    else:
        stored.write_text("{}")
    target = tm.root / "got"
    result = tm.call("models", "get", uri, target, code=None)
    assert result.code in (1, 2)
    assert result.err.startswith("error: ")
    assert not target.exists(), "half a model"


def test_a_model_that_is_not_there(tm):
    for uri in (f"file://{tm.root}/nothing", "nonsense", "file://relative/path", "gopher://x/y"):
        result = tm.call("models", "get", uri, tm.root / "got", code=None)
        assert result.code in (1, 2)
        assert result.err.startswith("error: "), result.err
        assert not (tm.root / "got").exists()


def test_the_store_may_be_elsewhere(tm):
    store = tm.root / "other store"
    uri = one_model(tm, TRAINMASTER_STORE=f"file://{store}")
    assert store.is_dir()
    assert not (tm.home / "store").exists()
    tm.call("models", "get", uri, tm.root / "got")
    assert (tm.root / "got" / "model.bin").exists()


def test_a_store_that_means_nothing_is_refused(tm):
    recipe = tm.task("touch $NOTES/ran")
    for url in ("gopher://host/x", "s3://", "file://relative/path"):
        assert url in tm.call("run", recipe, code=2, env={**tm.env, "TRAINMASTER_STORE": url}).err
    assert tm.runs() == []
    assert not (tm.notes / "ran").exists()


def test_other_members_files_go_under_members(tm):
    command = "echo $RANK > $TRAINMASTER_OUTPUT_DIR/rank"
    summary = tm.run(tm.task(command, distributed={"strategy": "allreduce", "workers": 2}))
    target = tm.root / "got"
    tm.call("models", "get", summary["models"][0]["uri"], target)
    found = {str(p.relative_to(target)): p.read_text().strip() for p in target.rglob("*") if p.is_file()}
    assert found == {"rank": "0", "members/worker-1/rank": "1"}


def test_an_empty_output_gives_no_model_and_a_failed_task_neither(tm):
    assert tm.run(tm.task("true"))["models"] == []
    assert tm.run(tm.task("echo x > $TRAINMASTER_OUTPUT_DIR/x; exit 1"), code=1)["models"] == []
    assert tm.call("models", "--json").json == {"models": []}


def test_what_is_written_beside_the_code_is_named_with_how_it_is_kept(tm):
    recipe = tm.task("echo x > best.pt; ln -s best.pt link; mkdir folder")
    said = tm.call("run", recipe).err
    run = tm.runs()[0]["run"]
    assert f"written beside the code, which keeps no model: best.pt. `trainmaster cp {run}:best.pt .`" in said
    tm.call("cp", f"{run}:best.pt", "got.pt")
    assert (tm.work / "got.pt").read_text() == "x\n"
    kept = tm.call("run", tm.task('echo x > best.pt; mv best.pt "$TRAINMASTER_OUTPUT_DIR"')).err
    assert "beside the code" not in kept


def test_every_task_of_a_sweep_has_its_model(tm):
    recipe = tm.task(
        "echo {{x}} > $TRAINMASTER_OUTPUT_DIR/x", parameters={"x": {"range": "10-19", "step": 1}}
    )
    models = tm.run(recipe)["models"]
    assert [model["task"] for model in models] == list(range(10))
    listed = tm.call("models", "--json").json["models"]
    assert sorted(model["parameters"]["x"] for model in listed) == list(range(10, 20))


def test_of_a_grid_each_line_has_its_parameters(tm):
    command = "[ {{lr}} = 0.1 ] && echo x > $TRAINMASTER_OUTPUT_DIR/x"
    run = tm.run(tm.task(command, parameters={"lr": [0.1, 0.2]}), code=1)
    assert [model["parameters"] for model in run["models"]] == [{"lr": 0.1}]
    head, row = tm.call("models", run["run"]).out.splitlines()
    assert "parameters" in head.split()
    assert "lr=0.1" in row.split()
    shown = tm.call("status", run["run"]).out
    assert "  main/1 (lr=0.2) USER_ERROR: exit code 1" in shown
    assert "  model main/0  lr=0.1  file://" in shown


def test_a_link_in_the_output_cannot_lead_outside(tm):
    (tm.root / "private.txt").write_text("private")
    recipe = tm.task(
        f"ln -s {tm.root}/private.txt $TRAINMASTER_OUTPUT_DIR/link; echo x > $TRAINMASTER_OUTPUT_DIR/x"
    )
    result = tm.call("run", recipe, "--json", code=None)
    for path in (tm.home / "store").rglob("*"):
        assert path.is_dir() or b"private" not in path.read_bytes() or path.name == "manifest.json"
    assert result.code in (0, 1)


def test_a_model_is_got_by_the_name_of_its_run(tm):
    command = "echo {{x}} > $TRAINMASTER_OUTPUT_DIR/x"
    run = tm.run(tm.task(command, parameters={"x": [1, 2]}))["run"]
    several = tm.call("models", "get", run, tm.root / "a", code=2).err
    assert "2 models" in several
    assert f"{run}/main/1" in several
    tm.call("models", "get", f"{run}/main/1", tm.root / "a")
    assert (tm.root / "a" / "x").read_text() == "2\n"
    assert f"{run}/main/0" in tm.call("models", "get", f"{run}/main/7", tm.root / "b", code=2).err
    assert "no run" in tm.call("models", "get", "nobody", tm.root / "b", code=2).err
    tm.run(tm.task("echo 3 > $TRAINMASTER_OUTPUT_DIR/x"))
    tm.call("models", "get", "latest", tm.root / "c")
    assert (tm.root / "c" / "x").read_text() == "3\n"


def test_tasks_that_leave_no_model_are_noted(tm):
    experiments = {
        "quiet": {"command": "true", "parameters": {"x": [1, 2]}},
        "told": {"command": "echo step 3 loss 0.5"},
        "kept": {"command": COMMAND},
    }
    told = tm.call("run", tm.recipe({"name": "job", "experiments": experiments})).err
    assert (
        "quiet: 2 tasks left no metrics and no model: nothing was written into TRAINMASTER_OUTPUT_DIR" in told
    )
    assert "told: step=3 loss=0.5, no model: nothing was written into TRAINMASTER_OUTPUT_DIR" in told
    assert "kept: " not in told.partition("kept: SUCCEEDED")[2]
    refused = tm.call("models", "get", "latest", tm.root / "got", code=2).err
    assert "latest: quiet, told left no model; the only one is of kept" in refused
