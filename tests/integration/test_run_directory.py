"""What lies below a run's directory is carried to another driver, or nobody needs it: by a table of all."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from run_directory import ENTRIES, By, check, entry_of

import trainmaster
from trainmaster.db import Database
from trainmaster.db.run_facts import facts_of
from trainmaster.spec.facts import Fact

SCRIPT = """
import json, os, sys, time
from pathlib import Path

checkpoint, output = (Path(os.environ[f"TRAINMASTER_{name}_DIR"]) for name in ("CHECKPOINT", "OUTPUT"))
for step in range(1, 4):
    (checkpoint / "step").write_text(str(step))
    with open(os.environ["TRAINMASTER_METRICS"], "a") as file:
        file.write(json.dumps({"step": step, "loss": 1 / step}) + "\\n")
    print("step", step, os.environ["TOKEN"], flush=True)
    time.sleep(0.4)
(output / "model.txt").write_text("weights")
Path("beside-the-code.txt").write_text("what tasks write where they work")
if "fails-first" in sys.argv and os.environ["TRAINMASTER_ATTEMPT"] == "1":
    sys.exit(1)
"""


@pytest.mark.timeout(300)
def test_each_file_of_a_run_on_this_machine_has_a_line(tm):
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    pytest.importorskip("blake3", reason="blake3 is not installed")
    pytest.importorskip("sklearn", reason="it has the set that is built in")
    tm.write("train.py", SCRIPT)
    tm.write("images/a", "a")
    tm.call("volume", "push", tm.work / "images", "images")
    usual = {"command": "python3 train.py", "secrets": ["TOKEN"]}
    data = {
        "images": {"volume": "images", "at": "in/images"},
        "set": {"volume": "digits"},
        "here": {"dir": "images"},
        "url": {"url": f"file://{tm.work}/images"},
    }
    first = {**usual, "command": "python3 train.py fails-first", "retries": 1, "data": data}
    experiments = {
        "first": {**first, "checkpoint": {"every": "1s"}},
        "gang": {**usual, "distributed": {"workers": 2}, "framework": "plain"},
        "later": {**usual, "after": ["first", "gang"], "data": {"all": {"from": "gang"}, **data}},
        "best": {**usual, "after": ["first"], "data": {"one": {"from": "first", "best": "loss"}}},
    }
    recipe = tm.recipe({"name": "whole", "experiments": experiments})
    tm.env["TOKEN"] = "hush"
    run = tm.call("run", recipe, "--detach", "--json").json["run"]
    tm.call("logs", "-f", run)
    assert tm.status(run)["reason"] == "SUCCEEDED", tm.status(run)
    found = check(tm.home / "runs" / run)
    whys = {entry.why for entry in ENTRIES if entry.path in found}
    assert len(whys) >= 8, "a run that has most of what is in the table"

    database = Database(f"sqlite:///{tm.home}/trainmaster.db")
    facts = facts_of(database, run)
    database.close()
    version = re.compile(r"file://.*/volumes/images@1")
    assert version.fullmatch(facts.pop((Fact.VOLUME, "images")))
    assert facts.pop((Fact.VOLUME, "digits")) == "built-in:digits"
    assert {(kind, name) for kind, name in facts} == {(Fact.ENVIRONMENT, name) for name in experiments}


@pytest.mark.parametrize(
    ("path", "by"),
    [
        ("tasks/a/0/1/worker-0.log.12", By.REPLICA),
        ("tasks/a/0/1/roles.log", By.REPLICA),
        ("tasks/a/0/1/members/worker-1/x/y", By.STORE),
        ("inputs/hdfs-train.json", By.REPLICA),
        ("inputs/hdfs/name/current/VERSION", By.STORE),
        ("inputs/train/0/model.txt", By.STORE),
        ("inputs/train-best-val%2Floss/model.txt", By.STORE),
        ("inputs/volume-21b2eed1e328/a", By.ROW),
        ("inputs/volume-21b2eed1e328.volume", None),
        ("inputs/.volume-21b2eed1e328.draft/digits.csv", None),
        ("environment-train.json", None),
        ("notes.json", None),
        ("tasks/a/0/1/notes.json", None),
    ],
)
def test_what_an_earlier_version_kept_in_loose_files_has_no_line(path, by):
    entry = entry_of(path)
    assert (None if entry is None else entry.by) is by


#: Modules that name places of runs and write: what they write below a run's directory here, if anything.
#: New ones are to say what carries that to another driver.
WRITERS = {
    "cluster/node_files/data_orders.py": [],  # on nodes
    "hdfs/staging.py": ["output/"],
    "service/apps/tensorboard.py": [],  # into the directory of an app
    "service/runs/metric_export.py": [],
    "service/storage/removal.py": [],  # takes all of it away
    "service/runs/member_ways.py": [],  # what is known of hosts, beside the keys of a cluster
    "cluster/member_places.py": ["places.json"],
    "cluster/node_files/hdfs.py": ["inputs/hdfs.json"],
    "cluster/node_files/images.py": [],
    "cluster/node_files/staging.py": [],
    "cluster/node_files/remote_site.py": ["output/", "members/", "checkpoint/", "staging.lock"],
    "cluster/roles/node_roles.py": ["roles.log"],
    "control/loop/attempt_actions.py": ["checkpoint/", "output/"],
    "control/attempt/data_sources.py": ["inputs/volume-21b2eed1e328", "inputs/x"],
    "control/task/isolation.py": ["tmp/"],
    "control/task/layout.py": ["checkpoint/", "output/", "members/"],
    "control/attempt/saving.py": ["checkpoint/", "output/"],
    "control/attempt/staged_data.py": ["inputs/hdfs-x.json", "inputs/hdfs/"],
    "control/attempt/system_log.py": ["system-i-07.log"],
    "control/attempt/staging.py": ["inputs/x", "code/in/x", "checkpoint/"],
    "control/attempt/unpublished_checkpoint.py": ["checkpoint/", "restored.json"],
    "service/driving/background.py": ["control.log"],
    "service/driving/driver.py": ["control.log"],
    "service/driving/replicas.py": ["code/x", "worker-0.log"],
    "service/driving/run_watcher.py": ["shown"],
    "service/driving/sessions.py": ["code/x"],
    "service/quotes/profiling.py": ["code/x"],
    "service/sinks/feeding.py": ["wandb/"],
}
_PLACES = re.compile(
    r"\b(run_directory|data_directory|code_directory|data_path)\(|\bplace\.(directory|log|output|checkpoint|members|scratch|metrics)\b"
    r"|\bnote_(served|restored)\b|\b_record\b"
)
_WRITES = re.compile(
    r"write_text|write_bytes|open\([^)]*[\"'][wax]b?\+?[\"']|\.mkdir\(|symlink_to|copytree|copyfile|\.touch\("
    r"|write_private\(|create_private\(|materialise\(|move_into_place|\bmade_whole\(|\blocked\(|make_directories|\bwrite\(|\bfetch_models\(|\bpull\("
)


def test_each_module_that_writes_there_is_known_with_what_it_writes():
    root = Path(trainmaster.__file__).parent
    found = set()
    for package in ("control", "service", "cluster", "hdfs"):
        for path in (root / package).rglob("*.py"):
            text = path.read_text()
            if _PLACES.search(text) and _WRITES.search(text):
                found.add(str(path.relative_to(root)))
    assert found - WRITERS.keys() == set(), "add it, and what it writes, to WRITERS and to run_directory.py"
    for module, names in WRITERS.items():
        assert (root / module).is_file(), module
        for name in names:
            path = name if name.startswith(("inputs", "code", "control", "wandb")) else f"tasks/a/0/1/{name}"
            assert entry_of(path.rstrip("/")) is not None, (module, name)
    assert len({entry.path for entry in ENTRIES}) == len(ENTRIES)
