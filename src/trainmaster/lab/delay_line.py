"""The user-space delay line: holds packets on their way into a host, or drops them.

For kernels without ``netem``. A process of its own, as it must not wait for anybody: ``python -m
trainmaster.lab.delay_line`` reads lines of JSON, each the whole state that shall be from now on::

    {"hosts": {"/path/of/namespace": {"198.18.0.5": [0.025, 0.0]}}}

(sender -> delay in seconds, share lost), and answers each with a line when it holds. It ends with its input.
It stands at the receiving end: at the sending one, TCP would see its own queue and slow down.
"""

from __future__ import annotations

import collections
import heapq
import json
import os
import random
import select
import socket
import sys
import time
from pathlib import Path
from typing import Final

from trainmaster.lab.nfqueue import ACCEPT, DROP, PacketQueue
from trainmaster.lab.region import entered

#: Of the packet filter's rule, in every host.
QUEUE: Final = 7
_PRIORITY: Final = 10
_IDLE_S: Final = 1.0


class DelayedHost:
    """The packets that wait before one host.

    Args:
        queue: where the kernel keeps them.
    """

    def __init__(self, queue: PacketQueue) -> None:
        self.queue = queue
        self._table: dict[bytes, tuple[float, float]] = {}
        #: By delay, not by sender: what has the same delay leaves in the order it came.
        self._waiting: dict[float, collections.deque[tuple[float, int]]] = {}

    def set(self, table: dict[str, list[float]]) -> None:
        """Sender -> delay in seconds, share lost."""
        self._table = {socket.inet_aton(key): (delay, loss) for key, (delay, loss) in table.items()}

    def take(self, now: float) -> None:
        """Take in what has come."""
        judged = []
        for number, sender in self.queue.receive():
            delay, loss = self._table.get(sender, (0.0, 0.0))
            if loss and random.random() < loss:  # noqa: S311 - nothing secret
                judged.append((number, DROP))
            elif delay:
                self._waiting.setdefault(delay, collections.deque()).append((now + delay, number))
            else:
                judged.append((number, ACCEPT))
        if judged:
            self.queue.judge(judged)

    def let_go(self, now: float) -> float | None:
        """Let go of what is due; when the next one will be, None for never."""
        due: list[tuple[float, int]] = []
        upcoming = None
        for delay, waiting in list(self._waiting.items()):
            while waiting and waiting[0][0] <= now:
                heapq.heappush(due, waiting.popleft())
            if not waiting:
                del self._waiting[delay]
            elif upcoming is None or waiting[0][0] < upcoming:
                upcoming = waiting[0][0]
        if due:
            self.queue.judge([(heapq.heappop(due)[1], ACCEPT) for _ in range(len(due))])
        return upcoming


class DelayLine:
    """All hosts' packets."""

    def __init__(self) -> None:
        self._hosts: dict[str, DelayedHost] = {}
        self._by_descriptor: dict[int, DelayedHost] = {}

    def set(self, wanted: dict[str, dict[str, list[float]]]) -> None:
        """Path of a host's namespace -> table; hosts that are not named are let alone."""
        for path in [path for path in self._hosts if path not in wanted]:
            self._drop(path)
        for path, table in wanted.items():
            if path not in self._hosts:
                try:
                    with entered(Path(path)):
                        queue = PacketQueue(QUEUE)
                except FileNotFoundError:
                    continue  # the host is gone meanwhile
                self._hosts[path] = self._by_descriptor[queue.socket.fileno()] = DelayedHost(queue)
            self._hosts[path].set(table)

    def run(self, commands: int) -> None:
        """Serve until the commands (a file descriptor) end."""
        poll = select.poll()
        poll.register(commands, select.POLLIN)
        text = b""
        watched: set[int] = set()
        while True:
            now = time.monotonic()
            nexts = [upcoming for host in self._hosts.values() if (upcoming := host.let_go(now)) is not None]
            for gone in watched - self._by_descriptor.keys():
                poll.unregister(gone)
            for new in self._by_descriptor.keys() - watched:
                poll.register(new, select.POLLIN)
            watched = set(self._by_descriptor)
            wait_s = max(0.0, min(nexts) - time.monotonic()) if nexts else _IDLE_S
            for descriptor, _ in poll_precisely(poll, wait_s):
                if descriptor != commands:
                    self._by_descriptor[descriptor].take(time.monotonic())
                    continue
                data = os.read(commands, 1 << 16)
                if not data:
                    return
                *lines, text = (text + data).split(b"\n")
                for line in lines:
                    self.set(json.loads(line)["hosts"])
                    sys.stdout.write("done\n")
                    sys.stdout.flush()

    def _drop(self, path: str) -> None:
        host = self._hosts.pop(path)
        del self._by_descriptor[host.queue.socket.fileno()]
        host.queue.close()


def poll_precisely(poll: select.poll, wait_s: float) -> list[tuple[int, int]]:
    """``poll`` counts in milliseconds, and rounds up; the rest of the time is slept."""
    if wait_s >= 0.001:
        return poll.poll(int(wait_s * 1000))
    if found := poll.poll(0):
        return found
    if wait_s > 0:
        time.sleep(wait_s)
    return poll.poll(0)


def main() -> None:
    """Serve, before everybody else if that is allowed."""
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(_PRIORITY))
    except OSError:
        print("no priority: delays will be less exact", file=sys.stderr)  # noqa: T201
    DelayLine().run(sys.stdin.fileno())


if __name__ == "__main__":
    main()
