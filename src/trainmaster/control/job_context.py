"""`TaskContext`: everything that the background jobs of one attempt need to know."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from trainmaster.artifacts import CheckpointSeries, Listing
from trainmaster.control.layout import AttemptPlace, Home
from trainmaster.launchers import Launcher
from trainmaster.spec import Experiment, ParameterValue, Recipe

if TYPE_CHECKING:
    from trainmaster.artifacts.owner import Owner
    from trainmaster.control.images import Images
    from trainmaster.control.site import Site


@dataclass(frozen=True, slots=True)
class TaskContext:
    """One attempt at one task, with its recipe and places.

    Attributes:
        members: names in rank order; the first is rank 0 or the chief.
        attempt: 1-based.
        place: directory of the attempt.
        bad_checkpoints: numbers that are never restored again.
        parameters: of the task.
        variables: the recipe's ``env`` and secrets; they go nowhere but into processes.
        kept_model: attempt whose model lies here, as it could not be published yet.
        kept_checkpoint: the same of its last checkpoint.
        parent: number of the task whose last checkpoint the first attempt starts from.
        images: of the run, if the experiment names one as ``container``.
        environments: where each experiment's ``setup`` goes, once that was worked out.
        listings: what each checkpoint directory held when it was last published or restored.
        site: the nodes that it runs on; None for this machine.
        owner: what its artifacts say of whose they are.
    """

    home: Home
    run: str
    recipe: Recipe
    experiment: Experiment
    launcher: Launcher
    task: int
    attempt: int
    place: AttemptPlace
    members: tuple[str, ...]
    bad_checkpoints: tuple[int, ...]
    parameters: dict[str, ParameterValue]
    kept_model: int | None = None
    kept_checkpoint: int | None = None
    parent: int | None = None
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)
    images: Images | None = None
    environments: dict[str, Path] = field(default_factory=dict)
    listings: dict[Path, Listing] = field(default_factory=dict)
    site: Site | None = None
    owner: Owner | None = None

    @property
    def checkpoints(self) -> CheckpointSeries:
        """Those of the task."""
        return CheckpointSeries(self.checkpoints_uri, self.owner)

    @property
    def checkpoints_uri(self) -> str:
        """Where the numbered checkpoints of the task are published."""
        return self.home.checkpoints_uri(self.run, self.experiment.name, self.task)

    @property
    def parent_checkpoints_uri(self) -> str | None:
        """Where those of its parent are published."""
        if self.parent is None:
            return None
        return self.home.checkpoints_uri(self.run, self.experiment.name, self.parent)

    @property
    def model_uri(self) -> str:
        """Where the model of the attempt is published."""
        return self.model_uri_of(self.attempt)

    def model_uri_of(self, attempt: int) -> str:
        """Where the model of one of the task's attempts is published."""
        return self.home.model_uri(self.run, self.experiment.name, self.task, attempt)

    @property
    def parts(self) -> dict[str, Path]:
        """Output directories of the members: what the model is made of."""
        place = self.place
        return {
            "" if rank == 0 else f"members/{name}": place.output(name, first=rank == 0)
            for rank, name in enumerate(self.members)
        }

    @property
    def data_places(self) -> dict[str, Path]:
        """Where the members find their data here, by name."""
        if not self.experiment.data:
            return {}
        from trainmaster.control import staging

        return {name: staging.data_path(self, name) for name in self.experiment.data}

    @property
    def venv(self) -> Path | None:
        """The environment here that ``setup`` makes."""
        if self.experiment.setup is None:
            return None
        from trainmaster.control import staging

        return staging.environment_path(self)
