"""What starting processes costs: on this machine, through Ray, and through SSH alone.

200 tasks of ``true`` and the time from submitting a gang to its first line, for each way; bare Ray tasks that
start the same subprocess, to compare with; and the memory that Ray takes on a worker node, without members.
"""

from __future__ import annotations

import getpass
import os
import shlex
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from common import options, report, spread

from trainmaster.executors.base import Capacity, Executor, GangRequest, MemberRequest, Phase
from trainmaster.executors.gangs.engine import ClusterNode
from trainmaster.executors.gangs.executor import NodesExecutor
from trainmaster.executors.local.executor import LocalExecutor
from trainmaster.executors.ray.cluster import RayCluster
from trainmaster.executors.ray.commands import authentication
from trainmaster.executors.ssh.cluster import SshCluster
from trainmaster.testing.ray_here import HERE, stream_to

SLOTS = len(os.sched_getaffinity(0))
BARE = """
import subprocess, sys, time
import ray
address, node, tasks, runs = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
ray.init(address=address, _node_ip_address=node, log_to_driver=False, logging_level=40)

@ray.remote(num_cpus=1)
def task():
    return subprocess.run(["bash", "-euo", "pipefail", "-c", "true"]).returncode

for _ in range(runs):
    sys.stdin.readline()
    ray.get([task.remote() for _ in range(tasks)])  # Ray ends workers that were idle for a second
    began = time.perf_counter()
    ray.get([task.remote() for _ in range(tasks)])
    print(time.perf_counter() - began, flush=True)
"""


def ssh_cluster(command: list[str], record: Path, node: ClusterNode) -> SshCluster:
    """A cluster of one node at the other end of ``ssh``."""

    def stream(_: ClusterNode, line: Sequence[str]) -> socket.socket:
        return stream_to([*command, shlex.join(line)])

    return SshCluster.start(record, [node], HERE[0], stream)


def gang(name: str, directory: Path, scripts: list[str], *, hold: bool = False) -> GangRequest:
    members = tuple(
        MemberRequest(f"worker-{index}", script, str(directory)) for index, script in enumerate(scripts)
    )
    where = str(directory / name)
    return GangRequest(f"bench/{name}", where, members, len(members), "all", SLOTS, hold=hold)


def tasks_s(executor: Executor, directory: Path, tasks: int) -> float:
    """Submit that many tasks at once and wait until all have ended."""
    stamp = time.time_ns()
    gangs = [gang(f"{stamp}-{index}", directory, ["true"]) for index in range(tasks)]
    began = time.perf_counter()
    executor.submit(gangs)
    left = {each.attempt for each in gangs}
    while left:
        left -= {status.attempt for status in executor.changes(10.0) if status.phase is Phase.EXITED}
    took = time.perf_counter() - began
    executor.forget([each.attempt for each in gangs])
    return took


def gang_start_s(executor: Executor, directory: Path) -> float:
    """From submitting a gang of one member per slot, held first, to the last member's first line."""
    name = f"gang-{time.time_ns()}"
    request = gang(name, directory, ["echo $EPOCHREALTIME"] * SLOTS, hold=True)
    began = time.time()
    executor.submit([request])
    phase = Phase.UNKNOWN
    while phase is not Phase.EXITED:
        for status in executor.changes(10.0):
            phase = status.phase
            if phase is Phase.GRANTED:
                executor.launch(request.attempt, {})
    lines = [(directory / name / f"worker-{index}.log").read_text() for index in range(SLOTS)]
    executor.forget([request.attempt])
    return max(float(line) for line in lines) - began


@contextmanager
def ssh_here(place: Path) -> Iterator[list[str] | None]:
    """A loopback sshd of our own; None without OpenSSH."""
    daemon, client = shutil.which("sshd", path="/usr/sbin:/usr/bin"), shutil.which("ssh")
    if daemon is None or client is None:
        yield None
        return
    for name in ("host", "user"):
        keygen = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(place / name)]
        subprocess.run(keygen, check=True)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    settings = {
        "ListenAddress": f"127.0.0.1:{port}",
        "HostKey": place / "host",
        "AuthorizedKeysFile": place / "user.pub",
        "PidFile": place / "pid",
        "StrictModes": "no",
        "PermitRootLogin": "yes",
    }
    (place / "config").write_text("".join(f"{key} {value}\n" for key, value in settings.items()))
    Path("/run/sshd").mkdir(exist_ok=True) if os.getuid() == 0 else None
    process = subprocess.Popen([daemon, "-D", "-f", place / "config"], stderr=subprocess.DEVNULL)
    command = [client, "-q", "-p", str(port), "-i", str(place / "user"), "-o", "StrictHostKeyChecking=no"]
    command += ["-o", "UserKnownHostsFile=/dev/null", f"{getpass.getuser()}@127.0.0.1"]
    try:
        deadline = time.monotonic() + 5
        while subprocess.run([*command, "true"], capture_output=True).returncode:
            if time.monotonic() > deadline:
                yield None
                return
            time.sleep(0.05)
        yield command
    finally:
        process.terminate()
        process.wait()


@contextmanager
def bare_ray(cluster: RayCluster, tasks: int, runs: int) -> Iterator[Callable[[], float]]:
    """Plain Ray tasks on the same cluster, in a process of their own."""
    head = cluster.head
    env = {**os.environ, **authentication(head.directory)}
    arguments = [f"{head.address}:{head.port_base}", head.address, str(tasks), str(runs)]
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", BARE, *arguments],
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    stdin, stdout = process.stdin, process.stdout

    def run() -> float:
        stdin.write("go\n")
        stdin.flush()
        return float(stdout.readline())

    try:
        yield run
    finally:
        stdin.close()
        stdout.close()
        process.kill()
        process.wait()


def memory_mb(node: ClusterNode) -> dict[str, float]:
    """What processes of a node's engine have for themselves, by kind."""
    found: dict[str, float] = {}
    marks = os.fsencode(f"{node.directory}/node.json"), os.fsencode(f'"{node.home}"')
    for entry in Path("/proc").iterdir():
        try:
            if not entry.name.isdigit():
                continue
            of_it = (entry / "environ").read_bytes() + (entry / "cmdline").read_bytes()
            if not any(mark in of_it for mark in marks):
                continue
            rollup = (entry / "smaps_rollup").read_text()
            command = (entry / "cmdline").read_bytes().decode(errors="replace").replace("\0", " ")
        except OSError:
            continue
        private = sum(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Private_"))
        kinds = ("raylet/raylet", "ray::NodeActor", "executors.ray.start", "gangs.agent")
        kind = next((kind for kind in kinds if kind in command), "other")
        found[kind] = round(found.get(kind, 0.0) + private / 1024, 1)
    return found


def main() -> None:
    arguments = options(__doc__ or "", runs=5, tasks=200, gangs=15)
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tm-", dir="/tmp")))
        nodes = [
            ClusterNode(
                f"n{index}",
                f"127.0.0.{index + 2}",
                SLOTS,
                f"{place}/{index}",
                f"{place}/home-{index}",
                labels={"use": "tasks" if index == 0 else "memory"},
            )
            for index in range(2)
        ]
        began = time.perf_counter()
        cluster = RayCluster(place / "cluster", nodes, *HERE)
        stack.callback(cluster.stop)
        cluster = RayCluster.start(place / "cluster", nodes[:1], *HERE)
        result: dict[str, Any] = {"slots": SLOTS, "head_start_s": round(time.perf_counter() - began, 2)}
        (place / "sshd").mkdir()
        command = stack.enter_context(ssh_here(place / "sshd"))
        ways: dict[str, Executor] = {"local": LocalExecutor(place / "home")}
        ways["ray"] = NodesExecutor(cluster)
        if command is not None:
            node = replace(nodes[0], directory=f"{place}/s0", home=f"{place}/home-ssh")
            hosts = ssh_cluster(command, place / "hosts", node)
            stack.callback(hosts.stop)
            ways["ssh"] = NodesExecutor(hosts)
        for name, executor in ways.items():
            began = time.perf_counter()
            executor.open(f"bench-{name}", Capacity(SLOTS), dict(os.environ))
            result.setdefault("open_s", {})[name] = round(time.perf_counter() - began, 3)
            stack.callback(executor.close)
            (place / name).mkdir()
            tasks_s(executor, place / name, arguments.tasks)
        bare = stack.enter_context(bare_ray(cluster, arguments.tasks, arguments.runs))
        rates: dict[str, list[float]] = {name: [] for name in [*ways, "bare Ray"]}
        ratios = []
        for _ in range(arguments.runs):  # in turn, so that a noisy machine disturbs all
            for name, executor in ways.items():
                rates[name].append(arguments.tasks / tasks_s(executor, place / name, arguments.tasks))
            rates["bare Ray"].append(arguments.tasks / bare())
            ratios.append(rates["ray"][-1] / rates["bare Ray"][-1])
        starts: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(arguments.gangs):
            for name, executor in ways.items():
                starts[name].append(gang_start_s(executor, place / name) * 1000)
        began = time.perf_counter()
        cluster.add(nodes[1:])
        result["node_start_s"] = round(time.perf_counter() - began, 2)
        member = MemberRequest("worker-0", "true", str(place), node_labels={"use": "memory"})
        request = GangRequest("bench/memory", str(place / "memory"), (member,), 1, "all", 1)
        ways["ray"].submit([request])
        while ways["ray"].observe([request.attempt])[0].phase is not Phase.EXITED:
            ways["ray"].changes(1.0)
        memory = memory_mb(nodes[1])
        of_ssh = memory_mb(node) if command is not None else {}
    result |= {
        "tasks": arguments.tasks,
        "tasks_per_s": {name: spread(values) for name, values in rates.items()},
        "ray_to_bare": spread(ratios),
        "gang_start_ms": {name: spread(values) for name, values in starts.items()},
        "worker_node_mb": {"total": round(sum(memory.values()), 1), **memory},
        "ssh_node_mb": of_ssh,
        "targets": {"ray_to_bare": 0.8, "worker_node_mb": 300},
    }
    report(
        "executors",
        result,
        {name: round(statistics.median(values), 1) for name, values in rates.items()},
        "tasks per second",
    )


if __name__ == "__main__":
    main()
