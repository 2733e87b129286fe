"""`adapt: true` meets what else a run has, a table: in each row one machine becomes slow, or a gang grows."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("boto3", reason="boto3 is not installed")
pytest.importorskip("fastapi", reason="the extra `server` is not installed")

from command_server import TRAINMASTER
from private_engines import IMAGE, NoEngineError, PrivateEngine
from renter import DEADLINE_S, SCALE, Renter, Renting

from trainmaster.lab.cgroups import CgroupTree, HostCgroup
from trainmaster.testing.waits import until

pytestmark = [pytest.mark.crossings, pytest.mark.s3, pytest.mark.timeout(1200)]

GANGS = Path(__file__).parent / "gangs"
RECIPE = """
name: steps
objective: fastest
{top}
experiments:
  train:
    hardware: {{{hardware}}}
    checkpoint: {{every: 5s}}
    grace: 2s
    adapt: true
{lines}
"""
SLOW = """
    distributed: {strategy: allreduce, workers: 2}
    framework: torch
    steps: 900
    command: python3 ring.py {{steps}} 16
"""
SLOW_SERVERS = """
    distributed: {strategy: ps-sync, workers: 2, parameter_servers: 1}
    framework: tensorflow
    steps: 900
    command: python3 star.py {{steps}} 16
"""
#: It cannot be measured at home, so that it begins with the fewest workers.
NOT_AT_HOME = f'test "$(hostname)" != {socket.gethostname()}'
GROWS = f"""
    distributed: {{strategy: allreduce, workers: 1..3}}
    framework: torch
    batch: {{global: 48}}
    steps: 600
    command: |
      {NOT_AT_HOME}
      python3 ring.py {{{{steps}}}} 16 0.4
"""
GROWS_SERVERS = f"""
    distributed: {{strategy: ps-sync, workers: 1..3, parameter_servers: 1}}
    framework: tensorflow
    batch: {{global: 48}}
    steps: 600
    command: |
      {NOT_AT_HOME}
      python3 star.py {{{{steps}}}} 16 0.4
"""


@dataclass(frozen=True)
class Row:
    """What a run has, beside `adapt: true`."""

    lines: str
    top: str = "provider: lab"
    hardware: str = "instance: m4.xlarge"
    options: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()


ROWS = {
    "slow, parameter servers": Row(SLOW_SERVERS),
    "slow, driven by its cluster": Row(SLOW, options=("--on-cluster",), needs=("store",)),
    "slow, of a team": Row(SLOW, needs=("lab_servers",)),
    "slow, with a volume": Row(SLOW + "    data: {pets: {volume: pets}}\n", needs=("store", "volume")),
    "slow, in containers": Row(SLOW + f"    container: {IMAGE}\n", needs=("engine",)),
    "slow, on spot machines": Row(SLOW, hardware="instance: m4.xlarge, spot: true"),
    "slow, several places": Row(SLOW, top="provider: [hosts, lab]"),
    "slow, hosts of one's own": Row(SLOW, top="provider: hosts", hardware=""),
    "grows, parameter servers": Row(GROWS_SERVERS, hardware="instance: m4.large"),
    "grows, driven by its cluster": Row(
        GROWS, hardware="instance: m4.large", options=("--on-cluster",), needs=("store",)
    ),
    "grows, of a team": Row(GROWS, hardware="instance: m4.large", needs=("lab_servers",)),
    "grows, with a volume": Row(
        GROWS + "    data: {pets: {volume: pets}}\n",
        hardware="instance: m4.large",
        needs=("store", "volume"),
    ),
    "grows, in containers": Row(
        GROWS + f"    container: {IMAGE}\n", hardware="instance: m4.large", needs=("engine",)
    ),
    "grows, on spot machines": Row(GROWS, hardware="instance: m4.large, spot: true"),
    "grows, hosts of one's own": Row(GROWS, top="provider: hosts", hardware=""),
}


@dataclass
class Begun:
    """A run, and how it is asked for: by a home of its own, or as a member of a team."""

    renter: Renter
    run: str
    renting: Renting | None
    env: dict[str, str] = field(default_factory=dict)

    def call(self, *arguments: object) -> str:
        return self.renter.call(*arguments, **self.env).stdout

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.call("status", self.run, "--json"))
        return found

    @property
    def told(self) -> list[str]:
        return [each["words"] for each in self.status()["experiments"]["train"].get("adapted", ())]

    def machines(self) -> dict[str, str]:
        """Those that are rented, by seat."""
        found = json.loads(self.call("clusters", "--json"))["clusters"]
        mine = [each for each in found if each["run"] == self.run]
        return {one["seat"]: one["id"] for each in mine for one in each["machines"] if one["id"]}

    @property
    def driver(self) -> str:
        """The machine that drives it, which stays however slow it is."""
        text = "" if self.renting is None else self.renting.text
        return (re.findall(r"^(\S+), its first machine, drives it", text, re.MULTILINE) or [""])[-1]

    def until(self, condition: Callable[[], Any], what: str) -> Any:
        def look() -> Any:
            if self.renting is not None:
                assert self.renting.process.poll() is None, f"it ended before {what}:\n{self.renting.text}"
            return condition()

        return until(look, f"{what}; told: {self.told}", DEADLINE_S)

    def until_told(self, pattern: str) -> str:
        def find() -> str:
            return next((each for each in self.told if re.search(pattern, each)), "")

        return str(self.until(find, pattern))

    def step(self) -> int:
        return int((re.findall(r"step=(\d+)", self.call("status", self.run)) or ["0"])[-1])


@pytest.fixture(scope="module")
def lab(make_lab_user: Callable[[], Any]) -> Any:
    """A user with three hosts of one's own, too."""
    user = make_lab_user()
    user.call("up", *SCALE, "--hosts", "3")
    return user


def begin(row: Row, renter: Renter, request: pytest.FixtureRequest, place: Path) -> Begun:
    for each in GANGS.glob("*.py"):
        if each.stem in ("ring", "star"):
            shutil.copy(each, renter.work)
    recipe = renter.recipe(RECIPE.format(top=row.top, hardware=row.hardware, lines=row.lines))
    if "engine" in row.needs:
        try:
            engine = PrivateEngine("podman")
        except NoEngineError as error:
            pytest.skip(str(error))
        engine.__enter__()
        request.addfinalizer(lambda: engine.__exit__(None, None, None))
        renter.env |= engine.env
    if "store" in row.needs:
        request.getfixturevalue("store")
    if "volume" in row.needs:
        pets = place / "pets"
        pets.mkdir()
        (pets / "names").write_text("felix")
        renter.call("volume", "push", pets, "pets")
    if "lab_servers" in row.needs:
        return of_a_team(recipe, renter, request.getfixturevalue("lab_servers"), place)
    renting = renter.start("run", recipe, "--yes", "--json", *row.options)
    begun = Begun(renter, renting.run, renting)
    request.addfinalizer(lambda: renter.call("cancel", begun.run, code=None))
    if row.options:
        renting.until_said("drives it from now on")
    return begun


def of_a_team(recipe: Path, renter: Renter, servers: Callable[[str], Any], place: Path) -> Begun:
    server = servers("a")
    renter.call("team", "create", "vision", **server.env)
    renter.call("team", "add-member", "vision", "ann", "--role", "manager", **server.env)
    of_team = ("--team", "vision", "--user", "ann", "--scopes", "read,run,manage")
    made = renter.call("token", "create", "ci", *of_team, "--json", **server.env)
    server.token = json.loads(made.stdout)["token"]
    server.start()
    env = {"TRAINMASTER_HOME": str(place / "ann"), "XDG_CONFIG_HOME": str(place / "config")}
    login = [TRAINMASTER, "login", server.url, "--token", "-"]
    subprocess.run(
        login,
        input=server.token + "\n",
        env={**renter.env, **env},
        text=True,
        check=True,
        capture_output=True,
    )
    started = renter.start("run", recipe, "--yes", "--json", "--detach", **env).end()
    return Begun(renter, started["run"], None, env)


def throttled(machine: str) -> None:
    """Whatever runs there gets a sixteenth of a processor from now on."""
    mark = next(CgroupTree().roots["cpu"].glob(f"tmlab-*/{machine}")).parent.name
    HostCgroup(CgroupTree(), mark, machine).limit_cpu(0.06)


@pytest.mark.parametrize("name", ROWS)
def test_a_run_adapts_whatever_else_it_has(
    renter: Renter, request: pytest.FixtureRequest, tmp_path: Path, name: str
) -> None:
    row = ROWS[name]
    begun = begin(row, renter, request, tmp_path)
    slow = ""
    if name.startswith("slow"):
        begun.until(lambda: begun.step() > 120, "its first steps")
        machines = begun.machines()
        slow = machines["worker-0" if machines["worker-1"] == begun.driver else "worker-1"]
        throttled(slow)
        asked = begun.until_told(rf"another machine is asked for in place of node-. \({slow}\)")
        assert re.search("worker-[01] waits", asked), "which one"
        if "spot" in name:
            renter.lab.call("interrupt", machines["worker-0"], "--notice", 20)
        else:
            begun.until_told(rf"it goes on without node-. \({slow}\), from its newest checkpoint")
    else:
        begun.until_told(r"is to go on with [23] workers.* instead of 1 worker.*, on [12] machines? more")
        begun.until_told(r"it goes on with [23] workers.* from its newest checkpoint")
    if begun.renting is None:
        until(lambda: begun.status()["state"] == "DONE", f"its end; told: {begun.told}", 2 * DEADLINE_S)
    else:
        begun.renting.end(timeout_s=2 * DEADLINE_S)
    summary = begun.status()
    print(json.dumps({"row": name, "told": begun.told, "quote": summary.get("quote")}))
    assert summary["reason"] == "SUCCEEDED", summary
    assert slow not in begun.machines().values()
