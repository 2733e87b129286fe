"""A control process is killed while nodes upload for it: the next one publishes what it would have, once."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import psutil
import pytest
import upload_driver
from test_direct_store import MB, begun, line, nodes  # noqa: F401 - fixtures
from test_remote_site import Hosts, contents, hosts, own_mounts  # noqa: F401 - the fixture
from upload_driver import AFTER, BEFORE

from trainmaster.artifacts import CheckpointSeries, fetch, read_manifest
from trainmaster.control.attempt import saving, staging
from trainmaster.control.task.job_context import TaskContext
from trainmaster.objects import ObjectStore
from trainmaster.testing.counting_proxy import CountingProxy

pytestmark = [
    pytest.mark.s3,
    pytest.mark.skipif(not own_mounts(), reason="hosts with mounts of their own need root"),
]
SHARDS = 24
KILLED = -9


@contextmanager
def driver(*how: object) -> Iterator[subprocess.Popen[bytes]]:
    """One that ends with the test."""
    process = upload_driver.start(*how)  # type: ignore[arg-type]
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def with_a_checkpoint(nodes: Hosts) -> TaskContext:  # noqa: F811
    """An attempt that has one, and then makes a large one."""
    context = nodes.context()
    assert staging.stage(context, {}).error == ""
    nodes.write(0, context.place.checkpoint, first="1")
    assert saving.checkpoint(context).progressed is True
    nodes.write(0, context.place.checkpoint, **{f"shard-{n}": str(n % 10) * MB for n in range(SHARDS)})
    nodes.write(1, context.place.checkpoint, other="y")
    nodes.site._direct.forget("digits-7f3a/train/0/1")  # as in a new process
    return context


def uploaders(nodes: Hosts) -> list[psutil.Process]:  # noqa: F811
    """Processes of nodes that use the store: they take what others leave."""
    found = []
    for process in (each for host in nodes.hosts for each in host.processes()):
        with suppress(psutil.Error):
            if process.nice() > 0 and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def gone(condition: Callable[[], object], most_s: float) -> bool:
    deadline = time.monotonic() + most_s
    while condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def sent(line: CountingProxy) -> int:  # noqa: F811
    return sum(line.sent_bytes.values())


def require_one_whole_checkpoint(nodes: Hosts, context: TaskContext) -> None:  # noqa: F811
    series = CheckpointSeries(context.checkpoints_uri)
    assert series.complete() == [1, 2]
    series.restore(2, nodes.tmp_path / "restored")
    assert contents(nodes.tmp_path / "restored") == {
        "first": "1",
        "other": "y",
        **{f"shard-{n}": str(n % 10) * MB for n in range(SHARDS)},
    }
    store = ObjectStore(series.uri_of(2))
    manifest = series.manifest(2)
    assert manifest is not None
    named = {entry.object for entry in manifest.files}
    assert {info.key for info in store.list("")} == named | {"manifest.json"}, (
        "nothing is left that nobody names"
    )
    assert not list(ObjectStore(series.uri).list("000003"))
    for number in range(2):
        beside = nodes.there(number, context.place.checkpoint).parent
        assert not list(beside.glob(".checkpoint.frozen*")), "nor on the nodes"


def test_killed_in_the_midst_of_an_upload(nodes: Hosts, line: CountingProxy) -> None:  # noqa: F811
    context = with_a_checkpoint(nodes)
    series = CheckpointSeries(context.checkpoints_uri)
    line.bytes_per_s = 8 * MB
    wait = begun(line, 18 * MB)
    with driver(nodes, "checkpoint") as first:
        assert wait()
        first.kill()
        assert first.wait() == KILLED
    assert series.complete() == [1], "a restart sees the newest complete one"
    line.bytes_per_s = None
    before = sent(line)
    with driver(nodes, "checkpoint") as second:
        assert second.wait(60) == 0
    assert sent(line) - before < (SHARDS - 4) * MB, "what had arrived is not sent again"
    assert gone(lambda: uploaders(nodes), 10), "those of the killed one end by themselves"
    require_one_whole_checkpoint(nodes, context)
    assert saving.checkpoint(context).progressed is False, "nothing new"


@pytest.mark.parametrize("moment", [BEFORE, pytest.param(AFTER, marks=pytest.mark.crossings)])
def test_killed_beside_the_commit(nodes: Hosts, line: CountingProxy, moment: str) -> None:  # noqa: F811
    context = with_a_checkpoint(nodes)
    with driver(nodes, "checkpoint", moment) as first:
        assert first.wait(60) == KILLED
    assert CheckpointSeries(context.checkpoints_uri).complete() == ([1] if moment == BEFORE else [1, 2])
    before = sent(line)
    with driver(nodes, "checkpoint") as second:
        assert second.wait(60) == 0
    assert sent(line) - before < MB, "all of it is there already"
    require_one_whole_checkpoint(nodes, context)


def test_killed_and_the_files_are_others_by_then(nodes: Hosts, line: CountingProxy) -> None:  # noqa: F811
    """The task goes on meanwhile: what was sent of the old ones is nobody's, and is removed."""
    context = with_a_checkpoint(nodes)
    with driver(nodes, "checkpoint", BEFORE) as first:
        assert first.wait(60) == KILLED
    nodes.write(0, context.place.checkpoint, **{f"shard-{n}": str(n % 10) * MB for n in range(SHARDS)})
    with driver(nodes, "checkpoint") as second:
        assert second.wait(60) == 0
    require_one_whole_checkpoint(nodes, context)


def test_killed_and_the_attempt_is_over(nodes: Hosts, line: CountingProxy) -> None:  # noqa: F811
    """The next attempt goes on from the checkpoint before; at its end nothing of the cut one is left."""
    context = with_a_checkpoint(nodes)
    with driver(nodes, "checkpoint", BEFORE) as first:
        assert first.wait(60) == KILLED
    for number in range(2):  # its machines are gone, with all that they had
        for path in nodes.there(number, context.place.checkpoint).parent.iterdir():
            if path.name.startswith((".checkpoint", "checkpoint")):
                path.rename(nodes.tmp_path / f"gone-{number}-{path.name}")
    second = nodes.context(attempt=2)
    assert staging.stage(second, {}).fields == {"restored": 1}
    assert saving.save(second).error == ""
    series = CheckpointSeries(context.checkpoints_uri)
    assert series.complete() == [1]
    assert [info.key for info in ObjectStore(series.uri).list("000002")] == ["000002/manifest.json"]
    assert series.manifest(2) is None, "nobody can commit there any more"


@pytest.mark.parametrize("moment", [pytest.param(BEFORE, marks=pytest.mark.crossings), AFTER])
def test_killed_with_a_model(nodes: Hosts, line: CountingProxy, moment: str) -> None:  # noqa: F811
    context = nodes.context()
    assert staging.stage(context, {}).error == ""
    nodes.write(0, context.place.output("worker-0", first=True), model="m" * 3 * MB)
    nodes.write(1, context.place.output("worker-1", first=False), part="1")
    with driver(nodes, "save", moment) as first:
        assert first.wait(60) == KILLED
    present = read_manifest(context.model_uri)
    assert (present is None) is (moment == BEFORE)
    before = sent(line)
    job = saving.save(context)
    assert (job.error, job.fields["model_uri"]) == ("", context.model_uri)
    assert sent(line) - before < MB
    manifest = fetch(context.model_uri, nodes.tmp_path / "model")
    assert contents(nodes.tmp_path / "model") == {"model": "m" * 3 * MB, "members/worker-1/part": "1"}
    named = {entry.object for entry in manifest.files}
    assert {info.key for info in ObjectStore(context.model_uri).list("")} == named | {"manifest.json"}
    assert present is None or present.created_at == manifest.created_at, "published once"
