"""`Site`: where attempts run, if that is not the machine of their control loop.

Staging and saving work on directories of this machine. A site brings them to the nodes before members start,
and fetches what they left, so that nothing else has to know of nodes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from trainmaster.spec.errors import TrainmasterError

if TYPE_CHECKING:
    from trainmaster.artifacts import JSON
    from trainmaster.control.images import ImageSource
    from trainmaster.control.job_context import TaskContext


class NodeGoneError(TrainmasterError):
    """A member's node is no more, and with it what the member wrote."""


class RelayError(TrainmasterError):
    """Its nodes cannot use the store: files go through this machine."""


class Site(Protocol):
    """The nodes of a run's clusters, as jobs of attempts see them. Threads share it.

    Attributes:
        library: a directory on every node that goes to the end of PYTHONPATH.
    """

    @property
    def library(self) -> str:
        """See above."""
        ...

    @property
    def images(self) -> ImageSource:
        """What experiments name as ``container``, as nodes have it."""
        ...

    def slots(self, experiment: str) -> Sequence[int]:
        """Slots of each node of an experiment's cluster; empty if nobody knows."""
        ...

    def environment(self, experiment: str) -> Mapping[str, str]:
        """What members find on a node before anything of the recipe is added; nothing of the caller's."""
        ...

    def path(self, here: Path) -> str:
        """Where a path of this machine's home or cache, or of the user's data, lies on every node."""
        ...

    def provide(self, context: TaskContext, name: str, models: Sequence[tuple[int, str]]) -> None:
        """Have the nodes of an attempt get data themselves, from where they lie.

        Args:
            context: the attempt.
            name: of the data: a volume, a URL, or the models of another experiment.
            models: the tasks and URIs of those.

        Raises:
            RelayError: not all of the nodes can do so; those that could have them.
            UsageError: there is no such volume.
            TrainmasterError: a node cannot be reached, or has failed to get them.
        """
        ...

    def adopt(self, context: TaskContext) -> None:
        """Go on with what an earlier driver did for an attempt while it runs; never waits."""
        ...

    def bring(self, context: TaskContext) -> None:
        """Put everything that a staged attempt needs on the nodes that its gang was granted.

        Raises:
            UsageError: the recipe's ``setup`` failed on a node, or its ``container`` cannot be had there.
            TrainmasterError: a node cannot be reached or has no room.
        """
        ...

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
        ...

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
        ...

    def publish_checkpoint(self, context: TaskContext, *, is_patient: bool = False) -> int | None:
        """Have the nodes upload the attempt's checkpoint directories, and commit them as one checkpoint.

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
        ...

    def publish_model(self, context: TaskContext, extra: Mapping[str, JSON]) -> bool:
        """Have the nodes upload what an attempt that ended well left, and commit it as its model.

        Args:
            context: the attempt.
            extra: kept in the manifest.

        Returns:
            False if they left nothing.

        Raises:
            RelayError: the nodes cannot use the store.
            TrainmasterError: a node cannot be reached, or nothing can be published.
        """
        ...

    def restore_checkpoint(self, context: TaskContext, uri: str, *, is_own: bool = True) -> None:
        """Have the nodes download a checkpoint to where the attempt finds it.

        Args:
            context: the attempt.
            uri: of the checkpoint.
            is_own: it is the task's own: as long as nothing changes, nothing new is published.

        Raises:
            RelayError: the nodes cannot use the store; or it is damaged.
            TrainmasterError: a node cannot be reached.
        """
        ...

    def where(self, context: TaskContext) -> str:
        """Where what an attempt left lies, in words: its nodes, and the directory there."""
        ...

    def full_disks(self, context: TaskContext) -> str:
        """Which of an attempt's nodes have no room left, in words; empty if none, or if nobody knows.

        A member that fails for want of room can hardly write down why.
        """
        ...

    def lost_data(self, context: TaskContext) -> tuple[bool, str]:
        """Whether nodes of an attempt lost data that they had; what went wrong there with data, in words."""
        ...

    def clean_up(self, context: TaskContext, *, is_saved: bool = True) -> None:
        """Remove an attempt's directories from its nodes, unless what it left should be here and is not.

        Nodes that cannot be reached keep them.

        Args:
            context: the attempt.
            is_saved: nothing is there that could be saved, and is not.
        """
        ...
