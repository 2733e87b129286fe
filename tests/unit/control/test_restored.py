"""What an attempt on nodes has begun with is known as long as it runs, whichever process drives it."""

from __future__ import annotations

import dataclasses
import errno
import threading
from pathlib import Path
from typing import Any

import pytest

from trainmaster.artifacts import CheckpointSeries
from trainmaster.artifacts.manifest import DamagedArtifactError
from trainmaster.cluster.node_files.remote_site import RemoteSite
from trainmaster.control.attempt import staging
from trainmaster.control.attempt.local_site import LocalSite
from trainmaster.control.attempt.unpublished_checkpoint import note_restored, noted_restored
from trainmaster.control.loop.attempt_actions import AttemptActions
from trainmaster.control.loop.run_state import Task
from trainmaster.control.task.job_context import RelayError, TaskContext
from trainmaster.control.task.layout import Home
from trainmaster.objects.errors import FullStoreError, UnreachableStoreError
from trainmaster.spec import Distributed, Experiment, Recipe
from trainmaster.spec.errors import PublishError
from trainmaster.spec.sections import Checkpoint
from trainmaster.spec.states import EndReason


class Site(LocalSite):
    """Nodes that restore checkpoints, or have it done here; at that moment, what is noted is looked at."""

    stays = False
    alone = RemoteSite.alone  # type: ignore[assignment]

    def __init__(self, *, is_direct: bool = True) -> None:
        super().__init__()
        self.is_direct = is_direct
        self.noted: list[list[str]] = []
        self.context: TaskContext | None = None

    def restore_checkpoint(self, context: TaskContext, *_: Any, is_own: bool = True) -> None:
        self.noted.append(names(context))
        if not self.is_direct:
            raise RelayError("no way")

    def bring(self, context: TaskContext) -> None:
        self.noted.append(names(context))


def names(context: TaskContext) -> list[str]:
    manifest = noted_restored(context.place)
    return [] if manifest is None else [entry.path for entry in manifest.files]


def context(
    directory: Path,
    site: Site | None,
    attempt: int = 2,
    parent: int | None = None,
    begins_with: str | None = None,
) -> TaskContext:
    checkpoint = begins_with and Checkpoint(begins_with=begins_with)
    experiment = Experiment(
        name="train", command="true", distributed=Distributed(workers=2), checkpoint=checkpoint or None
    )
    recipe = Recipe(name="digits", directory=directory, experiments={"train": experiment})
    home = Home.from_environment({"TRAINMASTER_HOME": str(directory / "home")})
    claim = directory / "home/store/runs/digits-7f3a.json"
    claim.parent.mkdir(parents=True, exist_ok=True)
    claim.touch()
    actions = AttemptActions(
        home=home, run="digits-7f3a", recipe=recipe, secrets={}, find_models=lambda *_: [],
        site=site or LocalSite(),
    )  # fmt: skip
    return actions.context(Task(experiment="train", number=0, attempt=attempt, parent=parent))


def publish(asked: TaskContext, directory: Path, *files: str) -> None:
    directory.mkdir()
    for name in files:
        (directory / name).write_text(name)
    assert CheckpointSeries(asked.checkpoints_uri).publish({"": directory}, attempt=1)


def test_an_attempt_does_not_begin_anew_where_its_store_is_gone(tmp_path: Path) -> None:
    asked = context(tmp_path, None)
    assert staging.stage(asked, {}).error == ""
    claim = tmp_path / "home/store/runs/digits-7f3a.json"
    claim.rename(claim.with_name("another-7f3a.json"))  # the store of other runs has their claims
    job = staging.stage(asked, {})
    assert (job.reason, "it knows nothing of it" in job.error) == (EndReason.NODE_LOST, True), (
        "it is waited for"
    )


@pytest.mark.parametrize("damage", ["changed", "gone"])
def test_a_damaged_one_is_told_and_the_one_before_is_taken(tmp_path: Path, damage: str) -> None:
    asked = context(tmp_path, None)
    publish(asked, tmp_path / "one", "a")
    assert staging.stage(asked, {}).note == ""
    publish(asked, tmp_path / "two", "b")
    (stored,) = (tmp_path / "home/store").glob("checkpoints/*/train/0/000002/files-*/b")
    stored.unlink()
    if damage == "changed":
        stored.write_text("x")
    job = staging.stage(asked, {})
    assert job.fields == {"restored": 1}
    assert job.note == "checkpoint 2 is damaged in the store: attempt 2 begins with checkpoint 1"
    next((tmp_path / "home/store").glob("checkpoints/*/train/0/000001/files-*/a")).unlink()
    job = staging.stage(asked, {})
    assert job.fields == {"restored": None}
    assert job.note == "checkpoints 1, 2 are damaged in the store: attempt 2 has no other one to begin with"


@pytest.mark.parametrize("is_direct", [True, False])
def test_it_is_written_before_anything_is_on_a_node(tmp_path: Path, is_direct: bool) -> None:
    site = Site(is_direct=is_direct)
    asked = context(tmp_path, site)
    publish(asked, tmp_path / "one", "a")
    publish(asked, tmp_path / "two", "a", "b")
    assert staging.stage(asked, {}).fields == {"restored": 2}
    assert site.noted == [["a", "b"], ["a", "b"]]
    assert names(context(tmp_path, site)) == ["a", "b"], "the next driver knows it, too"
    CheckpointSeries(asked.checkpoints_uri).prune(1)
    asked.place.clean_up(keep_output=True, keep_checkpoint=True)
    assert names(asked) == []


def test_it_is_of_the_one_that_was_restored_in_the_end(tmp_path: Path) -> None:
    site = Site()
    asked = context(tmp_path, site)
    publish(asked, tmp_path / "one", "a")
    publish(asked, tmp_path / "two", "b")
    newest = Path(CheckpointSeries(asked.checkpoints_uri).uri_of(2).removeprefix("file://"), "manifest.json")
    newest.write_text("damaged")
    assert staging.stage(asked, {}).fields == {"restored": 1}
    assert names(asked) == ["a"]
    newest.parent.joinpath("../000001/manifest.json").unlink()
    assert staging.stage(asked, {}).fields == {"restored": None}
    assert names(asked) == [], "none at last"


def test_what_another_task_has_left_counts(tmp_path: Path) -> None:
    site = Site()
    asked = context(tmp_path, site, attempt=1, parent=0)
    publish(asked, tmp_path / "one", "a")
    assert staging.stage(asked, {}).error == ""
    assert names(asked) == ["a"]


EARLIER = "digits-1a2b/train/3"


def publish_earlier(asked: TaskContext, directory: Path, *files: str) -> int | None:
    """Another run's next checkpoint, with such files."""
    directory.mkdir()
    for name in files:
        (directory / name).write_text(name)
    series = CheckpointSeries(asked.home.checkpoints_uri("digits-1a2b", "train", 3))
    return series.publish({"": directory}, attempt=1)


@pytest.mark.parametrize(("number", "found"), [(1, "a"), (2, "b")])
def test_a_run_begins_with_the_checkpoint_of_another_one_that_its_recipe_names(
    tmp_path: Path, number: int, found: str
) -> None:
    asked = context(tmp_path, None, attempt=1, begins_with=f"{EARLIER}@{number}")
    assert asked.goes_on
    publish_earlier(asked, tmp_path / "one", "a")
    publish_earlier(asked, tmp_path / "two", "b")
    assert staging.stage(asked, {}).fields == {"restored": None}, "it is no checkpoint of its own"
    assert [path.name for path in asked.place.checkpoint.iterdir()] == [found]
    assert not asked.listings, "so that it is published as the run's own"


def test_each_node_begins_with_all_of_another_runs_checkpoint(tmp_path: Path) -> None:
    asked = context(tmp_path, site := Site(), attempt=1, begins_with=f"{EARLIER}@1")
    publish_earlier(asked, tmp_path / "one", "rank-0", "rank-1")
    assert staging.stage(asked, {}).error == ""
    assert site.noted == [["rank-0", "rank-1"]] * 2, "known before anything is on a node"


def test_a_tasks_own_checkpoint_wins_over_another_runs(tmp_path: Path) -> None:
    asked = context(tmp_path, None, attempt=2, begins_with=f"{EARLIER}@1")
    publish_earlier(asked, tmp_path / "one", "a")
    assert staging.stage(asked, {}).fields == {"restored": None}
    publish(asked, tmp_path / "two", "own")
    assert staging.stage(asked, {}).fields == {"restored": 1}
    assert [path.name for path in asked.place.checkpoint.iterdir()] == ["own"]


def test_another_runs_checkpoint_that_is_gone_is_the_users_fault(tmp_path: Path) -> None:
    asked = context(tmp_path, None, attempt=1, begins_with=f"{EARLIER}@1")
    job = staging.stage(asked, {})
    assert job.users_fault
    assert f"experiments.train.checkpoint.from: {EARLIER}@1 is not there any more" in job.error


def test_a_measurement_begins_with_it_too_though_it_has_a_store_of_its_own(tmp_path: Path) -> None:
    asked = context(tmp_path, None, attempt=1, begins_with=f"{EARLIER}@1")
    publish_earlier(asked, tmp_path / "one", "a")
    scratch = dataclasses.replace(
        asked.home, store_url=f"file://{tmp_path}/scratch", volumes_in=asked.home.store_url
    )
    measured = dataclasses.replace(asked, home=scratch)
    assert staging.stage(measured, {}).error == ""
    assert [path.name for path in measured.place.checkpoint.iterdir()] == ["a"]


def test_without_nodes_nothing_is_written(tmp_path: Path) -> None:
    asked = context(tmp_path, None)
    publish(asked, tmp_path / "one", "a")
    assert staging.stage(asked, {}).fields == {"restored": 1}
    assert sorted(path.name for path in asked.place.directory.iterdir()) == [
        "checkpoint",
        "members",
        "output",
    ]


def test_a_damaged_one_is_named(tmp_path: Path) -> None:
    place: Any = context(tmp_path, Site()).place
    place.directory.mkdir(parents=True)
    note_restored(place, None)
    (place.directory / "restored.json").write_text("{")
    with pytest.raises(PublishError, match=r"restored\.json"):
        noted_restored(place)


@pytest.mark.parametrize("is_remote", [True, False])
@pytest.mark.parametrize(
    ("error", "reason", "number"),
    [
        (UnreachableStoreError("Cannot read it: Connection refused."), EndReason.NODE_LOST, None),
        (FullStoreError("Cannot write it: No space left on device."), None, None),
        (DamagedArtifactError("'a' is damaged: its SHA-256 is another."), None, 1),
    ],
    ids=["away", "full", "damaged"],
)
def test_an_older_checkpoint_stands_in_for_a_damaged_one_only(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_remote: bool,
    error: PublishError,
    reason: EndReason | None,
    number: int | None,
) -> None:
    asked = context(tmp_path, Site() if is_remote else None)
    publish(asked, tmp_path / "one", "a")
    publish(asked, tmp_path / "two", "a", "b")

    def failing(whole: Any) -> Any:
        def work(series: CheckpointSeries, number: int, *rest: Any) -> Any:
            if number == 2:
                raise error
            return whole(series, number, *rest)

        return work

    for method in ("manifest", "restore"):
        monkeypatch.setattr(CheckpointSeries, method, failing(getattr(CheckpointSeries, method)))
    job = staging.stage(asked, {})
    if number is None:
        assert (job.reason, job.error) == (reason, str(error)), "what there is must not be trained again"
    else:
        assert (job.error, job.fields) == ("", {"restored": number})


@pytest.mark.parametrize("has_parent", [True, False])
def test_a_first_attempt_waits_for_what_its_own_run_has_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_parent: bool
) -> None:
    asked = context(tmp_path, None, attempt=1, parent=0 if has_parent else None)

    def refused(*_: Any) -> None:
        raise UnreachableStoreError("Cannot read s3://b/runs: Connection refused.")

    monkeypatch.setattr(CheckpointSeries, "complete", refused)
    monkeypatch.setattr(staging, "setup_environment", refused)
    models: dict[str, list[tuple[int, str]]] = {} if has_parent else {"teacher": [(0, "s3://b/runs/m")]}
    job = staging.stage(asked, models)
    assert (job.reason, "Connection refused" in job.error) == (EndReason.NODE_LOST, True)


def test_a_store_that_never_answered_is_told_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = context(tmp_path, None, attempt=1)

    def refused(*_: Any) -> None:
        raise UnreachableStoreError("Cannot read s3://no/where: Connection refused.")

    monkeypatch.setattr(staging, "setup_environment", refused)
    job = staging.stage(asked, {})
    assert (job.reason, "Connection refused" in job.error) == (None, True)


def test_a_stage_waits_for_one_of_the_same_attempt_that_was_given_up(tmp_path: Path) -> None:
    """A gang that got other nodes is staged anew; the first stage may be in the middle of its work."""
    first_is_in, first_may_end, order = threading.Event(), threading.Event(), list[str]()

    class Slow(Site):
        def bring(self, context: TaskContext) -> None:
            order.append("in")
            if len(order) == 1:
                first_is_in.set()
                assert first_may_end.wait(10)
            order.append("out")

    asked = context(tmp_path, Slow())
    both = [threading.Thread(target=staging.stage, args=(asked, {})) for _ in range(2)]
    both[0].start()
    assert first_is_in.wait(10)
    both[1].start()
    both[1].join(0.2)
    assert (both[1].is_alive(), order) == (True, ["in"])
    first_may_end.set()
    for thread in both:
        thread.join(10)
    assert order == ["in", "out", "in", "out"]


@pytest.mark.parametrize("is_remote", [True, False])
@pytest.mark.parametrize("attempt", [1, 2])
def test_a_home_without_room_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_remote: bool, attempt: int
) -> None:
    asked = context(tmp_path, Site() if is_remote else None, attempt=attempt)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(tmp_path))

    monkeypatch.setattr(type(asked.place), "make_directories", full)
    job = staging.stage(asked, {})
    assert (job.done, job.lacks_room, job.reason, job.users_fault) == (True, True, None, False)
    assert str(tmp_path) in job.error
