"""What the tests of gangs on a cluster stand on: requests, waiting, and the processes of a node."""

import contextlib
import os
import signal
import time
from pathlib import Path

import pytest

from trainmaster.executors.base import Capacity, GangRequest, MemberRequest, Phase
from trainmaster.executors.ray.commands import HEAD_PROGRAM
from trainmaster.executors.ssh import AGENT_PROGRAM
from trainmaster.testing.executor_contract import until

RUN = "gangs-0"
#: For tests of what only Ray has.
only_ray = pytest.mark.parametrize(
    "engine", [pytest.param("ray", marks=pytest.mark.ray)], indirect=True, scope="session"
)


class Bench:
    """Requests, and waiting for what becomes of them."""

    def __init__(self, connect, directory):
        self.connect = connect
        self.directory = directory
        self.executor = self.open()

    def open(self, **options):
        executor = self.connect(**options)
        executor.open(RUN, Capacity(1), {**os.environ, "RAY_ADDRESS": "10.255.255.1:1"})
        return executor

    def gang(self, task, *scripts, roles=(), labels=None, serving=(), dispensable=(), ports=0, **options):
        members = [
            MemberRequest(
                name=roles[index] if roles else f"worker-{index}",
                script=script,
                cwd=str(self.directory),
                ports=ports,
                essential=index not in serving,
                dispensable=index in dispensable,
                node_labels=(labels or {}).get(index, {}),
            )
            for index, script in enumerate(scripts)
        ]
        values = {
            "attempt": f"{RUN}/train/{task}/1",
            "directory": str(self.directory / "attempts" / task),
            "members": tuple(members),
            "slots": len(members),
            "group": "train",
            "group_slots": 100,
            "grace_s": 3.0,
            "per_node": 1,
        }
        return GangRequest(**{**values, **options})

    def wait(self, gang, phase=Phase.EXITED, executor=None, patience_s=60.0):
        executor = executor or self.executor
        deadline = time.monotonic() + patience_s
        while (status := executor.observe([gang.attempt])[0]).phase is not phase:
            assert time.monotonic() < deadline, f"not {phase}: {status}"
            executor.changes(0.2)
        return status

    def all_started(self, gang, executor=None):
        """Every member has a process."""
        while True:
            status = self.wait(gang, Phase.RUNNING, executor)
            if all(member.pid for member in status.members):
                return status
            (executor or self.executor).changes(0.1)

    def pid_in(self, name):
        path = self.directory / name
        until(lambda: path.exists() and path.read_text().endswith("\n"), f"{name} is written")
        return int(path.read_text())


def fields(request):
    return {name: getattr(request, name) for name in request.__slots__}


def processes_of(node, *words):
    """Of Ray's on a node; those whose command line has a word."""
    mark = os.fsencode(f"{node.directory}/node.json")
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if not entry.name.isdigit() or mark not in (entry / "environ").read_bytes():
                continue
            command = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if not words or any(word.encode() in command for word in words):
            found.append(int(entry.name))
    return found


def raylet_pid(node):
    (pid,) = processes_of(node, "/raylet/raylet")
    return pid


def programs_of(node, program):
    """Processes of a program of ours that speaks with a driver."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            command = entry.read_bytes()
            if program.encode() in command and os.fsencode(f'"{node.home}"') in command:
                found.append(int(entry.parent.name))
    return found


def agent_pids(node):
    """Of what speaks with the node's supervisor; that of a driver that was lost before may be left."""
    pids = processes_of(node, "ray::NodeActor") + programs_of(node, AGENT_PROGRAM)
    assert pids, "nothing speaks with it"
    return pids


def lose_conductor(cluster):
    """What places gangs ends: a thread of ours, and with Ray what speaks with it."""
    conductor = cluster._conductor
    for pid in programs_of(cluster.nodes[0], HEAD_PROGRAM):
        os.kill(pid, signal.SIGKILL)
    if cluster.head is None:
        conductor.end()
    until(lambda: conductor.is_over, "it has ended")
