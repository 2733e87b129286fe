"""Nodes get volumes, models and URLs from where they lie, without a way through the driver.

The hosts are those of `test_remote_site`, the store is a real S3 server behind a proxy.
"""

from __future__ import annotations

import http.server
import os
import shlex
import signal
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import psutil
import pytest
from test_direct_store import line, nodes  # noqa: F401 - fixtures
from test_remote_site import RUN, Hosts, contents, hosts, own_mounts  # noqa: F401 - the fixture

from trainmaster.artifacts import publish
from trainmaster.cluster.node_files import data as node_data
from trainmaster.cluster.node_files import worker_client
from trainmaster.cluster.node_files.files import remove_run
from trainmaster.cluster.node_files.store_reach import trouble_from_here
from trainmaster.control.attempt import saving, staging
from trainmaster.control.attempt.data_sources import withdraw_volumes
from trainmaster.objects.delegated_credentials import DelegatedCredentials
from trainmaster.spec import DataSource
from trainmaster.spec.states import EndReason
from trainmaster.testing.counting_proxy import CountingProxy
from trainmaster.testing.private_s3 import PrivateS3
from trainmaster.volumes.mounting import available
from trainmaster.volumes.packed.pushing import push

pytest.importorskip("pyarrow", reason="pyarrow is not installed")
pytest.importorskip("blake3", reason="blake3 is not installed")
pytestmark = [
    pytest.mark.s3,
    pytest.mark.skipif(not own_mounts(), reason="hosts with mounts of their own need root"),
]
MB = 1 << 20
mounts = pytest.mark.skipif(available() is not None, reason=f"no mounts here: {available()}")


@pytest.fixture
def sites(nodes: Hosts) -> Iterator[Hosts]:  # noqa: F811
    """The nodes; nothing stays mounted on them, nor here."""
    for number in range(2):
        nodes.there(number, nodes.home.code_directory(RUN)).mkdir(parents=True)
    nodes.home.code_directory(RUN).mkdir(parents=True)
    yield nodes
    nodes.site._data.withdraw(nodes.nodes)
    withdraw_volumes(nodes.home.data_directory(RUN))  # what came here instead, of a test that fails


def shell(sites: Hosts, number: int, command: str) -> str:
    result = sites.site._files.shell(sites.nodes[number], command)
    return str(result.out if result.code == 0 else f"failed: {result.err}")


def listed(sites: Hosts, number: int, there: str) -> list[str]:
    found = shell(sites, number, f"cd {shlex.quote(there)} && find -L . -type f | sort").split()
    return [path.removeprefix("./") for path in found]


def pushed(sites: Hosts, tmp_path: Path, name: str = "images", size_bytes: int = 4 * MB) -> str:
    """A volume with two files."""
    source = tmp_path / f"source-{name}"
    (source / "deep").mkdir(parents=True, exist_ok=True)
    (source / "a").write_bytes(b"a" * size_bytes)
    (source / "deep" / "b").write_bytes(b"b" * size_bytes)
    url = f"{sites.home.store_url}/volumes/{name}"
    push(source, url)
    return url


def is_mounted(sites: Hosts, number: int, there: str) -> bool:
    table = shell(sites, number, "cat /proc/self/mountinfo").splitlines()
    return any(f" {there} " in row and " trainmaster:" in row for row in table)


def guards(sites: Hosts) -> list[Any]:
    return [
        process for host in sites.hosts for process in host.processes() if "mounting.server" in words(process)
    ]


def words(process: Any) -> str:
    try:
        return " ".join(process.cmdline())
    except (OSError, psutil.Error):  # it has just ended
        return ""


@mounts
def test_a_volume_is_mounted_by_the_nodes_and_again_when_that_is_lost(sites: Hosts, tmp_path: Path) -> None:
    pushed(sites, tmp_path)
    context = sites.context(data={"images": DataSource(volume="images", at="in/images")})
    for _ in range(2):
        assert staging.stage(context, {}).error == ""
    here = context.data_path("images")
    there = sites.site.path(here)
    assert not here.exists()
    assert not list((sites.home.cache).glob("volumes/whole/*")), "nothing came here"
    assert not (sites.home.cache / "chunks").exists()
    for number in range(2):
        assert listed(sites, number, there) == ["a", "deep/b"]
        assert shell(sites, number, f"head -c 3 {there}/deep/b") == "bbb"
        code = sites.site.path(sites.home.code_directory(RUN))
        assert shell(sites, number, f"head -c 3 {code}/in/images/a") == "aaa"
        assert is_mounted(sites, number, there)
        cache = sites.site.environment(sites.context().experiment)["TRAINMASTER_CACHE"]
        assert shell(sites, number, f"ls {cache}").split() == ["chunks", "mounts", "volumes"]
    assert len(guards(sites)) == 4, "a guard and a server on each"
    secret = b"AWS_SECRET_ACCESS_KEY"
    assert all(secret not in Path(f"/proc/{each.pid}/environ").read_bytes() for each in guards(sites))
    assert sites.told == []  # type: ignore[attr-defined]

    # what is killed is noticed, is none of the script's faults, and comes again
    assert sites.site.lost_data(context) == (False, "")
    for process in guards(sites):
        if "serve" in process.cmdline() and process in sites.hosts[0].processes():
            process.kill()
    deadline = time.monotonic() + 60
    while is_mounted(sites, 0, there):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    job = saving.recover(context)
    assert job.reason is EndReason.NODE_LOST
    assert "data.images was no longer there on h0" in job.message
    second = sites.context(attempt=2, data=dict(context.experiment.data))
    assert staging.stage(second, {}).error == ""
    assert listed(sites, 0, there) == ["a", "deep/b"]
    assert sites.site.lost_data(context)[0], "also after another attempt has brought it"
    assert sites.site.lost_data(second) == (False, "")

    # what the store does wrong is told; a mount that works again by the next time stays
    log = f"{cache}/mounts/*.log"
    shell(sites, 1, f"echo 'error: the token has expired' >> $(echo {log})")
    job = saving.recover(second)
    assert (job.reason, "the token has expired" in job.message) == (None, True), job
    old = {each.pid for each in guards(sites)}
    assert staging.stage(second, {}).error == ""
    assert {each.pid for each in guards(sites)} == old
    assert sites.site._data.lost("another", sites.nodes, second) == (False, "")

    # the version is that of the first look; another driver finds what is there
    (tmp_path / "source-images" / "c").write_text("new")
    pushed(sites, tmp_path)
    sites.site._data._brought.clear()
    before = {each.pid for each in guards(sites)}
    assert staging.stage(second, {}).error == ""
    assert listed(sites, 1, there) == ["a", "deep/b"]
    assert {each.pid for each in guards(sites)} == before

    remove_run(sites.nodes[0], RUN)
    assert shell(sites, 0, f"ls {there}").startswith("failed")
    sites.site.withdraw_data(["train"])
    deadline = time.monotonic() + 60
    while guards(sites):
        assert time.monotonic() < deadline, "nothing of it stays"
        time.sleep(0.05)


def test_without_mounts_a_volume_is_fetched_by_the_nodes(
    sites: Hosts,
    tmp_path: Path,
    line: CountingProxy,  # noqa: F811
) -> None:
    pushed(sites, tmp_path)
    for number in range(2):  # as if the kernel knew nothing of FUSE
        node = sites.nodes[number]
        wrapper = tmp_path / "python-without-fuse"
        wrapper.write_text(f'#!/bin/sh\nFUSE_LIBRARY_PATH=/nowhere exec {node.python} "$@"\n')
        wrapper.chmod(0o755)
        node.result.plan.python = str(wrapper)  # type: ignore[misc, union-attr]
    context = sites.context(data={"images": DataSource(volume="images")})
    assert staging.stage(context, {}).error == ""
    there = sites.site.path(context.data_path("images"))
    for number in range(2):
        assert listed(sites, number, there) == ["a", "deep/b"]
        assert "cache/volumes/whole" in shell(sites, number, f"readlink {there}")
    assert not context.data_path("images").exists()
    assert sites.site.lost_data(context) == (False, "")


def test_models_of_another_experiment_are_fetched_by_the_nodes(sites: Hosts, tmp_path: Path) -> None:
    models = []
    for task in range(3):
        source = tmp_path / f"model-{task}"
        source.mkdir()
        (source / "w").write_text(str(task))
        uri = f"{sites.home.store_url}/models/{task}"
        publish({"": source}, uri, kind="model")
        models.append((task, uri))
    context = sites.context(
        data={"all": DataSource(experiment="earlier"), "one": DataSource(experiment="earlier", best="loss")}
    )
    for _ in range(2):
        assert staging.stage(context, {"all": models, "one": models[1:2]}).error == ""
    for number in range(2):
        assert contents(sites.there(number, context.data_path("all"))) == {
            "0/w": "0",
            "1/w": "1",
            "2/w": "2",
        }
        assert contents(sites.there(number, context.data_path("one"))) == {"w": "1"}
    assert not context.data_path("all").exists()


class Web(http.server.SimpleHTTPRequestHandler):
    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.asked.append(self.path)
        super().do_GET()

    def log_message(self, *_: object) -> None:
        pass


def test_urls_are_fetched_by_the_nodes(sites: Hosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    served = tmp_path / "served"
    served.mkdir()
    (served / "set.csv").write_text("1,2")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Web, directory=str(served)))
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    objects = f"{sites.home.store_url}/objects"
    publish({"": served}, objects, kind="model")  # any objects will do
    web = f"http://127.0.0.1:{server.server_port}/set.csv"
    context = sites.context(data={"web": DataSource(url=web), "objects": DataSource(url=objects)})
    try:
        for _ in range(2):
            assert staging.stage(context, {}).error == ""
    finally:
        server.shutdown()
        server.server_close()
    for number in range(2):
        assert contents(sites.there(number, context.data_path("web"))) == {"set.csv": "1,2"}
        assert "manifest.json" in contents(sites.there(number, context.data_path("objects")))
    assert Web.asked == ["/set.csv"] * 4, "each node looks, and fetches"
    assert not (sites.home.cache / "data").exists()
    assert sites.told == []  # type: ignore[attr-defined]


def test_what_nodes_cannot_reach_goes_through_the_driver(
    sites: Hosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pushed(sites, tmp_path, size_bytes=1000)
    wrong = {"AWS_ACCESS_KEY_ID": "wrong"}
    lend = DelegatedCredentials.environment
    monkeypatch.setattr(DelegatedCredentials, "environment", lambda *given: {**(lend(*given) or {}), **wrong})
    plain = tmp_path / "plain"
    plain.mkdir()
    (plain / "x").write_text("x")
    context = sites.context(
        data={
            "images": DataSource(volume="images"),
            "digits": DataSource(volume="digits"),
            "file": DataSource(url=plain.as_uri()),
        }
    )
    try:
        for _ in range(2):
            assert staging.stage(context, {}).error == ""
        for number in range(2):
            images = sites.there(number, context.data_path("images"))
            assert contents(images) == {"a": "a" * 1000, "deep/b": "b" * 1000}
            assert list(contents(sites.there(number, context.data_path("digits")))) == ["digits.csv"]
            assert contents(sites.there(number, context.data_path("file"))) == {"x": "x"}
        (told,) = sites.told  # type: ignore[attr-defined]
        assert told.startswith("note: data.images goes to the nodes through this machine: ")
        assert "403" in told

        monkeypatch.setattr(DelegatedCredentials, "environment", lend)
        sites.site._data._reach._refused.clear()
        assert staging.stage(context, {}).error == "", "when they can, they find what was sent"
        assert contents(sites.there(0, context.data_path("images"))) == {
            "a": "a" * 1000,
            "deep/b": "b" * 1000,
        }
    finally:
        withdraw_volumes(sites.home.data_directory(RUN))


@mounts
def test_a_store_that_is_away_is_waited_for(
    sites: Hosts,
    tmp_path: Path,
    private_s3: PrivateS3,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not for ever, and not with one of the script's retries; nothing comes through the driver meanwhile."""
    pushed(sites, tmp_path)
    context = sites.context(data={"images": DataSource(volume="images")})
    sites.site._data._wanted(context, "images", [])  # type: ignore[attr-defined]
    os.kill(private_s3.pid, signal.SIGSTOP)
    try:
        with monkeypatch.context() as impatient:
            impatient.setattr(worker_client, "REACH_S", 2.0)
            impatient.setattr(node_data, "trouble_from_here", partial(trouble_from_here, limit_s=2.0))
            job = staging.stage(context, {})
    finally:
        os.kill(private_s3.pid, signal.SIGCONT)
    assert job.reason is EndReason.NODE_LOST
    assert "data.images: s3://bucket-" in job.error
    assert " has not answered since " in job.error
    assert sites.told == [f"note: {job.error}"]  # type: ignore[attr-defined]
    assert staging.stage(context, {}).error == ""
    there = sites.site.path(context.data_path("images"))
    assert all(listed(sites, number, there) == ["a", "deep/b"] for number in range(2))
    assert len(sites.told) == 1  # type: ignore[attr-defined]


def test_a_node_without_room_is_told_at_once(sites: Hosts, tmp_path: Path) -> None:
    """Its cache lies on a small disk: that is for the user to change, and not tried four times."""
    pushed(sites, tmp_path)
    node = sites.nodes[1]
    wrapper = tmp_path / "python-without-fuse"
    wrapper.write_text(f'#!/bin/sh\nFUSE_LIBRARY_PATH=/nowhere exec {node.python} "$@"\n')
    wrapper.chmod(0o755)
    node.result.plan.python = str(wrapper)  # type: ignore[misc, union-attr]
    cache = sites.site.environment(sites.context().experiment)["TRAINMASTER_CACHE"]
    shell(sites, 1, f"mkdir -p {cache} && mount -t tmpfs -o size=4m none {cache}")
    context = sites.context(data={"images": DataSource(volume="images")})
    try:
        job = staging.stage(context, {})
    finally:
        shell(sites, 1, f"umount -l {cache}")
    assert job.users_fault, job
    assert "do not fit into" in job.error
    assert not any("tried again" in told for told in sites.told)  # type: ignore[attr-defined]


def test_a_volume_that_is_not_there_is_the_users_fault(sites: Hosts) -> None:
    context = sites.context(data={"images": DataSource(volume="imagse")})
    job = staging.stage(context, {})
    assert job.users_fault
    assert "data.images: there is no volume imagse" in job.error


@mounts
def test_another_version_that_is_mounted_there_goes_as_soon_as_nobody_reads_it(
    sites: Hosts, tmp_path: Path
) -> None:
    """As of a driver that an earlier Trainmaster was: what it found out of the run is not known."""
    pushed(sites, tmp_path)
    data = {"images": DataSource(volume="images")}
    context = sites.context(data=data)
    there = sites.site.path(context.data_path("images"))
    assert staging.stage(context, {}).error == ""
    pushed(sites, tmp_path, size_bytes=2 * MB)
    sites.site._data._volumes.clear()
    sites.site._data._brought.clear()
    reader = shell(sites, 0, f"sleep 600 <{there}/a >/dev/null 2>&1 & echo $!").strip()
    second = sites.context(attempt=2, data=data)
    job = staging.stage(second, {})
    assert (job.reason, job.users_fault) == (EndReason.NODE_LOST, True), "it is tried again, and then told"
    assert "images@1 is still read there" in job.error
    assert shell(sites, 0, f"stat -c %s {there}/a").strip() == str(4 * MB), "what is read stays what it is"
    shell(sites, 0, f"kill {reader}; while kill -0 {reader} 2>/dev/null; do sleep 0.05; done")
    assert staging.stage(second, {}).error == ""
    for number in range(2):
        assert shell(sites, number, f"stat -c %s {there}/a").strip() == str(2 * MB)
