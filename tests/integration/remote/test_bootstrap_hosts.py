"""Bootstrap of real hosts over SSH, and what may go wrong with them."""

from __future__ import annotations

import contextlib
import functools
import http.server
import json
import os
import shutil
import subprocess
import threading
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from trainmaster.cluster.bootstrap.bootstrap import Bootstrap, BootstrapSettings
from trainmaster.cluster.bootstrap.cluster_keys import ClusterKeys
from trainmaster.cluster.bootstrap.host_result import BootstrapPhase, HostOutcome, HostResult, PhaseReport
from trainmaster.cluster.bootstrap.runtime_package import RuntimeLayer, RuntimePackage, code_layer
from trainmaster.providers.base import NodeRequest, ProviderPlace
from trainmaster.providers.hosts_over_ssh import hosts_provider, target_of
from trainmaster.spec.errors import UsageError
from trainmaster.testing.private_sshd import PYTHON, SshHost
from trainmaster.transport.base import Target
from trainmaster.transport.ssh import Ssh

NewHost = Callable[..., SshHost]
#: A host without internet fails fast where somebody asks for it.
NO_INTERNET = {"http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9"}
ALL = [
    BootstrapPhase.CONNECT,
    BootstrapPhase.PROBE,
    BootstrapPhase.PACKAGES,
    BootstrapPhase.RUNTIME,
    BootstrapPhase.CHECK,
    BootstrapPhase.CODE,
]


def outcomes(reports: tuple[PhaseReport, ...]) -> dict[str, str]:
    return {report.phase.value: report.outcome.value for report in reports}


def layers(host: SshHost) -> list[str]:
    """What is complete on a host."""
    return sorted(str(path.parent.relative_to(host.root)) for path in host.root.glob("*/*/complete"))


def partial(host: SshHost) -> list[Path]:
    return list(host.root.glob("*/.partial-*"))


def on_all(
    bootstrap: Bootstrap, targets: Sequence[Target], code: RuntimeLayer | None = None
) -> list[HostResult]:
    with ThreadPoolExecutor(max(len(targets), 1)) as pool:
        return list(pool.map(lambda target: bootstrap.one(target, code), targets))


def test_three_hosts_from_nothing_and_again(
    bootstrap: Bootstrap, new_host: NewHost, tmp_path: Path, packages: tuple[RuntimePackage, RuntimePackage]
) -> None:
    code = tmp_path / "code"
    (code / "pkg").mkdir(parents=True)
    (code / "pkg" / "train.py").write_text("import trainmaster_is_not_mine\n")
    (code / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (code / "run.sh").chmod(0o755)
    layer = code_layer(code)
    hosts = [new_host(f"h{n}", **NO_INTERNET) for n in range(1, 4)]
    targets = [host.target for host in hosts]

    results = on_all(bootstrap, targets, layer)
    for host, result in zip(hosts, results, strict=True):
        assert result.ok, (result.failed, result.reason)
        assert result.target.name == host.name
        assert [report.phase for report in result.phases] == ALL
        assert {report.outcome for report in result.phases} == {HostOutcome.DONE}
        assert len(layers(host)) == 3
        assert partial(host) == []
        assert result.plan is not None
        assert (
            subprocess.run([f"{result.plan.code_directory}/run.sh"], capture_output=True).stdout == b"ran\n"
        )
        # Of nobody else's Python, and of nothing on this machine:
        says = (
            "import sys, trainmaster as t, psutil as p; print(t.__file__, p.__file__, *sys.path, sep='\\n')"
        )
        done = subprocess.run(
            [result.plan.python, "-I", "-c", says], capture_output=True, text=True, check=True
        )
        loaded = done.stdout.splitlines()
        assert loaded[0].startswith(str(host.root)), loaded
        assert loaded[1].startswith(str(host.root)), loaded
        assert not [
            path for path in loaded if path.endswith("-packages") and not path.startswith(str(host.root))
        ]

    again = on_all(bootstrap, targets, layer)
    for result in again:
        assert outcomes(result.phases) == {
            **dict.fromkeys(("packages", "runtime", "code"), "reused"),
            **dict.fromkeys(("connect", "probe", "check"), "done"),
        }

    (code / "pkg" / "train.py").write_text("print(2)\n")
    changed = bootstrap.one(targets[0], code_layer(code))
    assert outcomes(changed.phases) == {**outcomes(again[0].phases), "code": "done"}, (
        "only what is new is sent"
    )


def test_files_that_the_host_sees_too_are_not_sent(
    ssh: Ssh, new_host: NewHost, packages: tuple[RuntimePackage, RuntimePackage], tmp_path: Path
) -> None:
    """As on a common file system, and on hosts of the lab."""
    host = new_host(**NO_INTERNET)
    cache = tmp_path / "cache"
    result = Bootstrap(ssh, packages, cache).one(host.target)
    assert result.ok, result.reason
    assert result.plan is not None
    assert "very files" in next(r.detail for r in result.phases if r.phase is BootstrapPhase.PACKAGES)
    assert not list(cache.glob("packages-*"))
    assert sum(path.stat(follow_symlinks=False).st_size for path in host.root.rglob("*")) < 20e6
    says = "import sys, psutil as p; print(p.__file__, *sys.path, sep='\\n')"
    done = subprocess.run([result.plan.python, "-I", "-c", says], capture_output=True, text=True, check=True)
    assert not [
        path
        for path in done.stdout.splitlines()
        if "site-packages" in path and not path.startswith(str(host.root))
    ]
    again = Bootstrap(ssh, packages, cache).one(host.target)
    assert outcomes(again.phases)["packages"] == "reused"


def test_the_supervisor_starts_from_it(bootstrap: Bootstrap, ssh: Ssh, new_host: NewHost) -> None:
    """What bootstrap is for: a gang on the host, by the shipped runtime alone."""
    host = new_host(**NO_INTERNET)
    result = bootstrap.one(host.target)
    assert result.ok, result.reason
    assert result.plan is not None
    program = """
import os, sys
from pathlib import Path
from trainmaster.executors.base import Capacity, GangRequest, MemberRequest
from trainmaster.executors.local.executor import LocalExecutor
home = Path(os.environ["HOME"], "tm")
home.mkdir()
executor = LocalExecutor(home)
executor.open("run-1", Capacity(slots=1), {"PATH": "/usr/bin:/bin"})
member = MemberRequest(name="worker-0", script="echo hello from $WHERE", cwd=str(home), env={"WHERE": "host"})
executor.submit([GangRequest("a1", str(home / "a1"), (member,), slots=1, group="g", group_slots=1)])
for _ in range(1000):
    (status,) = executor.observe(["a1"])
    if status.ended_at:
        break
    executor.changes(0.1)
print(status.members[0].exit_code, [p.read_text() for p in (home / "a1").rglob("*") if p.is_file()])
executor.forget(["a1"])
executor.close()
"""
    with ssh.connect(host.target) as connection:
        said = connection.run(f"exec {result.plan.python} -I -", data=program.encode(), timeout_s=180)
    assert said.code == 0, said.err
    assert said.out.startswith("0 "), said.out
    assert "hello from host" in said.out


def test_hosts_that_fail_are_named_and_the_others_go_on(
    bootstrap: Bootstrap, new_host: NewHost, ssh: Ssh
) -> None:
    good, locked, changed, bare = (
        new_host(name, start=name != "bare") for name in ("good", "locked", "changed", "bare")
    )
    locked.authorized_keys.write_text("")
    with ssh.connect(changed.target):
        pass
    changed.stop()
    changed.new_host_key()
    changed.start()
    tools = bare.place / "bin"  # a host without any Python
    tools.mkdir()
    for name in ("sh", "date", "uname", "id", "df", "tail", "nproc", "timeout", "rm"):
        (tools / name).symlink_to(shutil.which(name) or "/nowhere")
    bare.path, bare.python = str(tools), ""
    bare.start()

    results = on_all(bootstrap, [host.target for host in (good, locked, changed, bare)])
    assert [result.ok for result in results] == [True, False, False, False]
    assert [result.failed for result in results[1:]] == [
        BootstrapPhase.CONNECT,
        BootstrapPhase.CONNECT,
        BootstrapPhase.PROBE,
    ]
    assert "does not let" in results[1].reason
    assert "another host key" in results[2].reason
    assert "no Python" in results[3].reason


def test_a_frozen_host_ends_in_time(
    hasty_ssh: Ssh, packages: tuple[RuntimePackage, RuntimePackage], cache: Path, new_host: NewHost
) -> None:
    hosts = [new_host("well"), new_host("frozen")]
    hosts[1].freeze()
    well, frozen = on_all(Bootstrap(hasty_ssh, packages, cache), [host.target for host in hosts])
    assert well.ok, well.reason
    assert (frozen.ok, frozen.failed) == (False, BootstrapPhase.CONNECT)
    assert "its SSH server says nothing for 5 s" in frozen.reason


def test_cut_in_the_middle_and_finished_by_the_second_call(
    ssh: Ssh, packages: tuple[RuntimePackage, RuntimePackage], cache: Path, new_host: NewHost
) -> None:
    host = new_host()
    settings = BootstrapSettings(share_files=False)

    def cut_in_it(report: PhaseReport) -> None:
        if (report.phase, report.outcome) == (BootstrapPhase.PACKAGES, HostOutcome.STARTED):
            threading.Thread(target=_cut_when, args=(host, lambda: bool(partial(host)))).start()

    while (first := Bootstrap(ssh, packages, cache, settings, cut_in_it).one(host.target)).ok:
        shutil.rmtree(host.root)  # it was quicker
    assert (first.ok, first.failed) == (False, BootstrapPhase.PACKAGES)
    assert "connection was lost" in first.reason
    assert layers(host) == []
    second = Bootstrap(ssh, packages, cache, settings).one(host.target)
    assert second.ok, second.reason
    assert second.phases[2].outcome is HostOutcome.DONE
    assert partial(host) == [], "what the first one left is gone"


def _cut_when(host: SshHost, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.002)
    host.cut()


def test_two_at_once_on_one_host_send_it_once(
    ssh: Ssh, packages: tuple[RuntimePackage, RuntimePackage], cache: Path, new_host: NewHost
) -> None:
    host = new_host()
    bootstrap = Bootstrap(ssh, packages, cache, BootstrapSettings(share_files=False))
    first, second = on_all(bootstrap, [host.target, replace(host.target, name="h1-again")])
    assert first.ok, first.reason
    assert second.ok, second.reason
    for phase in (2, 3):
        assert {first.phases[phase].outcome, second.phases[phase].outcome} == {
            HostOutcome.DONE,
            HostOutcome.REUSED,
        }
    assert len(layers(host)) == 2
    assert partial(host) == []


def test_a_broken_runtime_is_installed_again(bootstrap: Bootstrap, new_host: NewHost) -> None:
    host = new_host()
    first = bootstrap.one(host.target)
    assert first.plan is not None
    (gone,) = host.root.glob("packages/*/site-packages/psutil")
    shutil.rmtree(gone)
    second = bootstrap.one(host.target)
    assert second.ok, second.reason
    assert "it was broken" in second.phases[4].detail
    assert gone.is_dir()
    assert partial(host) == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Mounts a file system with these limits; needs root."""
    place = tmp_path / "small"
    place.mkdir()

    def mount(options: str) -> Path:
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"cannot mount here: {done.stderr.strip()}")
        return place

    yield mount
    if os.path.ismount(place):
        subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.lab
def test_a_disk_without_room_is_seen_before_anything_is_sent(
    bootstrap: Bootstrap, new_host: NewHost, small_disk: Callable[[str], Path]
) -> None:
    host = new_host(home=small_disk("size=50m"))
    result = bootstrap.one(host.target)
    assert (result.ok, result.failed) == (False, BootstrapPhase.PROBE)
    assert "MB are free for" in result.reason
    assert "Make room" in result.hint
    assert not host.root.exists()


@pytest.mark.lab
def test_a_disk_that_becomes_full_under_it(
    bootstrap: Bootstrap, new_host: NewHost, small_disk: Callable[[str], Path]
) -> None:
    """Here files, of which `df` says nothing, run out: as when somebody else fills the disk meanwhile."""
    home = small_disk("size=2g,nr_inodes=200")
    host = new_host(home=home)
    result = bootstrap.one(host.target)
    assert (result.ok, result.failed) == (False, BootstrapPhase.PACKAGES)
    assert "no room left" in result.reason
    assert partial(host) == [], "nothing half is left over"
    subprocess.run(["mount", "-o", "remount,nr_inodes=20000", str(home)], check=True)
    again = bootstrap.one(host.target)
    assert again.ok, again.reason


def test_a_host_with_another_python_gets_its_libraries_by_pip(
    ssh: Ssh, packages: tuple[RuntimePackage, RuntimePackage], cache: Path, new_host: NewHost, tmp_path: Path
) -> None:
    """As if our libraries were built for another one; the index is a directory here."""
    if subprocess.run([PYTHON, "-m", "pip", "--version"], capture_output=True, check=False).returncode:
        pytest.skip(f"{PYTHON} has no pip")
    shelf = tmp_path / "index" / "simple" / "pinned-library"
    shelf.mkdir(parents=True)
    make_wheel(shelf, "pinned-library", "1.5", "pinned_library.py", "WHAT = 'by pip'\n")
    foreign = replace(
        packages[0], soabi="cpython-399-riscv128", pins=("pinned-library==1.5",), imports=("pinned_library",)
    )
    offline = new_host("offline", **NO_INTERNET)
    result = Bootstrap(ssh, (foreign, foreign), cache).one(offline.target)
    assert (result.ok, result.failed) == (False, BootstrapPhase.PROBE)
    assert "reaches no package index" in result.reason

    with index_of(tmp_path / "index") as url:
        online = new_host("online", PIP_INDEX_URL=url)
        result = Bootstrap(ssh, (foreign, foreign), cache).one(online.target)
        assert result.ok, (result.failed, result.reason)
        assert list(online.root.glob("packages/*/site-packages/pinned_library.py"))
        wrong = replace(foreign, pins=("pinned-library==2.0",))
        result = Bootstrap(ssh, (wrong, wrong), cache).one(online.target)
        assert result.failed is BootstrapPhase.PACKAGES
        assert "pinned-library==2.0" in result.reason


@contextlib.contextmanager
def index_of(directory: Path) -> Iterator[str]:
    """A package index over HTTP."""

    class Silent(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    handler = functools.partial(Silent, directory=str(directory))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/simple/"
        server.shutdown()
        thread.join()


def make_wheel(directory: Path, name: str, version: str, module: str, text: str) -> None:
    stem = f"{name.replace('-', '_')}-{version}"
    info = f"{stem}.dist-info"
    with zipfile.ZipFile(directory / f"{stem}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(module, text)
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: us\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", f"{module},,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")


def test_nodes_log_in_to_each_other_with_the_clusters_key(
    bootstrap: Bootstrap, ssh: Ssh, new_host: NewHost
) -> None:
    """As `mpirun` does with plm_rsh_agent="ssh -F CONFIG"."""
    hosts = [new_host("n1"), new_host("n2")]
    theirs = [host.authorized_keys.read_text() for host in hosts]
    nodes = on_all(bootstrap, [host.target for host in hosts])
    keys = ClusterKeys(ssh, "digits-7f3a-train")
    keys.give(nodes)
    keys.give(nodes)  # again is fine, and the key is another one
    for here, there in ((0, 1), (1, 0), (0, 0)):
        with ssh.connect(hosts[here].target) as connection:
            command = f"exec ssh -F {keys.config(nodes[here])} {nodes[there].target.name} 'echo $HOME'"
            result = connection.run(command, timeout_s=60)
            assert result.out.strip() == str(hosts[there].home), result.err
    private = hosts[0].root / "clusters" / "digits-7f3a-train" / "id_ed25519"
    assert private.stat().st_mode & 0o777 == 0o600
    for host, before in zip(hosts, theirs, strict=True):
        lines = host.authorized_keys.read_text().splitlines()
        assert lines[: len(before.splitlines())] == before.splitlines()
        assert [line.split()[0] for line in lines[1:]] == ["restrict"]
        assert lines[1].endswith("trainmaster-cluster:digits-7f3a-train")
    keys.remove(nodes)
    keys.remove(nodes)
    for host, before in zip(hosts, theirs, strict=True):
        assert host.authorized_keys.read_text() == before
        assert not (host.root / "clusters" / "digits-7f3a-train").exists()


def test_the_provider_claims_hosts_over_ssh(new_host: NewHost, tmp_path: Path, bootstrap: Bootstrap) -> None:
    """From an inventory to nodes: what a run does."""
    hosts = [new_host("h1"), new_host("h2"), new_host("off")]
    hosts[2].stop()
    entries = [host.entry.model_dump(mode="json", exclude_defaults=True) for host in hosts]
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "hosts.yaml").write_text(json.dumps({"hosts": entries}))
    provider = hosts_provider(ProviderPlace(tmp_path / "home", "home-1"))
    assert any("off is left out" in note for note in provider.preflight([NodeRequest("worker", 2)]))
    nodes = provider.acquire("run-1", NodeRequest("worker", 2, token="t"))
    assert [node.id for node in nodes] == ["h1", "h2"]
    assert len(list(hosts[0].place.glob("claims.u*/*.json"))) == 1
    assert all(result.ok for result in on_all(bootstrap, [target_of(node) for node in nodes]))
    hosts[1].stop()
    states = {node.id: (node.state.value, bool(node.reason)) for node in provider.nodes("run-1")}
    assert states == {"h1": ("READY", False), "h2": ("READY", True)}
    provider.release("run-1")
    assert list(hosts[0].place.glob("claims.u*/*.json")) == []
    hosts[0].authorized_keys.write_text("")
    again = hosts_provider(ProviderPlace(tmp_path / "home", "home-1"))
    with pytest.raises(UsageError, match=r"\(h1 \(127.0.0.1:\d+\) does not let"):
        again.preflight([NodeRequest("worker", 1)])
