"""The one process per cluster that speaks with Ray: a daemon on the head node.

Drivers reach it through a socket (from elsewhere through `_ray_relay` over SSH) and speak to it as they do
to a supervisor. Nothing of Ray gets into a driver's process, one process may drive several clusters, and no
port of Ray's answers anybody who has no certificate of the cluster's. When it is killed, the next one finds
what runs: reservations are detached, records of gangs are in Ray's own store, and the supervisors never
noticed.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import logging
import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from trainmaster.executors.core_dumps import forbid_core_dumps
from trainmaster.executors.fences import Fences
from trainmaster.executors.ray.clients import GatewayClient
from trainmaster.executors.ray.commands import authentication
from trainmaster.executors.ray.tls import is_there
from trainmaster.executors.supervisor import note

if TYPE_CHECKING:
    from trainmaster.executors.ray.scheduler import Scheduler
    from trainmaster.executors.wire import Message

#: Without drivers and gangs it stays so long: starting it takes a second or two.
IDLE_S = 300.0
#: Nodes that do not answer within this time after a start are taken to be unreachable.
_SETTLE_S = 15.0
#: So often drivers hear from us, so that they notice when they do not.
_BEAT_S = 2.0
_HEAD_TIMEOUT_S = 5.0
_NAMESPACE = "trainmaster"
_BACKLOG = 128


class Gateway:
    """The loop around the `Scheduler`."""

    def __init__(self, directory: Path) -> None:
        self._fences = Fences(str(directory / "fences.json"), note)
        self._clients: set[GatewayClient] = set()
        self._wanted = asyncio.Event()
        self._idle_since = time.monotonic()
        self._ended = asyncio.Event()
        self.scheduler: Scheduler

    async def run(self, listener: socket.socket) -> None:
        """Serve until no client is connected and no gang runs, or SIGTERM."""
        from trainmaster.executors.ray.scheduler import Scheduler

        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._ended.set)
        self.scheduler = Scheduler(self._clients, loop, note)
        self.scheduler.wake = self._wanted.set
        self.scheduler.load()
        nodes = self.scheduler.nodes
        await nodes.look()
        waits = [asyncio.ensure_future(link.attached.wait()) for link in nodes.links.values()]
        if waits:
            _, late = await asyncio.wait(waits, timeout=_SETTLE_S)
            for wait in late:
                wait.cancel()
        self.scheduler.settle()
        server = await asyncio.start_unix_server(self._accept, sock=listener, limit=1 << 20)
        tasks = [
            asyncio.ensure_future(each)
            for each in (nodes.watch(), self._place(), self._beat(), self._ended.wait())
        ]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        server.close()
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
            if self._clients or self.scheduler.busy:
                self._idle_since = time.monotonic()
            elif time.monotonic() - self._idle_since > IDLE_S:
                self._ended.set()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wanted.wait(), min(wait_s or 1.0, 1.0))

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        client = GatewayClient(reader, writer)
        self._clients.add(client)
        teller = asyncio.create_task(client.tell(self.scheduler.row))
        try:
            await client.listen(self._handle, note)
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
                client.send({"reply": "part", "id": message["id"]})
            case "gone":
                scheduler.nodes.declare_gone(message["node"])

    def _open(self, client: GatewayClient, message: Message) -> None:
        welcome = self._fences.welcome(message)
        client.send(welcome)
        if "fenced" in welcome:
            return
        client.run, client.token, client.env = message["run"], message.get("token", 0), message["env"]
        for other in self._clients:
            if other.run == client.run and 0 < other.token < client.token:
                other.close()
        self.scheduler.nodes_changed()

    def _observe(self, client: GatewayClient, message: Message) -> None:
        for attempt in message["attempts"]:
            gang = self.scheduler.gangs.get(attempt)
            if gang is not None and gang.parts and gang.client is not client:
                client.send({"plan": [attempt, gang.directory, list(gang.essential)]})
        rows = [self.scheduler.row(attempt) for attempt in message["attempts"]]
        client.send_rows("gangs", rows, reply="observe", id=message["id"])


def main(arguments: list[str]) -> None:
    """Become the gateway of a cluster, unless it has one."""
    forbid_core_dumps()
    directory = Path(arguments[0])
    lock = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        sys.exit(0)  # there is one
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    node = json.loads((directory.parent / "node.json").read_text())
    place = str(directory.parent)
    os.environ.update(authentication(place, tls=is_there(place)), RAY_USAGE_STATS_ENABLED="0")
    try:
        _connect(node)
        asyncio.run(Gateway(directory).run(_listen(directory)))
    except (OSError, RuntimeError, ValueError) as error:
        note(
            f"the cluster's head at {node['cluster']} does not answer: {str(error).strip().splitlines()[-1:]}"
        )
        os._exit(1)
    (directory / "socket").unlink(missing_ok=True)
    os._exit(0)  # Ray's own leave-taking takes seconds


def _connect(node: dict[str, str]) -> None:
    host, _, port = node["cluster"].rpartition(":")
    socket.create_connection((host, int(port)), _HEAD_TIMEOUT_S).close()  # Ray would try for a minute
    import ray

    ray.init(
        address=node["cluster"],
        namespace=_NAMESPACE,
        _node_ip_address=node["address"],
        log_to_driver=False,
        logging_level=logging.ERROR,
        configure_logging=False,
    )


def _listen(directory: Path) -> socket.socket:
    (directory / "socket").unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(directory / "socket"))
    listener.listen(_BACKLOG)
    listener.setblocking(False)
    return listener


if __name__ == "__main__":
    main(sys.argv[1:])
