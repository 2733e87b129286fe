"""`ssh` to machines of a run that has just begun."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from types import MethodType, SimpleNamespace

import pytest

from trainmaster.cluster.member_places import PLACES
from trainmaster.cluster.record import ClusterRecord, ClusterState
from trainmaster.control.task.layout import RunFiles
from trainmaster.providers.base import NodeState, ProviderPlace
from trainmaster.service import shells
from trainmaster.service.runs import member_ways
from trainmaster.service.runs.known_nodes import KnownNodes
from trainmaster.service.runs.member_commands import Terminal
from trainmaster.service.runs.member_connections import MemberConnections
from trainmaster.service.runs.member_ways import find_way, marks_of
from trainmaster.spec import Recipe
from trainmaster.spec.errors import MissingPartError, NotFoundError, ProviderError, UsageError
from trainmaster.testing.waits import until
from trainmaster.transport.base import Target, jump_target

RECIPE = "name: job\nexperiments: {main: {command: 'true'}}\n"


class Bench:
    """A run whose machine comes at the third look."""

    def __init__(self, monkeypatch, comes_after=2, *, driven=True):
        self.looks, self.told = 0, []
        self._comes_after = comes_after
        monkeypatch.setattr(member_ways, "_node", self._node)
        monkeypatch.setattr(member_ways, "members_of", lambda *_: {"worker-0", "worker-1"})
        monkeypatch.setattr(member_ways, "is_driven", lambda *_: driven)
        monkeypatch.setattr(member_ways, "time", SimpleNamespace(monotonic=lambda: 0.0, sleep=lambda _: None))
        self.service = SimpleNamespace(database=SimpleNamespace(run_row=lambda _: {}, clock_s=lambda: 0.0))

    def _node(self, *_):
        self.looks += 1
        if self.looks <= self._comes_after:
            raise NotFoundError("run has no machines now", "Wait.")
        return "the node"

    def ask(self, member):
        return member_ways._awaited(self.service, "run", member, {}, self.told.append, 60.0, KnownNodes())


@pytest.mark.parametrize("member", [None, "worker-1"])
def test_a_machine_that_is_on_its_way_is_waited_for_and_that_is_said_once(monkeypatch, member):
    bench = Bench(monkeypatch)
    assert bench.ask(member) == "the node"
    assert bench.told == [f"run: waits for the machine of {member or 'its first member'}"]


def test_nobody_waits_for_a_member_that_there_is_none_of(monkeypatch):
    bench = Bench(monkeypatch)
    with pytest.raises(NotFoundError):
        bench.ask("worker-9")
    assert bench.looks == 1


def test_nobody_waits_for_machines_of_a_run_that_is_over(monkeypatch):
    bench = Bench(monkeypatch, driven=False)
    with pytest.raises(NotFoundError):
        bench.ask("worker-1")
    assert (bench.looks, bench.told) == (1, [])


@pytest.fixture
def rented(tmp_path, monkeypatch):
    """A service whose run has a machine."""
    node = SimpleNamespace(id="node-1", cluster="c", address="192.0.2.1", jump="", way="")
    target = SimpleNamespace(
        pin="node-1", host_key="ssh-ed25519 AAAA", port=22, login="ubuntu", key=None, jump=None
    )
    target.openssh = MethodType(Target.openssh, target)
    place = ProviderPlace(tmp_path, "home")
    monkeypatch.setattr(member_ways, "_node", lambda *_: (place, node))
    monkeypatch.setattr(shells, "is_driven", lambda *_: True)
    monkeypatch.setattr("trainmaster.providers.hosts_over_ssh.target_of", lambda _: target)
    recipe = Recipe.from_text(RECIPE, directory=tmp_path)
    database = SimpleNamespace(
        run_row=lambda _: {"provider": "aws", "id": "run", "recipe": recipe.model_dump_json()},
        clock_s=lambda: 0.0,
        clusters_of=lambda _: [],
    )
    home = SimpleNamespace(root=tmp_path)
    return SimpleNamespace(
        home=home, home_if_here=lambda _: place, database=database, node=node, target=target
    )


def test_a_machine_of_a_driver_elsewhere_that_lets_nobody_in_is_told_at_once(rented, monkeypatch):
    monkeypatch.setattr(rented, "home_if_here", lambda _: None)
    monkeypatch.setattr(member_ways, "answers", lambda _: False)
    rented.node.port = 22
    with pytest.raises(ProviderError, match="node-1 of run cannot be reached from here") as error:
        find_way(rented, "run", None, {})
    assert "security group" in error.value.hint
    monkeypatch.setattr(member_ways, "answers", lambda _: True)
    assert find_way(rented, "run", None, {}).machine == "node-1"


def cluster(provider, experiment, machine):
    return SimpleNamespace(
        id=f"run.{experiment}",
        provider=provider,
        state=ClusterState.ACTIVE,
        plan=SimpleNamespace(experiments=(experiment,)),
        rented=(SimpleNamespace(id=machine, seat="worker-0"),),
        machine=lambda name: machine if name == machine else None,
        name_of=lambda _: "node-1",
    )


@pytest.fixture
def two_places(tmp_path, monkeypatch):
    """A run on hosts of one's own, which do not answer, and in a cloud; each has a ``node-1``."""
    records = [cluster("hosts", "prepare", "gpu1"), cluster("aws", "train", "i-1")]
    found = SimpleNamespace(files=RunFiles(tmp_path), records=records, asked=[])

    def nodes_of(provider, _place):
        found.asked.append(provider)
        if provider == "hosts":
            raise ProviderError("gpu1 does not answer", "")
        node = SimpleNamespace(
            id="i-1", cluster="run.train", state=NodeState.READY, address="a", jump="", way=""
        )
        return SimpleNamespace(nodes=lambda _: [node])

    monkeypatch.setattr(ClusterRecord, "of_row", lambda row: row)
    monkeypatch.setattr("trainmaster.providers.plugins.get_provider", nodes_of)
    found.service = SimpleNamespace(
        files_of=lambda _: found.files,
        home_if_here=lambda _: found.files,
        access_to=lambda *_: ProviderPlace(tmp_path, "home"),
        database=SimpleNamespace(clusters_of=lambda _: records, run_row=lambda _: {"provider": "hosts"}),
    )
    return found


def node_of(bench, member):
    return member_ways._node(bench.service, "run", member, {}, KnownNodes())[1].id


def test_only_the_place_of_the_machine_is_asked_for_it(two_places):
    assert node_of(two_places, "i-1") == "i-1"
    directory = two_places.files.attempt("run", "train", 0, 1).directory
    directory.mkdir(parents=True)
    (directory / PLACES).write_text(json.dumps({"worker-3": "i-1"}))
    assert node_of(two_places, "worker-3") == "i-1"
    assert two_places.asked == ["aws", "aws"]
    (directory / PLACES).write_text(json.dumps({"worker-3": "i-0"}))
    with pytest.raises(NotFoundError, match="i-0 of run is gone"):
        node_of(two_places, "worker-3")


@pytest.mark.parametrize("name", ["node-1", "worker-0"])
def test_a_name_that_several_clusters_have_is_refused_with_the_ids_to_choose_from(two_places, name):
    with pytest.raises(UsageError, match=f"several clusters of run have a {name}") as error:
        node_of(two_places, name)
    assert "gpu1 (of run.prepare), i-1 (of run.train)" in error.value.hint
    two_places.records.pop(0)
    assert node_of(two_places, name) == "i-1"


def test_the_client_is_that_of_the_machines_place_and_not_of_the_first(two_places, monkeypatch):
    two_places.service.database.clusters_of = lambda _: [
        {"id": "run.train", "provider": "kubernetes"},
    ]
    node = SimpleNamespace(id="pod", cluster="run.train", address="a", jump="", way="w")
    place = two_places.service.access_to()
    monkeypatch.setattr(member_ways, "_node", lambda *_: (place, node))
    monkeypatch.setattr(member_ways.shutil, "which", lambda _: None)  # no OpenSSH, which only hosts need
    way = find_way(two_places.service, "run", None, {})
    assert (way.provider, way.command[0]) == ("kubernetes", sys.executable)
    node.cluster = "run.prepare"
    with pytest.raises(MissingPartError, match="no OpenSSH client"):
        find_way(two_places.service, "run", None, {})


def options_of(words):
    """Those of a command of OpenSSH, after each `-o` and `-F`."""
    return {words[at + 1] for at, word in enumerate(words) if word in ("-o", "-F")}


CLOSED = {
    "EscapeChar=none", "ForwardAgent=no", "ForwardX11=no", "PermitLocalCommand=no", "ControlPath=none",
}  # fmt: skip


def test_a_client_for_somebody_else_does_nothing_on_this_machine(rented):
    command = MemberConnections(rented, {}, is_for_others=True).command("run", None, (), Terminal("a", 1, 1))
    way = find_way(rented, "run", None, {}, is_for_others=True)
    for words in (command._shell.command, way.command):
        assert options_of(words) >= CLOSED | {"/dev/null"}
    rented.node.jump = "me@gate"  # how to log in there the owner's settings say
    words = find_way(rented, "run", None, {}, is_for_others=True).command
    assert options_of(words) >= CLOSED
    assert "/dev/null" not in options_of(words)


def test_a_host_to_go_through_is_opened_by_its_key(rented, tmp_path):
    """Of the settings of a site; its host key is the one that this home has met, or the user."""
    rented.node.jump = "me@gate:2222"
    rented.target.jump = jump_target(rented.node.jump, tmp_path / "id")
    options = options_of(find_way(rented, "run", None, {}).command)
    (way,) = [each for each in options if each.startswith("ProxyCommand=")]
    words = shlex.split(way.removeprefix("ProxyCommand="))
    assert f'UserKnownHostsFile="{tmp_path}/known_hosts" ~/.ssh/known_hosts' in words
    assert words[words.index("-i") + 1] == str(tmp_path / "id")
    assert words[-7:] == ["-l", "me", "-p", "2222", "-W", "%h:%p", "gate"]
    rented.home.root = tmp_path / "home"  # it is driven elsewhere
    (way,) = [each for each in options_of(find_way(rented, "run", None, {}).command) if "gate" in each]
    known = f'"{tmp_path}/known_hosts" "{tmp_path}/home/known_hosts" ~/.ssh/known_hosts'
    assert f"UserKnownHostsFile={known}" in shlex.split(way.removeprefix("ProxyCommand="))


def test_ones_own_client_reads_ones_own_settings(rented):
    assert not options_of(shells.find_shell(rented, "run", None, (), {}).command) & (CLOSED | {"/dev/null"})


def test_the_key_of_a_machine_is_written_once_for_all_who_read_it(rented, tmp_path):
    find_way(rented, "run", None, {})
    known = tmp_path / "clusters" / "c" / "known-node-1"
    before = known.stat().st_ino
    find_way(rented, "run", None, {})
    assert (known.read_text(), known.stat().st_ino) == ("node-1 ssh-ed25519 AAAA\n", before)
    with known.open() as reading:
        known.write_text("another\n")
        find_way(rented, "run", None, {})
        assert (reading.read(), known.read_text()) == ("another\n", "node-1 ssh-ed25519 AAAA\n")
    assert [each.name for each in known.parent.iterdir()] == ["known-node-1"]


@pytest.mark.parametrize("name", ["x/../../../escaped", "x\n/../../../escaped", "/../../../escaped"])
def test_what_a_provider_calls_a_machine_leads_to_no_other_file(rented, tmp_path, name):
    """The provider may be one that a manager of a team names, and says what is in the file, too."""
    rented.node.id, rented.target.host_key = name, "ssh-ed25519 AAAA\n* * * * * root id"
    find_way(rented, "run", None, {}, is_for_others=True)
    assert [each.name for each in tmp_path.iterdir()] == ["clusters"]
    assert [each.parent for each in tmp_path.rglob("*") if each.is_file()] == [tmp_path / "clusters" / "c"]


def test_an_address_of_a_machine_is_no_option_of_the_client(rented):
    rented.node.address = "-oProxyCommand=id"
    with pytest.raises(ProviderError, match="has no address"):
        find_way(rented, "run", None, {}, is_for_others=True)


def test_a_machine_that_another_driver_has_met_is_known_by_what_it_has_seen(rented, tmp_path):
    rented.target.host_key = ""
    way = find_way(rented, "run", None, {}).command
    assert f'UserKnownHostsFile="{tmp_path}/known_hosts"' in way
    (known := tmp_path / "clusters" / "c" / "known-node-1").parent.mkdir(parents=True, exist_ok=True)
    known.write_text("node-1 ssh-ed25519 AAAA\n")
    way = find_way(rented, "run", None, {}).command
    assert f'UserKnownHostsFile="{known}"' in way


LOGIN = "import subprocess, sys; subprocess.Popen(['sh', '-c', sys.argv[1]], start_new_session=True).wait()"


def test_a_command_without_a_terminal_ends_with_the_login_of_its_caller(rented, monkeypatch, tmp_path):
    monkeypatch.setattr(shells, "is_driven", lambda *_: False)
    pid = tmp_path / "pid"
    line = f"echo $$ > {pid}.draft; mv {pid}.draft {pid}; exec sleep 1000"
    there = shells.find_shell(rented, "run", None, (line,), {}).command[-1]
    login = subprocess.Popen([sys.executable, "-c", LOGIN, there])
    try:
        until(pid.exists, "the command")
        command = Path(f"/proc/{pid.read_text().strip()}/cmdline")
    finally:
        login.kill()
        login.wait()

    def is_over():
        try:
            return not command.read_bytes()  # nobody has waited for it
        except OSError:
            return True

    until(is_over, "its end")


@pytest.mark.parametrize("inside", ["", shells._INSIDE % {"inner": "''", "closed": "''", "outside": ":"}])
def test_a_process_that_ends_while_it_is_looked_at_is_not_told(monkeypatch, tmp_path, inside):
    """The member's own is taken, though one that has ended was found first."""
    (grep := tmp_path / "grep").write_text(
        f'#!/bin/sh\n[ "$1" != -lz ] || echo /proc/4194305/environ\nexec {shutil.which("grep")} "$@"\n'
    )
    grep.chmod(0o755)
    marks = {**marks_of("run", None), "TRAINMASTER_ROLE": "worker", "WORD": "given"}
    line = "echo $WORD; echo apart >&2; exit 3"
    there = shells._there(tmp_path, "run", None, [line], inside=inside, wait=1, late="")
    with subprocess.Popen(["sleep", "1000"], env=marks | {"PATH": os.environ["PATH"]}) as member:
        try:
            path = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
            said = subprocess.run(["sh", "-c", there], env=path, capture_output=True, text=True)
        finally:
            member.kill()
    assert (said.stdout, said.stderr, said.returncode) == ("given\n", "apart\n", 3)


def test_a_command_begins_once_with_all_that_a_member_has_in_its_environment(tmp_path):
    marks = {**marks_of("run", None), "TRAINMASTER_ROLE": "worker", "PATH": os.environ["PATH"]}
    marks |= {f"LARGE{number}": "x" * 100_000 for number in range(4)} | {"LAST": "given"}
    there = shells._there(
        tmp_path, "run", None, ["echo ${#LARGE0} ${#LARGE3} $LAST"], inside="", wait=1, late=""
    )
    with subprocess.Popen(["sleep", "1000"], env=marks) as member:
        try:
            said = subprocess.run(["sh", "-c", there], capture_output=True, text=True)
        finally:
            member.kill()
    assert (said.stdout, said.stderr) == ("100000 100000 given\n", "")
