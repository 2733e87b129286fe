"""Gangs over three nodes that are on this machine, each with a supervisor of its own."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from engine_bench import fields, lose_conductor, only_ray, processes_of

from trainmaster.executors.base import GangRequest, MemberRequest, Phase
from trainmaster.executors.gangs.executor import NodesExecutor
from trainmaster.testing.executor_contract import alive, until
from trainmaster.testing.ray_here import HERE

LISTEN_OR_CALL = """exec python3 -c '
import os, socket
address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
if os.environ["RANK"] == "0":
    server = socket.create_server(address)
    for _ in range(2):
        print(server.accept()[0].recv(9).decode(), flush=True)
else:
    for _ in range(200):
        try:
            socket.create_connection(address).send(os.environ["RANK"].encode())
            break
        except OSError:
            import time; time.sleep(0.05)
    else:
        raise SystemExit("no master")
'"""


def test_gang_over_three_nodes(bench):
    gang = bench.gang("0", *[LISTEN_OR_CALL] * 3, ports=1, hold=True)
    bench.executor.submit([gang])
    granted = bench.wait(gang, Phase.GRANTED)
    assert sorted(granted.addresses.values()) == ["127.0.0.2", "127.0.0.3", "127.0.0.4"]
    env = {"MASTER_ADDR": granted.addresses["worker-0"], "MASTER_PORT": str(granted.ports["worker-0"][0])}
    bench.executor.launch(gang.attempt, {f"worker-{rank}": {**env, "RANK": str(rank)} for rank in range(3)})
    status = bench.wait(gang)
    assert [member.exit_code for member in status.members] == [0, 0, 0]
    log = (bench.directory / "attempts" / "0" / "worker-0.log").read_text()
    assert sorted(log.split()) == ["1", "2"]
    bench.executor.forget([gang.attempt])
    assert bench.executor.observe([gang.attempt])[0].phase is Phase.UNKNOWN


def test_roles_go_where_their_labels_are(bench):
    labels = {0: {"market": "ondemand"}, 1: {"market": "spot"}, 2: {"market": "spot"}}
    roles = ["chief-0", "worker-0", "worker-1"]
    gang = bench.gang("0", "true", "true", "true", roles=roles, labels=labels)
    bench.executor.submit([gang])
    status = bench.wait(gang)
    assert status.addresses["chief-0"] == "127.0.0.2"
    assert {status.addresses["worker-0"], status.addresses["worker-1"]} == {"127.0.0.3", "127.0.0.4"}
    nowhere = bench.gang("1", "true", labels={0: {"market": "reserved"}})
    bench.executor.submit([nowhere])
    later = bench.gang("2", "true")
    bench.executor.submit([later])
    bench.wait(later)  # is not kept waiting by what cannot be placed
    assert bench.executor.observe([nowhere.attempt])[0].phase is Phase.QUEUED


def test_packed_without_per_node(bench):
    gang = bench.gang("0", *["true"] * 2, per_node=0)
    bench.executor.submit([gang])
    assert len(set(bench.wait(gang).addresses.values())) == 1


def test_short_tasks_behind_long_ones(bench):
    """Short ones queue up on the nodes; when a long one is in front, they do not wait for it."""
    short = [bench.gang(f"short-{index}", "true", per_node=0) for index in range(24)]
    bench.executor.submit(short)
    for gang in short:
        assert bench.wait(gang).members[0].exit_code == 0
    script = "touch on-%d; until [ -e go-%d ] || [ -e go ]; do sleep 0.02; done"
    long = [bench.gang(f"long-{index}", script % (index, index), per_node=0) for index in range(12)]
    behind = [bench.gang(f"behind-{index}", "echo x >> ran", per_node=0) for index in range(12)]
    bench.executor.submit([*long, *behind])
    until(lambda: len(list(bench.directory.glob("on-*"))) == 12, "all slots are taken")
    bench.executor.stop(behind[0].attempt, 1.0)
    bench.wait(behind[0], Phase.UNKNOWN)
    assert all(status.phase is Phase.QUEUED for status in observe(bench, behind[1:]))
    (bench.directory / "go-7").touch()
    for gang in behind[1:]:
        assert bench.wait(gang).members[0].exit_code == 0
    assert (bench.directory / "ran").read_text().count("x") == 11
    assert sum(status.phase is Phase.RUNNING for status in observe(bench, long)) == 11
    (bench.directory / "go").touch()
    for gang in long:
        assert bench.wait(gang).members[0].exit_code == 0


def observe(bench, gangs):
    return bench.executor.observe([gang.attempt for gang in gangs])


def test_all_or_none(bench):
    full = bench.gang(
        "full", "until [ -e go ]; do sleep 0.02; done", slots=4, labels={0: {"trainmaster-node": "n2"}}
    )
    bench.executor.submit([full])
    bench.wait(full, Phase.RUNNING)
    gang = bench.gang("0", *["echo $$ >> started"] * 3)
    bench.executor.submit([gang])
    deadline = time.monotonic() + 1.0
    while time.monotonic() < deadline:
        bench.executor.changes(0.2)
    assert bench.executor.observe([gang.attempt])[0].phase is Phase.QUEUED
    assert not (bench.directory / "started").exists()
    (bench.directory / "go").touch()
    assert [member.exit_code for member in bench.wait(gang).members] == [0, 0, 0]
    assert len((bench.directory / "started").read_text().split()) == 3


def test_failing_member_stops_the_other_nodes(bench):
    save = "trap 'echo saved; exit 0' TERM; touch up-$RANDOM; while :; do sleep 0.02; done"
    fail = "until [ $(ls up-* | wc -l) = 2 ]; do sleep 0.02; done; exit 3"
    gang = bench.gang("0", save, fail, save)
    bench.executor.submit([gang])
    members = bench.wait(gang).members
    assert [(member.exit_code, member.stopped) for member in members] == [(0, True), (3, False), (0, True)]


def test_server_on_another_node_outlives_those_it_serves(bench):
    serve = "trap 'echo x > end; exit 1' TERM; touch ready; while :; do sleep 0.02; done"
    save = "trap 'sleep 0.3; [ ! -e end ] || exit 9; exit 0' TERM; touch up; while :; do sleep 0.02; done"
    gang = bench.gang("0", save, serve, roles=["chief-0", "ps-0"], serving=(1,))
    bench.executor.submit([gang])
    until(lambda: (bench.directory / "up").exists() and (bench.directory / "ready").exists(), "both are up")
    assert bench.wait(gang, Phase.RUNNING).addresses["chief-0"] != gang
    bench.executor.stop(gang.attempt, 10.0)
    members = bench.wait(gang).members
    assert [member.exit_code for member in members] == [0, 1]
    assert all(member.stopped for member in members)
    done = bench.gang("1", "true", "sleep 600", "true", roles=["worker-0", "ps-0", "worker-1"], serving=(1,))
    bench.executor.submit([done])
    assert [member.stopped for member in bench.wait(done).members] == [False, True, False]


def test_cannot_start_on_one_node(bench):
    gang = bench.gang("0", "sleep 600", "true", "sleep 600")
    bad = MemberRequest(name="worker-1", script="true", cwd=str(bench.directory / "gone"))
    members = (gang.members[0], bad, gang.members[2])
    gang = GangRequest(**{**fields(gang), "members": members})
    bench.executor.submit([gang])
    first, second, third = bench.wait(gang).members
    assert "gone" in second.error
    assert first.stopped
    assert third.stopped
    assert not any(alive(member.pid) for member in (first, third))


def test_what_places_gangs_is_lost(bench, three):
    gang = bench.gang("0", *["echo $$ >> pids; until [ -e go ]; do sleep 0.02; done; exit 0"] * 3)
    held = bench.gang("1", "touch never", hold=True)
    bench.executor.submit([gang, held])
    before = bench.wait(gang, Phase.RUNNING)
    until(lambda: all(member.pid for member in bench.wait(gang, Phase.RUNNING).members), "all have started")
    before = bench.wait(gang, Phase.RUNNING)
    bench.wait(held, Phase.GRANTED)
    lose_conductor(three)
    after = bench.wait(gang, Phase.RUNNING)
    assert [member.pid for member in after.members] == [member.pid for member in before.members]
    bench.wait(held, Phase.UNKNOWN)
    (bench.directory / "go").touch()
    assert [member.exit_code for member in bench.wait(gang).members] == [0, 0, 0]
    assert len((bench.directory / "pids").read_text().split()) == 3
    assert not (bench.directory / "never").exists()


@only_ray
def test_without_a_driver_nothing_waits_for_a_dead_peer(bench, three):
    save = "trap 'echo saved; exit 0' TERM; while :; do sleep 0.02; done"
    gang = bench.gang("0", save, "until [ -e fail ]; do sleep 0.02; done; exit 3", save)
    bench.executor.submit([gang])
    pids = [member.pid for member in bench.all_started(gang).members]
    bench.executor.close()
    three._conductor.end()
    (bench.directory / "fail").touch()
    until(lambda: not any(map(alive, pids)), "their nodes have ended the others")
    bench.executor = bench.open()
    members = bench.wait(gang).members
    assert [(member.exit_code, member.stopped) for member in members] == [(0, True), (3, False), (0, True)]


DRIVER = """
import os, sys, time
from pathlib import Path
from trainmaster.executors.base import *
from trainmaster.executors.gangs.executor import NodesExecutor
from trainmaster.executors.ray.cluster import RayCluster
from trainmaster.executors.ssh.cluster import SshCluster
from trainmaster.testing.ray_here import HERE
record, directory = map(Path, sys.argv[1:3])
cluster = {"ray": RayCluster, "ssh": SshCluster}[sys.argv[3]]
executor = NodesExecutor(cluster.find(record, *HERE))
executor.open("gangs-0", Capacity(1), dict(os.environ))
script = "echo $$ >> pids; until [ -e go ]; do sleep 0.02; done"
def gang(task, hold, count):
    members = tuple(MemberRequest(f"worker-{index}", script, str(directory)) for index in range(count))
    where = str(directory / "attempts" / task)
    return GangRequest(f"gangs-0/train/{task}/1", where, members, count, "train", 9, hold=hold, per_node=1)
executor.submit([gang("0", False, 3), gang("1", True, 1)])
while True:
    executor.changes(0.1)
    phases = [each.phase for each in executor.observe(["gangs-0/train/0/1", "gangs-0/train/1/1"])]
    if phases == [Phase.RUNNING, Phase.GRANTED]:
        (directory / "running").touch()
"""


def test_driver_killed_and_adopted(bench, three, engine):
    bench.executor.close()
    three._conductor.end()  # without leases, two drivers would take the nodes from each other
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(three.directory), str(bench.directory), engine]
    )
    try:
        until((bench.directory / "running").exists, "the gang runs")
        pids = bench.directory / "pids"
        until(lambda: pids.exists() and len(pids.read_text().split()) == 3, "all have started")
    finally:
        driver.kill()
        driver.wait()
    gang, held = bench.gang("0", "", "", ""), bench.gang("1", "")
    found = type(three).find(three.directory, *HERE)
    bench.connect = lambda: NodesExecutor(found)  # as another driver does
    executor = bench.open()
    executor.submit([])
    bench.wait(held, Phase.UNKNOWN, executor)
    status = bench.wait(gang, Phase.RUNNING, executor)
    assert not any(member.lost for member in status.members)
    (bench.directory / "go").touch()
    assert [member.exit_code for member in bench.wait(gang, executor=executor).members] == [0, 0, 0]
    assert len((bench.directory / "pids").read_text().split()) == 3, "nothing was started again"
    executor.forget([gang.attempt])
    executor.close()
    found._conductor.end()


def test_copies_of_what_members_write(bench, tmp_path):
    """On a driver that does not share a file system with the nodes; also when it comes and goes."""
    copies = tmp_path / "driver"

    def place(directory):
        return copies / Path(directory).name

    line = """printf '{"step": %s}\\n' $i >> $ATTEMPT/worker-$1.metrics.jsonl"""
    loop = f"i=0; until [ -e go ]; do echo $EPOCHREALTIME; {line}; i=$((i + 1)); sleep 0.1; done; echo end"
    gang = bench.gang("0", *[f"set -- {rank}; {loop}" for rank in range(2)])
    where = {"ATTEMPT": gang.directory}
    executor = bench.open(place=place)
    executor.submit(
        [GangRequest(**{**fields(gang), "members": tuple(with_env(each, where) for each in gang.members)})]
    )
    log = copies / "0" / "worker-1.log"
    until(log.exists, "it is being copied")
    assert pumped(executor, lambda: [True for _, member in executor.output() if member == "worker-1"])
    for _ in range(3):  # while they still write
        size = log.stat().st_size
        assert pumped(executor, lambda size=size: [True] if log.stat().st_size > size else []), "it follows"
    executor.close()
    time.sleep(0.5)
    (bench.directory / "go").touch()
    second = bench.open(place=place)
    status = bench.wait(gang, executor=second)
    assert [member.exit_code for member in status.members] == [0, 0]
    original = Path(gang.directory)
    for name in ("worker-0.log", "worker-1.log", "worker-0.metrics.jsonl", "worker-1.metrics.jsonl"):
        assert (copies / "0" / name).read_bytes() == (original / name).read_bytes(), name
    rows = [json.loads(row) for row in (copies / "0" / "samples.jsonl").read_text().splitlines()]
    assert {row["member"] for row in rows} == {"worker-0", "worker-1"}
    keys = [(row["member"], row["time"], row["processes"]) for row in rows]
    assert len(keys) == len(set(keys)), "nothing twice"


def with_env(member, env):
    return MemberRequest(**{**fields(member), "env": env})


def pumped(executor, look):
    found = []
    deadline = time.monotonic() + 60
    while not found and time.monotonic() < deadline:
        executor.changes(0.2)
        found = look()
    return found


@only_ray
@pytest.mark.crossings  # to start another Ray takes some seconds of a core
def test_users_own_ray(bench, tmp_path):
    """A member may start a Ray of its own: nothing of ours points it to another one."""
    code = (
        "import ray; ray.init(num_cpus=3, include_dashboard=False, logging_level=40); "
        "print(int(ray.cluster_resources()['CPU'])); ray.shutdown()"
    )
    home = tmp_path / "own"
    home.mkdir()
    script = f'env | grep ^RAY_ && exit 9; export HOME={home}; exec {sys.executable} -W ignore -c "{code}"'
    gang = bench.gang("0", script)
    bench.executor.submit([gang])
    status = bench.wait(gang, patience_s=150.0)
    log = (Path(gang.directory) / "worker-0.log").read_text()
    assert status.members[0].exit_code == 0, log
    assert log.split()[-1] == "3", log


@only_ray
def test_no_trace(three, place):
    assert list((place / "user").iterdir()) == [], "neither ~/.ray nor anything else"
    for path in (three.directory / "token", Path(three.head.directory) / "token"):
        assert path.stat().st_mode & 0o777 == 0o600
    token = (three.directory / "token").read_text()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                assert token.encode() not in (entry / "cmdline").read_bytes()
            except OSError:
                continue
    assert not os.environ.get("RAY_AUTH_MODE")


@only_ray
def test_only_what_is_used_runs_on_the_head(three):
    assert processes_of(three.head, "gcs_server")
    monitors = ("autoscaler/_private/monitor.py", "log_monitor.py")
    for unused in ("dashboard/dashboard.py", "dashboard/agent.py", "runtime_env/agent/main.py", *monitors):
        assert not processes_of(three.head, unused)


def test_found_again(three):
    found = type(three).find(three.directory, *HERE)
    assert found is not None
    assert [node.key for node in found.nodes] == [node.key for node in three.nodes]
    assert found.is_up()
    assert type(three).find(three.directory / "elsewhere", *HERE) is None
