"""The driver's links to the agents, and which nodes are alive as the engine sees it."""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from typing import TYPE_CHECKING, Final, Protocol

from trainmaster.executors.base import GangStatus, Phase
from trainmaster.executors.gangs.silence import LATE_S
from trainmaster.spec.errors import LeaseLostError, OtherVersionError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trainmaster.executors.gangs.copies import Files
    from trainmaster.executors.gangs.engine import Engine, NodeAgent
    from trainmaster.executors.gangs.placement import LiveNode
    from trainmaster.executors.wire import Message
    from trainmaster.spec.errors import TrainmasterError

LOOK_S = 0.5
_POLL_S = 2.0
_ATTACH_S = 30.0
_RETRY_S = (0.1, 2.0)
_DELIVERED_LOOK_S = 0.005
#: What Python, or an engine for it, says of a call with other arguments, or of a method that is not there.
#: An agent of an earlier version tells its words alone.
_OTHER_CALL: Final = re.compile(
    r"^(TypeError: ([\w.]+\(\) (takes|missing|got) |too many positional|missing a required)"
    r"|AttributeError: '(Agent|ActorHandle)' object has no attribute )"
)


class Listener(Protocol):
    """Is told what happens on the nodes."""

    def attempts_on(self, node: LiveNode) -> list[str]:
        """Parts on that node that have not ended, as far as is known."""

    def took(self, node: LiveNode, statuses: Sequence[GangStatus]) -> None:
        """Statuses of parts; that one is UNKNOWN may be old news."""

    def checked(self, node: LiveNode, statuses: Sequence[tuple[int, GangStatus]]) -> None:
        """Handle the answers to ``check``; each carries the turn in which it was asked."""

    def attached(self, node: LiveNode, statuses: Sequence[GangStatus], records: Sequence[Message]) -> None:
        """Statuses of all parts that were handed over before, and records of their gangs."""

    def refused(self, node: LiveNode, error: TrainmasterError) -> None:
        """A node serves a later driver of our run, or is of another version: no other try helps."""

    def nodes_changed(self) -> None:
        """Nodes came, went, or can (not) be reached."""

    def lost(self, node: LiveNode) -> None:
        """A node is dead."""


class AgentLink:
    """One node's agent.

    Attributes:
        node: which one.
        since: Unix time in seconds since when it cannot be reached, None while it can.
        attached: it has been reached at least once.
    """

    def __init__(
        self,
        node: LiveNode,
        agent: NodeAgent,
        listener: Listener,
        files: Files,
        note: Callable[[str], None],
        lease: tuple[str, int],
    ) -> None:
        self.node = node
        self._lease = lease
        self.since: float | None = None
        self.attached = asyncio.Event()
        self._listener = listener
        self._files = files
        self._note = note
        self._commands: list[Message] = []
        self._wanted = asyncio.Event()
        self._agent = agent
        self._token = ""
        self._serving = asyncio.create_task(self._serve())

    def send(self, command: Message) -> None:
        """Have the agent do something, in order; again if it is not certain that it has."""
        self._commands.append(command)
        self._wanted.set()

    @property
    def is_behind(self) -> bool:
        """Whether it has not been told everything, though it can be reached."""
        return bool(self._commands) and self.since is None

    async def close(self, *, detach: bool) -> None:
        """Serve no more."""
        self._serving.cancel()
        if detach:
            self._agent.detach(self._token)
            await asyncio.sleep(0)

    async def _serve(self) -> None:
        pause_s = _RETRY_S[0]
        while True:
            try:
                await self._attach()
                pause_s = _RETRY_S[0]
                await self._work()
            except asyncio.CancelledError:
                raise
            except (LeaseLostError, OtherVersionError) as error:
                self._listener.refused(self.node, error)
                self.attached.set()  # what waits for it need not
                return
            except Exception as error:  # noqa: BLE001 - whatever the engine raises, the node cannot be reached now
                words = str(error).strip()
                if _OTHER_CALL.match(words):
                    self._listener.refused(self.node, _other_version(words))
                    self.attached.set()
                    return
                if self.since is None:
                    self.since = time.time()
                    self._note(f"node {self.node.key} cannot be reached: {words.splitlines()[-1:]}")
                    self._listener.nodes_changed()
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _RETRY_S[1])

    async def _attach(self) -> None:
        token = secrets.token_hex(8)
        asked = self._listener.attempts_on(self.node)
        async with asyncio.timeout(_ATTACH_S):
            await self._agent.connect()
            rows, records = await self._agent.call("attach", token, asked, *self._lease)
        statuses = [GangStatus.of_row(row) for row in rows]
        self._token = token
        unsent = self._keep_unsent({each.attempt for each in statuses if each.phase is not Phase.UNKNOWN})
        handed_over = [each for each in statuses if each.attempt not in unsent]
        self._listener.attached(self.node, handed_over, records)
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
            async with asyncio.timeout(_ATTACH_S):
                shared, checked = await self._agent.call("do", self._token, batch)
            del self._commands[: len(batch)]
            if shared:
                self._files.probed(self.node, shared)
            if checked:
                self._listener.checked(self.node, [(turn, GangStatus.of_row(row)) for turn, row in checked])

    async def _poll(self) -> None:
        while True:
            asked = self._files.wanted(self.node)
            async with asyncio.timeout(_POLL_S + LATE_S):
                rows, output, pieces, behind = await self._agent.call("poll", self._token, _POLL_S, asked)
            news = [GangStatus.of_row(row) for row in rows]
            if asked:  # before the news: what a member wrote is there when its end is told
                self._listener.took(self.node, news)
                await self._files.read_on(self.node, asked, pieces, behind)
            elif news:
                self._listener.took(self.node, news)
            if output:
                self._files.grew(output)


def _other_version(words: str) -> OtherVersionError:
    return OtherVersionError(
        f"its agent was started by another version of Trainmaster ({words.splitlines()[0]})",
        "Go on with that one. Or leave the run without a driver for 15 minutes: rented machines have ended "
        "then, and hosts of your own are given up. Then `trainmaster resume` goes on from checkpoints.",
    )


class Nodes:
    """All nodes that live.

    Args:
        engine: knows them.
        listener: is told what happens there.
        files: what members write.
        note: writes a line to the log.
        lease: the run of the driver, and the token of its lease.

    Attributes:
        links: by the node's key.
        looked_at: monotonic time in seconds when the engine was heard last.
    """

    def __init__(
        self,
        engine: Engine,
        listener: Listener,
        files: Files,
        note: Callable[[str], None],
        lease: tuple[str, int],
    ) -> None:
        self.links: dict[str, AgentLink] = {}
        self.looked_at = 0.0
        self._lease = lease
        self._engine = engine
        self._listener = listener
        self._files = files
        self._note = note

    @property
    def rooms(self) -> list[LiveNode]:
        """Those that gangs may be placed on: alive, and reached."""
        return [link.node for link in self.links.values() if link.since is None and link.attached.is_set()]

    @property
    def alive(self) -> set[str]:
        """Their ids."""
        return {link.node.node_id for link in self.links.values()}

    def send(self, key: str, node_id: str | None, command: Message) -> None:
        """To a node's agent; dropped if that node is gone (None: or to the one in its place)."""
        link = self.links.get(key)
        if link is not None and node_id in (None, link.node.node_id):
            link.send(command)

    def declare_gone(self, key: str) -> None:
        """The driver knows that a node is gone: the engine is told, and need not notice."""
        link = self.links.get(key)
        if link is not None:
            self._engine.leave(link.node)

    async def delivered(self) -> None:
        """Until all nodes that can be reached have been told everything."""
        while any(link.is_behind for link in self.links.values()):
            await asyncio.sleep(_DELIVERED_LOOK_S)

    async def look(self) -> None:
        """Ask the engine once which nodes are alive."""
        seen = {node.node_id: node for node in await self._engine.alive()}
        self.looked_at = time.monotonic()
        for key, link in list(self.links.items()):
            if link.node.node_id not in seen:
                del self.links[key]
                await link.close(detach=False)
                self._note(f"node {key} is dead")
                self._listener.lost(link.node)
        for node in seen.values():
            if node.key not in self.links:
                self.links[node.key] = AgentLink(
                    node, self._engine.agent(node), self._listener, self._files, self._note, self._lease
                )

    async def watch(self) -> None:
        """Go on looking."""
        while True:
            await asyncio.sleep(LOOK_S)
            await self.look()

    async def close(self) -> None:
        """Leave the agents."""
        for link in self.links.values():
            await link.close(detach=True)
