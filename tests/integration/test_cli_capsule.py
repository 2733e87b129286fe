"""A run is exported, and runs again elsewhere: the same code and data, bit for bit the same weights."""

from __future__ import annotations

import json
import zipfile

SCRIPT = """
import os, pathlib, random
random.seed(7)
data = pathlib.Path(os.environ["TRAINMASTER_DATA_NUMBERS"], "numbers.txt").read_text().split()
weights = [0.0] * 64
for step in range(200):
    for at in range(64):
        weights[at] += 0.1 * (float(random.choice(data)) - weights[at])
pathlib.Path(os.environ["TRAINMASTER_OUTPUT_DIR"], "weights.txt").write_text(repr(weights))
"""


def weights(tm, run):
    target = tm.root / f"got-{run}"
    tm.call("models", "get", f"{run}/train", target)
    return (target / "weights.txt").read_bytes()


def test_a_capsule_runs_elsewhere_and_leaves_the_same_weights(tm):
    (tm.work / "numbers").mkdir()
    (tm.work / "numbers" / "numbers.txt").write_text("1 2 3 5 8 13")
    volume = f"file://{tm.root}/volumes/numbers"
    tm.call("volume", "push", tm.work / "numbers", volume)
    tm.write("train.py", SCRIPT, 0o755)
    experiment = {"command": "python3 train.py", "data": {"numbers": {"volume": volume}}}
    experiments = {"train": experiment, "plain": {"command": "true"}}
    first = tm.run(tm.recipe({"name": "sum", "seed": 7, "experiments": experiments}))["run"]
    (tm.work / "numbers" / "numbers.txt").write_text("0")
    tm.call("volume", "push", tm.work / "numbers", volume)  # the next version is another one

    capsule = tm.root / "my sum.capsule"
    assert f"`trainmaster run '{capsule}'` runs it again anywhere" in tm.call("export", first, capsule).err
    assert "there already" in tm.call("export", first, capsule, code=2).err
    with zipfile.ZipFile(capsule) as archive:
        about = json.loads(archive.read("capsule.json"))
        assert "code/train.py" in archive.namelist()
        assert f"{volume}@1" in archive.read("recipe.yaml").decode()
    assert (about["seed"], about["reason"], about["needs"]) == (7, "SUCCEEDED", [])
    for name in experiments:
        assert about["experiments"][name]["environment"]["packages"]["pytest"]
    assert list(about["models"][0]["files"]) == ["weights.txt"]

    before = weights(tm, first)
    (tm.work / "train.py").unlink()
    elsewhere = {
        **tm.env,
        "TRAINMASTER_HOME": str(tm.root / "home-2"),
        "TRAINMASTER_CACHE": str(tm.root / "c"),
    }
    assert tm.call("check", capsule, "--json", env=elsewhere).json["experiments"].keys() == set(experiments)
    again = tm.call("run", capsule, "--json", env=elsewhere)
    assert "packages differ" not in again.err
    second = tm.summary(again)
    (model,) = second["models"]
    target = tm.root / "again"
    tm.call("models", "get", model["uri"], target, env=elsewhere)
    assert (target / "weights.txt").read_bytes() == before


def test_what_it_has_begun_with_of_earlier_runs_is_named_and_can_be_left_out(tm):
    script = [
        """echo '{"step": 1, "loss": 1}' >> $TRAINMASTER_METRICS""",
        "touch $TRAINMASTER_CHECKPOINT_DIR/at",
    ]
    search = {"metric": "loss", "goal": "min", "sampler": "random"}
    train = {"parameters": {"x": [1, 2, 3, 4]}, "samples": 2, "search": search, "command": script}
    earlier = tm.run(tm.recipe({"name": "first", "experiments": {"train": train}}))["run"]
    goes_on = {**train, "search": {**search, "from": "latest"}, "checkpoint": {"from": "latest/train/0"}}
    later = tm.run(tm.recipe({"name": "later", "experiments": {"train": goes_on}}))["run"]

    capsule = tm.root / "later.capsule"
    told = tm.call("export", later, capsule).err
    without = []
    for key, meant in (("checkpoint", f"{earlier}/train/0@1"), ("search", f"{earlier}/train")):
        assert f"experiments.train.{key}.from: {meant}" in told
        without += ["--set", f"experiments.train.{key}.from=null"]
    found = tm.status(tm.run(capsule)["run"])["experiments"]["train"]
    assert found["begins_with"] == f"{earlier}/train/0@1", "what it was, not what is `latest` now"
    assert found["search"]["from"] == f"{earlier}/train@2"
    elsewhere = {**tm.env, "TRAINMASTER_HOME": str(tm.root / "home-2")}
    assert f"there is no run '{earlier}'" in tm.call("run", capsule, env=elsewhere, code=2).err
    again = tm.call("run", capsule, *without, "--json", env=elsewhere)
    assert tm.summary(again)["reason"] == "SUCCEEDED"
