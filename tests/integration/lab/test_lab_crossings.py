"""A machine of a gang whose members talk to each other is lost: never the user's fault, and the gang goes on.

A table: framework x which machine x what befalls it x who drives the run. `make crossings` runs all of it;
`make test` one of the ways in which members meet, with a fault that other tests do not have.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import secrets
import shutil
import subprocess
import sysconfig
import time
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="ray is not installed")
pytest.importorskip("boto3", reason="boto3 is not installed")

from renter import Renter, Renting
from running_server import RunningServer

pytestmark = [pytest.mark.ray, pytest.mark.timeout(1200)]

GANGS = Path(__file__).parent / "gangs"
#: A weight that is trained: each step takes a thousandth of it, times the mean of 1, 2, ... by member.
RATE = 0.001
#: Seconds between steps of the first attempt: the fault must come before the last.
PAUSE_S = 1.0
#: That a machine is taken back is said so long before.
NOTICE_S = 20
#: TensorFlow and Spark take minutes to begin on a machine that others use.
BEGUN_S = 480.0
#: After a cut: TCP has sent again what was lost, and whoever takes the machine for lost has said so.
HEALED_S = 15.0
RECIPE = """
name: steps
experiments:
  train:
    framework: {framework}
    distributed: {{strategy: {strategy}, workers: {workers}{more}}}
    hardware: {{instance: m4.xlarge{spot}}}
    env: {{TF_CPP_MIN_LOG_LEVEL: 2, WORKERS: {workers}, JAVA_HOME: /tmp/java, JDK_JAVA_OPTIONS: "{java}"}}
    checkpoint: {{every: 8s}}
    grace: 5s
    command: {command}
"""
#: A driver that is not taken back with the gang that it drives.
STEADY = """
  steady:
    framework: plain
    hardware: {instance: m4.xlarge}
    command: sleep 90
"""
#: JVMs that end soon: half of their processor time is the second compiler's.
QUICK_JAVA = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
#: Machines of the lab have no Java: it goes with the code. What `setup` makes finds this Python's packages.
JAVA = f"""
    setup:
      - ln -sfn "$PWD/java" /tmp/java
      - python -c 'import site; print(site.getsitepackages()[0])' > place
      - echo {sysconfig.get_path("purelib")} > $(cat place)/here.pth
"""


@dataclass(frozen=True)
class Kind:
    """A script, how its recipe runs it, whose log tells the end, and whether workers may be lost."""

    framework: str
    module: str
    script: str
    strategy: str = "allreduce"
    more: str = ""
    log: str = "worker-0"
    survives: bool = False
    steps: int = 300


KINDS = {
    "torch": Kind("pytorch", "torch", "plain_torch.py"),
    "ddp": Kind("pytorch", "torch", "ddp.py"),
    "fsdp": Kind("pytorch", "torch", "fsdp.py"),
    "accelerate": Kind("pytorch", "accelerate", "accelerated.py"),
    "mirrored": Kind("tensorflow", "tensorflow", "mirrored.py"),
    "jax": Kind("jax", "jax", "jax_sum.py"),
    "mpi": Kind("mpi", "mpi4py", "mpi_sum.py"),
    "ray": Kind("ray", "ray", "ray_sum.py"),
    # TensorFlow survives the loss of a worker mostly, and its chief fails else: both are right.
    "servers": Kind(
        "tensorflow", "tensorflow", "servers.py", "ps-async", ", parameter_servers: 1", "chief-0", steps=180
    ),
    # A step of Spark's is a job, which takes a second on a busy machine.
    "spark": Kind("spark", "pyspark", "spark_sum.py", survives=True, steps=60),
}
SEATS = ("first", "other")
FAULTS = ("terminate", "freeze", "cut 3", "cut 12", "cut 60", "notice")
DRIVERS = ("home", "server", "cluster")
#: With all tests, machines that end or are taken back at home are those of `test_lab_runs.py`, those that are
#: cut off those of `test_lab_faults.py`; those of a server's runs are lost in `test_lab_team_server.py`.
CROSSINGS = [
    (kind, seat, fault, driver, workers)
    for kind, seat, fault, driver in itertools.product(KINDS, (*SEATS, "server"), FAULTS, DRIVERS)
    for workers in {"torch": (2, 3), "servers": (3,)}.get(kind, (2,))
    if seat in SEATS or (kind == "servers" and driver != "cluster")
]


def begun(renter: Renter, renting: Renting, driver: str) -> str:
    """Its id, when some steps were made, and at home a checkpoint is there."""
    run = renting.run
    if driver != "cluster":
        renting.until(lambda: renter.checkpoints(run), "a checkpoint", BEGUN_S)
    else:
        renting.until_said("drives it from now on", BEGUN_S)
        renting.until(lambda: "step=" in renter.call("status", run).stdout, "what the machine reports")
        renting.until(lambda: renter.saved_at(run), "a checkpoint")
    return run


def take_java_along(work: Path) -> None:
    """What runs programs, without what compiles them: a third of 160 MB."""
    jlink = Path(os.path.realpath(shutil.which("java") or "")).with_name("jlink")
    if not jlink.exists():
        pytest.skip("no jlink beside java")
    modules = [
        "--add-modules",
        "java.se,jdk.unsupported,jdk.incubator.vector,jdk.security.auth",
        "--strip-debug",
        "--compress=2",
    ]
    quick = [f"-J{option}" for option in QUICK_JAVA]
    subprocess.run([jlink, *quick, *modules, "--output", work / "java"], check=True)


def serving(renter: Renter) -> dict[str, str]:
    """What a call needs to ask a server of this home, which has begun."""
    name = f"own-{secrets.token_hex(4)}"  # the home is that of earlier rows, and a name is taken once
    token = json.loads(renter.call("token", "create", name, "--json").stdout)["token"]
    server = RunningServer(renter.start)
    server.start()
    return {"TRAINMASTER_URL": server.url, "TRAINMASTER_TOKEN": token}


def machine_of(renter: Renter, run: str, kind: Kind, seat: str, driver: str, *, spot: bool) -> str:
    """The machine of the first member, of the parameter server, or one that has workers only."""
    if driver == "cluster":  # only the machine knows; members that are all alike sit where their names say
        seats = renter.machines(run, spot=spot)
        return seats["worker-0"] if seat == "first" else seats[max(seats)]
    (text,) = (renter.lab.home / "runs" / run / "tasks/train/0").glob("1/places.json")
    places: dict[str, str] = json.loads(text.read_text())
    first = places[kind.log]
    if seat == "first":
        return first
    if seat == "server":
        return places["ps-0"]
    busy = {first, places.get("ps-0")}
    return next(machine for machine in places.values() if machine not in busy)


def befall(renter: Renter, renting: Renting, machine: str, fault: str) -> None:
    what, _, for_s = fault.partition(" ")
    assert renting.process.poll() is None, f"it ended before that:\n{renting.text}"
    if what == "notice":
        renter.lab.call("interrupt", machine, "--notice", NOTICE_S)
        return
    renter.lab.call(what, machine)
    if for_s:
        time.sleep(float(for_s))
        renter.call("lab", "heal", machine, code=None)  # it may have been given back meanwhile


def hurry(renter: Renter, run: str, kind: Kind, fault: str) -> None:
    """The attempt that has outlived a fault makes the rest of its steps without pauses."""
    time.sleep(HEALED_S + (NOTICE_S if fault == "notice" else 0))
    renter.call("exec", run, kind.log, "--", "touch /tmp/hurry", code=None)  # it may be over


@pytest.mark.crossings  # JAX, here: `test_cli_frameworks.py`
@pytest.mark.parametrize(("name", "seat", "fault", "driver", "workers"), CROSSINGS)
def test_a_lost_machine_is_nobodys_fault(
    request: pytest.FixtureRequest,
    renter: Renter,
    name: str,
    seat: str,
    fault: str,
    driver: str,
    workers: int,
) -> None:
    kind = KINDS[name]
    if driver == "cluster":
        request.getfixturevalue("store")
    if find_spec(kind.module) is None:  # to import it takes ten seconds
        pytest.skip(f"{kind.module} is not installed")
    for path in GANGS.glob("*.py"):
        shutil.copy(path, renter.work)
    if name == "spark":
        take_java_along(renter.work)
    spot = fault == "notice"
    text = RECIPE.format(
        framework=kind.framework,
        strategy=kind.strategy,
        workers=workers,
        more=kind.more,
        spot=", spot: true" if spot else "",
        java=" ".join(QUICK_JAVA),
        command=f"python {kind.script} {kind.steps} {PAUSE_S}",
    ) + (JAVA.lstrip("\n") if name == "spark" else "")
    text += STEADY.lstrip("\n") if spot and driver == "cluster" else ""
    options = ["--on-cluster"] if driver == "cluster" else []
    env = serving(renter) if driver == "server" else {}
    renting = renter.run(renter.recipe(text), *options, **env)
    run = begun(renter, renting, driver)
    machine = machine_of(renter, run, kind, seat, driver, spot=spot)
    befall(renter, renting, machine, fault)
    may_go_on = fault.startswith("cut") or ((kind.log == "chief-0" or kind.survives) and seat == "other")
    if may_go_on:
        hurry(renter, run, kind, fault)
    found = renting.end(timeout_s=480)
    assert found["reason"] == "SUCCEEDED", renting.text
    attempts = renter.attempts(run)
    assert set(attempts[:-1]) <= {"NODE_LOST", "PREEMPTED"}, (attempts, renting.text)
    assert may_go_on or len(attempts) > 1, "nothing has happened to it"
    if kind.survives and seat == "other" and fault != "notice" and driver != "cluster":
        assert len(attempts) == 1, (renter.call("status", run, "--json").stdout, renting.text)
    log = renter.call("logs", run, "--member", kind.log).stdout
    said = re.findall(rf"done at {kind.steps} weight (\S+)", log)
    assert said, (attempts, log, renting.text)
    weight = float(said[-1])
    mean = (workers + 1) / 2
    assert weight == pytest.approx((1 - RATE * mean) ** kind.steps, rel=1e-3), "each step counts once"
    if len(attempts) > 1:
        started = [step for _, step in renter.starts(run, kind.log)]
        assert started[-1] > 0, "it went on from a checkpoint"


#: Comes to .9 at step 64, after 20 s.
AIMED = """
import json, os, time
print(f"attempt {os.environ['TRAINMASTER_ATTEMPT']} starts at 0", flush=True)
for step in range(1, 400):
    time.sleep(0.3)
    with open(os.environ["TRAINMASTER_METRICS"], "a") as file:
        file.write(json.dumps({"step": step, "accuracy": 1 - 0.8 * step**-0.5}) + "\\n")
"""
TARGET = """
name: steps
experiments:
  train:
    framework: plain
    distributed: {strategy: allreduce, workers: 2}
    hardware: {instance: m4.xlarge}
    grace: 2s
    steps: 400
    target: {metric: accuracy, at_least: 0.9}
    command: python3 aimed.py
"""


@pytest.mark.crossings
@pytest.mark.parametrize("driver", [*DRIVERS, "killed"])
def test_a_target_is_foretold_and_ends_a_gang(
    request: pytest.FixtureRequest, renter: Renter, driver: str
) -> None:
    if driver == "cluster":
        request.getfixturevalue("store")
    (renter.work / "aimed.py").write_text(AIMED)
    recipe = renter.recipe(TARGET)
    env = serving(renter) if driver == "server" else {}
    renting = renter.run(recipe, *(["--on-cluster"] if driver == "cluster" else []), **env)
    run = renting.run
    told = "to accuracy >= 0.9: at step "
    renting.until(lambda: told in renter.call("status", run, **env).stdout, "a forecast", BEGUN_S)
    if driver == "killed":
        renting.kill()
        renting = renter.start("resume", run, "--json")
    found = renting.end(timeout_s=480)
    train = found["experiments"]["train"]
    assert (found["reason"], train["until"]["reached"]) == ("SUCCEEDED", 1), renting.text
    assert re.match(r"target accuracy >= 0.9: accuracy is 0.90?\d* at step 6\d", train["message"])
    assert [step for _, step in renter.starts(run)] == [0], "its members were not started again"
    if driver == "cluster":  # what was measured there is not found again at home yet
        return
    quoted = renter.call("quote", recipe, "--set", "provider=lab", "--json", code=None, **env)
    assert re.search(r"by (\d) earlier runs?, \1 of which came to it", quoted.stderr), quoted.stderr
