"""What else of the house meets a Slurm: each row a run on the real one, which leaves nothing there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("asyncssh", reason="asyncssh is not installed")

from place_runs import (
    Crossing,
    check_clean,
    cross,
    gang,
    have_two_homes,
    keep_for_the_next,
    podman_with_image,
    train_as_a_team,
    train_with_own_login,
    until,
)
from private_engines import IMAGE, NoEngineError, PrivateEngine, make_image
from renter import Renter
from spread_tasks import spread

from trainmaster.providers.base import NodeRequest, NodeState, ProviderPlace
from trainmaster.providers.slurm.provider import catalogue_of, slurm_provider
from trainmaster.testing.private_slurm import NoSlurmError, PrivateSlurm
from trainmaster.testing.private_sshd import SshHost, make_key

if TYPE_CHECKING:  # another folder's conftest.py may have the name by then
    from conftest import Account

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.places,
]

ROWS = {
    "volume": Crossing(
        'cat "$TRAINMASTER_DATA_IMAGES/deep/a"', "of the volume", more="data: {images: {volume: images}}"
    ),
    "container": Crossing(
        "echo image $FROM_IMAGE", "image yes", more=f"container: {IMAGE}",
        env={"TRAINMASTER_CONTAINER_ENGINE": "podman"},
    ),
    "container of Apptainer": Crossing(
        "echo image $FROM_IMAGE; [ -n \"$APPTAINER_CONTAINER\" ]", "image yes", more=f"container: {IMAGE}"
    ),
    "modules": Crossing(
        "python3 -c 'import os, demo; print(demo.SAYS, os.environ[\"DEMO_SITE\"])'", "a module of site"
    ),
    "sweep": Crossing(
        "echo rate {{rate}}", "rate 2", more="parameters: {rate: [1, 2, 3]}"
    ),
    "cap": Crossing(
        "sleep 600", "the run ends: it may cost", "dear", "{total: $0.6}", code=1
    ),
    "constraint, GPUs by their option, reservation": Crossing(
        "echo gpus=$CUDA_VISIBLE_DEVICES", "gpus=0", "chosen"
    ),
    "a limit of waiting": Crossing("echo never", "no machines after 5 s", "node", "{wait: 5s}", code=1),
    "driver on the cluster": Crossing("echo never", "neither side could", options=("--on-cluster",), code=2),
    "a limit above the partition's": Crossing("echo never", "than partition main allows", "long", code=2),
    "more memory than a node has": Crossing("echo never", "partition main has 9 GB", "large", code=2),
    "more GPUs than a node has": Crossing("echo never", "partition main has 3 GPUs", "gpus", code=2),
    "no such reservation": Crossing("echo never", "Slurm refuses machine reserved", "reserved", code=2),
}  # fmt: skip
MACHINES = """\
  dear: {cpus: 1, memory: 300MB, usd_per_hour: 3}
  long: {cpus: 1, memory: 300MB, time_limit: 48h}
  large: {cpus: 1, memory: 9GB}
  gpus: {cpus: 1, memory: 300MB, gpus: 3}
  reserved: {cpus: 1, memory: 300MB, reservation: nobodys}
  chosen: {cpus: 1, memory: 300MB, constraint: fast, gpus: 1, gpus_per_node: "a100:1", reservation: ours}
"""


@pytest.fixture
def modules(tmp_path: Path) -> str:
    """Lines that load a module of Lmod, or of its like; what it has would break our own programs."""
    if not any(Path("/etc/profile.d").glob("*mod*.sh")):
        pytest.skip("neither lmod nor environment-modules is installed")
    files, library = tmp_path / "modulefiles", tmp_path / "library"
    files.mkdir()
    library.mkdir()
    (files / "demo").write_text(f"#%Module\nprepend-path PYTHONPATH {library}\nsetenv DEMO_SITE site\n")
    (library / "demo.py").write_text("SAYS = 'a module of'\n")
    (library / "msgspec.py").write_text("raise ImportError('not for Trainmaster')\n")
    return f"before: |\n  module use {files}\n  module load demo\n"


@pytest.fixture(scope="module")
def podman(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder whose `podman` has our image, on every node."""
    folder = tmp_path_factory.mktemp("bin")
    with podman_with_image(folder):
        yield folder


@pytest.fixture(scope="module")
def apptainer() -> Iterator[str]:
    """Lines that choose it, with our image in its cache, on every node."""
    yield from chosen_on_nodes("apptainer")


@pytest.fixture(scope="module")
def enroot() -> Iterator[str]:
    """The same of Enroot."""
    yield from chosen_on_nodes("enroot")


def chosen_on_nodes(kind: str) -> Iterator[str]:
    """Lines for the settings of Slurm."""
    try:
        with PrivateEngine(kind, make_image(("bash", "cat", "sleep"), python=False)) as engine:
            chosen = " ".join(f"{name}='{value}'" for name, value in engine.env.items())
            yield f"before: export {chosen}\n"
            until(lambda: not engine.containers(), 60)
    except NoEngineError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("name", ROWS)
def test_crossing(
    user: Renter, account: Account, slurm: PrivateSlurm, request: pytest.FixtureRequest, name: str
) -> None:
    """It ends as it does elsewhere."""
    row, settings = ROWS[name], account.home / "slurm.yaml"
    text = settings.read_text() + MACHINES
    if name == "container":
        text = f"before: export PATH={request.getfixturevalue('podman')}:$PATH\n{text}"
    if name == "container of Apptainer":
        text = request.getfixturevalue("apptainer") + text
    if name == "modules":
        text = request.getfixturevalue("modules") + text
    settings.write_text(text)
    if name == "a limit of waiting":
        slurm.command("sbatch", "-N3", "--exclusive", "-o", "/dev/null", "--wrap", "sleep 1000")
    reserved = ("ReservationName=ours", "Nodes=ALL", "Users=root", "StartTime=now", "Duration=60")
    if row.machine == "chosen":  # no other job would begin
        slurm.command("scontrol", "create", "reservation", *reserved)
    try:
        cross(user, "slurm", row)
    finally:
        slurm.command("scancel", "-n", "wrap")
        slurm.command("scontrol", "delete", reserved[0], check=False)
    check_clean(account)


@pytest.mark.parametrize(("machine", "at_once"), [("half", 2), ("node", 4)])
def test_a_search_and_a_sweep_fill_both_nodes(
    user: Renter, account: Account, machine: str, at_once: int
) -> None:
    """Nodes of one CPU, and of two."""
    spread(user, "slurm", machine, at_once)
    check_clean(account)


@pytest.mark.parametrize("kind", ["apptainer", "enroot"])
def test_a_gang_without_a_daemon_outlives_its_driver_and_goes_on(
    user: Renter, account: Account, request: pytest.FixtureRequest, kind: str
) -> None:
    """Killed, the driver finds the members that run; interrupted, they save, and the next one has that."""
    settings = account.home / "slurm.yaml"
    settings.write_text(f"{request.getfixturevalue(kind)}{settings.read_text()}")
    count = """|
      [ "${container-${APPTAINER_CONTAINER:+apptainer}}" = KIND ]
      saved=$TRAINMASTER_CHECKPOINT_DIR/count-$TRAINMASTER_INDEX
      if [ -e $saved ]; then echo "goes on from $(cat $saved)"; exit; fi
      trap 'echo 7 > $saved; exit 3' TERM
      echo counts; sleep 600 & wait"""
    recipe = user.recipe(Crossing(count.replace("KIND", kind), "", more=f"container: {IMAGE}").recipe)
    going = user.run(recipe, provider="slurm")
    run = going.run
    logs = [user.lab.home / "runs" / run / f"tasks/train/0/1/worker-{index}.log" for index in (0, 1)]
    until(lambda: all(log.exists() and "counts" in log.read_text() for log in logs), seen=lambda: going.text)
    going.kill()
    again = user.start("resume", run, "--json")
    again.until(lambda: run in again.text, "it drives")
    again.interrupt()
    again.end(130)
    assert [log.read_text() for log in logs] == ["counts\n"] * 2
    user.start("resume", run, "--json").end()
    assert user.call("logs", run).stdout.count("goes on from 7") == 2
    check_clean(account)


def test_machines_that_are_kept_have_the_next_run(
    user: Renter, account: Account, slurm: PrivateSlurm
) -> None:
    """The same job; then it is given back."""
    keep_for_the_next(user, "slurm", "half", slurm.jobs)
    check_clean(account)


def test_two_homes_have_one_account(
    user: Renter, account: Account, slurm: PrivateSlurm, tmp_path: Path
) -> None:
    """Also one directory for files of nodes."""
    have_two_homes(user, tmp_path / "other", "slurm", "half", slurm.jobs)
    check_clean(account)


def test_a_node_is_drained_below_a_run(user: Renter, account: Account, slurm: PrivateSlurm) -> None:
    """What runs there goes on to its end; the next run is elsewhere."""
    recipe = user.recipe(Crossing("python3 steps.py 60 0.1", "").recipe)
    going = user.run(recipe, provider="slurm")
    run = going.run
    until(lambda: "n" in slurm.command("squeue", "-h", "-t", "R", "-o", "%N"), 120)
    node = slurm.command("squeue", "-h", "-t", "R", "-o", "%B").split()[0]
    slurm.command("scontrol", "update", f"NodeName={node}", "State=DRAIN", "Reason=a test")
    try:
        assert going.end()["state"] == "DONE"
        assert len(user.attempts(run)) == 1
        again = user.run(recipe, provider="slurm")
        until(lambda: slurm.command("squeue", "-h", "-t", "R", "-o", "%N"), 120)
        assert node not in slurm.command("squeue", "-h", "-t", "R", "-o", "%N").split(",")
        again.end()
    finally:
        slurm.command("scontrol", "update", f"NodeName={node}", "State=RESUME")
    check_clean(account)


def test_a_team_trains_on_a_server_that_has_an_account(
    user: Renter, account: Account, slurm: PrivateSlurm, tmp_path: Path
) -> None:
    """Its member has neither Slurm nor the settings; the task has the team's secret, and nobody else's."""
    train_as_a_team(user, "slurm", tmp_path, SLURM_CONF="/nowhere")
    check_clean(account)


def test_a_team_trains_with_its_own_login(user: Renter, account: Account, tmp_path: Path) -> None:
    """By SSH, with its own key, where the server has neither Slurm nor settings for it."""
    key, folder = tmp_path / "id", tmp_path / "login"
    make_key(key)
    folder.mkdir()
    (tmp_path / "mia").mkdir()
    host = SshHost(folder, "login", key, address=account.slurm.address, SLURM_CONF=user.env.pop("SLURM_CONF"))
    host.start()
    text = (account.home / "slurm.yaml").read_text()
    (account.home / "slurm.yaml").unlink()
    (tmp_path / "mia" / "slurm.yaml").write_text(
        f"login: root@{host.address}:{host.port}\nkey: {key}\n{text}"
    )
    secret = key.read_text().splitlines()[3]
    try:
        train_with_own_login(user, "slurm", tmp_path, "half", [secret])
        check_clean(account)
    finally:
        host.stop()


def test_a_quote_says_how_what_waits_is_ranked(account: Account) -> None:
    """By `sprio`, where the site has that plug-in; the other Slurm here has none, and says nothing."""
    asked = [NodeRequest("worker", 1, "node", token="t")]
    place = ProviderPlace(account.home, "0123456789abcdef", account.slurm.environ)
    assert slurm_provider(place).rank_words(asked) == ""
    with PrivateSlurm(1, ranks=True) as slurm:
        place = ProviderPlace(account.home, "0123456789abcdef", slurm.environ)
        for _ in range(3):
            slurm.command("sbatch", "-N1", "--exclusive", "-o", "/dev/null", "--wrap", "sleep 1000")
        until(lambda: slurm.command("squeue", "-h", "-t", "R", "-o", "%A"), 60)
        words = until(lambda: slurm_provider(place).rank_words(asked), 60)
        assert words.startswith("2 jobs wait there with priority "), words
        assert ", yours with " in words
        assert "size " in words


@pytest.fixture(scope="module")
def accounting() -> Iterator[PrivateSlurm]:
    """A Slurm that keeps what it was used for, and forgets jobs soon."""
    slurm = PrivateSlurm(2, accounting=True, forgets_after_s=2)
    try:
        slurm.__enter__()
    except NoSlurmError as error:
        pytest.skip(str(error))
    yield slurm
    slurm.close()


def test_the_accounting_tells_of_what_slurm_has_forgotten(account: Account, accounting: PrivateSlurm) -> None:
    """When it ended, and why: what it has cost does not go on while no driver looks. And what it bills."""
    slurm = accounting
    place = ProviderPlace(account.home, "0123456789abcdef", slurm.environ)
    provider = slurm_provider(place)
    provider.acquire("c", NodeRequest("worker", 1, "half", token="t"))
    until(lambda: provider.nodes("c")[0].state is NodeState.READY, 120)
    (job,) = slurm.jobs()
    slurm.command("scancel", job)
    until(lambda: "JobId" not in slurm.command("scontrol", "show", "job", job, check=False), 240)
    (node,) = slurm_provider(place).nodes("c")
    assert (node.state, "cancelled" in node.reason) == (NodeState.GONE, True), node.reason
    ended = slurm.command("env", "SLURM_TIME_FORMAT=%s", "sacct", "-nXP", "-j", job, "-o", "End")
    assert node.ended_at == pytest.approx(float(ended), abs=5)
    settings = account.home / "slurm.yaml"
    settings.write_text(f"usd_per_unit: 2\n{settings.read_text()}")
    offers = catalogue_of(account.home, slurm.environ, datetime.now(UTC).date(), list).offers
    usd = {offer.instance_type: offer.price_usd_per_hour for offer in offers}
    assert usd["half"] == 2
    assert usd["scavenger"] == pytest.approx(2 * (2 + 0.25 * 0.9e9 / 2**30))


def test_what_an_account_allows(account: Account, accounting: PrivateSlurm, tmp_path: Path) -> None:
    """`doctor` says it, and which machines it refuses; `run` refuses what would wait for ever."""
    slurm = accounting
    slurm.command("sacctmgr", "-i", "add", "account", "dept", "grptres=cpu=3")
    slurm.command("sacctmgr", "-i", "add", "account", "lab", "parent=dept")
    slurm.command("sacctmgr", "-i", "add", "user", "root", "account=lab", "maxjobs=4", "maxwall=06:00:00")
    slurm.command("sacctmgr", "-i", "add", "qos", "small", "maxtres=gres/gpu=1")
    slurm.command("sacctmgr", "-i", "modify", "account", "lab", "set", "qos=normal,small")
    with (account.home / "slurm.yaml").open("a") as file:
        file.write("  long: {cpus: 1, memory: 300MB, account: lab, time_limit: 12h}\n")
        file.write("  all: {cpus: 4, memory: 300MB, account: lab}\n")
        file.write("  two: {cpus: 2, memory: 300MB, gpus: 2, account: lab, qos: small}\n")
    (work := tmp_path / "work").mkdir()
    user = Renter(replace(account, slurm=slurm, env={**account.env, **slurm.environ}), work)
    said = user.call("doctor", "--provider", "slurm", code=1).stdout
    refused = {
        "long": "its time_limit of 12 h is more than 6 h, which account lab allows",
        "all": "its cpu of 4 is more than 3, which account dept allows",
        "two": "its gres/gpu of 2 is more than 1, which QOS small allows",
    }
    for words in ("account lab: at most 4 jobs, 06:00:00 in time each", "account dept: at most cpu=3 in all"):
        assert words in said
    assert "network: n1 reaches n2" in said, "it looks at nodes by a machine that is not refused"
    for name, words in refused.items():
        assert f"machine {name}: {words}" in said
        going = user.run(gang(user, 1, 20, name), provider="slurm")
        assert going.process.wait(120) == 2, going.text
        assert f"machine {name}: {words}" in going.text
    slurm.command("sbatch", "-A", "lab", "-c4", "-o", "/dev/null", "--wrap", "true")
    until(lambda: "AssocGrpCpuLimit" in slurm.command("squeue", "-h", "-o", "%r"), 60)
    slurm.command("scancel", "-u", "root")
