"""An attempt that ended well, whose nodes go before what it left could be taken."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trainmaster.control import saving
from trainmaster.control.board import Task
from trainmaster.control.job_context import TaskContext
from trainmaster.control.layout import Home
from trainmaster.control.site import NodeGoneError, RelayError
from trainmaster.control.workshop import Workshop
from trainmaster.spec import Distributed, Experiment, Recipe
from trainmaster.spec.errors import PublishError
from trainmaster.spec.states import EndReason


class Site:
    """Nodes that are gone when the last checkpoint is asked for."""

    def __init__(self, *, has_model: bool) -> None:
        self.has_model = has_model

    def publish_model(self, *_: Any) -> bool:
        return self.has_model

    def fetch_output(self, *_: Any, **__: Any) -> None: ...

    def publish_checkpoint(self, *_: Any, **__: Any) -> int | None:
        raise NodeGoneError("worker-1 has no node any more, and what was there is lost")


def context(directory: Path, site: Site | None) -> TaskContext:
    experiment = Experiment(name="train", command="true", distributed=Distributed(workers=2))
    recipe = Recipe(name="digits", directory=directory, experiments={"train": experiment})
    home = Home.from_environment({"TRAINMASTER_HOME": str(directory / "home")})
    workshop = Workshop(
        home=home, run="digits-7f3a", recipe=recipe, base={}, secrets={}, find_models=lambda *_: [], slots=2,
        site=site,  # type: ignore[arg-type]
    )  # fmt: skip
    return workshop.context(Task(experiment="train", number=0, attempt=1))


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
@pytest.mark.parametrize(("words", "store_away"), [("Connection refused", True), ("403 Forbidden", False)])
def test_whether_a_model_may_be_saved_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, words: str, store_away: bool
) -> None:
    """While its store is away the model is where it was made: its machine must not be given back."""
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
    assert (job.done, job.store_away, job.reason) == (True, store_away, None)
    assert "s3://b/model" in job.error, "which store"


def test_what_is_no_store_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that does not answer: what was there may be lost."""
    site = Site(has_model=False)

    def failing(*_: Any, **__: Any) -> Any:
        raise NodeGoneError("h0: Connection refused")

    monkeypatch.setattr(site, "publish_model", failing)
    job = saving.save(context(tmp_path, site))
    assert (job.store_away, job.reason) == (False, EndReason.NODE_LOST)
