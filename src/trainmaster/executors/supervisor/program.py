"""The one process per node and home that starts members, and outlives the process that asked for them.

It needs nothing but the standard library and starts in a few milliseconds:
``python -I -S -c "...; main([HOME, SITE_PACKAGES...])"``. It ends by itself when no client is connected
and no member lives; what is not forgotten by then waits in the journal for the next one.

Everything happens in one thread (a second one only calls ``posix_spawn``, see `_members.Spawner`):
wait for the socket, the pipes, ended children or a deadline; do what is due; tell clients that want to know.
"""

# ruff: noqa: PTH103, PTH104, PTH116, PTH118, PTH208, SIM105 - pathlib and contextlib cost time
from __future__ import annotations

import fcntl
import os
import select
import signal
import socket
import sys
import time

from trainmaster.executors.supervisor.clients import Clients, DriverClient, FencingTokens, leased
from trainmaster.executors.supervisor.gang_manager import GangManager
from trainmaster.executors.supervisor.gang_processes import QUEUED, UNKNOWN, GangProcesses
from trainmaster.executors.supervisor.journal import Journal
from trainmaster.executors.supervisor.members import Spawner
from trainmaster.executors.supervisor.outputs import Output, Outputs
from trainmaster.executors.supervisor.processes import become_subreaper, forbid_core_dumps, unix_s
from trainmaster.executors.supervisor.samples import MemberSampler

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from trainmaster.executors.wire import Message

#: A new supervisor waits this long for the process that started it.
FIRST_CLIENT_S = 10.0
#: After SIGTERM, members get at most this long.
SHUT_DOWN_GRACE_S = 5.0
_LOG_BYTES = 256 << 10
_BACKLOG = 128


class Supervisor:
    """The loop.

    Attributes:
        gang_manager: what it takes care of.
    """

    def __init__(self, home: str, listener: socket.socket, journal: Journal, subreaper: bool) -> None:
        self._listener = listener
        self._epoll = select.epoll()
        self._clients = Clients(self._epoll, self._gone, note)
        self._outputs = Outputs(self._epoll, self._grew, note)
        self.gang_manager = GangManager(
            home, journal, self._outputs, Spawner(home), self._changed, note, subreaper=subreaper
        )
        self._sampler = MemberSampler(
            os.path.join(home, "supervisor", "samples.jsonl"),
            self.gang_manager.oom.look,
            exceed=self.gang_manager.took_too_much,
        )
        self.gang_manager.on_exit = self._sampler.ended
        self._fencing_tokens = FencingTokens(os.path.join(home, "supervisor", "fences.json"), note)
        self._wake, wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        self._epoll.register(self._wake, select.EPOLLIN)
        self._epoll.register(listener.fileno(), select.EPOLLIN)
        self._ending = False
        self._first_client_by: float | None = time.monotonic() + FIRST_CLIENT_S

    def run(self) -> None:
        """Serve until no client is connected and no member lives."""
        due_s: float | None = 0.0
        while True:
            timeout_s = -1 if due_s is None else due_s
            ready = [descriptor for descriptor, _ in self._epoll.poll(timeout_s)]
            self._serve(ready)
            self._clients.flush(self._status)  # first the news, so that they read while we start others
            if self.gang_manager.grantable and not self._ending:
                self.gang_manager.grant()
            self._clients.tell_queue(self.gang_manager.slots.queue_place)
            now = time.monotonic()
            waits = [
                self.gang_manager.tick(now),
                self._outputs.wake(now),
                self._sampler.tick(self.gang_manager.living(), now, unix_s()),
                self._clients.flush(self._status),
            ]
            if not self.gang_manager.busy and self._may_end():
                return
            if self._first_client_by is not None:
                waits.append(max(0.0, self._first_client_by - now))
            due_s = min((wait for wait in waits if wait is not None), default=None)

    def _serve(self, ready: list[int]) -> None:
        pipes = []
        for descriptor in ready:
            if descriptor in self._clients:
                self._clients.receive(descriptor, self._handle)
            elif descriptor == self._wake:
                self._signalled(os.read(self._wake, 65536))
            elif descriptor == self._listener.fileno():
                self._clients.accept(self._listener)
                self._first_client_by = None
            elif self._outputs.holds(descriptor):
                pipes.append(descriptor)
        if pipes:  # last: what a gigabyte of output can delay is bounded
            self._outputs.serve(pipes)

    def _may_end(self) -> bool:
        if self._ending:
            return True
        if len(self._clients):
            return False
        if self._first_client_by is not None and time.monotonic() < self._first_client_by:
            return False
        self._clients.accept(self._listener)  # somebody may have come in the meantime
        return not len(self._clients)

    def _signalled(self, numbers: bytes) -> None:
        if signal.SIGTERM in numbers:
            note("SIGTERM: stopping everything")
            self.gang_manager.shut_down(0.0 if self._ending else SHUT_DOWN_GRACE_S)
            self._ending = True
        if signal.SIGCHLD in numbers:
            self.gang_manager.reap()

    def _handle(self, client: DriverClient, message: Message) -> None:
        operation = message["do"]
        if operation == "open":
            self._open(client, message)
        elif not client.run:
            raise ValueError(f"{operation} before open")
        elif operation == "submit":
            self.gang_manager.submit(client, message["gangs"])
        elif operation == "launch":
            self.gang_manager.launch(message["attempt"], message["env"])
        elif operation == "observe":
            gangs = [self._status(attempt) for attempt in message["attempts"]]
            client.send({"reply": "observe", "id": message["id"], "gangs": gangs})
        elif operation == "stop":
            stacks, why = message.get("stacks", False), message.get("why", "")
            self.gang_manager.stop(message["attempt"], message["grace_s"], stacks=stacks, why=why)
        elif operation == "recall":
            self._recall(message["attempts"])
        elif operation == "forget":
            self.gang_manager.forget(message["attempts"])
        elif operation == "watch":
            self._watch(client)

    def _open(self, client: DriverClient, message: Message) -> None:
        welcome = self._fencing_tokens.welcome(message)
        client.send(welcome)
        if "fenced" in welcome:
            return
        client.run, client.env = message["run"], message["env"]
        client.leased, client.token = leased(message)
        self._clients.fence(client.leased, client.token)
        whose = (message.get("team", ""), message.get("team_slots", 0))  # drivers of before say none
        self.gang_manager.slots.set_capacity(client.run, message["slots"], message["gpus"], *whose)
        self.gang_manager.grantable = True

    def _recall(self, attempts: list[str]) -> None:
        """Un-queue those that have not started; the others go on."""
        for attempt in attempts:
            gang = self.gang_manager.gangs.get(attempt)
            if gang is not None and gang.phase == QUEUED:
                self.gang_manager.stop(attempt, 0.0)

    def _watch(self, client: DriverClient) -> None:
        client.watches = True
        for gang in self.gang_manager.gangs.values():
            for member in gang.members:
                if gang.run == client.run and member.output is not None and member.output.bytes:
                    client.grew(member.output.key, True, time.monotonic())

    def _status(self, attempt: str) -> list[Any]:
        gang = self.gang_manager.gangs.get(attempt)
        return gang.status() if gang else [attempt, UNKNOWN, [], {}, None, None]

    def _changed(self, gang: GangProcesses) -> None:
        self._clients.changed(gang.run, gang.attempt)

    def _grew(self, output: Output, first: bool) -> None:
        gang = self.gang_manager.gangs.get(output.key[0])
        if gang is not None:
            self._clients.grew(output.key, gang.run, first)

    def _gone(self, client: DriverClient) -> None:
        self.gang_manager.drop_client(client)


def note(text: str) -> None:
    """A line in its own log, which standard error is."""
    try:
        os.write(2, f"{time.strftime('%Y-%m-%d %H:%M:%S')} [{os.getpid()}] {text}\n".encode(errors="replace"))
    except OSError:
        pass  # a full disk must not end it


def main(arguments: list[str]) -> None:
    """Become the supervisor of a home, unless it has one; returns once it is no more needed.

    The process that was called exits with 0 when somebody listens on the socket, so that the
    caller can wait for it; the supervisor is its child.

    Args:
        arguments: the home (absolute, links resolved), then directories with psutil.
    """
    home = arguments[0]
    forbid_core_dumps()
    _close_inherited()
    directory = os.path.join(home, "supervisor")
    os.makedirs(directory, mode=0o700, exist_ok=True)
    lock = os.open(os.path.join(directory, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os._exit(0)  # there is one
    journal = Journal(os.path.join(directory, "journal"))
    left = journal.replay()
    listener = _listen(directory)
    if os.fork():
        os._exit(0)
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    _trim_log(os.path.join(directory, "log"))
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, _ignore)  # the wake-up pipe tells the loop
    subreaper = become_subreaper()
    if not subreaper:
        note("cannot become the subreaper; orphans are looked for everywhere")
    os.chdir("/")
    sys.path.extend(arguments[1:])
    supervisor = Supervisor(home, listener, journal, subreaper)
    supervisor.gang_manager.adopt(left)
    supervisor.run()
    supervisor.gang_manager.close()
    os._exit(0)  # the spawner thread waits for ever


def _listen(directory: str) -> socket.socket:
    """The socket; its path may be longer than the kernel takes, so it goes through the directory."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            os.unlink("socket", dir_fd=descriptor)
        except FileNotFoundError:
            pass
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(f"/proc/self/fd/{descriptor}/socket")
        listener.listen(_BACKLOG)
        listener.setblocking(False)
        return listener
    finally:
        os.close(descriptor)


def _close_inherited() -> None:
    """A process that waits for the end of a pipe that our caller had open must not wait for us."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2:
            try:
                os.close(int(name))
            except OSError:
                pass  # the one that listed them


def _trim_log(path: str) -> None:
    try:
        if os.stat(path).st_size > _LOG_BYTES:
            os.rename(path, path + ".1")
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            os.dup2(descriptor, 1)
            os.dup2(descriptor, 2)
            os.close(descriptor)
    except OSError:
        pass


def _ignore(_number: int, _frame: object) -> None:
    return
