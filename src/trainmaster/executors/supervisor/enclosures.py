"""`Enclosure`: what the processes of one attempt have of their own: bounds, and namespaces of Unix users."""

from __future__ import annotations

import os

from trainmaster.executors.containers import sandbox
from trainmaster.executors.containers.command_line import container_name
from trainmaster.executors.supervisor import control_groups

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any


class Enclosure:
    """Control groups, which bound it, and namespaces, in which its members share memory.

    Attributes:
        places: of its control groups; the supervisor that comes after one that was killed removes them, too.
        descriptors: of its namespaces, while its members are started.
    """

    def __init__(self, places: Sequence[str]) -> None:
        self.places = list(places)
        self.descriptors: list[int] = []
        self._kills_told = 0

    @classmethod
    def planned(cls, attempt: str, home_id: str) -> Enclosure:
        """That of an attempt; there is nothing of it yet."""
        return cls(control_groups.places(container_name(home_id, attempt, "all")))

    def bound(self, memory_bytes: int, processes: int = 0) -> None:
        """Make its control groups, as far as that is allowed."""
        self.places = [place for place in self.places if control_groups.make(place, memory_bytes, processes)]

    def take_in(self, pid: int) -> None:
        """Put a process that was just started into its control groups.

        Raises:
            OSError: it may not.
        """
        for place in self.places:
            control_groups.join(place, pid)

    def open(self, memory_bytes: int, processes: int) -> None:
        """Make it.

        Raises:
            OSError: it cannot be made; there is nothing of it.
        """
        self.bound(memory_bytes, processes)
        try:
            self.descriptors = sandbox.namespaces(memory_bytes)
        except OSError:
            self.remove()
            raise

    def given(self) -> dict[str, Any]:
        """What of it goes into `sandbox.order`; what is started until `close` inherits the descriptors."""
        for descriptor in self.descriptors:
            os.set_inheritable(descriptor, True)
        return {"control_groups": self.places, "namespaces": self.descriptors}

    def close(self) -> None:
        """All members were started, and hold its namespaces."""
        for descriptor in self.descriptors:
            os.close(descriptor)
        self.descriptors = []

    def tells_kill(self) -> bool | None:
        """Whether the kernel has killed one more of its processes for want of memory than this has told.

        Returns:
            None where nothing counts them.
        """
        for place in self.places:
            for name in ("memory.events", "memory.oom_control"):
                if (count := control_groups.kills_told_by(f"{place}/{name}")) is not None:
                    self._kills_told += (is_told := count > self._kills_told)
                    return is_told
        return None

    def remove(self) -> None:
        """No process of it is left."""
        for place in self.places:
            control_groups.remove(place)
