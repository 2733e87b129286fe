"""`LocalSite`: this machine in the place of nodes: what happens to an attempt is done in this process."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from trainmaster import library
from trainmaster.control.decide.effects import EffectKind
from trainmaster.control.task.attempt_end import is_small
from trainmaster.control.task.gangs import gpus_of, slots_here, tasks_here
from trainmaster.dataclass import dataclass, field
from trainmaster.executors.base import Capacity
from trainmaster.spec.errors import UsageError

if TYPE_CHECKING:
    from trainmaster.artifacts import JSON, CheckpointSeries
    from trainmaster.control.attempt.images import Images
    from trainmaster.control.task.isolation import Isolation
    from trainmaster.control.task.job_context import TaskContext
    from trainmaster.executors.base import Container, GangRequest
    from trainmaster.spec import Experiment


@dataclass(slots=True)
class LocalSite:
    """See `trainmaster.control.task.job_context.Site`; one run's. Threads share it.

    Attributes:
        base: what members inherit.
        isolation: how members are kept apart from this machine, if they are.
        capacity: what the run may use of this machine.
    """

    base: Mapping[str, str] = field(default_factory=dict)
    isolation: Isolation | None = None
    capacity: Capacity = Capacity(1)
    _images: Images | None = field(default=None, init=False)

    stays = True
    most_staged = 4

    @property
    def images(self) -> Images:
        """What experiments name as ``container``, as this machine's engine has it."""
        if self._images is None:
            from trainmaster.control.attempt.images import Images

            self._images = Images(self.isolation)
        return self._images

    def path(self, here: Path) -> str:
        """See `Site.path`."""
        return str(here)

    def environment(self, experiment: Experiment) -> Mapping[str, str]:
        """What the caller has, or the image; see `Site.environment`."""
        return self.images.environment(experiment.container) if experiment.container else self.base

    def additions(self, experiment: Experiment) -> Mapping[str, str]:
        """What the caller has is inherited; see `Site.additions`."""
        return self.images.additions(experiment.container) if experiment.container else {}

    def library(self, context: TaskContext) -> str:
        """Needed where ``python`` is not the one that runs Trainmaster; see `Site.library`."""
        if context.experiment.container is not None:
            return ""
        is_other = self.base.get("VIRTUAL_ENV", sys.prefix) != sys.prefix
        return library.DIRECTORY if is_other or self.isolation or context.experiment.setup is not None else ""

    def python(self, context: TaskContext) -> str:
        """See `Site.python`."""
        return self.images.prepare(context).id if context.experiment.container else sys.version

    def gpus(self, experiment: Experiment, role: str) -> int:
        """See `Site.gpus`."""
        return gpus_of(experiment, role, is_here=True)

    def container(self, context: TaskContext) -> Container | None:
        """See `Site.container`."""
        named = context.experiment.container
        container = self.images.request(context, context.data_places) if named else None
        return container if self.isolation is None else self.isolation.enclosed(context, container)

    def group_slots(self, experiment: Experiment) -> int:
        """See `Site.group_slots`."""
        return slots_here(experiment, self.capacity.slots)

    def at_once(self, experiment: Experiment) -> int:
        """See `Site.at_once`."""
        return tasks_here(experiment, self.capacity)

    def completed(self, request: GangRequest, context: TaskContext) -> GangRequest:
        """Others' tasks run on this machine, too: memory is bounded; see `Site.completed`."""
        if self.isolation is not None:
            return request
        memory_bytes = (context.experiment.hardware.memory_bytes or 0) * len(request.members)
        return replace(request, memory_bytes=memory_bytes)

    def needs_hold(self, _context: TaskContext) -> bool:
        """See `Site.needs_hold`."""
        return self.isolation is not None

    def is_quick(self, kind: EffectKind, context: TaskContext) -> bool:
        """See `Site.is_quick`."""
        experiment = context.experiment
        match kind:
            case EffectKind.STAGE:
                is_bare = experiment.setup is None and experiment.container is None and not context.goes_on
                return is_bare and all(each.directory for each in experiment.data.values())
            case EffectKind.SAVE | EffectKind.RECOVER:
                return not context.staged and is_small(context)
            case _:
                return kind is EffectKind.KEEP

    def alone(self, _context: TaskContext) -> AbstractContextManager[object]:
        """There is but one machine to be staged on; see `Site.alone`."""
        return nullcontext()

    def began(self, context: TaskContext) -> None:
        """Write down with what members work, unless that was done; see `Site.began`."""
        from trainmaster.control.attempt.recorded_environment import (
            environment_at,
            environment_in,
            note_found,
        )

        if name := context.experiment.container:
            note_found(context, lambda: environment_in(name, self.images.prepare(context).id))
        else:
            note_found(context, lambda: environment_at(context.venv))

    def provide(self, context: TaskContext, name: str, models: Sequence[tuple[int, str]]) -> None:
        """Bring data here; see `Site.provide`.

        Raises:
            UsageError: a server does not do so for others.
        """
        from trainmaster.control.attempt import staging

        source = context.experiment.data[name]
        if self.isolation is not None and source.url is not None:
            does = "fetches no URL" if source.stage is None else "stages no data"
            raise UsageError(f"a server {does} for others", "Push it as a volume.")
        if source.stage is None:
            # Only a process that has mounted a volume sees what is in it.
            staging.provide_here(context, name, models, fetches=self.isolation is not None)
        else:
            from trainmaster.control.attempt.staged_data import stage_here

            stage_here(context, name)

    def adopt(self, context: TaskContext) -> None:
        """What was done goes on by itself; see `Site.adopt`."""

    def bring(self, context: TaskContext) -> None:
        """Make image and environment here; see `Site.bring`."""
        from trainmaster.control.attempt import staging

        staging.setup_environment(context, self.images if context.experiment.container else None)
        self.began(context)
        if self.isolation is not None:
            self.isolation.hand_over(context)

    def fetch_checkpoint(self, _context: TaskContext, *, is_patient: bool = False) -> bool:
        """It is here; see `Site.fetch_checkpoint`."""
        return True

    def fetch_output(
        self, context: TaskContext, *, is_final: bool = True, limit_bytes: int | None = None
    ) -> None:
        """Fetch what lies in an HDFS; see `Site.fetch_output`."""
        if is_final and context.staged:
            from trainmaster.control.attempt.staged_data import fetch_output_here

            fetch_output_here(context)

    def publish_checkpoint(self, context: TaskContext, *, is_patient: bool = False) -> int | None:
        """See `Site.publish_checkpoint`."""
        from trainmaster.control.attempt import saving

        return saving.publish_checkpoint_here(context)

    def publish_model(self, context: TaskContext, extra: Mapping[str, JSON]) -> bool:
        """See `Site.publish_model`."""
        from trainmaster.control.attempt import saving

        self.fetch_output(context)
        return saving.publish_model_here(context, extra)

    def restore_checkpoint(
        self, context: TaskContext, series: CheckpointSeries, number: int, *, is_own: bool = True
    ) -> None:
        """See `Site.restore_checkpoint`."""
        from trainmaster.control.attempt.staging import restore_here

        restore_here(context, series, number, is_own=is_own)

    def where(self, context: TaskContext) -> str:
        """See `Site.where`."""
        return f"in {context.place.directory}"

    def full_disks(self, _context: TaskContext) -> str:
        """See `Site.full_disks`."""
        return ""

    def keep_system_logs(self, context: TaskContext) -> None:
        """Of a machine that others use, too, they are not told; see `Site.keep_system_logs`."""
        if not context.is_foreign:
            import socket

            from trainmaster.control.attempt.system_log import said_here, write_system_log

            write_system_log(context, socket.gethostname(), said_here())

    def lost_data(self, _context: TaskContext) -> tuple[bool, str]:
        """See `Site.lost_data`."""
        return False, ""

    def clean_up(self, context: TaskContext, *, is_saved: bool = True) -> None:
        """Its directories are here; see `Site.clean_up`."""
        if context.experiment.setup is None:
            return
        with suppress(OSError, UsageError):  # this was told before, as it was staged
            if context.experiment.container is not None:
                self.images.end_setup(context)
            elif (venv := context.venv) is not None:
                from trainmaster.control.attempt.setup import end_abandoned

                end_abandoned(venv)
