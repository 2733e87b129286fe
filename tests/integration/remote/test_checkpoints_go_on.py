"""Ranks that save under the same names each time go on after a restart, each with its own newest files.

Each node got all of the checkpoint; what another rank has saved there is not its word. Once with a store that
nodes use themselves, once through the driver; see `test_remote_site` and `test_direct_store` for the hosts.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from test_direct_store import line, nodes  # noqa: F401 - fixtures
from test_remote_site import Hosts, contents, hosts, own_mounts  # noqa: F401 - the fixture

from trainmaster.artifacts import CheckpointSeries
from trainmaster.cluster.node_files.remote_site import RemoteSite
from trainmaster.control.attempt import saving, staging
from trainmaster.control.task.job_context import TaskContext

pytestmark = pytest.mark.skipif(not own_mounts(), reason="hosts with mounts of their own need root")


@pytest.fixture(params=["through the driver", pytest.param("direct", marks=pytest.mark.s3)])
def gang(request: pytest.FixtureRequest) -> Hosts:
    """Two nodes; whether they use the store themselves."""
    return request.getfixturevalue("nodes" if request.param == "direct" else "hosts")


def begin(gang: Hosts, attempt: int) -> TaskContext:
    context = gang.context(attempt)
    assert staging.stage(context, {}).error == ""
    return context


def newest(gang: Hosts, context: TaskContext) -> dict[str, str]:
    """What the newest checkpoint holds."""
    series = CheckpointSeries(context.checkpoints_uri)
    number = series.newest()
    assert number is not None
    target = gang.tmp_path / f"restored-{context.task}-{number}"
    if not target.exists():
        series.restore(number, target)
    return contents(target)


def child_of(gang: Hosts, parent: int) -> TaskContext:
    """The first attempt of a task that goes on with another one's training."""
    number = parent + 1
    place = gang.home.attempt("digits-7f3a", "train", number, 1)
    return replace(gang.context(), task=number, parent=parent, place=place)


def another_driver(gang: Hosts) -> None:
    """The one before was killed: what it knew is what it has written."""
    before = gang.site
    gang.site = RemoteSite(
        gang.home,
        "digits-7f3a",
        nodes_of=lambda _: [(f"worker-{n}", node) for n, node in enumerate(gang.nodes)],
        all_nodes=lambda _: gang.nodes,
        root=gang.root,
        patience_s=5.0,
    )
    before.close()


def save(gang: Hosts, context: TaskContext, step: int, ranks: tuple[int, ...] = (0, 1)) -> None:
    """As scripts do: a shard of each rank under the same name, and of rank 0 the newest two logs of steps."""
    place = context.place.checkpoint
    for rank in ranks:
        gang.write(rank, place, **{f"shards__rank-{rank}": str(step)})
    if 0 in ranks:
        gang.write(0, place, **{f"step-{step}": str(step)})
        (gang.there(0, place) / f"step-{step - 20}").unlink(missing_ok=True)


def at(step: int, *steps: int) -> dict[str, str]:
    shards = {f"shards/rank-{rank}": str(step) for rank in range(2)}
    return shards | {f"step-{each}": str(each) for each in (steps or (step - 10, step))}


def test_every_rank_goes_on_and_what_was_rotated_away_stays_away(gang: Hosts) -> None:
    context = begin(gang, 1)
    for step in (10, 20):
        save(gang, context, step)
        assert saving.checkpoint(context).progressed
    assert newest(gang, context) == at(20)

    context = begin(gang, 2)
    for number in range(2):
        assert contents(gang.there(number, context.place.checkpoint)) == at(20)
    assert not saving.checkpoint(context).progressed, "nothing new"
    save(gang, context, 30, ranks=(1,))
    assert saving.checkpoint(context).progressed, "of the second rank alone"
    assert newest(gang, context) == at(20) | {"shards/rank-1": "30"}
    for step in (30, 40, 50):  # by now the one that was restored has made room
        save(gang, context, step)
        assert saving.checkpoint(context).progressed
        assert newest(gang, context) == at(step)
    another_driver(gang)
    context = gang.context(2)
    save(gang, context, 60)
    assert saving.recover(context).error == ""
    assert newest(gang, context) == at(60)
    gang.site.clean_up(context)
    context.place.clean_up(keep_output=False, keep_checkpoint=False)
    assert not list(context.place.directory.glob("restored*")), "it is not needed any more"

    context = begin(gang, 3)
    for number in range(2):
        assert contents(gang.there(number, context.place.checkpoint)) == at(60)
    save(gang, context, 70)
    gang.write(0, context.place.output("worker-0", first=True), model="m")
    assert saving.save(context).error == ""
    assert newest(gang, context) == at(70)


def test_who_begins_with_the_checkpoint_of_another_task_does_so_too(gang: Hosts) -> None:
    parent = begin(gang, 1)
    save(gang, parent, 10)
    assert saving.checkpoint(parent).progressed
    child = child_of(gang, 0)
    assert staging.stage(child, {}).error == ""
    assert saving.checkpoint(child).progressed, "though unchanged it is the child's own"
    assert newest(gang, child) == at(10, 10)
    save(gang, child, 20, ranks=(1,))
    (gang.there(0, child.place.checkpoint) / "step-10").unlink()
    another_driver(gang)
    child = child_of(gang, 0)
    assert saving.checkpoint(child).progressed
    assert newest(gang, child) == {"shards/rank-0": "10", "shards/rank-1": "20"}


def test_restored_files_have_their_times_to_the_nanosecond(gang: Hosts) -> None:
    context = begin(gang, 1)
    save(gang, context, 10)
    assert saving.checkpoint(context).progressed
    manifest = CheckpointSeries(context.checkpoints_uri).manifest(1)
    assert manifest is not None
    second = begin(gang, 2)
    for number in range(2):
        there = gang.there(number, second.place.checkpoint)
        for entry in manifest.files:
            assert (there / entry.path).stat().st_mtime_ns == entry.mtime_ns
    assert any(entry.mtime_ns % 1000 for entry in manifest.files)
