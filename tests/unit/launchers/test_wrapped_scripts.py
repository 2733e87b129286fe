"""Launchers that run something around the user's script, each with bash and stand-ins for the programs."""

import os
import socket
import subprocess
from pathlib import Path

import pytest

from trainmaster.launchers import Gang, Member, MpiLauncher, MxnetLauncher, RayLauncher, SparkLauncher

QUOTES = "echo \"it's $WORD\" # with 'quotes'\nexit 3"


@pytest.fixture
def bash(tmp_path):
    """Runs a member's script as the supervisor does, with these programs first on PATH."""

    def run(script, env, **programs):
        for name, text in programs.items():
            path = tmp_path / name.replace("_", "-")
            path.write_text(f"#!/bin/bash\n{text}\n")
            path.chmod(0o755)
        defaults = {
            "PATH": f"{tmp_path}:{os.environ['PATH']}",
            "TRAINMASTER_METRICS": f"{tmp_path}/worker-0.metrics.jsonl",
            "WORD": "fine",
        }
        env = os.environ | defaults | env
        return subprocess.run(
            ["/bin/bash", "-euo", "pipefail", "-c", "--", script, "train"],
            env=env,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=30,
        )

    return run


def workers(*hosts):
    return Gang(tuple(Member("worker", i, host, tuple(range(7000, 7004))) for i, host in enumerate(hosts)))


def test_mpirun_gets_a_place_for_each_member_on_its_machine(bash):
    gang = workers("a", "b", "a")
    mpirun = 'echo "$@" | head -1; shift 4; OMPI_COMM_WORLD_RANK=1 exec "$@"'
    env = {"TRAINMASTER_METRICS": "m", **MpiLauncher().environment(gang, gang.chief)}
    done = bash(MpiLauncher().script(gang, gang.chief, QUOTES), env, mpirun=mpirun)
    assert done.stdout.splitlines()[0].startswith(
        "-np 3 --host a:2,b:1 env -u SSH_CLIENT -u SSH2_CLIENT bash -euo pipefail -c export"
    )
    assert done.stdout.splitlines()[-1] == "it's fine"
    assert done.returncode == 3


@pytest.mark.parametrize(("rank", "expected"), [(0, "0 /x/m.jsonl"), (2, "2 /x/m.jsonl.rank-2")])
def test_the_metrics_of_rank_0_are_its_own(bash, rank, expected):
    gang = workers("a", "a", "a")
    script = MpiLauncher().script(gang, gang.chief, 'echo "$TRAINMASTER_INDEX $TRAINMASTER_METRICS"')
    env = {"TRAINMASTER_METRICS": "/x/m.jsonl", "OMPI_COMM_WORLD_RANK": str(rank)}
    env |= MpiLauncher().environment(gang, gang.chief)
    assert bash(script, env, mpirun='shift 4; exec "$@"').stdout.strip() == expected


def test_ranks_on_other_machines_get_the_environment(bash):
    gang = workers("a", "b")
    env = {"GREETING": "hello", **MpiLauncher().environment(gang, gang.chief)}
    script = MpiLauncher().script(gang, gang.chief, "true")
    told = bash(script, env, mpirun='echo "$OMPI_MCA_mca_base_env_list"').stdout.strip().split(";")
    assert {"GREETING", "PATH", "WORD"} <= set(told)
    assert not {"PWD", "SHLVL", "OMPI_MCA_mca_base_env_list"} & set(told)


def test_what_is_not_installed_is_named(bash):
    gang = workers("a", "a")
    for launcher, hint in (
        (MpiLauncher(), "apt install openmpi-bin"),
        (SparkLauncher(), "pip install pyspark"),
        (RayLauncher(), "pip install ray"),
    ):
        script = launcher.script(gang, gang.chief, "true")
        done = bash(script, launcher.environment(gang, gang.chief) | {"PATH": "/nowhere"})
        assert done.returncode != 0
        assert hint in launcher.explain(done.stderr)


def test_only_the_member_with_mpirun_is_waited_for():
    gang = workers("a", "b")
    assert [MpiLauncher().is_essential(gang, member) for member in gang.members] == [True, False]


# Variables and roles as MXNet documents them ("Distributed training in MXNet") and ps-lite reads them.
def test_mxnet_contract():
    gang = Gang(
        (
            Member("worker", 0, "10.0.0.1", (9091,)),
            Member("worker", 1, "10.0.0.2", (9092,)),
            Member("ps", 0, "10.0.0.3"),
        )
    )
    first, second, server = (MxnetLauncher().environment(gang, member) for member in gang.members)
    assert first == {
        "DMLC_ROLE": "worker",
        "DMLC_PS_ROOT_URI": "10.0.0.1",
        "DMLC_PS_ROOT_PORT": "9091",
        "DMLC_NUM_SERVER": "1",
        "DMLC_NUM_WORKER": "2",
        "DMLC_NODE_HOST": "10.0.0.1",
    }
    assert second == first | {"DMLC_NODE_HOST": "10.0.0.2"}
    assert server == first | {"DMLC_ROLE": "server", "DMLC_NODE_HOST": "10.0.0.3"}
    assert [MxnetLauncher().is_essential(gang, member) for member in gang.members] == [True, True, False]


def test_mxnet_scheduler_runs_the_same_script_beside_the_first_worker(bash):
    gang = Gang((Member("worker", 0, "a", (9091,)), Member("worker", 1, "a", (9092,)), Member("ps", 0, "a")))
    launcher, user = MxnetLauncher(), "echo $DMLC_ROLE >> roles"
    script = launcher.script(gang, gang.chief, f"{user}; wait; sort roles")
    done = bash(script, launcher.environment(gang, gang.chief))
    assert done.stdout.split().count("scheduler") >= 1
    assert done.stdout.split().count("worker") >= 1
    assert [launcher.script(gang, member, user) for member in gang.members[1:]] == [user, user]
    alone = workers("a")
    assert launcher.script(alone, alone.chief, user) == user, "nothing to be found without servers"


def test_the_exit_code_of_the_spark_driver_is_told_and_its_servers_end(bash):
    gang = workers("127.0.0.1", "127.0.0.1")
    spark_class = 'echo "$1" >> servers; exec sleep 600'
    script = SparkLauncher().script(gang, gang.chief, f"until [ -s servers ]; do sleep 0.02; done\n{QUOTES}")
    script = script.replace("{1..600}", "{1..1}")  # nobody will listen
    done = bash(script, SparkLauncher().environment(gang, gang.chief), spark_class=spark_class)
    assert done.returncode == 3
    assert "it's fine" in done.stdout
    assert [SparkLauncher().is_essential(gang, member) for member in gang.members] == [True, False]
    assert [SparkLauncher().is_dispensable(gang, member) for member in gang.members] == [False, True]


def test_what_spark_servers_say_is_in_a_file_beside_the_log(bash, tmp_path):
    gang = workers("127.0.0.1", "127.0.0.1")
    script = SparkLauncher().script(gang, gang.chief, "until [ -s servers ]; do sleep 0.02; done\necho mine")
    script = script.replace("{1..600}", "{1..1}")
    noisy = 'echo "INFO $2"; echo "INFO again" >&2; echo >> servers; exec sleep 600'
    done = bash(script, SparkLauncher().environment(gang, gang.chief), spark_class=noisy)
    assert (done.stdout, done.stderr) == ("mine\n", "")
    assert "INFO" in (tmp_path / "worker-0.spark.txt").read_text()


def test_a_spark_worker_that_fails_tells_why_in_its_log(bash):
    gang = workers("127.0.0.1", "127.0.0.1")
    script = SparkLauncher().script(gang, gang.members[1], "never run").replace("{1..600}", "{1..1}")
    env = SparkLauncher().environment(gang, gang.members[1])
    done = bash(
        script, env, spark_class='for i in {1..50}; do echo "INFO $i"; done; echo "ERROR no room"; exit 7'
    )
    assert done.returncode == 7
    assert done.stderr.endswith("ERROR no room\n")
    assert done.stderr.count("INFO") < 25
    assert "spark.txt" in done.stdout


LISTENS = """
echo "$@" >> calls
port=$(sed -n 's/.*--port \\([0-9]*\\).*/\\1/p' <<<"$*")
exec python3 -c "
import socket, time
held = socket.create_server(('127.0.0.1', $port))
time.sleep(600)"
"""


def ray_pair(port):
    members = (Member("worker", i, "127.0.0.1", (port + 2 * i, port + 2 * i + 1)) for i in range(2))
    return Gang(tuple(members))


@pytest.fixture
def port():
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return held.getsockname()[1]


@pytest.mark.parametrize("has_client", [True, False])
def test_the_command_of_ray_runs_beside_its_head_when_all_have_joined(bash, tmp_path, port, has_client):
    gang, launcher = ray_pair(port), RayLauncher()
    asks = f'[[ "$2" != "import grpc" ]] || exit {0 if has_client else 1}'
    joined = asks + '; echo "python ${@: -1} $RAY_ADDRESS" >> calls'
    env = launcher.environment(gang, gang.chief) | launcher.defaults(gang, gang.chief)
    done = bash(launcher.script(gang, gang.chief, QUOTES), env, ray=LISTENS, python=joined)
    assert (done.returncode, done.stdout) == (3, "it's fine\n"), done.stderr
    head, asked = (tmp_path / "calls").read_text().splitlines()
    assert asked == f"python 2 127.0.0.1:{port}"
    assert head.startswith("start --block --node-ip-address 127.0.0.1 --num-cpus ")
    assert f"--head --port {port} --include-dashboard false" in head
    assert (f"--ray-client-server-port {port + 1}" in head) == has_client
    directory = head.partition("--temp-dir ")[2].split()[0]
    assert directory.startswith("/tmp/ray."), "the paths of its sockets must be short"
    assert not Path(directory).exists()
    assert [launcher.is_essential(gang, member) for member in gang.members] == [True, False]
    assert not launcher.is_dispensable(gang, gang.members[1]), "Ray would wait for what it had"


@pytest.mark.parametrize("index", [0, 1])
def test_a_member_of_ray_that_does_not_start_tells_why_in_its_log(bash, port, index):
    gang, launcher = ray_pair(port), RayLauncher()
    script = launcher.script(gang, gang.members[index], "never run").replace("{1..3000}", "{1..1}")
    env = launcher.environment(gang, gang.members[index])
    done = bash(script, env, ray='for i in {1..50}; do echo "INFO $i"; done; echo "Version mismatch"; exit 7')
    assert done.returncode == 7
    assert done.stderr.endswith("Version mismatch\n")
    assert done.stderr.count("INFO") < 25
    assert "same Ray" in launcher.explain(done.stderr)


@pytest.mark.parametrize(
    "said", ["No node info found for head node", "The current node timed out during startup. This could"]
)
def test_a_member_of_ray_that_is_too_early_or_too_slow_tries_again(bash, tmp_path, port, said):
    gang, launcher = ray_pair(port), RayLauncher()
    script = launcher.script(gang, gang.members[1], "never run").replace("{1..3000}", "{1..1}")
    once = f'echo "$@" >> calls; (($(wc -l < calls) > 1)) || {{ echo {said}; exit 1; }}'
    done = bash(script, launcher.environment(gang, gang.members[1]), ray=once)
    assert (done.returncode, done.stderr) == (0, "")
    assert len((tmp_path / "calls").read_text().splitlines()) == 2
