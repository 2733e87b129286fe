"""Data of a run are the same whatever drives it: its home, its own machine, another server."""

from __future__ import annotations

import json
import os
import shutil
import signal
import zipfile
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray", reason="ray is not installed")
pytest.importorskip("boto3", reason="boto3 is not installed")
pytest.importorskip("pyarrow", reason="pyarrow is not installed")
pytest.importorskip("blake3", reason="blake3 is not installed")
pytest.importorskip("sklearn", reason="it has the set that is built in")

from renter import Renter, drivers, with_engine
from run_directory import check

from trainmaster.testing.waits import until

# That a machine drives with a volume is in `test_lab_elsewhere.py`, that its loss brings the run home in
# `test_lab_on_cluster.py`, that versions go along in `tests/unit/db/test_run_transfer.py`: all meet here
pytestmark = [pytest.mark.crossings, pytest.mark.ray, pytest.mark.s3, pytest.mark.timeout(1500)]

RECIPE = """
name: steps
experiments:
  first:
    data: {pets: {volume: pets}}
    hardware: {instance: m4.2xlarge}
    command: |
      echo pets $(cat $TRAINMASTER_DATA_PETS/version)
      until [ -e /var/tmp/go ]; do sleep 0.2; done
  second:
    after: [first]
    data:
      pets: {volume: pets}
      cats: {volume: cats}
      digits: {volume: 'built-in:digits'}
      more: {dir: more}
    hardware: {instance: m4.2xlarge}
    command: |
      echo attempt $TRAINMASTER_ATTEMPT: pets $(cat $TRAINMASTER_DATA_PETS/version) \\
        cats $(cat $TRAINMASTER_DATA_CATS/version) $(cat $TRAINMASTER_DATA_MORE/more) \\
        $(wc -l < $TRAINMASTER_DATA_DIGITS/digits.csv) digits
      [ $TRAINMASTER_ATTEMPT -gt 1 ] || sleep 900
"""


def push(renter: Renter, name: str, version: int, **env: str) -> None:
    """A version whose files say its number."""
    source = renter.work.parent / "pushed"
    source.mkdir(exist_ok=True)
    (source / "version").write_text(f"{version}\n")
    assert f"{name}@{version}:" in renter.call("volume", "push", source, name, **env).stderr


def test_a_machine_that_drives_has_what_data_need_and_all_see_what_the_first_task_saw(
    lab: Any, renter: Renter, store: Any, tmp_path: Path
) -> None:
    before = lab.alive()
    (renter.work / "more").mkdir()
    (renter.work / "more" / "more").write_text("more")
    for name in ("pets", "cats"):
        push(renter, name, 1)
    renting = renter.run(renter.recipe(RECIPE, "ray"), "--on-cluster")
    run = renting.run
    renting.until_said("drives it from now on")
    (driver,) = drivers(run)
    push(renter, "pets", 2)

    def said(experiment: str) -> str:
        return renter.call("logs", run, "--experiment", experiment, code=None).stdout

    renting.until(lambda: "pets 1" in said("first"), "the first task has begun")
    Path(f"/proc/{driver}/root/var/tmp/go").touch()
    there = "pets 1 cats 1 more"
    renting.until(lambda: f"attempt 1: {there}" in said("second"), "a later experiment has its data")
    push(renter, "cats", 2)
    lab.ec2.terminate_instances(InstanceIds=sorted(lab.alive() - before))
    renting.until_said("it goes on, driven from here in the background")
    assert renting.end()["reason"] == "SUCCEEDED", renting.text
    assert renter.attempts(run, experiment=1) == ["NODE_LOST", "SUCCEEDED"]
    assert f"attempt 2: {there}" in said("second")

    check(renter.lab.home / "taken" / run / "runs" / run)
    url = renter.env["TRAINMASTER_STORE"]
    capsule = tmp_path / "capsule.zip"
    renter.call("export", run, capsule)
    with zipfile.ZipFile(capsule) as archive:
        made = json.loads(archive.read("capsule.json"))["experiments"]
    sources = {(name, each["name"]): each["source"] for name in made for each in made[name]["data"]}
    assert sources["first", "pets"] == sources["second", "pets"] == f"{url}/volumes/pets@1"
    assert sources["second", "cats"] == f"{url}/volumes/cats@1", "as the machine has seen it"
    assert all(made[name]["environment"]["python"] for name in made)
    until(lambda: lab.alive() == before, "its machines are gone")


#: Machines are rented anew, twice.
AGAIN_S = 600.0
#: Its first task fails, so that it is resumed where another server has taken it over.
MOVED = """
name: steps
experiments:
  first:
    data: {pets: {volume: pets}}
    hardware: {instance: m4.2xlarge}
    command: |
      echo pets $(cat $TRAINMASTER_DATA_PETS/version)
      [ $TRAINMASTER_ATTEMPT -gt 1 ] || { sleep 20; exit 3; }
  second:
    after: [first]
    data: {pets: {volume: pets}}
    hardware: {instance: m4.2xlarge}
    command: echo pets $(cat $TRAINMASTER_DATA_PETS/version)
"""


def test_another_server_goes_on_with_the_version_that_the_first_task_saw(
    lab: Any, renter: Renter, lab_servers: Any, tmp_path: Path
) -> None:
    a, b = lab_servers("a"), lab_servers("b")
    before = lab.alive()
    made = renter.call("token", "create", "ci", "--scopes", "read,run", "--json", **a.env)
    a.token = b.token = json.loads(made.stdout)["token"]
    push(renter, "pets", 1, **a.env)
    lost, process = a.start(), b.start()
    run = a.send("", {"recipe": with_engine(MOVED), "provider": "lab", "max_usd": 50})[1]["run"]

    def said(experiment: str) -> str:
        return b.read(f"/runs/{run}/logs?experiment={experiment}").decode()

    def told() -> list[Any]:
        rows = b.json(f"/runs/{run}/events")["events"]
        return [[row[name] for name in ("kind", "task", "after", "reason", "message")] for row in rows]

    process.until(lambda: "pets 1\n" in said("first"), "the first task has begun")
    driver = b.json(f"/runs/{run}")["driver"]["pid"]
    lost.kill()
    os.kill(driver, signal.SIGKILL)
    shutil.rmtree(a.home)
    push(renter, "pets", 2, **b.env)

    process.until(lambda: b.json(f"/runs/{run}")["state"] == "DONE", "the run has ended")
    assert b.json(f"/runs/{run}")["reason"] == "USER_ERROR", told()  # its script's
    assert "something is mounted" not in str(told())
    before_it = len(told())

    def is_resumed() -> bool:
        """Not while its driver gives back machines of the run that has ended."""
        assert b.ask("POST", f"/runs/{run}/resume")[0] < 300
        return len(told()) > before_it

    process.until(is_resumed, "it is resumed")

    process.until(lambda: told()[-1][:3] == ["run", None, "DONE"], "its end", AGAIN_S)
    assert b.json(f"/runs/{run}")["reason"] == "SUCCEEDED", told()
    assert said("second") == "pets 1\n"
    assert said("first").count("pets 1\n") == 2
    assert "pets 2" not in said("first")
    check(b.home / "taken" / run / "runs" / run)
    capsule = tmp_path / "capsule.zip"
    capsule.write_bytes(b.read(f"/runs/{run}/capsule.zip"))
    with zipfile.ZipFile(capsule) as archive:
        made_of = json.loads(archive.read("capsule.json"))["experiments"]
    url = b.env["TRAINMASTER_STORE"]
    for name in ("first", "second"):
        assert [each["source"] for each in made_of[name]["data"]] == [f"{url}/volumes/pets@1"]
        assert made_of[name]["environment"]["python"]
    process.until(lambda: lab.alive() == before, "no machine is left")
