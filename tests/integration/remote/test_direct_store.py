"""Nodes publish to an object store, and restore from it, without a way through the driver.

The hosts are those of `test_remote_site`, the store is a real S3 server behind a proxy.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from test_remote_site import Hosts, contents, hosts, own_mounts  # noqa: F401 - the fixture

from trainmaster.artifacts import CheckpointSeries, fetch
from trainmaster.cluster.node_files import store_reach, worker_client
from trainmaster.cluster.node_files.remote_site import RemoteSite
from trainmaster.control.attempt import saving, staging
from trainmaster.control.task.layout import Home
from trainmaster.objects import ObjectStore
from trainmaster.testing.counting_proxy import CountingProxy
from trainmaster.testing.private_s3 import PrivateS3

pytestmark = [
    pytest.mark.s3,
    pytest.mark.skipif(not own_mounts(), reason="hosts with mounts of their own need root"),
]
MB = 1 << 20


@pytest.fixture
def line(private_s3: PrivateS3, monkeypatch: pytest.MonkeyPatch) -> Iterator[CountingProxy]:
    """The way to the store, which can be made narrow."""
    with CountingProxy(private_s3.url) as proxy:
        for name, value in private_s3.environment(proxy.url).items():
            monkeypatch.setenv(name, value)
        yield proxy


@pytest.fixture
def nodes(hosts: Hosts, private_s3: PrivateS3, line: CountingProxy, tmp_path: Path) -> Iterator[Hosts]:  # noqa: F811
    """Two nodes whose run publishes to the store; what it tells is in `told`."""
    environ = {
        "TRAINMASTER_HOME": str(tmp_path / "home"),
        "TRAINMASTER_CACHE": str(tmp_path / "cache"),
        "TRAINMASTER_STORE": f"s3://{private_s3.new_bucket()}/store",
    }
    hosts.site.close()
    hosts.home = Home.from_environment(environ)
    hosts.told: list[str] = []  # type: ignore[attr-defined, misc]
    hosts.site = RemoteSite(
        hosts.home,
        "digits-7f3a",
        nodes_of=lambda _: [
            (f"worker-{n}", node) for n, node in enumerate(hosts.nodes) if node.id not in hosts.gone
        ],
        all_nodes=lambda _: hosts.nodes,
        root=hosts.root,
        patience_s=5.0,
        tell=hosts.told.append,  # type: ignore[attr-defined]
    )
    yield hosts
    line.bytes_per_s = None


def test_checkpoints_and_models_go_from_the_nodes_to_the_store(nodes: Hosts) -> None:
    context = nodes.context()
    assert staging.stage(context, {}).error == ""
    place = context.place
    nodes.write(0, place.checkpoint, same="of 0", only0__x="0" * 20 * MB, clash="file")
    nodes.write(1, place.checkpoint, same="of 1", only1="1", clash__x="directory")
    (nodes.there(1, place.checkpoint) / "link").symlink_to("only1")
    (nodes.there(1, place.checkpoint) / "empty").mkdir()
    assert saving.checkpoint(context) == saving.Job(done=True, progressed=True)
    assert list(place.checkpoint.iterdir()) == [], "nothing came here"
    assert list(nodes.there(0, place.checkpoint).parent.glob(".checkpoint.frozen")) == []
    series = CheckpointSeries(context.checkpoints_uri)
    series.restore(1, nodes.tmp_path / "restored")
    united = {"same": "of 0", "only0/x": "0" * 20 * MB, "clash": "file", "only1": "1", "link": "1"}
    assert contents(nodes.tmp_path / "restored") == united
    assert (nodes.tmp_path / "restored" / "empty").is_dir()
    assert saving.checkpoint(context).progressed is False, "nothing new"
    nodes.write(1, place.checkpoint, only1="2")
    assert saving.checkpoint(context).progressed is True
    assert series.complete() == [1, 2]
    nodes.site._direct.forget("digits-7f3a/train/0/1")
    assert saving.checkpoint(context).progressed is False, "nor for the next driver"

    # the next attempt finds all of it on every node, and nothing new in it
    second = nodes.context(attempt=2)
    for _ in range(2):
        assert staging.stage(second, {}).fields == {"restored": 2}
    for number in range(2):
        there = nodes.there(number, second.place.checkpoint)
        assert contents(there) == united | {"only1": "2", "link": "2"}
        assert (there / "link").is_symlink()
    assert list(second.place.checkpoint.iterdir()) == []
    assert saving.checkpoint(second).progressed is False

    nodes.write(0, second.place.output("worker-0", first=True), model="m" * 3 * MB, members__x="mine")
    nodes.write(0, second.place.output("worker-1", first=False), stray="not its node")
    nodes.write(1, second.place.output("worker-1", first=False), part="1")
    for _ in range(2):  # a driver that was killed after the commit does it again
        job = saving.save(second)
        assert (job.error, job.fields["model_uri"]) == ("", second.model_uri)
    manifest = fetch(second.model_uri, nodes.tmp_path / "model")
    model = {"model": "m" * 3 * MB, "members/x": "mine", "members/worker-1/part": "1"}
    assert contents(nodes.tmp_path / "model") == model
    assert (manifest.kind, manifest.extra["attempt"]) == ("model", 2)
    assert all(contents(part) == {} for part in second.parts.values()), "nothing came here"
    assert nodes.told == []  # type: ignore[attr-defined]

    # what an attempt has published that was never recorded is in nobody's way
    third = nodes.context(attempt=3)
    assert staging.stage(third, {}).error == ""
    nodes.write(0, third.place.output("worker-0", first=True), model="3")
    assert saving.save(third).error == ""
    assert fetch(third.model_uri, nodes.tmp_path / "third").extra["attempt"] == 3
    assert contents(nodes.tmp_path / "third") == {"model": "3"}


def test_a_sweep_that_leaves_nothing_asks_nobody(nodes: Hosts, line: CountingProxy) -> None:
    context = nodes.context()
    assert staging.stage(context, {}).error == ""
    before = sum(line.sent_bytes.values())
    job = saving.save(context)
    assert (job.error, "model_uri" in job.fields) == ("", False)
    assert sum(line.sent_bytes.values()) == before


def begun(line: CountingProxy, size_bytes: int) -> Callable[[], bool]:
    before = sum(line.sent_bytes.values())

    def wait() -> bool:
        deadline = time.monotonic() + 30
        while sum(line.sent_bytes.values()) - before < size_bytes:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.01)
        return True

    return wait


def test_an_upload_that_is_cut_is_invisible_and_gone_on_with(nodes: Hosts, line: CountingProxy) -> None:
    context = nodes.context()
    assert staging.stage(context, {}).error == ""
    place = context.place
    nodes.write(0, place.checkpoint, first="1")
    assert saving.checkpoint(context).progressed is True
    nodes.write(0, place.checkpoint, **{f"shard-{n}": "x" * MB for n in range(30)})
    nodes.write(1, place.checkpoint, other="y")
    line.bytes_per_s = 16 * MB
    wait = begun(line, 20 * MB)
    secrets: list[str] = []

    def cut() -> None:
        assert wait()
        for process in nodes.hosts[0].processes():
            told = [Path(f"/proc/{process.pid}/{what}").read_bytes() for what in ("cmdline", "environ")]
            secrets.extend(repr(text) for text in told if b"private-s3" in text)
        nodes.hosts[0].cut()

    cutter = threading.Thread(target=cut)
    cutter.start()
    job = saving.checkpoint(context)
    cutter.join()
    line.bytes_per_s = None
    assert "connection was lost" in job.error
    assert secrets == [], "credentials are in no list of processes"
    series = CheckpointSeries(context.checkpoints_uri)
    assert series.complete() == [1], "the newest complete one is what a restart sees"

    before = sum(line.sent_bytes.values())
    assert saving.checkpoint(context).progressed is True
    assert sum(line.sent_bytes.values()) - before < 25 * MB, "what was sent is not sent again"
    assert series.complete() == [1, 2]
    series.restore(2, nodes.tmp_path / "restored")
    assert len(contents(nodes.tmp_path / "restored")) == 32
    folders = [name for name in ObjectStore(series.uri_of(2)).folders() if name.startswith("files-")]
    assert len(folders) == 2, "what is not named is gone"


def test_what_is_overwritten_while_it_is_sent_is_not_published(nodes: Hosts, line: CountingProxy) -> None:
    context = nodes.context()
    assert staging.stage(context, {}).error == ""
    there = nodes.there(1, context.place.checkpoint)
    nodes.write(0, context.place.checkpoint, small="1")
    (there / "big").write_bytes(b"1" * 24 * MB)
    line.bytes_per_s = 16 * MB
    wait = begun(line, 2 * MB)

    def overwrite() -> None:
        assert wait()
        with (there / "big").open("r+b") as file:
            file.write(b"2")

    writer = threading.Thread(target=overwrite)
    writer.start()
    job = saving.checkpoint(context)
    writer.join()
    assert (job.error, job.progressed) == ("", False)
    assert context.checkpoints.newest() is None
    line.bytes_per_s = None
    assert saving.checkpoint(context).progressed is True
    manifest = context.checkpoints.manifest(1)
    assert manifest is not None
    there = {info.key for info in ObjectStore(context.checkpoints.uri_of(1)).list()}
    named = {entry.object for entry in manifest.files}
    assert there == {"manifest.json", *named}, "no waste is left"


def test_nodes_that_cannot_use_the_store_have_it_done_here(
    nodes: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    apart = nodes.tmp_path / "python"  # one whose programs have no network
    apart.write_text(f'#!/bin/sh\nexec unshare --net {nodes.nodes[0].python} "$@"\n')
    apart.chmod(0o755)
    nodes.nodes[1].result.plan.python = str(apart)  # type: ignore[misc, union-attr]
    monkeypatch.setattr(worker_client, "REACH_S", 1.0)
    context = nodes.context()
    assert staging.stage(context, {}).error == ""
    nodes.write(0, context.place.checkpoint, a="1")
    nodes.write(1, context.place.output("worker-1", first=False), b="2")
    assert saving.checkpoint(context).progressed is True
    assert contents(context.place.checkpoint) == {"a": "1"}, "it came here"
    job = saving.save(context)
    assert job.error == ""
    fetch(context.model_uri, nodes.tmp_path / "model")
    assert contents(nodes.tmp_path / "model") == {"members/worker-1/b": "2"}
    (told,) = nodes.told  # type: ignore[attr-defined]
    assert "files go to the store through this machine: h1" in told
    assert "no answer for 1 s" in told
    second = nodes.context(attempt=2)
    assert staging.stage(second, {}).fields == {"restored": 1}
    assert contents(nodes.there(1, second.place.checkpoint)) == {"a": "1"}
    # later they can
    monkeypatch.setattr(store_reach, "AWAY_AGAIN_S", 0.0)
    nodes.nodes[1].result.plan.python = nodes.nodes[0].python  # type: ignore[misc, union-attr]
    third = nodes.context(attempt=3)
    assert staging.stage(third, {}).fields == {"restored": 1}
    assert list(third.place.checkpoint.iterdir()) == []
    assert contents(nodes.there(1, third.place.checkpoint)) == {"a": "1"}


@pytest.mark.parametrize("keepalive_s", [3600.0])
def test_a_node_that_is_lost_and_silent_is_not_waited_for(nodes: Hosts, line: CountingProxy) -> None:
    context = nodes.context()
    assert staging.stage(context, {}).error == ""
    nodes.write(0, context.place.checkpoint, a="1")
    assert saving.checkpoint(context).progressed is True
    attempt = "digits-7f3a/train/0/1"

    # lost, but it answers: what it has is had
    nodes.write(1, context.place.checkpoint, b="2")
    nodes.site.lost(attempt, ["worker-1"])
    assert saving.recover(context).error == ""
    assert CheckpointSeries(context.checkpoints_uri).newest() == 2
    nodes.site.clean_up(context)

    second = replace(nodes.context(attempt=2), facts=context.facts)  # as in a run: its environment is noted
    assert staging.stage(second, {}).error == ""
    (nodes.there(1, second.place.checkpoint) / "big").write_bytes(b"1" * 24 * MB)
    line.bytes_per_s = 4 * MB
    wait = begun(line, MB)
    jobs = []
    saver = threading.Thread(target=lambda: jobs.append(saving.checkpoint(second)), daemon=True)
    saver.start()
    assert wait()
    nodes.hosts[1].freeze()
    nodes.site.lost("digits-7f3a/train/0/2", ["worker-1"])
    saver.join(60)
    assert jobs, "what was under way waits for a sign of life"
    recovery = threading.Thread(target=lambda: jobs.append(saving.recover(second)), daemon=True)
    recovery.start()
    recovery.join(60)
    assert len(jobs) == 2, "what comes after waits for a sign of life"
    assert "worker-1 has no node any more" in jobs[1].error
    assert "lost" in jobs[0].error or "closed" in jobs[0].error, jobs
    assert CheckpointSeries(context.checkpoints_uri).newest() == 2
