"""`TaskContext`: everything that the background jobs of one attempt need to know; `Site`: where it runs.

What happens to an attempt is asked of its site, in the same words for this machine and for nodes, so that
nothing else has to know which it is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from urllib.parse import quote

from trainmaster.control.decide.effects import EffectKind, PhaseDuration
from trainmaster.control.task.layout import AttemptPlace, Home
from trainmaster.dataclass import dataclass, field
from trainmaster.executors.base import Container, GangRequest
from trainmaster.launchers import Launcher
from trainmaster.spec import Experiment, ParameterValue, Recipe
from trainmaster.spec.errors import TrainmasterError
from trainmaster.spec.facts import RunFacts
from trainmaster.spec.sections import RunReference
from trainmaster.spec.states import EndReason

if TYPE_CHECKING:
    from trainmaster.artifacts import JSON, CheckpointSeries, Listing
    from trainmaster.artifacts.owner import Owner


class NodeGoneError(TrainmasterError):
    """A member's node is gone, and with it what the member wrote."""


class RelayError(TrainmasterError):
    """Its nodes cannot use the store: files go through this machine."""


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
        end_reason: how it has ended, once that was judged.
        parent: number of the task whose last checkpoint the first attempt starts from.
        reported: last values of the task until now, where the attempt goes on from a checkpoint.
        environments: where each experiment's ``setup`` goes, once that was worked out.
        listings: what each checkpoint directory held when it was last published or restored.
        unstable: how often in a row each of these directories changed while it was copied.
        site: where it runs: this machine, or nodes.
        owner: what its artifacts say of whose they are.
        is_foreign: others have sent its recipe: this machine fetches no URL for it.
        facts: what was found out of the run.
        took: how long parts of its staging took, until now.
        doing: is told which part is under way.
        notes: what its staging has to tell the user.
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
    site: Site
    kept_model: int | None = None
    kept_checkpoint: int | None = None
    end_reason: EndReason | None = None
    parent: int | None = None
    reported: Mapping[str, object] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)
    environments: dict[str, Path] = field(default_factory=dict)
    listings: dict[Path, Listing] = field(default_factory=dict)
    unstable: dict[Path, int] = field(default_factory=dict)
    owner: Owner | None = None
    is_foreign: bool = False
    facts: RunFacts = field(default_factory=RunFacts)
    took: list[PhaseDuration] = field(default_factory=list)
    doing: Callable[[str], None] = lambda _: None
    notes: list[str] = field(default_factory=list)

    @contextmanager
    def timed(self, phase: str, part: str) -> Iterator[Callable[[bool], None]]:
        """A part of its staging is done; what it gives is to be told whether that was new.

        Args:
            phase: see `PhaseDuration`.
            part: what that is of: the hash of a ``setup``, the name of an image, a URL.
        """
        from trainmaster.control.task.environment_hashes import part_hash

        found: list[bool] = []
        begun = time.monotonic()
        self.doing(phase)
        yield found.append
        took_s = time.monotonic() - begun
        self.took.append(PhaseDuration(phase, part_hash(part), took_s, all(found)))
        self.doing("")

    @property
    def checkpoints(self) -> CheckpointSeries:
        """Those of the task."""
        from trainmaster.artifacts.checkpoints import CheckpointSeries

        return CheckpointSeries(self.checkpoints_uri, self.owner)

    @property
    def checkpoints_uri(self) -> str:
        """Where the numbered checkpoints of the task are published."""
        return self.home.checkpoints_uri(self.run, self.experiment.name, self.task)

    @property
    def beginning(self) -> RunReference | None:
        """The checkpoint of another task with which it begins while it has none of its own."""
        if self.parent is not None:
            return RunReference(self.run, self.experiment.name, self.parent)
        return self.experiment.beginning

    @property
    def goes_on(self) -> bool:
        """Whether there may be a checkpoint to begin with."""
        return self.attempt > 1 or self.beginning is not None

    @property
    def model_uri(self) -> str:
        """Where the model of the attempt is published."""
        return self.home.model_uri(self.run, self.experiment.name, self.task, self.attempt)

    @property
    def parts(self) -> dict[str, Path]:
        """Output directories of the members: what the model is made of."""
        place = self.place
        return {
            "" if rank == 0 else f"members/{name}": place.output(name, first=rank == 0)
            for rank, name in enumerate(self.members)
        }

    def masked(self, said: str) -> str:
        """What a program has said that got the secrets, without their values."""
        from trainmaster.executors.telemetry.masking import SecretMask

        names = [name for name in self.experiment.secrets if name in self.variables]
        return SecretMask([self.variables[name] for name in names]).text(said)

    @property
    def data_places(self) -> dict[str, Path]:
        """Where the members find their data here, by name; what is in an HDFS is no place here."""
        return {
            name: self.data_path(name)
            for name, source in self.experiment.data.items()
            if source.stage is None
        }

    @property
    def staged(self) -> list[str]:
        """Names of data that are staged into an HDFS."""
        return [name for name, source in self.experiment.data.items() if source.stage is not None]

    def data_path(self, name: str) -> Path:
        """Where the members find the data called ``name``."""
        source = self.experiment.data[name]
        if source.directory is not None:
            return (self.recipe.directory / Path(source.directory).expanduser()).resolve()
        if source.url is not None:
            from trainmaster.control.attempt.data_urls import url_directory

            return url_directory(self.home.cache, source.url, source.sha256)
        if source.volume is not None:
            from trainmaster.control.attempt.data_sources import volume_place

            return self.home.data_directory(self.run) / volume_place(source.volume)
        if source.model is not None:
            name = f"model-{quote(source.model, safe='@')}"  # an experiment has no "@" or "%"
            return self.home.data_directory(self.run) / name
        best = f"-best-{quote(source.best, safe='')}" if source.best else ""  # may be called val/loss
        return self.home.data_directory(self.run) / f"{source.experiment}{best}"

    def seen(self, data: Mapping[str, Path]) -> list[Path]:
        """What members see of the machine they are on, here: code, working directories, data, environments.

        Args:
            data: where they find it there.
        """
        code = self.home.code_directory(self.run)
        paths = [code, self.place.directory, *data.values()]
        places = (source.at or "" for source in self.experiment.data.values())
        paths += [code.parent / at.split("/")[1] for at in places if at.startswith("../")]
        if self.experiment.setup is not None:
            paths.append(self.home.cache / "environments")
        return list(dict.fromkeys(paths))

    @property
    def venv(self) -> Path | None:
        """The cached virtual environment here that the experiment's ``setup`` makes; None without ``setup``.

        Its name is a hash of what goes into it: the script, the Python or the image, and every file of the
        code that the script mentions.
        """
        if self.experiment.setup is None:
            return None
        return self.environments.get(self.experiment.name) or self.venv_with(self.site.python(self))

    def venv_with(self, python: str) -> Path:
        """The same, with a Python or an image that is known; it stays that of the experiment."""
        from trainmaster.control.task.environment_hashes import setup_hash

        code = self.home.code_directory(self.run)
        digest = setup_hash(self.experiment.setup or "", python, code)
        # The first one: the setup itself may change the files that it mentions.
        return self.environments.setdefault(self.experiment.name, self.home.cache / "environments" / digest)


class Site(Protocol):
    """Where the members of a run work: this machine, or nodes; see `LocalSite`, `RemoteSite`.

    Threads share it.

    Attributes:
        stays: what attempts leave there stays by itself; machines that are rented go, or get lost.
        most_staged: how many attempts are staged at the same time.
    """

    @property
    def stays(self) -> bool:
        """See above."""

    @property
    def most_staged(self) -> int:
        """See above."""

    def path(self, here: Path) -> str:
        """Where a path of this machine's home or cache, or of the user's data, lies there."""

    def environment(self, experiment: Experiment) -> Mapping[str, str]:
        """What members find, in their container or without, before anything of the recipe is added."""

    def additions(self, experiment: Experiment) -> Mapping[str, str]:
        """What of that they have only if they are told so."""

    def library(self, context: TaskContext) -> str:
        """A directory for the end of PYTHONPATH, so that scripts can ``import trainmaster``; else empty."""

    def python(self, context: TaskContext) -> str:
        """With what Python or image the environment of ``setup`` is made; with another, it is another."""

    def gpus(self, experiment: Experiment, role: str) -> int:
        """GPUs of each member of a role there."""

    def container(self, context: TaskContext) -> Container | None:
        """What runs an attempt's members; what it mounts is there once it was staged."""

    def group_slots(self, experiment: Experiment) -> int:
        """Slots that all tasks of an experiment take there together, at most."""

    def at_once(self, experiment: Experiment) -> int:
        """How many tasks of an experiment run there at the same time, at most."""

    def completed(self, request: GangRequest, context: TaskContext) -> GangRequest:
        """A request with what only holds there.

        Args:
            request: of the attempt.
            context: the attempt.
        """

    def needs_hold(self, context: TaskContext) -> bool:
        """Whether members wait whatever their recipe needs, to be staged or to learn where the others are."""

    def is_quick(self, kind: EffectKind, context: TaskContext) -> bool:
        """Whether a job is over at once, so that it needs no thread."""

    def alone(self, context: TaskContext) -> AbstractContextManager[object]:
        """In the body, no thread that was given up stages the same attempt."""

    def began(self, context: TaskContext) -> None:
        """An attempt that needed no staging was started; never waits."""

    def provide(self, context: TaskContext, name: str, models: Sequence[tuple[int, str]]) -> None:
        """Have data where members find them, from where they lie.

        Args:
            context: the attempt.
            name: of the data: a volume, a URL, or the models of another experiment.
            models: the tasks and URIs of those.

        Raises:
            RelayError: not all of the nodes can do so; those that could have them.
            UsageError: there is no such volume, or others may not have it done.
            TrainmasterError: a node cannot be reached, or they cannot be had.
        """

    def adopt(self, context: TaskContext) -> None:
        """Go on with what an earlier driver did for an attempt while it runs; never waits."""

    def bring(self, context: TaskContext) -> None:
        """Put everything that a staged attempt needs on the machines that its gang was granted.

        Raises:
            UsageError: the recipe's ``setup`` failed there, or its ``container`` cannot be had.
            TrainmasterError: a node cannot be reached or has no room.
        """

    def fetch_checkpoint(self, context: TaskContext, *, is_patient: bool = False) -> bool:
        """Make the attempt's checkpoint directory here what those of its nodes are together.

        Args:
            context: the attempt.
            is_patient: a node that does not answer is asked again for a while.

        Returns:
            False if it changed while it was read: what is here is not to be published.

        Raises:
            NodeGoneError: a node is gone: its part is lost, and the rest is no checkpoint.
            TrainmasterError: a node cannot be reached.
        """

    def fetch_output(
        self, context: TaskContext, *, is_final: bool = True, limit_bytes: int | None = None
    ) -> None:
        """Make the members' output directories here what they are on their nodes; the attempt has ended.

        Args:
            context: the attempt.
            is_final: it must all be had, and patience is shown; else what cannot be had is left out.
            limit_bytes: most bytes of a member.

        Raises:
            TrainmasterError: a node cannot be reached.
        """

    def publish_checkpoint(self, context: TaskContext, *, is_patient: bool = False) -> int | None:
        """Upload the attempt's checkpoint directories from where they are, and commit them as one checkpoint.

        Args:
            context: the attempt.
            is_patient: a node that does not answer is asked again for a while.

        Returns:
            Its number; None if there is nothing, or nothing new.

        Raises:
            RelayError: the nodes cannot use the store.
            UnstableDirectory: something changed while it was uploaded; nothing was published.
            NodeGoneError: a node is gone: its part is lost, and the rest is no checkpoint.
            TrainmasterError: a node cannot be reached, or nothing can be published.
        """

    def publish_model(self, context: TaskContext, extra: Mapping[str, JSON]) -> bool:
        """Upload what an attempt that ended well left from where it is, and commit it as its model.

        Args:
            context: the attempt.
            extra: kept in the manifest.

        Returns:
            False if it left nothing.

        Raises:
            RelayError: the nodes cannot use the store.
            TrainmasterError: a node cannot be reached, or nothing can be published.
        """

    def restore_checkpoint(
        self, context: TaskContext, series: CheckpointSeries, number: int, *, is_own: bool = True
    ) -> None:
        """Download a checkpoint to where the attempt finds it; there is none yet.

        Args:
            context: the attempt.
            series: of the checkpoint.
            number: of the checkpoint.
            is_own: it is the task's own: as long as nothing changes, nothing new is published.

        Raises:
            DamagedArtifactError: it is damaged or gone.
            RelayError: the nodes cannot use the store; or it is damaged.
            TrainmasterError: a node cannot be reached.
        """

    def where(self, context: TaskContext) -> str:
        """Where what an attempt left lies, in words: the directory, and its nodes."""

    def full_disks(self, context: TaskContext) -> str:
        """Which of an attempt's nodes have no room left, in words; empty if none, or if unknown.

        A member that fails for want of room can hardly write down why.
        """

    def keep_system_logs(self, context: TaskContext) -> None:
        """Keep what operating systems of an attempt's machines say, also of lost ones, as far as can be.

        Raises:
            OSError: it cannot be written here.
        """

    def lost_data(self, context: TaskContext) -> tuple[bool, str]:
        """Whether nodes of an attempt lost data that they had; what went wrong there with data, in words."""

    def clean_up(self, context: TaskContext, *, is_saved: bool = True) -> None:
        """Remove an attempt's directories from its nodes, unless what it left should be here and is not.

        Nodes that cannot be reached keep them.

        Args:
            context: the attempt.
            is_saved: nothing is there that could be saved, and is not.
        """
