"""An attempt that ended well, whose nodes go before what it left could be taken."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trainmaster.artifacts import CheckpointSeries
from trainmaster.cluster import member_places
from trainmaster.cluster.node_files import remote_site
from trainmaster.cluster.node_files import store_reach as node_patience
from trainmaster.cluster.node_files.remote_site import RemoteSite
from trainmaster.control.attempt import saving, staging, unpublished
from trainmaster.control.attempt.local_site import LocalSite
from trainmaster.control.attempt.unpublished_checkpoint import note_restored
from trainmaster.control.decide.effects import Job
from trainmaster.control.loop.attempt_actions import AttemptActions
from trainmaster.control.loop.run_state import Task
from trainmaster.control.task.job_context import NodeGoneError, RelayError, TaskContext
from trainmaster.control.task.layout import Home
from trainmaster.spec import Distributed, Experiment, Recipe
from trainmaster.spec.errors import PublishError, UsageError
from trainmaster.spec.search import Search
from trainmaster.spec.sections import Checkpoint
from trainmaster.spec.states import EndReason
from trainmaster.transport.base import ConnectionLostError


class Site(LocalSite):
    """Nodes that are gone when the last checkpoint is asked for."""

    stays = False

    def __init__(self, *, has_model: bool) -> None:
        super().__init__()
        self.has_model = has_model

    def publish_model(self, *_: Any) -> bool:
        return self.has_model

    def fetch_output(self, *_: Any, **__: Any) -> None: ...

    def where(self, *_: Any) -> str:
        return "on h0"

    def full_disks(self, *_: Any) -> str:
        return ""

    def keep_system_logs(self, *_: Any) -> None: ...

    def publish_checkpoint(self, *_: Any, **__: Any) -> int | None:
        raise NodeGoneError("worker-1 has no node any more, and what was there is lost")


def context(directory: Path, site: LocalSite | None) -> TaskContext:
    experiment = Experiment(name="train", command="true", distributed=Distributed(workers=2))
    recipe = Recipe(name="digits", directory=directory, experiments={"train": experiment})
    home = Home.from_environment({"TRAINMASTER_HOME": str(directory / "home")})
    actions = AttemptActions(
        home=home, run="digits-7f3a", recipe=recipe, secrets={}, find_models=lambda *_: [],
        site=site or LocalSite(),
    )  # fmt: skip
    return actions.context(Task(experiment="train", number=0, attempt=1))


@pytest.mark.parametrize(
    ("keep_after", "searches", "leaves_model", "stay"),
    [
        (None, False, True, [3]),
        (2, False, True, [2, 3]),
        (0, False, True, []),
        (0, True, True, [3]),
        (0, False, False, [2, 3]),
    ],
)
def test_checkpoints_that_nothing_needs_go_with_the_success(
    tmp_path: Path, keep_after: int | None, searches: bool, leaves_model: bool, stay: list[int]
) -> None:
    """Later tasks of a search may begin from one; without a model they are all that there is."""
    asked = context(tmp_path, None)
    plan = Checkpoint() if keep_after is None else Checkpoint(keep_after=keep_after)
    changed = {"checkpoint": plan, "distributed": None}
    changed |= {"search": Search(metric="loss", goal="min")} if searches else {}
    asked = replace(asked, experiment=asked.experiment.model_copy(update=changed))
    asked.place.make_directories(list(asked.members))
    for step in "123":
        (asked.place.checkpoint / "step").write_text(step)
        if step != "3":
            assert saving.publish_checkpoint(asked) == int(step)
    if leaves_model:
        (asked.place.output(asked.members[0], first=True) / "model").write_text("weights")
    asked.place.metrics(asked.members[0]).write_text('{"loss": 1.0}\n')
    for _ in range(2):  # a driver may be killed before it is recorded
        job = saving.save(asked)
        assert (job.error, "model_uri" in job.fields) == ("", leaves_model)
        assert asked.checkpoints.complete() == stay


@pytest.mark.parametrize("has_model", [True, False])
def test_a_last_checkpoint_may_be_lost_only_if_the_model_is_here(tmp_path: Path, has_model: bool) -> None:
    """A task whose checkpoints are all that it makes is not done when they are gone."""
    asked = context(tmp_path, Site(has_model=has_model))
    job = saving.save(asked)
    assert job.done
    if has_model:
        assert (job.error, job.fields["model_uri"]) == ("", asked.model_uri)
    else:
        assert "could not be saved" in job.error
        assert job.reason is EndReason.NODE_LOST, "the attempt is made again, for free"


@pytest.mark.parametrize("where", ["nodes", "relay", "here"])
@pytest.mark.parametrize("words", ["Connection refused", "403 Forbidden", "ExpiredToken", "disk is full"])
def test_whether_a_model_may_be_saved_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, words: str
) -> None:
    """Whatever is in the way: the model is where it was made, and its machine must not be given back."""
    site = Site(has_model=True)
    asked = context(tmp_path, site if where != "here" else None)

    def failing(*_: Any, **__: Any) -> Any:
        raise PublishError(f"Cannot write s3://b/model: {words}.")

    def relayed(*_: Any) -> bool:
        raise RelayError("worker-0 cannot use the store")

    monkeypatch.setattr(site, "publish_model", failing if where == "nodes" else relayed)
    monkeypatch.setattr(saving, "publish", failing)
    asked.parts[""].mkdir(parents=True)
    (asked.parts[""] / "model.bin").write_bytes(b"weights")
    job = saving.save(asked)
    assert (job.done, job.unsaved, job.reason) == (True, True, None)
    assert "s3://b/model" in job.error, "which store"


def test_what_is_no_store_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that does not answer: what was there may be lost."""
    site = Site(has_model=False)

    def failing(*_: Any, **__: Any) -> Any:
        raise NodeGoneError("h0: Connection refused")

    monkeypatch.setattr(site, "publish_model", failing)
    job = saving.save(context(tmp_path, site))
    assert (job.unsaved, job.reason) == (False, EndReason.NODE_LOST)


def test_credentials_that_have_expired_are_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site(has_model=True)

    def expired(*_: Any, **__: Any) -> Any:
        raise UsageError("The SSO session has expired.", "Run `aws sso login --profile lab`, then try again.")

    monkeypatch.setattr(site, "publish_model", expired)
    job = saving.save(context(tmp_path, site))
    assert (job.unsaved, job.reason, job.users_fault) == (True, None, False)
    assert "aws sso login --profile lab" in job.error
    assert job.place == "on h0"
    monkeypatch.setattr(site, "publish_checkpoint", expired)
    job = saving.recover(context(tmp_path, site))
    assert job.unsaved
    assert "aws sso login --profile lab" in job.error


def test_a_link_that_leads_outside_does_not_get_better_by_waiting(tmp_path: Path) -> None:
    asked = context(tmp_path, None)
    asked.parts[""].mkdir(parents=True)
    (asked.parts[""] / "model.bin").symlink_to("/etc/hostname")
    job = saving.save(asked)
    assert (job.done, job.unsaved) == (True, False)
    assert "leads outside" in job.error


@pytest.mark.parametrize("where", ["nodes", "here"])
def test_what_cannot_be_published_is_kept_on_this_machine(tmp_path: Path, where: str) -> None:
    class Full(Site):
        """Nodes whose files come here."""

        def fetch_output(self, asked: TaskContext, **__: Any) -> None:  # type: ignore[override]
            asked.parts[""].mkdir(parents=True, exist_ok=True)
            (asked.parts[""] / "model.bin").write_bytes(b"weights")

        def fetch_checkpoint(self, asked: TaskContext, **__: Any) -> bool:
            asked.place.checkpoint.mkdir(parents=True, exist_ok=True)
            (asked.place.checkpoint / "step").write_bytes(b"9")
            return True

    asked = context(tmp_path, Full(has_model=True) if where == "nodes" else None)
    if where == "here":
        Full(has_model=True).fetch_output(asked)
    job = unpublished.keep(asked, has_won=True)
    assert (job.fields["kept_model"], job.unsaved) == (1, False)
    assert str(asked.parts[""]) in job.error
    assert "trainmaster models save digits-7f3a" in job.error
    if where == "nodes":
        job = unpublished.keep(asked, has_won=False)
        assert job.fields == {"kept_checkpoint": 1}


def test_the_next_attempt_begins_with_what_is_kept_though_the_store_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    earlier = context(tmp_path, None)
    earlier.place.checkpoint.mkdir(parents=True)
    (earlier.place.checkpoint / "step").write_bytes(b"9")

    def away(*_: Any, **__: Any) -> Any:
        raise PublishError("s3://b does not answer")

    monkeypatch.setattr(staging, "CheckpointSeries", away)
    place = earlier.home.attempt(earlier.run, "train", 0, 2)
    later = replace(earlier, attempt=2, place=place, kept_checkpoint=1)
    for _ in range(2):  # staged again, for other nodes
        job = staging.stage(later, {})
        assert (job.error, job.fields) == ("", {"restored": None})
        assert (later.place.checkpoint / "step").read_bytes() == b"9"
    assert (earlier.place.checkpoint / "step").exists(), "until a newer one is published it is the only one"


def test_a_kept_checkpoint_goes_when_a_newer_one_is_published(tmp_path: Path) -> None:
    earlier = context(tmp_path, None)
    earlier.place.checkpoint.mkdir(parents=True)
    (earlier.place.checkpoint / "step").write_bytes(b"9")
    place = earlier.home.attempt(earlier.run, "train", 0, 2)
    later = replace(earlier, attempt=2, place=place, kept_checkpoint=1)
    assert staging.stage(later, {}).error == ""
    job = saving.recover(later)
    assert (job.error, job.fields["kept_checkpoint"]) == ("", None)
    assert not earlier.place.checkpoint.exists()


def fetched_here(asked: TaskContext, text: bytes, at_ns: int) -> None:
    """What its nodes had at a moment, whole."""
    asked.place.checkpoint.mkdir(parents=True, exist_ok=True)
    (asked.place.checkpoint / "step").write_bytes(text)
    os.utime(asked.place.checkpoint / "step", ns=(at_ns, at_ns))


def test_what_was_fetched_is_published_when_its_nodes_are_gone(tmp_path: Path) -> None:
    asked = context(tmp_path, Site(has_model=True))
    fetched_here(asked, b"9", 9)
    job = saving.recover(asked)
    assert (job.error, job.fields, job.progressed) == ("", {}, True)
    assert asked.checkpoints.complete() == [1]
    # It is in the store now: a second try has nothing more to add, and says what happened.
    job = saving.recover(asked)
    assert (asked.checkpoints.complete(), job.fields, job.unsaved) == ([1], {}, False)
    assert "has no node any more" in job.error


@pytest.mark.parametrize("by", [saving.recover, partial(unpublished.keep, has_won=False)])
def test_what_was_fetched_is_kept_when_its_nodes_and_the_store_are_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: Callable[[TaskContext], Job]
) -> None:
    def away(*_: Any, **__: Any) -> Any:
        raise PublishError("s3://b does not answer")

    monkeypatch.setattr(CheckpointSeries, "newest", away)
    site = Site(has_model=True)
    monkeypatch.setattr(site, "fetch_checkpoint", site.publish_checkpoint, raising=False)
    asked = context(tmp_path, site)
    fetched_here(asked, b"9", 9)
    job = by(asked)
    assert (job.fields, job.unsaved) == ({"kept_checkpoint": 1}, False)
    assert "s3://b does not answer" in job.error
    assert str(asked.place.checkpoint) in job.error


def test_what_an_attempt_began_with_is_not_published_again(tmp_path: Path) -> None:
    """It came here only to be sent to nodes, which may have published later ones themselves."""
    first = context(tmp_path, None)
    fetched_here(first, b"5", 5)
    assert saving.recover(first).error == ""
    site = Site(has_model=True)
    later = replace(
        first, attempt=2, place=first.home.attempt(first.run, "train", 0, 2), listings={}, site=site
    )
    fetched_here(later, b"5", 5)
    note_restored(later.place, first.checkpoints.manifest(1))
    job = saving.recover(later)
    assert "has no node any more" in job.error
    assert (job.fields, first.checkpoints.complete()) == ({}, [1])


@pytest.mark.parametrize(
    ("published_by", "at_ns", "begins_with"),
    [(1, 8, b"here"), (1, 9, b"there"), (1, 10, b"there"), (2, 8, b"there")],
)
def test_a_kept_checkpoint_that_the_store_has_a_later_one_of_is_not_begun_with(
    tmp_path: Path, published_by: int, at_ns: int, begins_with: bytes
) -> None:
    """A driver was killed between publishing that and recording that the kept one has served."""
    earlier = context(tmp_path, None)
    places = {number: earlier.home.attempt(earlier.run, "train", 0, number) for number in (2, 3)}
    published = replace(earlier, attempt=published_by, place=places[2])
    fetched_here(published, b"there", at_ns)
    assert saving.publish_checkpoint(published) == 1
    fetched_here(earlier, b"here", 9)
    begins = replace(earlier, attempt=3, place=places[3], kept_checkpoint=1)
    assert staging.stage(begins, {}).error == ""
    assert (begins.place.checkpoint / "step").read_bytes() == begins_with


def test_what_nodes_publish_makes_what_was_fetched_before_useless(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site(has_model=True)
    asked = context(tmp_path, site)
    fetched_here(asked, b"9", 9)
    monkeypatch.setattr(site, "publish_checkpoint", lambda *_, **__: 1)
    assert saving.checkpoint(asked).progressed
    assert not any(asked.place.checkpoint.iterdir())


def test_a_model_that_waits_is_brought_here_unless_it_is_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its machine may be lost meanwhile; from then on it is published from here."""
    site = Site(has_model=True)

    def expired(*_: Any, **__: Any) -> Any:
        raise UsageError("The SSO session has expired.")

    def fetched(asked: TaskContext, *, limit_bytes: int) -> None:
        if limit_bytes < 7:
            raise PublishError("too much to be fetched")
        asked.parts[""].mkdir(parents=True, exist_ok=True)
        (asked.parts[""] / "model.bin").write_bytes(b"weights")

    monkeypatch.setattr(site, "publish_model", expired)
    monkeypatch.setattr(site, "fetch_output", fetched)
    asked = context(tmp_path, site)
    with monkeypatch.context() as small:
        small.setattr(saving, "SECURED_BYTES", 6)
        assert "kept_model" not in saving.save(asked).fields
    job = saving.save(asked)
    assert (job.unsaved, job.fields["kept_model"]) == (True, 1)
    assert str(asked.place.directory) in job.place
    later = saving.save(replace(asked, kept_model=1))
    assert (later.error, later.fields["model_uri"]) == ("", asked.model_uri), "no node is asked"


def test_a_gang_is_saved_no_longer_when_one_of_its_machines_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others may wait for a store that says nothing: what they send is of no use any more."""
    monkeypatch.setattr(member_places, "LOOK_S", 0.001)
    asked = context(tmp_path, None)
    there = {name: SimpleNamespace(id=name, target=SimpleNamespace(shown=name)) for name in asked.members}
    site = RemoteSite(asked.home, asked.run, lambda _: list(there.items()), lambda _: [], root="/nodes")  # type: ignore[arg-type]
    ended = threading.Event()

    def waits_for_its_store(*_: Any) -> bool:
        there.pop("worker-1")  # its machine is lost meanwhile
        assert ended.wait(60)
        raise ConnectionLostError("n0: the connection was lost")

    monkeypatch.setattr(site, "_note_environment", lambda _: None)
    monkeypatch.setattr(site, "_is_bare", lambda *_: False)
    monkeypatch.setattr(remote_site, "require_lendable", lambda _: None)
    monkeypatch.setattr(site._direct, "publish_model", waits_for_its_store)
    monkeypatch.setattr(site._files.links, "hang_up", lambda _: ended.set())
    monkeypatch.setattr(node_patience, "_PAUSE_S", 0.0)
    job = saving.save(replace(asked, site=site))
    assert (job.reason, job.unsaved) == (EndReason.NODE_LOST, False)
    assert "worker-1 has no node any more" in job.error
    site.close()
