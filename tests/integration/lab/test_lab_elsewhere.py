"""A run is the same at every door, wherever it is driven: a table, with what the run has in it.

`make crossings` runs all of it; `make test` the places that no other test of the lab has.
"""

from __future__ import annotations

import csv
import hashlib
import itertools
import json
import os
import secrets
import shutil
import signal
import subprocess
import urllib.request
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray", reason="ray is not installed")
pytest.importorskip("boto3", reason="boto3 is not installed")
pytest.importorskip("cryptography", reason="cryptography is not installed")
pytest.importorskip("fastapi", reason="the extra `server` is not installed")

from command_server import TRAINMASTER
from private_engines import IMAGE, NoEngineError, PrivateEngine
from renter import DEADLINE_S, Renter, Renting
from running_server import RunningServer
from server_of_lab import LabServer

from trainmaster.testing.waits import until

pytestmark = [pytest.mark.ray, pytest.mark.s3, pytest.mark.timeout(900)]

#: Says what it has been given, and ends when somebody has come to its machine and said so.
SCRIPT = """
import hashlib, json, os, subprocess, sys, time
from pathlib import Path

os.makedirs("served", exist_ok=True)
Path("served/page").write_text("page")
command = [sys.executable, "-m", "http.server", "8123", "--bind", "127.0.0.1", "-d", "served"]
subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # one on each machine can
print("image", os.environ.get("FROM_IMAGE", "none"), flush=True)
print("rate", os.environ.get("TRAINMASTER_PARAM_RATE", "none"), flush=True)
if "TOKEN" in os.environ:
    print("secret", hashlib.sha256(os.environ["TOKEN"].encode()).hexdigest(), flush=True)
if "TRAINMASTER_DATA_PETS" in os.environ:
    print("pets", (Path(os.environ["TRAINMASTER_DATA_PETS"]) / "names").read_text(), flush=True)
pause_s = 0.2 * ("QUOTED" in os.environ)
for step in range(1, 301 if pause_s else 4):
    with open(os.environ["TRAINMASTER_METRICS"], "a") as file:
        file.write(json.dumps({"step": step, "loss": 1 / step}) + "\\n")
    time.sleep(pause_s)
while not Path("go").exists():
    time.sleep(0.2)
(Path(os.environ["TRAINMASTER_OUTPUT_DIR"]) / "model.txt").write_text("weights")
"""
RECIPE = """
name: steps
experiments:
  train:
    command: python3 facts.py
    hardware: {instance: m4.2xlarge}
"""
SECRET = "hf_" + hashlib.sha256(b"elsewhere").hexdigest()
#: What a run may have in it, as lines of the recipe.
PARTS = {
    "single": "",
    "gang": "    distributed: {strategy: allreduce, workers: 2}\n    framework: plain\n",
    "sweep": "    parameters: {rate: [1, 2]}\n",
    "volume": "    data: {pets: {volume: pets}}\n",
    "container": f"    container: {IMAGE}\n",
    "secret": "    secrets: [TOKEN]\n",
    "gate": "    require: {metric: loss, at_most: 1}\n",
    # Of steps that take a minute: it takes ten seconds and more until something is promised.
    "quote": "    steps: 300\n    env: {QUOTED: 1}\n",
}
#: What it says of each of its containers on hosts of the lab.
OF_PODMAN = "Resource limits are not supported and ignored on cgroups V1 rootless systems"
STEPS = {"1": "1.0", "2": "0.5", "3": "0.33"}
#: Who is asked, of a run that is driven: at home; on its cluster; at home again, as its machine was lost;
#: by another server than the one that is asked, mostly for a team; by this one, which has taken it over.
#: Of some that its cluster drives the server of its home is asked, which nobody else helps to know of it.
PLACES = ("home", "cluster", "back", "other server", "taken over")
#: With all tests, `test_lab_on_cluster.py` has a run that its cluster drives, `test_lab_two_servers.py` one
#: that another server takes over.
ALL = (
    *itertools.product(PLACES, PARTS),
    *((place, "volume secret gate") for place in ("cluster", "taken over")),
    *(("its server", parts) for parts in ("single", "volume secret gate")),
)


@dataclass
class Door:
    """Where a user asks of a run: a home of her own, or one that has logged in to a server.

    Attributes:
        renter: what calls the command line.
        env: of every call.
        run: its id.
        place: for what is brought here.
    """

    renter: Renter
    env: dict[str, str]
    run: str
    place: Path

    def call(self, *arguments: object) -> str:
        return self.renter.call(*arguments, **self.env).stdout

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.call("status", self.run, "--json"))
        return found

    def metrics(self) -> set[tuple[str, str, str]]:
        file = self.place / "metrics.csv"
        self.call("metrics", "export", self.run, "--csv", file)
        with file.open() as opened:
            rows = [row for row in csv.DictReader(opened) if row["step"] in STEPS]
            return {(row["task"], row["step"], row["loss"][:4]) for row in rows}

    def capsule(self) -> dict[str, Any]:
        file = self.place / "run.zip"
        file.unlink(missing_ok=True)
        self.call("export", self.run, file)
        with zipfile.ZipFile(file) as archive:
            about = json.loads(archive.read("capsule.json"))
            recipe = archive.read("recipe.yaml").decode()
        (made,) = about["experiments"].values()
        return {
            "data": [(each["name"], each["source"].rpartition("/")[2]) for each in made["data"]],
            # Of what is not staged it is known when something of it is saved; an image has its own Python.
            "environment": _words(made["environment"]) if about["state"] == "DONE" else "",
            "models": sorted(each["model"] for each in about["models"]),
            "pinned": "pets@1" in recipe,
        }

    def clusters(self) -> list[dict[str, Any]]:
        """What is rented for the run; other tests of this lab may have left something."""
        found = json.loads(self.call("clusters", "--json"))["clusters"]
        return [each for each in found if each["run"] == self.run]

    def page(self) -> str:
        forward = self.renter.start("port-forward", self.run, "0:8123", **self.env)
        url = forward.until_said(r"(http://127\.0\.0\.1:\d+) is").group(1)
        try:
            with urllib.request.urlopen(f"{url}/page", timeout=60) as answer:
                return str(answer.read().decode())
        finally:
            forward.interrupt()
            forward.process.wait(DEADLINE_S)

    def app(self) -> bool:
        """Whether a browser is shown what answers at that port."""
        opened = self.renter.start("open", self.run, "worker-0:8123", **self.env)
        until(lambda: "\n" in opened.out or opened.process.poll(), "it says where", DEADLINE_S)
        browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        try:
            with browser.open(opened.out.strip(), timeout=60) as answer:
                return 'href="page"' in answer.read().decode()
        finally:
            opened.interrupt()  # a server's goes on; it ends with the run
            opened.process.wait(DEADLINE_S)

    def lines(self) -> set[str]:
        """What its members have said, without whose it is: an attempt that was lost has said the same."""
        said = self.call("logs", self.run).splitlines()
        return {line.rpartition(" | ")[2] for line in said} - {OF_PODMAN}

    # --- what is told ----------------------------------------------------------------------------------

    def is_running(self, tasks: int) -> bool:
        found = self.status()
        return found["state"] == "RUNNING" and len({task for task, _, _ in self.metrics()}) == tasks

    def promised(self) -> dict[str, float] | None:
        """The seconds of a quote that binds."""
        found = self.status().get("quote", {"kind": ""})
        return found["time_s"] if found["kind"] == "binding" else None

    def is_working_again(self, lost: str) -> bool:
        """On another machine than the one that was lost."""
        done = self.renter.call("exec", self.run, "--", "cat served/page", code=None, **self.env)
        machines = {machine["id"] for one in self.clusters() for machine in one["machines"]}
        return done.stdout == "page" and lost not in machines

    def is_driven_by_another(self, before: int) -> bool:
        driver = self.status()["driver"] or {"state": "gone"}
        return driver["state"] == "working" and driver["pid"] not in (None, before)

    def while_it_runs(self) -> dict[str, Any]:
        found = self.status()
        self.call("cp", f"{self.run}:served/page", self.place / "page")
        (listed,) = self.clusters()
        return {
            "driver": found["driver"]["state"],
            "note of what is rented": " x m4.2xlarge (us-east-1" in self.call("status", self.run),
            "logs": self.lines(),
            "metrics": self.metrics(),
            "exec": self.call("exec", self.run, "--", "cat served/page"),
            "ssh": self.call("ssh", self.run, "worker-0", "--", "echo $TRAINMASTER_RUN"),
            "cp": (self.place / "page").read_text(),
            "port-forward": self.page(),
            "open": self.app(),
            "capsule": self.capsule(),
            "clusters": (listed["state"], listed["run"]),
        }

    def go(self) -> None:
        """Whoever drives it, all of its machines are reached."""
        for member in ("worker-0", "worker-1"):
            self.renter.call("exec", self.run, member, "--", "touch go", code=None, **self.env)

    def when_it_is_over(self) -> dict[str, Any]:
        found = self.status()
        (experiment,) = found["experiments"].values()
        return {
            "ended": (found["state"], found["reason"], experiment["tasks"]["succeeded"]),
            "gate": "gate" in experiment,
            "billed": found["cost_usd"] > 0,
            "logs": self.lines(),
            "metrics": self.metrics(),
            "capsule": self.capsule(),
            "models": sorted(each["uri"].rpartition(self.run)[2] for each in found["models"]),
        }


def _words(environment: dict[str, Any]) -> str:
    return str(environment["python"][:2] or environment["image"])


def expected(parts: str, run: str, *, attempt: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """What is told of a run with these parts while it runs, and when it is over."""
    tasks = ("0", "1") if "sweep" in parts else ("0",)
    lines = {"rate 1", "rate 2"} if "sweep" in parts else {"rate none"}
    lines.add("image yes" if "container" in parts else "image none")
    if "secret" in parts:
        lines.add(f"secret {hashlib.sha256(SECRET.encode()).hexdigest()}")
    if "volume" in parts:
        lines.add("pets felix")
    has_volume = "volume" in parts
    number = "" if attempt == 1 else f"-attempt-{attempt}"
    capsule = {
        "data": [("pets", "pets@1")] if has_volume else [],
        "environment": "",
        "models": [],
        "pinned": has_volume,
    }
    both = {
        "logs": lines,
        "metrics": {(task, step, loss) for task in tasks for step, loss in STEPS.items()},
    }
    return (
        both
        | {
            "driver": "working",
            "note of what is rented": True,
            "exec": "page",
            "ssh": f"{run}\n",
            "cp": "page",
            "port-forward": "page",
            "open": True,
            "capsule": capsule,
            "clusters": ("used", run),
        },
        both
        | {
            "ended": ("DONE", "SUCCEEDED", len(tasks)),
            "gate": "gate" in parts,
            "billed": True,
            "capsule": capsule
            | {
                "environment": IMAGE if "container" in parts else "3.",
                "models": [f"train/{task}" for task in tasks],
            },
            "models": [f"/train/{task}{number}" for task in tasks],
        },
    )


class Places:
    """Where runs are driven; each gives the door at which it is asked for."""

    def __init__(self, lab: Any, renter: Renter, request: pytest.FixtureRequest, place: Path) -> None:
        self.lab, self.renter, self._request, self._place = lab, renter, request, place
        self.begun: Renting | None = None

    def begin(self, place: str, recipe: Path, parts: str) -> Door:
        tasks = 2 if "sweep" in parts else 1
        if place in ("home", "cluster", "back", "its server"):
            return self._at_home(place, recipe, tasks)
        return self._on_servers(place, recipe, tasks, parts)

    def _at_home(self, place: str, recipe: Path, tasks: int) -> Door:
        self._request.getfixturevalue("store")
        self._push({})
        before = self.lab.alive()
        options = [] if place == "home" else ["--on-cluster"]
        self.begun = renting = self.renter.run(recipe, *options, TOKEN=SECRET)
        # What asks of a run need not have its secrets; what drives it goes on with them.
        door = Door(self.renter, {"TOKEN": SECRET} if place == "back" else {}, renting.run, self._place)
        if place != "home":
            renting.until_said("drives it from now on")
        renting.until(lambda: door.is_running(tasks), "it runs")
        if place == "back":
            driver = door.clusters()[0]["machines"][0]["id"]
            assert driver in self.lab.alive() - before
            self.lab.call("terminate", driver)
            renting.until_said("it goes on, driven from here in the background")
            renting.until(lambda: "NODE_LOST" in self.renter.attempts(door.run), "it is known to be lost")
            renting.until(lambda: door.is_working_again(driver), "its second attempt")
        elif place == "its server":
            token = json.loads(self.renter.call("token", "create", secrets.token_hex(4), "--json").stdout)
            server = RunningServer(self.renter.start)
            server.start()
            door.env |= {"TRAINMASTER_URL": server.url, "TRAINMASTER_TOKEN": token["token"]}
            renting.kill()
        return door

    def _on_servers(self, place: str, recipe: Path, tasks: int, parts: str) -> Door:
        servers = self._request.getfixturevalue("lab_servers")
        a, b = servers("a"), servers("b")
        # Images of a server's own engine are not sent to a team's machines.
        is_team = place == "other server" and "container" not in parts
        if is_team:
            self.renter.call("team", "create", "vision", **a.env)
            self.renter.call("team", "add-member", "vision", "ann", "--role", "manager", **a.env)
        of_team = ("--team", "vision", "--user", "ann") if is_team else ()
        scopes = ("--scopes", "read,run,manage")
        made = self.renter.call("token", "create", "ci", *scopes, *of_team, "--json", **a.env)
        token = a.token = json.loads(made.stdout)["token"]
        if not is_team:
            a.env["TOKEN"] = SECRET
        lost = a.start()
        b.start()
        of_a, of_b = (self._user(name, server, token) for name, server in (("ann", a), ("bob", b)))
        self._push(of_a if is_team else a.env)
        if is_team:
            a.open("PUT", "/api/v1/secrets/TOKEN", {"value": SECRET}).close()
        renting = self.renter.start("run", recipe, "--provider", "lab", "--yes", "--json", "--detach", **of_a)
        run = renting.end()["run"]
        door = Door(self.renter, of_b, run, self._place)
        until(lambda: door.is_running(tasks), "it runs", DEADLINE_S)
        if place == "taken over":
            if "quote" in parts:  # it may have made its steps when somebody drives it again
                until(door.promised, "a quote that binds", DEADLINE_S)
            driver = door.status()["driver"]["pid"]
            lost.kill()
            os.kill(driver, signal.SIGKILL)
            shutil.rmtree(a.home)
            until(lambda: door.is_driven_by_another(driver), "the other server goes on", DEADLINE_S)
        return door

    def _push(self, env: dict[str, str]) -> None:
        pets = self._place / "pets"
        pets.mkdir()
        (pets / "names").write_text("felix")
        self.renter.call("volume", "push", pets, "pets", **env)

    def _user(self, name: str, server: LabServer, token: str) -> dict[str, str]:
        place = self._place / name
        env = {"TRAINMASTER_HOME": str(place / "home"), "XDG_CONFIG_HOME": str(place / "config")}
        command = [TRAINMASTER, "login", server.url, "--token", "-"]
        whole = {**self.renter.env, **env}
        subprocess.run(command, input=token + "\n", env=whole, text=True, check=True, capture_output=True)
        return env


@pytest.fixture
def image(renter: Renter) -> Iterator[None]:
    """This machine's engine has it, and no registry; the machines get it from here."""
    try:
        engine = PrivateEngine("podman")
    except NoEngineError as error:
        pytest.skip(str(error))
    with engine:
        renter.env |= engine.env
        yield


@pytest.mark.crossings
@pytest.mark.parametrize(("place", "parts"), ALL)
def test_a_run_is_the_same_wherever_it_is_driven(
    lab: Any, renter: Renter, request: pytest.FixtureRequest, tmp_path: Path, place: str, parts: str
) -> None:
    if "container" in parts:
        request.getfixturevalue("image")
    before = lab.alive()
    (renter.work / "facts.py").write_text(SCRIPT)
    recipe = renter.recipe(RECIPE + "".join(PARTS[part] for part in parts.split()))
    places = Places(lab, renter, request, tmp_path)
    door = places.begin(place, recipe, parts)
    # One that is left would be gone on with in this home, with machines, while other tests run.
    request.addfinalizer(lambda: renter.call("cancel", door.run, code=None, **door.env))
    running, over = expected(parts, door.run, attempt=2 if place == "back" else 1)
    # Others may have an estimate, from what ran before them.
    promised = until(door.promised, "a quote that binds", DEADLINE_S) if "quote" in parts else None
    assert door.while_it_runs() == running
    door.go()
    until(lambda: door.status()["state"] == "DONE", "its end", DEADLINE_S)
    until(lambda: not door.clusters(), "nothing is rented", DEADLINE_S)
    assert door.when_it_is_over() == over
    if promised is not None:
        assert door.promised() == promised, "it is never changed, and told as it was"
    until(lambda: lab.alive() == before, "its machines are gone")


@pytest.mark.crossings  # what is rented for a run that its cluster drives is listed in the table, too
def test_machines_of_a_run_that_was_cancelled_are_listed_until_they_are_gone(
    lab: Any, renter: Renter, store: Any
) -> None:
    before = lab.alive()
    (renter.work / "facts.py").write_text(SCRIPT)
    renting = renter.run(renter.recipe(RECIPE), "--on-cluster")
    renting.until_said("drives it from now on")
    renting.kill()
    renter.call("cancel", renting.run)
    listed: list[dict[str, Any]] = []

    def are_gone() -> bool:
        """Asked for what is rented only, and not for the run."""
        nonlocal listed
        found = json.loads(renter.call("clusters", "--json").stdout)["clusters"]
        found = [each for each in found if each["run"] == renting.run]
        listed += found
        return not found and lab.alive() == before

    until(are_gone, "no machine is rented, and none is listed")
    assert {one["state"] for one in listed} <= {"used"}, "its driver gives them back"
