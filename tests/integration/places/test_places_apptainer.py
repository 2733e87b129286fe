"""Containers without a daemon on a real Slurm: they end as they do elsewhere, and leave nothing on nodes."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

pytest.importorskip("asyncssh", reason="asyncssh is not installed")

from place_runs import check_clean, until
from private_engines import IMAGE, NoEngineError, PrivateEngine
from renter import Renter

if TYPE_CHECKING:  # another folder's conftest.py may have the name by then
    from conftest import Account

pytestmark = [pytest.mark.timeout(600), pytest.mark.places]

TASKS = """
name: steps
experiments:
  train:
    workers: 2
    hardware: {{instance: half}}
    grace: 5s
    container: {image}
    parameters: {{part: {parts}}}
    command: |
      {command}
"""
SETUP = """
name: steps
experiments:
  train:
    distributed: {{strategy: allreduce, workers: 2, per_node: 1}}
    framework: plain
    hardware: {{instance: half}}
    container: {image}
    setup: sleep 24691
    command: "true"
"""
#: Of all nodes together; a tenth of it is ours.
MEMORY_BYTES = 700 << 20
EAT = "x=aaaaaaaa; while [ ${#x} -lt 8000000 ]; do x=$x$x; done; while :; do a+=($x); done"


@pytest.fixture(scope="module", params=["apptainer", "enroot"])
def engine(request: pytest.FixtureRequest) -> Iterator[PrivateEngine]:
    """One whose images and temporary files lie where all nodes see them, as on a site's scratch."""
    try:
        with PrivateEngine(request.param) as running:
            yield running
    except NoEngineError as error:
        pytest.skip(str(error))


@pytest.fixture
def nodes(account: Account, engine: PrivateEngine) -> Iterator[Account]:
    """Nodes that have it, and on which nothing is left."""
    chosen = " ".join(f"{name}='{value}'" for name, value in engine.env.items())
    settings = account.home / "slurm.yaml"
    settings.write_text(f"before: export {chosen}\n{settings.read_text()}")
    yield account
    check_clean(account)
    until(lambda: not engine.containers(), 60, engine.containers)
    slurm = account.slurm
    until(
        lambda: not any(map(slurm.processes, slurm.names)), 60, lambda: [*map(slurm.processes, slurm.names)]
    )


@pytest.fixture
def little_memory(account: Account) -> Iterator[None]:
    """A control group of the kernel bounds what jobs have, as Slurm does where the site says so."""
    group = Path("/sys/fs/cgroup/memory", f"tm-test-{uuid.uuid4().hex[:12]}")
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"control groups of memory, version 1, cannot be made here: {error.strerror}")
    (group / "memory.limit_in_bytes").write_text(str(MEMORY_BYTES))
    conf = account.slurm.environ["SLURM_CONF"]
    try:
        for each in psutil.process_iter(["name", "cmdline"]):
            if each.info["name"] == "slurmd" and conf in each.info["cmdline"]:
                (group / "cgroup.procs").write_text(str(each.pid))
        yield
    finally:
        deadline = time.monotonic() + 60
        while group.exists():
            for pid in (group / "cgroup.procs").read_text().split():
                with contextlib.suppress(OSError):
                    (group.parent / "cgroup.procs").write_text(pid)
            try:
                group.rmdir()
            except OSError:
                assert time.monotonic() < deadline, f"{group} cannot be removed"


@pytest.mark.usefixtures("nodes", "little_memory")
@pytest.mark.parametrize("who", ["itself", "a child"])
def test_a_task_that_takes_too_much_memory_is_told_as_such(user: Renter, who: str) -> None:
    """What runs beside it goes on."""
    eats = EAT if who == "itself" else f"bash -c '{EAT}'; echo never"
    command = f"if [ {{{{part}}}} = 1 ]; then sleep 2; {eats}; else sleep 6; fi"
    recipe = user.recipe(TASKS.format(image=IMAGE, parts=[1, 2], command=command))
    told = user.run(recipe, provider="slurm").end(1)
    tasks = told["experiments"]["train"]["tasks"]
    assert (told["reason"], tasks["succeeded"], tasks["failed"]) == ("OOM", 1, 1)
    assert "killed: out of memory" in told["experiments"]["train"]["message"]


@pytest.mark.usefixtures("nodes")
@pytest.mark.parametrize("listens", [True, False])
def test_a_task_is_cancelled_and_then_the_run(user: Renter, engine: PrivateEngine, listens: bool) -> None:
    """With what it has started; the next task has its place."""
    trap = "trap 'echo asked; exit 3' TERM" if listens else "trap '' TERM"
    command = f"{trap}; (sleep 24701 &); echo ready; while :; do sleep 1; done"
    going = user.run(
        user.recipe(TASKS.format(image=IMAGE, parts=[1, 2, 3], command=command)), provider="slurm"
    )
    run = going.run
    logs = [user.lab.home / "runs" / run / f"tasks/train/{task}/1/worker-0.log" for task in range(3)]

    def ready() -> list[int]:
        return [task for task, log in enumerate(logs) if log.exists() and "ready" in log.read_text()]

    until(lambda: ready() == [0, 1], seen=lambda: going.text)
    user.call("cancel", run, "train/0")
    until(lambda: ready() == [0, 1, 2], seen=lambda: going.text)
    assert ("asked" in logs[0].read_text()) is listens
    assert len(sleeping(24701)) == 2
    user.call("cancel", run)
    assert going.end(None)["reason"] == "CANCELLED"
    assert not sleeping(24701)


@pytest.mark.usefixtures("nodes")
def test_a_setup_on_two_nodes_is_ended_by_cancel_when_its_driver_was_killed(user: Renter) -> None:
    """Each node makes its own, also where all have one directory for temporary files."""
    going = user.run(user.recipe(SETUP.format(image=IMAGE)), provider="slurm")
    run = going.run
    going.until(lambda: len(sleeping(24691)) == 2, "a setup on each node", 60)
    going.kill()
    assert len(sleeping(24691)) == 2
    user.call("cancel", run)
    until(lambda: not sleeping(24691), 60)


def sleeping(seconds: int) -> list[int]:
    """Processes that sleep for so long."""
    words = ["sleep", str(seconds)]
    return [each.pid for each in psutil.process_iter(["cmdline"]) if each.info["cmdline"] == words]
