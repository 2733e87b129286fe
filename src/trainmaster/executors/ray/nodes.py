"""The gateway's links to the agents, and which nodes are alive as Ray sees it."""

from __future__ import annotations

import asyncio
import secrets
import time
from typing import TYPE_CHECKING, Any, Protocol

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from trainmaster.executors.base import Phase
from trainmaster.executors.ray.agent import Agent
from trainmaster.executors.ray.commands import NODE_LABEL
from trainmaster.executors.ray.heartbeat import Heartbeat, feel
from trainmaster.executors.ray.placement import LiveNode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from trainmaster.executors.base import GangStatus
    from trainmaster.executors.ray.mirror import Piece
    from trainmaster.executors.wire import Message

LOOK_S = 0.5
_POLL_S = 2.0
#: An agent answers a poll within its time; it is unreachable when it is so much late.
_LATE_S = 5.0
_ATTACH_S = 30.0
_RETRY_S = (0.1, 2.0)
_THREADS = 8
#: A resource that Ray gives to the head only.
_HEAD = "node:__internal_head__"

Follow = dict[str, tuple[str, "Sequence[str]", "Mapping[str, int]"]]


class Listener(Protocol):
    """Is told what happens on the nodes."""

    async def recorded(self) -> None:
        """Until it is known elsewhere too which gang is where: nothing is handed over before."""

    def attempts_on(self, node: LiveNode) -> list[str]:
        """Parts on that node that have not ended, as far as is known."""

    def took(self, node: LiveNode, statuses: Sequence[GangStatus]) -> None:
        """Statuses of parts; that one is UNKNOWN may be old news."""

    def checked(self, node: LiveNode, statuses: Sequence[tuple[int, GangStatus]]) -> None:
        """Handle the answers to ``check``; each carries the turn in which it was asked."""

    def attached(self, node: LiveNode, statuses: Sequence[GangStatus]) -> None:
        """Statuses of all `attempts_on` that were handed over before."""

    def grew(self, written: Sequence[tuple[str, str]]) -> None:
        """(part, member) of each member that wrote something."""

    def probed(self, node: LiveNode, shared: Mapping[str, bool]) -> None:
        """Whether directories on the node are the driver's own."""

    def follow(self, node: LiveNode) -> Follow:
        """Whose files are wanted."""

    def read_on(
        self, node: LiveNode, asked: Follow, pieces: Sequence[tuple[str, Piece]], behind: set[str]
    ) -> None:
        """Pieces of files of parts; those that are behind have more."""

    def nodes_changed(self) -> None:
        """Nodes came, went, or can (not) be reached."""

    def came(self, node: LiveNode) -> None:
        """A node's agent serves us."""

    def lost(self, node: LiveNode) -> None:
        """A node is dead."""


class Link:
    """One node's agent.

    Attributes:
        node: which one.
        since: Unix time in seconds since when it cannot be reached, None while it can.
        attached: it has been reached at least once.
        is_dead: the node is gone, whatever Ray thinks.
    """

    def __init__(self, node: LiveNode, port: int, listener: Listener, note: Callable[[str], None]) -> None:
        self.node = node
        self.is_dead = False
        self.since: float | None = None
        self.attached = asyncio.Event()
        self._listener = listener
        self._note = note
        self._commands: list[Message] = []
        self._wanted = asyncio.Event()
        self._agent: Any = None
        self._token = ""
        self._heartbeat = Heartbeat(time.monotonic())
        self._tasks = [asyncio.create_task(self._serve())]
        if port:
            self._tasks.append(asyncio.create_task(feel(node.address, port, self._heartbeat, self._die)))

    def send(self, command: Message) -> None:
        """Have the agent do something, in order; again if it is not certain that it has."""
        self._commands.append(command)
        self._wanted.set()

    async def close(self, *, detach: bool) -> None:
        """Serve no more."""
        for task in self._tasks:
            task.cancel()
        if detach and self._agent is not None:
            self._agent.detach.remote(self._token)
            await asyncio.sleep(0)

    def _die(self) -> None:
        self.is_dead = True

    async def _serve(self) -> None:
        pause_s = _RETRY_S[0]
        while True:
            try:
                await self._attach()
                pause_s = _RETRY_S[0]
                await self._work()
            except asyncio.CancelledError:
                raise
            except Exception as error:  # noqa: BLE001 - whatever Ray raises, the node is not to be reached now
                if self.since is None:
                    self.since = time.time()
                    self._note(
                        f"node {self.node.key} cannot be reached: {str(error).strip().splitlines()[-1:]}"
                    )
                    self._listener.nodes_changed()
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _RETRY_S[1])

    async def _attach(self) -> None:
        self._agent = (
            ray.remote(Agent)
            .options(
                name=f"agent:{self.node.node_id}",
                lifetime="detached",
                get_if_exists=True,
                num_cpus=0,
                max_restarts=-1,
                max_concurrency=_THREADS,
                scheduling_strategy=NodeAffinitySchedulingStrategy(self.node.node_id, soft=False),
            )
            .remote()
        )
        token = secrets.token_hex(8)
        asked = self._listener.attempts_on(self.node)
        answer = await asyncio.wait_for(self._agent.attach.remote(token, asked), _ATTACH_S)
        self._token = token
        statuses: list[GangStatus] = answer["statuses"]
        unsent = self._keep_unsent({each.attempt for each in statuses if each.phase is not Phase.UNKNOWN})
        self._listener.attached(self.node, [each for each in statuses if each.attempt not in unsent])
        self._listener.came(self.node)
        if self.since is not None or not self.attached.is_set():
            self.since = None
            self.attached.set()
            self._listener.nodes_changed()

    def _keep_unsent(self, there: set[str]) -> set[str]:
        """Drop from the queue what the agent already has, after a reconnect."""
        unsent = set(self._listener.attempts_on(self.node)) - there
        found: set[str] = set()
        for command in self._commands:
            if command["do"] == "submit":
                command["gangs"] = [gang for gang in command["gangs"] if gang["attempt"] in unsent]
                found.update(gang["attempt"] for gang in command["gangs"])
        return found

    async def _work(self) -> None:
        tasks = [asyncio.create_task(self._command()), asyncio.create_task(self._poll())]
        try:
            await asyncio.gather(*tasks)  # ends with the first error
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _command(self) -> None:
        while True:
            if not self._commands:
                self._wanted.clear()
                await self._wanted.wait()
            batch = list(self._commands)
            if any(command["do"] == "submit" for command in batch):
                await self._listener.recorded()
            reference = self._agent.do.remote(self._token, batch)
            shared, checked = await asyncio.wait_for(reference, _ATTACH_S)
            del self._commands[: len(batch)]
            if shared:
                self._listener.probed(self.node, shared)
            if checked:
                self._listener.checked(self.node, checked)

    async def _poll(self) -> None:
        while True:
            asked = self._listener.follow(self.node)
            reference = self._agent.poll.remote(self._token, _POLL_S, asked)
            news, output, pieces, behind = await asyncio.wait_for(reference, _POLL_S + _LATE_S)
            self._heartbeat.beat(time.monotonic())
            if asked:  # before the news: what a member wrote is there when its end is told
                self._listener.took(self.node, news)
                self._listener.read_on(self.node, asked, pieces, behind)
            elif news:
                self._listener.took(self.node, news)
            if output:
                self._listener.grew(output)


class Nodes:
    """All nodes that live.

    Attributes:
        links: by the node's key.
    """

    def __init__(self, listener: Listener, note: Callable[[str], None]) -> None:
        self.links: dict[str, Link] = {}
        self._listener = listener
        self._note = note
        self._gone: set[str] = set()

    @property
    def rooms(self) -> list[LiveNode]:
        """Those that gangs may be placed on: alive, and reached."""
        return [link.node for link in self.links.values() if link.since is None and link.attached.is_set()]

    @property
    def alive(self) -> set[str]:
        """Ray's ids."""
        return {link.node.node_id for link in self.links.values()}

    def send(self, key: str, node_id: str | None, command: Message) -> None:
        """To a node's agent; dropped if that node is gone (None: or to the one in its place)."""
        link = self.links.get(key)
        if link is not None and node_id in (None, link.node.node_id):
            link.send(command)

    def declare_gone(self, key: str) -> None:
        """The driver has a second witness that a node is gone; Ray need not be waited for."""
        link = self.links.get(key)
        if link is not None:
            self._gone.add(link.node.node_id)

    async def look(self) -> None:
        """Ask Ray once which nodes are alive."""
        rows = await asyncio.to_thread(ray.nodes)
        self._gone.update(link.node.node_id for link in self.links.values() if link.is_dead)
        seen = {}
        for row in rows:
            labels = row.get("Labels") or {}
            if row["Alive"] and NODE_LABEL in labels and row["NodeID"] not in self._gone:
                seen[row["NodeID"]] = row
        for key, link in list(self.links.items()):
            if link.node.node_id not in seen:
                del self.links[key]
                await link.close(detach=False)
                self._note(f"node {key} is dead")
                self._listener.lost(link.node)
        for node_id, row in seen.items():
            key = row["Labels"][NODE_LABEL]
            if key not in self.links:
                room, port = _room(key, node_id, row), int(row.get("NodeManagerPort") or 0)
                self.links[key] = Link(room, port, self._listener, self._note)

    async def watch(self) -> None:
        """Go on looking."""
        while True:
            await asyncio.sleep(LOOK_S)
            await self.look()

    async def close(self) -> None:
        """Leave the agents."""
        for link in self.links.values():
            await link.close(detach=True)


def _room(key: str, node_id: str, row: Mapping[str, Any]) -> LiveNode:
    resources = row["Resources"]
    return LiveNode(
        key,
        node_id,
        row["NodeManagerAddress"],
        float(resources.get("CPU", 0.0)),
        int(resources.get("GPU", 0)),
        dict(row["Labels"]),
        is_head=_HEAD in resources,
    )
