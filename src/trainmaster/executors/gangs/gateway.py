"""What a driver speaks to: `Gateway`, the loop around the `Scheduler` of a cluster's gangs, in a thread.

They speak to it as they do to a supervisor. What an earlier gateway has left is found on the nodes: their
supervisors never noticed that it ended, and their agents have records of the gangs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
import time
from typing import TYPE_CHECKING, Final

from trainmaster.executors.gangs.clients import GatewayClient
from trainmaster.executors.gangs.scheduler import Scheduler
from trainmaster.executors.wire import encode
from trainmaster.spec.errors import ExecutorError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from trainmaster.executors.fences import Fences
    from trainmaster.executors.gangs.engine import Engine
    from trainmaster.executors.wire import Message

log = logging.getLogger(__name__)

#: A driver that hangs up comes back at once, or not at all.
_IDLE_S: Final = 5.0
#: So often drivers hear from us, so that they notice when they do not.
_BEAT_S: Final = 2.0
_LOOK_S: Final = 5.0
_PARTING_S: Final = 3.0


class Gateway:
    """The loop around the `Scheduler`.

    Args:
        engine: knows the nodes.
        fences: refuses earlier drivers.
        lease: the run of the driver, and the token of its lease.
        settle_s: nodes that do not answer within this time after a start are taken to be unreachable.
    """

    def __init__(self, engine: Engine, fences: Fences, lease: tuple[str, int], settle_s: float) -> None:
        self._engine = engine
        self._fences = fences
        self._lease = lease
        self._settle_s = settle_s
        self._clients: set[GatewayClient] = set()
        self._wanted = asyncio.Event()
        self._idle_since = time.monotonic()
        self._ended = asyncio.Event()
        self._parting: set[asyncio.Task[None]] = set()
        self.scheduler: Scheduler

    def end(self) -> None:
        """Serve no more."""
        self._ended.set()

    async def run(self, serve: Callable[[], Awaitable[None]]) -> None:
        """Serve until no client is connected, or `end`.

        Args:
            serve: begins to call `accept`, when it is known what an earlier gateway has left.
        """
        loop = asyncio.get_running_loop()
        self.scheduler = Scheduler(self._engine, self._clients, loop, log.info, self._lease)
        self.scheduler.wake = self._wanted.set
        nodes = self.scheduler.nodes
        await nodes.look()
        waits = [asyncio.ensure_future(link.attached.wait()) for link in nodes.links.values()]
        if waits:
            _, late = await asyncio.wait(waits, timeout=self._settle_s)
            for wait in late:
                wait.cancel()
        self.scheduler.settle()
        self._idle_since = time.monotonic()
        await serve()
        tasks = [
            asyncio.ensure_future(each)
            for each in (nodes.watch(), self._place(), self._beat(), self._ended.wait())
        ]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for client in list(self._clients):
            client.close()
        await nodes.close()
        for task in tasks:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                raise error
            task.cancel()

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(_BEAT_S)
            if time.monotonic() - self.scheduler.nodes.looked_at > 2 * _BEAT_S:
                continue  # the engine says nothing, so we know nothing
            for client in self._clients:
                if client.full:
                    continue
                client.send({"alive": True})
                if (waits := self.scheduler.waits(client.run)) != client.waits:
                    client.waits = waits
                    client.send({"waits": waits})

    async def _place(self) -> None:
        """Give gangs their places, and end when there is nothing to do."""
        while True:
            self._wanted.clear()
            wait_s = self.scheduler.tick()
            if self._clients:
                self._idle_since = time.monotonic()
            elif time.monotonic() - self._idle_since > _IDLE_S:
                self._ended.set()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wanted.wait(), min(wait_s or 1.0, 1.0))

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a driver until it hangs up."""
        client = GatewayClient(reader, writer)
        self._clients.add(client)
        teller = asyncio.create_task(client.tell(self.scheduler.row))
        try:
            await client.listen(self._handle, log.info)
        finally:
            teller.cancel()
            self._clients.discard(client)
            self.scheduler.drop_client(client)
            self._wanted.set()

    def _handle(self, client: GatewayClient, message: Message) -> None:
        scheduler = self.scheduler
        match message["do"]:
            case "open":
                self._open(client, message)
            case _ if not client.run:
                raise ValueError(f"{message['do']} before open")
            case "submit":
                scheduler.submit(client, message["gangs"])
            case "launch":
                scheduler.launch(message["attempt"], message["env"])
            case "observe":
                self._observe(client, message)
            case "stop":
                scheduler.stop(message["attempt"], message["grace_s"], stacks=message.get("stacks", False))
            case "forget":
                scheduler.forget(message["attempts"])
            case "watch":
                scheduler.watch(client)
            case "follow":
                gang = scheduler.gangs.get(message["attempt"])
                if gang is not None:
                    scheduler.files.take_up(client, gang, message["here"], message["have"])
            case "part":
                parting = asyncio.create_task(self._part(client, message["id"]))
                self._parting.add(parting)
                parting.add_done_callback(self._parting.discard)
            case "gone":
                scheduler.nodes.declare_gone(message["node"])

    def _open(self, client: GatewayClient, message: Message) -> None:
        welcome = self._fences.welcome(message)
        if self.scheduler.is_refused:
            welcome["fenced"] = message["run"]
        client.send(welcome)
        if "fenced" in welcome:
            return
        client.run, client.token, client.env = message["run"], message.get("token", 0), message["env"]
        for other in self._clients:
            if other.run == client.run and 0 < other.token < client.token:
                other.close()
        self.scheduler.nodes_changed()

    async def _part(self, client: GatewayClient, number: int) -> None:
        """All that it has asked for reaches the nodes first, as far as they can be reached."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.scheduler.nodes.delivered(), _PARTING_S)
        client.send({"reply": "part", "id": number})

    def _observe(self, client: GatewayClient, message: Message) -> None:
        for attempt in message["attempts"]:
            gang = self.scheduler.gangs.get(attempt)
            if gang is not None and gang.parts and gang.client is not client:
                client.send({"plan": [attempt, gang.directory, list(gang.essential)]})
        rows = [self.scheduler.row(attempt) for attempt in message["attempts"]]
        client.send_rows("gangs", rows, reply="observe", id=message["id"])


class DriverGateway:
    """A `Gateway` in a thread of the driver's; see there.

    Attributes:
        run: of the driver.
        lease: token of the driver's lease.
        is_over: it has ended, or is about to.
    """

    def __init__(self, engine: Engine, fences: Fences, lease: tuple[str, int], settle_s: float) -> None:
        self.run, self.lease = lease
        self.is_over = False
        self._loop = asyncio.new_event_loop()  # the thread closes it
        self._gateway = Gateway(engine, fences, lease, settle_s)
        self._streams: asyncio.Queue[socket.socket] = asyncio.Queue()
        self._serving: set[asyncio.Task[None]] = set()
        self._has_begun = threading.Event()
        threading.Thread(target=self._work, name="gateway", daemon=True).start()

    def connect(self) -> socket.socket:
        """The driver's end of a new stream."""
        ours, theirs = socket.socketpair()
        try:
            self._loop.call_soon_threadsafe(self._streams.put_nowait, theirs)
        except RuntimeError:  # it has just ended: the driver dials again
            theirs.close()
        return ours

    def end(self) -> None:
        """Serve no more; what runs goes on."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._gateway.end)

    def _work(self) -> None:
        refusal = b""
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:  # ends its tasks, too
            try:
                runner.run(self._gateway.run(self._serve))
            except ExecutorError as error:  # the driver is hung up on, and dials anew
                log.info("what places tasks has ended: %s", error)
                refusal = encode({"reply": "error", "error": Exception.__str__(error)})
            except Exception:  # a thread has no caller
                log.exception("what places tasks has ended")
            self.is_over = True
        while not self._streams.empty():
            with self._streams.get_nowait() as stream, contextlib.suppress(OSError):
                stream.sendall(refusal)

    def look(self) -> None:
        """Have it see at once which nodes there are."""
        if self._has_begun.is_set() and not self.is_over:
            look = self._gateway.scheduler.nodes.look()
            with contextlib.suppress(TimeoutError, RuntimeError):
                asyncio.run_coroutine_threadsafe(look, self._loop).result(_LOOK_S)

    async def _serve(self) -> None:
        self._has_begun.set()
        self._serving.add(asyncio.create_task(self._accept()))

    async def _accept(self) -> None:
        while True:
            reader, writer = await asyncio.open_connection(sock=await self._streams.get())
            self._serving.add(asyncio.create_task(self._gateway.accept(reader, writer)))
