"""Which processes has the kernel killed for want of memory, and which did somebody else kill?

The exit status of both is SIGKILL. What tells them apart are the kernel's counters of such kills:

* that of our own control group counts the victims in it, and only those, as does that of an attempt which
  has one (`enclosures`);
* that of the node (``/proc/vmstat``) counts every victim, also in other people's containers.

A kill explains one death, and only one that was seen soon after it. A member that we saw in our own
control group is judged by that group's counter alone, so a neighbour that runs out of memory while
somebody ends a member with ``kill -9`` is not misleading; one that moved elsewhere by itself (``cgexec``, a
container), and was seen there, is judged by the node's.
"""

from __future__ import annotations

import signal
import time

from trainmaster.executors.supervisor.control_groups import directories, group_of, kills_told_by
from trainmaster.executors.supervisor.processes import unix_s

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from trainmaster.executors.supervisor.enclosures import Enclosure
    from trainmaster.executors.supervisor.gang_processes import MemberProcess

#: At the start of a member, a count so old will do; a thousand starts a second read it five times.
_AGE_S = 0.2
#: The kernel may take that long to end a victim that has much memory.
_REMEMBERED_S = 30.0
#: bash says this when it was not itself the one that was killed, but a child that it waited for.
_EXIT_BY_SIGKILL = 128 + signal.SIGKILL


class OomWatch:
    """Remembers the kills on this node that no member's death has been explained by yet.

    Args:
        root: where ``proc`` and ``sys`` are (tests make their own), without a slash at its end.
    """

    def __init__(self, root: str = "") -> None:
        self._root = root
        self._node_path = f"{root}/proc/vmstat"
        self._group_path: str | None = None
        self._group = ""
        self._node_count: int | None = None
        self._group_count: int | None = None
        self._in_group: list[float] = []  # when each kill was first seen; the oldest first
        self._elsewhere: list[float] = []
        self._rest = 0
        self._at_home: set[int] = set()
        self._read_at = 0.0
        self.look(())

    def look(self, pids: Iterable[int] | None = None) -> None:
        """See what the kernel has done; call it at each start, and now and then while members live.

        Args:
            pids: members that live now, to see which control group they are in; None for a quick look,
                which may take a count of a moment ago.
        """
        now = time.monotonic()
        if pids is None:
            if now - self._read_at > _AGE_S:
                self._count(now)
            return
        self._find_group()
        self._count(now)
        own, root = self._group, self._root
        self._at_home = {pid for pid in pids if own and group_of(str(pid), "memory", root) == own}

    def has_killed(self, member: MemberProcess, enclosure: Enclosure | None = None) -> bool:
        """Whether a member that has just ended of a SIGKILL which was not ours was killed by the kernel.

        Args:
            member: it.
            enclosure: that of its attempt, whose own counter judges alone, if there is one.
        """
        if member.signal != signal.SIGKILL and member.exit_code != _EXIT_BY_SIGKILL:
            return False
        now = time.monotonic()
        self._count(now)
        if enclosure is not None and (is_told := enclosure.tells_kill()) is not None:
            if is_told and self._elsewhere:
                del self._elsewhere[-1]  # the node's counter has it, too
            return is_told
        started_at = now - (unix_s() - (member.started_at or 0.0))
        kinds = [self._in_group, self._elsewhere]
        if member.signal is not None and member.pid in self._at_home and self._group_count is not None:
            kinds = [self._in_group]
        for kills in kinds:
            while kills and now - kills[0] > _REMEMBERED_S:
                del kills[0]
            for index, seen_at in enumerate(kills):
                if seen_at >= started_at:
                    del kills[index]
                    return True
        return False

    def _count(self, now: float) -> None:
        self._read_at = now
        node, group = kills_told_by(self._node_path), kills_told_by(self._group_path)
        in_group = _rise(self._group_count, group)
        self._in_group += [now] * in_group
        # the two are read one after the other: a kill between them is on the node's only the next time
        self._rest += _rise(self._node_count, node) - in_group
        self._elsewhere += [now] * self._rest
        self._rest = min(self._rest, 0)
        self._node_count, self._group_count = node, group

    def _find_group(self) -> None:
        """We may have been moved since."""
        group = group_of("self", "memory", self._root)
        if group == self._group:
            return
        self._group = group
        self._group_path = _counter(self._root, group)
        self._group_count = kills_told_by(self._group_path)


def _counter(root: str, group: str) -> str | None:
    """The file that counts the kills in a control group, None if we cannot see it."""
    name = "memory.events" if group.startswith(":") else "memory.oom_control"
    files = (f"{place}/{name}" for place in directories(group, root))
    return next((file for file in files if kills_told_by(file) is not None), None)


def _rise(before: int | None, after: int | None) -> int:
    return 0 if before is None or after is None else max(0, after - before)
