"""An attempt goes to two hosts that share no disk, and what it leaves there comes back.

Each host sees a directory of its own at the same path, as nodes do: its server has its own mounts.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from trainmaster.artifacts import CheckpointSeries, fetch, take_snapshot
from trainmaster.cluster.bootstrap.facts import PythonFacts
from trainmaster.cluster.bootstrap.host_result import HostResult
from trainmaster.cluster.member_places import PLACES
from trainmaster.cluster.node_access import NodeAccess
from trainmaster.cluster.node_files import fetching as node_fetching
from trainmaster.cluster.node_files.files import prepare_node, remove_run
from trainmaster.cluster.node_files.remote_site import RemoteSite
from trainmaster.control.attempt import saving, staging, unpublished
from trainmaster.control.loop.attempt_actions import AttemptActions
from trainmaster.control.loop.run_state import Task
from trainmaster.control.task.job_context import TaskContext
from trainmaster.control.task.layout import Home
from trainmaster.executors.base import GangStatus, Phase
from trainmaster.spec import DataSource, Distributed, Experiment, Hardware, Recipe
from trainmaster.spec.errors import PublishError, TrainmasterError
from trainmaster.spec.processes import kernel_text
from trainmaster.spec.states import EndReason
from trainmaster.testing import private_sshd
from trainmaster.testing.private_sshd import PYTHON, SshHost
from trainmaster.transport.ssh import Ssh

RUN = "digits-7f3a"
_SERVER = """\
#!/bin/sh
for last; do :; done
exec unshare --mount sh -c 'mount --bind "$1" {root} && shift && exec {sshd} "$@"' sh "${{last%/*}}/node" "$@"
"""


def own_mounts() -> bool:
    return os.geteuid() == 0 and subprocess.run(["unshare", "--mount", "true"], check=False).returncode == 0


pytestmark = pytest.mark.skipif(not own_mounts(), reason="hosts with mounts of their own need root")


class Hosts:
    """Two nodes and a run on them."""

    def __init__(self, tmp_path: Path, new_host: Callable[..., SshHost], ssh: Ssh) -> None:
        self.home = Home.from_environment(
            {"TRAINMASTER_HOME": str(tmp_path / "home"), "TRAINMASTER_CACHE": str(tmp_path / "cache")}
        )
        self.root = str(tmp_path / "node")
        self.hosts: list[SshHost] = []
        self.nodes: list[NodeAccess] = []
        self.gone: set[str] = set()
        self.tmp_path = tmp_path
        for number in range(2):
            host = new_host(f"h{number}", start=False)
            (host.place / "node").mkdir()
            host.start()
            self.hosts.append(host)
            facts = SimpleNamespace(home=str(host.home), user="root", gpus=())
            plan = SimpleNamespace(host_python=python_facts(), code_directory="", python=sys.executable)
            result = HostResult(host.target, True, (), facts=facts, plan=plan)  # type: ignore[arg-type]
            target = host.target
            self.nodes.append(
                NodeAccess(
                    f"worker-{number}", f"i-{number}", f"10.0.0.{number}", target, result, self.root, ssh
                )
            )
        self.site = RemoteSite(
            self.home,
            RUN,
            nodes_of=lambda _: [
                (f"worker-{n}", node) for n, node in enumerate(self.nodes) if node.id not in self.gone
            ],
            all_nodes=lambda _: self.nodes,
            root=self.root,
            node_sizes=lambda _: [(2, 0), (4, 0)],
            patience_s=5.0,
        )

    def patience(self, seconds: float) -> None:
        """How long a silent node is waited for."""
        self.site._patience_s = seconds

    def there(self, number: int, here: Path) -> Path:
        """As it is seen from here: what lies at a place on a node."""
        return self.hosts[number].place / "node" / Path(self.site.path(here)).relative_to(self.root)

    def actions(self, **what: object) -> AttemptActions:
        given = {"command": "python train.py", "distributed": Distributed(workers=2), **what}
        experiment = Experiment(name="train", **given)
        recipe = Recipe(name="digits", directory=self.tmp_path, experiments={"train": experiment})
        return AttemptActions(
            home=self.home,
            run=RUN,
            recipe=recipe,
            secrets={"train": {"TOKEN": "s3cret"}},
            find_models=lambda *_: [],
            site=self.site,
        )

    def context(self, attempt: int = 1, **what: object) -> TaskContext:
        return self.actions(**what).context(task(attempt))

    def write(self, number: int, here: Path, **files: str) -> None:
        """What a member writes on its node."""
        for name, text in files.items():
            path = self.there(number, here) / name.replace("__", "/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)


def python_facts(path: str = PYTHON) -> PythonFacts:
    return PythonFacts(path, sys.version.split()[0], "cpython", "")


def task(attempt: int = 1) -> Task:
    return Task(experiment="train", number=0, attempt=attempt)


def contents(root: Path) -> dict[str, str]:
    return {str(p.relative_to(root)): p.read_text() for p in sorted(root.rglob("*")) if p.is_file()}


@pytest.fixture
def hosts(
    tmp_path: Path, new_host: Callable[..., SshHost], ssh: Ssh, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Hosts]:
    (tmp_path / "node").mkdir()
    server = tmp_path / "sshd"
    server.write_text(_SERVER.format(root=tmp_path / "node", sshd=private_sshd.SSHD))
    server.chmod(0o755)
    monkeypatch.setattr(private_sshd, "SSHD", str(server))
    hosts = Hosts(tmp_path, new_host, ssh)
    yield hosts
    hosts.site.close()


def test_a_node_gets_a_working_copy_a_python_and_our_report(hosts):
    code = hosts.tmp_path / "code"
    (code / "pkg" / "empty").mkdir(parents=True)
    (code / "run.sh").write_text("#!/bin/sh\necho $0\n")
    (code / "run.sh").chmod(0o755)
    (code / "pkg" / "m.py").write_text("x = 1\n")
    (code / "link").symlink_to("pkg")
    (code / "file").symlink_to("pkg/m.py")
    snapshot = take_snapshot(str(code), Path("/"), hosts.tmp_path / "snapshots").path
    node, host = hosts.nodes[0], hosts.hosts[0]
    layer = host.home / "layer"  # as the bootstrap makes it: links are files, or left out
    shutil.copytree(snapshot, layer, ignore=lambda *_: ["link", "empty"])
    node.result.plan.code_directory = str(layer)  # type: ignore[misc, union-attr]
    for _ in range(2):
        prepare_node(node, RUN, snapshot)
    copy = hosts.there(0, hosts.home.code_directory(RUN))
    assert sorted(str(p.relative_to(copy)) for p in copy.rglob("*")) == [
        "file", "link", "pkg", "pkg/empty", "pkg/m.py", "run.sh",
    ]  # fmt: skip
    assert copy.joinpath("link").readlink() == Path("pkg")
    assert copy.joinpath("file").readlink() == Path("pkg/m.py")
    assert os.access(copy / "run.sh", os.X_OK)
    assert (copy / "pkg" / "m.py").stat().st_mode & 0o200
    assert (host.place / "node").stat().st_mode & 0o077 == 0
    found = hosts.site.environment(hosts.context().experiment)
    env = " ".join(f"{name}={value!r}" for name, value in found.items())
    script = (
        f"cd {hosts.site.path(hosts.home.code_directory(RUN))} && "
        f"env -i {env} PYTHONPATH={hosts.site.library(hosts.context())} "
        "TRAINMASTER_METRICS=/dev/stdout bash -c "
        "\"python -c 'import sys, trainmaster; print(sys.executable); trainmaster.report(step=1)' && "
        'python3 -m pkg.m && echo $HOME $USER"'
    )
    with node.connect() as connection:
        said = connection.check(script).splitlines()
    assert said == [PYTHON, '{"step": 1}', f"{host.home} root"]
    remove_run(node, RUN)
    assert not copy.exists()


def test_what_belongs_to_somebody_else_is_not_used(hosts):
    place = hosts.hosts[0].place / "node"
    os.chown(place, 12345, 12345)
    with pytest.raises(TrainmasterError, match="not a directory of this user"):
        prepare_node(hosts.nodes[0], RUN, hosts.tmp_path)


def test_an_attempt_is_brought_and_its_checkpoints_come_back_united(hosts):
    data = hosts.tmp_path / "images"
    (data / "deep").mkdir(parents=True)
    (data / "deep" / "a").write_text("1" * 10)
    (data / "b").symlink_to("deep/a")
    for number in range(2):
        hosts.there(number, hosts.home.code_directory(RUN)).mkdir(parents=True)
    hosts.home.code_directory(RUN).mkdir(parents=True)
    context = hosts.context(data={"images": DataSource(directory="images", at="in/images")})
    assert staging.stage(context, {}).error == ""
    place = context.place
    for number in range(2):
        assert hosts.there(number, place.checkpoint).is_dir()
        assert hosts.there(number, place.output("worker-1", first=False)).is_dir()
        assert contents(hosts.there(number, data)) == {"deep/a": "1" * 10, "b": "1" * 10}
        link = hosts.there(number, hosts.home.code_directory(RUN)) / "in/images"
        assert str(link.readlink()) == hosts.site.path(data)
    before = hosts.there(0, data).stat().st_ino
    (data / "deep" / "c").write_text("3")
    assert staging.stage(context, {}).error == ""
    assert hosts.there(0, data).stat().st_ino != before
    assert "deep/c" in contents(hosts.there(1, data))

    # the first rank wins where both wrote the same name, or one a file and the other a directory
    hosts.write(0, place.checkpoint, same="of 0", only0__x="0", clash="file")
    hosts.write(1, place.checkpoint, same="of 1", only1="1", clash__x="directory")
    job = saving.checkpoint(context)
    assert (job.error, job.progressed) == ("", True)
    series = CheckpointSeries(context.checkpoints_uri)
    series.restore(1, hosts.tmp_path / "restored")
    assert contents(hosts.tmp_path / "restored") == {
        "same": "of 0", "only0/x": "0", "clash": "file", "only1": "1",
    }  # fmt: skip
    assert saving.checkpoint(context).progressed is False  # nothing new
    inode = (place.checkpoint / "same").stat().st_ino
    hosts.write(1, place.checkpoint, only1="2")
    assert saving.checkpoint(context).progressed is True
    assert (place.checkpoint / "same").stat().st_ino == inode  # it was not sent again

    # the next attempt finds all of it on every node
    second = hosts.context(attempt=2)
    assert staging.stage(second, {}).fields == {"restored": 2}
    for number in range(2):
        assert contents(hosts.there(number, second.place.checkpoint)) == {
            "same": "of 0", "only0/x": "0", "clash": "file", "only1": "2",
        }  # fmt: skip
    assert saving.checkpoint(second).progressed is False

    hosts.site.clean_up(context)
    hosts.site.close()
    assert not hosts.there(0, place.directory).exists()
    assert not hosts.there(1, place.directory).exists()
    assert hosts.there(0, second.place.directory).exists()


def test_the_members_outputs_become_the_model(hosts):
    context = hosts.context()
    assert staging.stage(context, {}).error == ""
    hosts.write(0, context.place.output("worker-0", first=True), model="m" * 3_000_000)
    hosts.write(0, context.place.output("worker-1", first=False), stray="not its node")
    hosts.write(1, context.place.output("worker-1", first=False), part="1")
    hosts.write(1, context.place.checkpoint, state="7")
    job = saving.save(context)
    assert job.error == ""
    assert job.fields["model_uri"] == context.model_uri

    fetch(context.model_uri, hosts.tmp_path / "model")
    assert contents(hosts.tmp_path / "model") == {"model": "m" * 3_000_000, "members/worker-1/part": "1"}
    assert CheckpointSeries(context.checkpoints_uri).complete() == [1]


def test_what_leads_outside_fails_the_save(hosts):
    context = hosts.context()
    assert staging.stage(context, {}).error == ""
    there = hosts.there(1, context.place.output("worker-1", first=False))
    (there / "escape").symlink_to("/etc/passwd")
    job = saving.save(context)
    assert "'escape', which leads to '/etc/passwd', would lie, or lead, outside" in job.error


def test_a_checkpoint_that_changes_or_is_cut_off_leaves_the_earlier_state(hosts):
    context = hosts.context()
    assert staging.stage(context, {}).error == ""
    hosts.write(0, context.place.checkpoint, a="1")
    assert saving.checkpoint(context).progressed is True
    earlier = contents(context.place.checkpoint)

    ended = threading.Event()

    def scribble() -> None:
        number = 0
        while not ended.wait(0.002):
            number += 1
            hosts.write(0, context.place.checkpoint, a=str(number), **{f"f{number % 50}": "x" * number})

    writer = threading.Thread(target=scribble)
    writer.start()
    try:
        job = saving.checkpoint(context)
    finally:
        ended.set()
        writer.join()
    assert (job.error, job.progressed) == ("", False)
    assert contents(context.place.checkpoint) == earlier

    hosts.write(0, context.place.checkpoint, big="x" * 30_000_000)
    cutter = threading.Thread(target=lambda: cut_when_begun(hosts.hosts[0], context.place.directory))
    cutter.start()
    job = saving.checkpoint(context)
    cutter.join()
    assert "connection was lost" in job.error
    assert contents(context.place.checkpoint) == earlier
    assert saving.checkpoint(context).progressed is True
    assert (context.place.checkpoint / "big").stat().st_size == 30_000_000


def test_what_is_replaced_while_it_travels_does_no_harm(hosts):
    """A script that saves faster than a copy takes is published all the same; what it overwrites is not."""
    context = hosts.context()
    assert staging.stage(context, {}).error == ""
    place = context.place
    there = [hosts.there(number, place.checkpoint) for number in range(2)]
    for number in range(2):
        (there[number] / f"part-{number}").write_bytes(b"1" * 20_000_000)

    def once_begun(act: Callable[[], object]) -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            if any(path.stat().st_size > 100_000 for path in place.directory.glob(".checkpoint.draft.part*")):
                act()
                return
            time.sleep(0.001)

    def replace_it() -> None:
        draft = there[0] / "draft"
        draft.write_bytes(b"2" * 20_000_000)
        draft.rename(there[0] / "part-0")

    replacing = threading.Thread(target=once_begun, args=(replace_it,))
    replacing.start()
    job = saving.checkpoint(context)
    replacing.join()
    assert (job.error, job.progressed) == ("", True)
    assert (there[0] / "part-0").read_bytes()[:1] == b"2"
    for number in range(2):
        assert (place.checkpoint / f"part-{number}").read_bytes() == b"1" * 20_000_000
    assert list(there[0].parent.glob(".checkpoint.*")) == []
    assert saving.checkpoint(context).progressed is True
    assert (place.checkpoint / "part-0").read_bytes() == b"2" * 20_000_000

    (there[1] / "part-1").write_bytes(b"3" * 20_000_000)

    def overwrite_it() -> None:
        with (there[1] / "part-1").open("r+b") as file:
            file.write(b"4")

    overwriting = threading.Thread(target=once_begun, args=(overwrite_it,))
    overwriting.start()
    job = saving.checkpoint(context)
    overwriting.join()
    assert (job.error, job.progressed) == ("", False)
    assert (place.checkpoint / "part-1").read_bytes() == b"1" * 20_000_000


def cut_when_begun(host: SshHost, directory: Path) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if any(path.stat().st_size > 1_000_000 for path in directory.glob(".checkpoint.draft.part*")):
            host.cut()
            return
        time.sleep(0.001)


def test_a_node_that_is_gone_or_silent(hosts):
    context = hosts.context()
    assert staging.stage(context, {}).error == ""
    hosts.write(0, context.place.checkpoint, a="1")
    hosts.write(0, context.place.output("worker-0", first=True), log="kept")
    hosts.gone.add("i-1")
    job = saving.recover(context)
    assert "worker-1 has no node any more" in job.error
    assert CheckpointSeries(context.checkpoints_uri).complete() == []
    assert contents(context.place.output("worker-0", first=True)) == {"log": "kept"}
    hosts.patience(0.5)
    assert "worker-1 has no node any more" in staging.stage(context, {}).error
    hosts.patience(5.0)

    # a silent one is waited for when the work is done
    hosts.gone.clear()
    hosts.hosts[1].stop()
    assert saving.checkpoint(context).error != ""
    back = threading.Timer(1.5, hosts.hosts[1].start)
    back.start()
    try:
        job = saving.save(context)
    finally:
        back.join()
    assert job.error == ""
    hosts.hosts[1].stop()
    hosts.patience(0.5)
    job = saving.save(hosts.context(attempt=2))
    assert "could not be saved" in job.error
    assert "h1" in job.error
    assert (job.unsaved, job.reason) == (True, None), "whether it is lost is for its cluster to say"
    hosts.gone.add("i-1")
    job = saving.save(hosts.context(attempt=2))
    assert (job.unsaved, job.reason) == (False, EndReason.NODE_LOST)
    hosts.site._is_coming = lambda _: True
    job = saving.save(hosts.context(attempt=2))
    assert (job.unsaved, job.reason) == (True, None), "it is rented, and not prepared for this driver yet"


def test_what_can_neither_be_published_nor_fetched_stays_on_its_nodes(hosts, monkeypatch):
    context = hosts.context()
    output = context.place.output("worker-0", first=True)
    assert staging.stage(context, {}).error == ""
    hosts.write(0, output, weights="42" * 1000)
    hosts.write(1, context.place.checkpoint, a="1")

    def refused(*_, **__):
        raise PublishError("Cannot write s3://b/m: ExpiredToken.")

    monkeypatch.setattr(node_fetching, "_RESERVE_BYTES", 1 << 60)
    with monkeypatch.context() as refusing:
        refusing.setattr(saving, "publish", refused)
        job = unpublished.keep(context, has_won=True)
    assert job.unsaved
    assert "are to be fetched" in job.error, "how much room it needs"
    assert "h0" in job.place
    hosts.site.clean_up(context, is_saved=False)
    monkeypatch.undo()
    with monkeypatch.context() as refusing:
        refusing.setattr(saving, "publish", refused)
        job = unpublished.keep(context, has_won=True)
    assert (job.unsaved, job.fields) == (False, {"kept_model": 1, "kept_checkpoint": 1})
    assert contents(output) == {"weights": "42" * 1000}
    assert contents(context.place.checkpoint) == {"a": "1"}

    # the next attempt begins with it on all nodes, whatever becomes of these
    second = replace(hosts.context(attempt=2), kept_checkpoint=1)
    assert staging.stage(second, {}).error == ""
    for number in range(2):
        assert contents(hosts.there(number, second.place.checkpoint)) == {"a": "1"}
    unpublished.publish_kept(context, {})
    fetch(context.model_uri, hosts.tmp_path / "got")
    assert contents(hosts.tmp_path / "got") == {"weights": "42" * 1000}


def test_a_node_falls_silent_when_the_model_is_here(hosts, monkeypatch):
    """The last checkpoint of an attempt that has succeeded is for nobody: it does not fail for want of it."""
    context = hosts.context()
    assert staging.stage(context, {}).error == ""
    hosts.write(0, context.place.checkpoint, a="1")
    hosts.write(0, context.place.output("worker-0", first=True), weights="42")
    hosts.patience(0.5)
    publish = saving.publish_checkpoint

    def silent_by_now(*given, **more):
        hosts.hosts[1].stop()
        return publish(*given, **more)

    monkeypatch.setattr(saving, "publish_checkpoint", silent_by_now)
    job = saving.save(context)
    assert job.error == ""
    assert job.fields["model_uri"] == context.model_uri


def test_the_disk_of_a_node_is_full(hosts):
    context = hosts.context()
    assert staging.stage(context, {}).error == ""
    assert saving.recover(context).message == ""
    tools = hosts.tmp_path / "tools"
    tools.mkdir()
    for tool in ("tail", "find", "ls"):
        (tools / tool).symlink_to(shutil.which(tool))
    (tools / "df").write_text("#!/bin/sh\necho Filesystem; echo /dev/vda1 10141300 10141300 0 100% /\n")
    (tools / "df").chmod(0o755)
    hosts.hosts[1].stop()
    hosts.hosts[1].path = str(tools)
    hosts.hosts[1].start()
    message = saving.recover(context).message
    assert message.startswith("no space left on the disk of h1")


def test_setup_is_made_once_per_node_and_its_log_is_here(hosts):
    for number in range(2):
        hosts.there(number, hosts.home.code_directory(RUN)).mkdir(parents=True)
    python = hosts.tmp_path / "python3"
    makes = 'mkdir -p "$3/bin"; ln -s /bin/true "$3/bin/python"'  # a real one takes seconds
    python.write_text(f'#!/bin/sh\nif [ "$2" = venv ]; then {makes}; else exec {PYTHON} "$@"; fi\n')
    python.chmod(0o755)
    for node in hosts.nodes:
        node.result.plan.host_python = python_facts(str(python))  # type: ignore[misc, union-attr]
    setup = 'echo "token=${#TOKEN} $CALLERS_" >> "$VIRTUAL_ENV/made"; echo made >&2'
    context = hosts.context(setup=setup.replace("$CALLERS_", "${CALLERS-none}"))
    assert staging.stage(context, {}).error == ""
    here = context.venv
    assert here is not None
    for number in range(2):
        assert (hosts.there(number, here) / "made").read_text() == "token=6 none\n"
        assert (hosts.there(number, here) / "bin").is_dir()
        assert here.with_name(f"{here.name}-h{number}.log").read_text().endswith("made\n")
    again = hosts.context(setup=setup.replace("$CALLERS_", "${CALLERS-none}"))
    hosts.site._staging._is_set_up.clear()
    assert staging.stage(again, {}).error == ""
    assert (hosts.there(0, here) / "made").read_text() == "token=6 none\n"

    bad = hosts.context(setup="echo first; echo no such thing >&2; exit 3")
    assert (job := staging.stage(bad, {})).users_fault
    assert "setup failed with exit code 3: first / no such thing" in job.error
    assert "Its whole output: " in job.error
    lines = (kernel_text(Path(f"/proc/{each.pid}/cmdline")) for each in hosts.hosts[0].processes())
    assert not any("s3cret" in line for line in lines)


def test_requests_speak_of_nodes(hosts):
    actions = hosts.actions(
        distributed=Distributed(
            strategy="ps-sync", workers=2, parameter_servers=1, hardware={"ps": Hardware(cpus=8)}
        ),
        framework="tensorflow",
        env={"PYTHONPATH": "src"},
    )
    request = actions.request(task())
    assert request.hold
    assert request.per_node == 1
    assert request.cwd if hasattr(request, "cwd") else request.members[0].cwd.startswith(hosts.root)
    labels = {member.name: dict(member.node_labels) for member in request.members}
    assert labels == {
        "chief-0": {"role": "worker"},
        "worker-0": {"role": "worker"},
        "worker-1": {"role": "worker"},
        "ps-0": {"role": "ps"},
    }
    addresses = {name: f"10.0.0.{number}" for number, name in enumerate(labels)}
    ports = {name: (2000 + number,) for number, name in enumerate(labels)}
    status = GangStatus(request.attempt, Phase.GRANTED, ports=ports, addresses=addresses)
    environments = actions.launch_environment(task(), status)
    env = environments["worker-1"]
    assert '"10.0.0.2:2002"' in env["TF_CONFIG"]
    assert env["TRAINMASTER_CHECKPOINT_DIR"] == f"{hosts.root}/runs/{RUN}/tasks/train/0/1/checkpoint"
    assert env["PYTHONPATH"] == f"src:{hosts.root}/lib"
    assert env["PATH"].startswith(f"{hosts.root}/bin:")
    assert "CALLERS" not in env
    assert env["TOKEN"] == "s3cret"

    small = hosts.actions(distributed=None, workers=1)
    request = small.request(task())
    assert not request.hold
    assert request.group_slots == 4
    assert request.members[0].env["TRAINMASTER_OUTPUT_DIR"] in request.directories
    assert all(directory.startswith(hosts.root) for directory in request.directories)


def test_members_in_containers_leave_the_engine_to_their_node(hosts):
    """What it is, the node says itself; nothing of this machine is mounted, nor inherited of a login."""
    actions = hosts.actions(container="debian:12", env={"A": "1"})
    request = actions.request(task())
    assert request.hold, "the image has to be brought first"
    for member in request.members:
        assert member.container.image == "debian:12"
        assert member.container.engine_file == f"{hosts.root}/engine.json"
        assert not member.container.settings
        assert set(member.container.mounts) == {
            f"{hosts.root}/runs/{RUN}/code",
            f"{hosts.root}/runs/{RUN}/tasks/train/0/1",
            f"{hosts.root}/lib",
        }
    addresses = {"worker-0": "10.0.0.1", "worker-1": "10.0.0.2"}
    ports = {"worker-0": (2000,), "worker-1": (2001,)}
    granted = GangStatus(request.attempt, Phase.GRANTED, ports=ports, addresses=addresses)
    env = actions.launch_environment(task(), granted)["worker-1"]
    assert (env["A"], env["MASTER_ADDR"], env["HOME"]) == ("1", "10.0.0.1", "/tmp")
    assert env["PYTHONPATH"] == f"{hosts.root}/lib"
    assert "PATH" not in env, "the image's own"


def test_a_host_without_docker_and_podman_is_named(hosts):
    tools = hosts.tmp_path / "tools"
    tools.mkdir()
    (tools / "mkdir").symlink_to(shutil.which("mkdir"))
    for host in hosts.hosts:
        host.stop()
        host.path = str(tools)
        host.start()
    job = staging.stage(hosts.context(container="debian:12"), {})
    assert job.users_fault
    assert job.error.startswith("experiments.train.container: h")
    assert "needs docker, podman, apptainer or enroot: docker is not installed; podman" in job.error


def test_what_operating_systems_said_comes_from_the_nodes_or_from_their_provider(hosts):
    hosts.site._system_log, hosts.site._console = lambda _: "echo a kernel", lambda _, asked: f"of {asked}"
    hosts.gone.add("i-1")
    hosts.context().place.directory.mkdir(parents=True)
    (hosts.context().place.directory / PLACES).write_text('{"worker-0": "i-0", "worker-1": "i-1"}')
    hosts.site.keep_system_logs(hosts.context())
    kept = [hosts.context().place.system_log(name).read_text() for name in ("i-0", "i-1")]
    assert kept == ["a kernel\n", "of i-1\n"]
