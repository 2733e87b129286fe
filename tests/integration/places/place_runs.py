"""Runs at a place that schedules by itself, as their tests have them, and what these ask the place."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from command_server import TRAINMASTER
from private_engines import NoEngineError, PrivateEngine, make_image
from renter import ENGINE, Renter, Renting, drivers
from running_server import RunningServer

if TYPE_CHECKING:  # another folder's conftest.py may have the name by then
    from conftest import Account

#: Beyond which something hangs; the machine may be slow, and others may use it.
PATIENCE_S = 300.0
GANG = """
name: steps
experiments:
  train:
    distributed: {{strategy: allreduce, workers: {workers}, per_node: 1}}
    framework: plain
    hardware: {{instance: {machine}}}
    checkpoint: {{every: 3s}}
    grace: 5s
    command: echo gpus=${{CUDA_VISIBLE_DEVICES-all}}; python3 steps.py {steps} 0.15 0.02
"""


RECIPE = """
name: steps
budget: {budget}
experiments:
  train:
    distributed: {{strategy: allreduce, workers: {workers}, per_node: 1}}
    framework: plain
    hardware: {{instance: {machine}}}
    {more}
    command: {command}
"""


SERVED = """
name: steps
experiments:
  train:
    distributed:
      {{strategy: ps-async, workers: 2, parameter_servers: 1, hardware: {{ps: {{instance: {machine}}}}}}}
    framework: plain
    hardware: {{instance: {machine}}}
    command: |
      echo "$TRAINMASTER_ROLE of three"
      until test "$TRAINMASTER_ROLE" = worker; do sleep 1; done
      sleep 5
"""


COUNTED = """
name: steps
experiments:
  train:
    distributed: {{strategy: allreduce, workers: 2, per_node: 1}}
    framework: plain
    hardware: {{instance: {machine}}}
    checkpoint: {{every: 3s}}
    grace: 5s
    command:
      - 'until [ -e {go} ] || [ "$TRAINMASTER_ATTEMPT" -gt 1 ]; do sleep 0.2; done'
      - python3 steps.py {steps} 0.2 0.02
"""


@dataclass(frozen=True)
class Crossing:
    """One row.

    Attributes:
        command, machine, budget, more, workers: of the recipe. options: of `run`.
        code: that it ends with. words: what it says, or its log. env: of the command.
    """

    command: str
    words: str
    machine: str = "half"
    budget: str = "{}"
    more: str = ""
    workers: int = 2
    options: tuple[str, ...] = ()
    code: int = 0
    env: dict[str, str] = field(default_factory=dict)

    @property
    def recipe(self) -> str:
        return RECIPE.format(
            budget=self.budget,
            machine=self.machine,
            more=self.more,
            workers=self.workers,
            command=self.command,
        )


#: Of `run`: its first machine drives it, with keys of the user's own.
MOVED = ("--on-cluster", "--send-keys")
#: What a run may have in it that its first machine drives.
MOVED_ROWS = {
    "gang of three": Crossing(
        "echo member $TRAINMASTER_INDEX of $TRAINMASTER_WORLD_SIZE", "member 2 of 3", workers=3
    ),
    "volume": Crossing(
        'cat "$TRAINMASTER_DATA_IMAGES/deep/a"', "of the volume", more="data: {images: {volume: images}}"
    ),
    "sweep": Crossing("echo rate {{rate}}", "rate 2", more="parameters: {rate: [1, 2, 3]}"),
    "cap": Crossing("sleep 600", "the run ends: it may cost", "dear", "{total: $0.6}", code=1),
}


def moving(row: Crossing, machine: str, dear: str = "dear") -> Crossing:
    """The same row, driven by its first machine.

    Args:
        row: as others have it.
        machine, dear: what a place calls them.
    """
    return replace(row, machine=dear if row.machine == "dear" else machine, options=MOVED)


def until(condition: Callable[[], Any], patience_s: float = PATIENCE_S, seen: Callable[[], Any] = str) -> Any:
    """Ask again and again, but not all the time."""
    deadline = time.monotonic() + patience_s
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not within {patience_s:.0f} s: {seen()}"
        time.sleep(0.5)
    return found


def gang(user: Renter, workers: int = 2, steps: int = 60, machine: str = "node") -> Path:
    """Members that count, save, and go on from what was saved."""
    return user.recipe(GANG.format(workers=workers, steps=steps, machine=machine))


def moved(user: Renter, provider: str, recipe: Path) -> tuple[Renting, int]:
    """A run whose first machine drives it."""
    going = user.run(recipe, *MOVED, provider=provider)
    going.until_said(r"drives it from now on")
    (driver,) = drivers(going.run)
    return going, driver


class AwayRenter(Renter):
    """Its runs are driven by their first machine: tasks wait until they are."""

    def recipe(self, text: str, engine: str = ENGINE) -> Path:
        """Members wait for a file, which all machines of a place on this machine see."""
        wait = f"until [ -e {self.work}/go ]; do sleep 0.2; done; "
        return super().recipe(re.sub(r"(command: (?:\|\n +)?)", rf"\1{wait}", text), engine)

    def run(self, recipe: Path, *options: object, provider: str = "lab", **env: str) -> Renting:
        """When its first machine drives it, it goes on."""
        (self.work / "go").unlink(missing_ok=True)
        going = super().run(recipe, *MOVED, *options, provider=provider, **env)
        going.until_said(r"drives it from now on")
        (self.work / "go").touch()
        return going


def drive_while_home_is_off(
    user: Renter, provider: str, machine: str, go: Path, let_go: Callable[[str], None]
) -> None:
    """The driver on a machine is killed and started again, and the home sees the end.

    Args:
        user: who runs it.
        provider, machine: where.
        go: that its two members wait for on their machines. let_go: makes it for a run.
    """
    going, driver = moved(user, provider, user.recipe(COUNTED.format(machine=machine, go=go, steps=60)))
    run = going.run
    let_go(run)
    going.kill()
    os.kill(driver, signal.SIGKILL)
    again = user.start("resume", run, "--json")
    again.until_said("driven by another process")
    assert again.end()["reason"] == "SUCCEEDED", again.text
    assert user.attempts(run) == ["SUCCEEDED"]
    assert user.starts(run) == [(1, 0)]


def until_step(user: Renter, run: str) -> None:
    """A checkpoint is there."""
    until(lambda: user.checkpoints(run))


def check_clean(account: Account) -> None:
    """Neither jobs nor files nor processes of ours are left in a Slurm."""
    slurm, scratch = account.slurm, account.home.parent / "scratch"
    until(lambda: not slurm.jobs(), seen=lambda: slurm.command("squeue", "-o", "%i %T %r %j %k %N"))
    until(lambda: not list(scratch.iterdir()), seen=lambda: list(scratch.iterdir()))


def cross(user: Renter, provider: str, row: Crossing) -> None:
    """It ends as it does elsewhere."""
    if "volume" in row.more:
        (images := user.work.parent / "images" / "deep").mkdir(parents=True)
        (images / "a").write_text("of the volume\n")
        user.call("volume", "push", images.parent, "images")
    going = user.run(user.recipe(row.recipe), *row.options, provider=provider, **row.env)
    told = going.end(row.code)
    logs = user.call("logs", told["run"]).stdout if row.code == 0 else ""
    assert row.words in going.text + logs, going.text


def serve(
    user: Renter, provider: str, machine: str, held: Callable[[], list[str]] | None = None, *options: str
) -> None:
    """Two workers and a parameter server, on machines of their own.

    Args:
        user: who runs them.
        provider, machine: where.
        held: machines that there are, where that is quickly seen.
        options: of `run`.
    """
    going = user.run(user.recipe(SERVED.format(machine=machine)), *options, provider=provider)
    run = going.run
    if held is not None:
        until(lambda: len(held()) == 3, seen=held)
    assert going.end()["state"] == "DONE"
    text = user.call("logs", run).stdout
    assert (text.count("worker of three"), text.count("ps of three")) == (2, 1), text


@contextlib.contextmanager
def podman_with_image(folder: Path) -> Iterator[dict[str, str]]:
    """A `podman` in a folder that has our image, for machines of which each sees this file system.

    Yields: variables of an engine that has the image here.
    """
    try:
        engine = PrivateEngine("podman", make_image(("bash", "cat", "sleep"), python=False))
    except NoEngineError as error:
        pytest.skip(str(error))
    with engine:
        lines = [f"export {name}='{value}'" for name, value in engine.env.items()]
        text = "\n".join(["#!/bin/sh", *lines, f'exec {shutil.which("podman")} "$@"', ""])
        (folder / "podman").write_text(text)
        (folder / "podman").chmod(0o755)
        yield engine.env


def keep_for_the_next(
    user: Renter, provider: str, machine: str, held: Callable[[], list[str]], *options: str
) -> None:
    """What is kept has the next run; then it is given back."""
    recipe = user.recipe(Crossing("hostname", "", machine).recipe)
    user.run(recipe, "--keep", "10m", *options, provider=provider).end()
    before = held()
    assert before
    user.run(recipe, "--keep", "10m", *options, provider=provider).end()
    assert held() == before
    user.run(recipe, *options, provider=provider).end()


def have_two_homes(
    user: Renter, folder: Path, provider: str, machine: str, held: Callable[[], list[str]]
) -> None:
    """Two homes of one account: neither ends or uses what the other has, also with its driver killed.

    Args:
        user: who has one of them. folder: of the other.
        provider, machine: where.
        held: machines that there are.
    """
    (work := folder / "work").mkdir(parents=True)
    if (settings := user.lab.home / f"{provider}.yaml").exists():
        (folder / settings.name).write_text(settings.read_text())
    other = type(user)(user.lab, work)
    other.env = {**user.env, "TRAINMASTER_HOME": str(folder)}
    text = Crossing("hostname", "", machine, workers=1).recipe
    short = other.recipe(text)
    going = user.run(gang(user, 2, 3000, machine), provider=provider)
    run = going.run
    until(lambda: user.saved_at(run) if "TRAINMASTER_STORE" in user.env else user.checkpoints(run))
    before = held()
    assert other.run(short, provider=provider).end()["state"] == "DONE"
    going.kill()
    for driver in drivers(run):
        os.kill(driver, signal.SIGKILL)
    told = other.run(short, "--keep", "10m", provider=provider).end()  # it looks for what is left, too
    assert told["state"] == "DONE"
    other.call("doctor")
    assert set(before) < set(held()), "what each has stays"
    again = user.start("resume", run, "--json")
    again.until_said("drive|goes on|found")
    told = user.run(user.recipe(text), provider=provider).end()  # not on what another home keeps
    assert told["state"] == "DONE"
    assert set(before) < set(held()), held()
    user.call("cancel", run)
    again.end(code=None)
    other.run(short, provider=provider).end()


@contextlib.contextmanager
def team_server(user: Renter) -> Iterator[RunningServer]:
    """A server with the team `vision`: Mia manages it, Ann is a member, and it has a secret."""
    pytest.importorskip("fastapi", reason="the extra `server` is not installed")
    server = RunningServer(user.start)
    process = server.start()
    user.call("team", "create", "vision")
    user.call("team", "add-member", "vision", "ann")
    user.call("team", "add-member", "vision", "mia", "--role", "manager")
    server.token = team_token(user, "mia", "read,run,manage")
    with server.open("PUT", "/api/v1/secrets/HF_TOKEN", {"value": "hf_of_the_team"}):
        pass
    yield server
    process.interrupt()


def team_token(user: Renter, name: str, scopes: str = "read,run", team: str = "vision") -> str:
    """A new token of a member."""
    options = ("--scopes", scopes, "--user", name, "--team", team, "--json")
    return str(json.loads(user.call("token", "create", name, *options).stdout)["token"])


def at_home(user: Renter, server: RunningServer, token: str, home: Path, **env: str) -> dict[str, str]:
    """Variables of somebody's own machine, which is logged in to a server."""
    away = {"TRAINMASTER_HOME": str(home), "XDG_CONFIG_HOME": f"{home}-config", **env}
    subprocess.run(
        [TRAINMASTER, "login", server.url, "--token", "-"],
        input=f"{token}\n",
        env={**os.environ, **user.env, **away},
        text=True,
        check=True,
        capture_output=True,
    )
    return away


def train_as_a_team(user: Renter, provider: str, folder: Path, machine: str = "half", **nowhere: str) -> None:
    """A member on a server that has an account there: with the team's secret, and nobody else's settings."""
    with team_server(user) as server:
        away = at_home(user, server, team_token(user, "ann"), folder / "ann", **nowhere)
        secret = 'test "$HF_TOKEN" = hf_of_the_team && echo it has it'
        recipe = user.recipe(Crossing(secret, "", machine, more="secrets: [HF_TOKEN]").recipe)
        refused = user.call("run", recipe, "--provider", provider, "--yes", *MOVED, code=2, **away)
        assert "--on-cluster is for the machine where runs are" in refused.stderr
        assert json.loads(user.call("status", "--json", **away).stdout)["runs"] == []
        told = user.start("run", recipe, "--provider", provider, "--yes", "--json", **away).end()
        assert told["state"] == "DONE"
        assert user.call("logs", told["run"], **away).stdout.count("it has it") == 2
        assert not (folder / "ann" / f"{provider}.yaml").exists()


def _drives(process: psutil.Process, home: str) -> bool:
    """Whether it is a driver of a home."""
    with contextlib.suppress(psutil.Error):
        return "_driver" in process.cmdline() and process.environ().get("TRAINMASTER_HOME") == home
    return False


def train_with_own_login(
    user: Renter, provider: str, folder: Path, machine: str, secrets: list[str], **mia: str
) -> None:
    """A team with a login of its own, on a server that cannot use the place by itself.

    It survives `kill -9` of its driver and of the server, a new key that seals, and nobody else has it.

    Args:
        user: the owner of the server.
        provider, machine: where.
        folder: of the members' homes; that of the manager is ``mia``, with the settings of the place.
        secrets: what must not be written anywhere.
        mia: variables of the manager.
    """
    with team_server(user) as server:
        user.call("team", "create", "nlp")
        user.call("team", "add-member", "nlp", "bob")
        at_mia = at_home(user, server, server.token, folder / "mia", **mia)
        at_ann = at_home(user, server, team_token(user, "ann"), folder / "ann")
        at_bob = at_home(user, server, team_token(user, "bob", team="nlp"), folder / "bob")
        refused = user.call("team", "login", "vision", provider, code=2, **at_mia)
        assert "there is no terminal to ask on" in refused.stderr
        told = user.call("team", "login", "vision", provider, "--yes", **at_mia).stderr
        assert "sent, and kept sealed for team vision" in told
        assert not any(secret in told for secret in secrets)
        (login,) = json.loads(user.call("team", "logins", "vision", "--json", **at_mia).stdout)["logins"]
        assert (login["provider"], login["changed_by"]) == (provider, "mia")
        refused = user.call("team", "login", "vision", provider, "--yes", code=2, **at_ann)
        recipe = gang(user, 2, 200, machine)  # it is looked at meanwhile, and others use this machine
        recipe.write_text(f"provider: {provider}\n{recipe.read_text()}")
        refused = user.call("run", recipe, "--yes", code=2, **at_bob)
        assert "team nlp no login of its own" in refused.stderr, refused.stderr
        assert f"trainmaster team login nlp {provider}" in refused.stderr
        quoted = user.call("check", recipe, **at_ann)
        assert f"{provider}: with the login of team vision" in quoted.stdout + quoted.stderr
        user.call("run", recipe, "--dry-run", **at_ann)
        going = user.start("run", recipe, "--yes", "--json", **at_ann)
        run = going.run
        until(lambda: "step=" in user.call("status", run, **at_ann).stdout)
        said = user.call("exec", run, "worker-1", "--", "sh", "-c", "echo $TRAINMASTER_INDEX", **at_ann)
        assert said.stdout == "1\n"
        for verb in (("logout", "vision", provider), ("login", "vision", provider, "--yes")):
            refused = user.call("team", *verb, code=2, **at_mia)
            assert f"team vision has {run} at {provider}" in refused.stderr
        user.call("server", "key", "rotate")
        user.call("team", "login", "vision", provider, "--yes", "--same-account", **at_mia)
        server.process.kill()
        home = user.env["TRAINMASTER_HOME"]
        found = [one for one in psutil.process_iter() if _drives(one, home)]
        assert found
        for driver in found:
            driver.kill()
        server.start()
        going.end(code=None)
        until(lambda: json.loads(user.call("status", run, "--json", **at_ann).stdout)["state"] == "DONE")
        ended = json.loads(user.call("status", run, "--json", **at_ann).stdout)
        assert ended["reason"] == "SUCCEEDED", ended
        recipe.write_text(recipe.read_text().replace("steps.py 200", "steps.py 20"))
        kept = user.call("run", recipe, "--yes", "--keep", "10m", "--json", **at_ann)
        name = json.loads(kept.stdout.strip().splitlines()[-1])["run"]
        refused = user.call("team", "logout", "vision", provider, code=2, **at_mia)
        assert name in refused.stderr
        assert "given back" in user.call("clusters", "end", "--all", **at_ann).stderr
        user.call("team", "logout", "vision", provider, **at_mia)
        assert json.loads(user.call("team", "logins", "vision", "--json", **at_mia).stdout)["logins"] == []
        for file in (file for file in Path(home).rglob("*") if file.is_file()):
            text = file.read_bytes()
            assert not any(secret.encode() in text for secret in secrets), file
