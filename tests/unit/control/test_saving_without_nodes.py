"""An attempt that ended well, whose nodes go before what it left could be taken."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trainmaster.control import saving
from trainmaster.control.board import Task
from trainmaster.control.job_context import TaskContext
from trainmaster.control.layout import Home
from trainmaster.control.site import NodeGoneError
from trainmaster.control.workshop import Workshop
from trainmaster.spec import Distributed, Experiment, Recipe
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


def context(directory: Path, site: Site) -> TaskContext:
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
