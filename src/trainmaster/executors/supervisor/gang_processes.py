"""What the supervisor knows of an attempt and its members."""

from __future__ import annotations

import os
import socket

from trainmaster.executors.supervisor.processes import unix_s

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from trainmaster.executors.supervisor.clients import DriverClient
    from trainmaster.executors.supervisor.enclosures import Enclosure
    from trainmaster.executors.supervisor.outputs import Output

QUEUED = "QUEUED"
GRANTED = "GRANTED"
RUNNING = "RUNNING"
EXITED = "EXITED"
UNKNOWN = "UNKNOWN"

#: What drivers and the journal get about a member, in this order.
_TOLD = (
    *("name", "pid", "started_at", "ended_at", "exit_code", "signal", "stopped", "lost", "oom", "error"),
    "lost_log_bytes",
)


class MemberProcess:
    """One process of a gang; ``script`` and ``env`` are dropped once it was started."""

    def __init__(self, name: str, essential: bool) -> None:
        self.name = name
        self.essential = essential
        self.script = ""
        self.cwd = ""
        self.container: dict[str, Any] | None = None
        self.directories: list[str] = []
        self.env: dict[str, str] = {}
        self.secrets: list[str] = []
        self.serves = False
        self.port_count = 0
        self.ports: list[socket.socket] = []
        self.gpus = 0
        self.gpu_ids: tuple[str, ...] = ()
        self.output: Output | None = None
        self.start_ticks = 0
        self.pid: int | None = None
        self.started_at: float | None = None
        self.ended_at: float | None = None
        self.exit_code: int | None = None
        self.signal: int | None = None
        self.stopped = False
        self.lost = False
        self.oom = False
        self.error = ""
        self.lost_log_bytes = 0

    @property
    def alive(self) -> bool:
        """It was started and has no exit record."""
        return self.pid is not None and self.ended_at is None

    def record_exit(self, wait_status: int) -> None:
        """It has ended now, as ``waitpid`` says."""
        self.ended_at = unix_s()
        if os.WIFSIGNALED(wait_status):
            self.signal = os.WTERMSIG(wait_status)
        else:
            self.exit_code = os.WEXITSTATUS(wait_status)

    def status(self) -> list[Any]:
        """As it goes over the wire and into the journal: the fields of `MemberStatus`, in order."""
        return [getattr(self, name) for name in _TOLD]

    def restore(self, status: list[Any]) -> None:
        """The contrary of `status`."""
        for name, value in zip(_TOLD, status, strict=False):  # an older supervisor's has fewer
            setattr(self, name, value)


class GangProcesses:
    """One attempt.

    Attributes:
        client: that submitted it, None once it is of no use any more.
        engine: what has to be asked to end the containers that its members run in, None without any.
        repeats: SIGTERM is sent again and again: its members are in containers.
        scratch: directories that go with it.
        enclosure: what it has of its own, once it is started; None unless its members run as Unix users, or
            their memory is bounded.
        memory_bytes: most that its processes may take; 0 is any.
        is_watched: nothing but us sees to that.
        took_too_much: it was ended for that.
        remind_at: monotonic time of the next SIGTERM: a container that is just starting may miss the first.
        asked: processes that were sent SIGTERM.
        stacks: those that can write their stacks into the log do so when they are asked.
        kill_at: monotonic time of the SIGKILL, None unless it was asked to stop.
        killed: SIGKILL was sent, so one that dies of it did not run out of memory.
        sweeping: every member has ended, but other processes of it live.
        ports: held or handed over to its members.
        lost: its supervisor was killed; its processes may belong to anybody now.
        is_on_node: of a cluster: the driver of its run is elsewhere.
    """

    def __init__(
        self, attempt: str, run: str, directory: str, grace_s: float, members: list[MemberProcess]
    ) -> None:
        self.attempt = attempt
        self.run = run
        self.directory = directory
        self.grace_s = grace_s
        self.members = members
        self.client: DriverClient | None = None
        self.hold = False
        self.phase = QUEUED
        self.asked: set[int] = set()
        self.stacks = False
        self.kill_at: float | None = None
        self.kill_pause_s = 0.02
        self.killed = False
        self.sweeping = False
        self.share_gpus = False
        self.is_on_node = False
        self.lost = False
        self.engine: dict[str, Any] | None = None
        self.repeats = False
        self.scratch: list[str] = []
        self.enclosure: Enclosure | None = None
        self.memory_bytes = 0
        self.is_watched = False
        self.took_too_much = False
        self.remind_at = 0.0
        self.ports: tuple[int, ...] = ()
        self.ended_at: float | None = None

    @classmethod
    def from_request(cls, request: dict[str, Any], client: DriverClient) -> GangProcesses:
        """A gang as `LocalExecutor` sends it."""
        members = []
        for each in request["members"]:
            member = MemberProcess(each["name"], each["essential"])
            member.script = each["script"]
            member.cwd = each["cwd"]
            member.env = each["env"]
            member.secrets = each.get("secrets", [])
            member.serves = each.get("serves", False)
            member.port_count = each["ports"]
            member.gpus = each["gpus"]
            member.container = each.get("container")
            member.directories = each.get("directories", [])
            members.append(member)
        gang = cls(request["attempt"], client.run, request["directory"], request["grace_s"], members)
        gang.hold = request["hold"]
        gang.share_gpus = request["share_gpus"]
        gang.memory_bytes = request.get("memory_bytes", 0)
        gang.is_on_node = any(member.directories for member in members)  # here they are made by the driver
        gang.client = client
        contained = [
            each.container for each in members if each.container and each.container["kind"] != "user"
        ]
        if contained:
            gang.take_engine(contained[0])
        return gang

    def take_engine(self, container: dict[str, Any]) -> None:
        """Know what has to be asked to end its containers, if they are not children of ours."""
        self.repeats = True
        if container["kind"] in ("apptainer", "enroot"):
            self.engine = None
            return
        self.engine = {key: container[key] for key in ("program", "kind", "settings")}
        if sandbox := container.get("sandbox"):
            self.engine["holds_network"] = sandbox["has_peers"]

    def find_engine(self) -> None:
        """Have the node say what starts containers there, if the request leaves it to the node.

        Raises:
            OSError: it does not say.
            ValueError: it says something else.
        """
        for member in self.members:
            if member.container is None or not (path := member.container.get("engine_file")):
                continue
            import json  # most gangs have no containers

            with open(path, encoding="utf-8") as file:  # noqa: PTH123 - as elsewhere in the supervisor
                said = json.load(file)
            member.container |= {key: said[key] for key in ("program", "kind", "rootless", "settings")}
            self.take_engine(member.container)

    def plan_enclosure(self, home_id: str) -> None:
        """Know what it has of its own, before there is anything of it."""
        if self._has_users or (self.memory_bytes and self.engine is None):
            from trainmaster.executors.supervisor.enclosures import Enclosure

            self.enclosure = Enclosure.planned(self.attempt, home_id)
        if self.repeats and self.engine is None:
            from trainmaster.executors.containers.command_line import container_name, scratch

            self.scratch = [
                scratch(each.container["settings"], container_name(home_id, self.attempt, each.name))
                for each in self.members
                if each.container
            ]

    def open_enclosure(self) -> None:
        """Make it.

        Raises:
            OSError: it cannot be made.
        """
        if self.enclosure is None:
            return
        if self._has_users:
            seen = [member.container["sandbox"] for member in self.members if member.container]
            memory_bytes = sum(sandbox["memory_bytes"] for sandbox in seen)
            self.enclosure.open(memory_bytes, max(sandbox["processes"] for sandbox in seen))
            return
        self.enclosure.bound(self.memory_bytes)
        self.is_watched = not self.enclosure.places

    def take_in(self, pid: int) -> None:
        """Bound the memory of a member that was just started."""
        if self.memory_bytes and self.enclosure is not None and not self._has_users:
            try:
                self.enclosure.take_in(pid)
            except OSError:  # it is over already, or this process may not
                self.is_watched = True

    @property
    def _has_users(self) -> bool:
        return any(member.container and member.container["kind"] == "user" for member in self.members)

    def status(self) -> list[Any]:
        """As it goes over the wire: the fields of `GangStatus`, in order."""
        if self.phase in (QUEUED, UNKNOWN):
            return [self.attempt, self.phase, [], {}, None, None]
        ports: dict[str, list[int]] = {}
        if self.phase == GRANTED:
            ports = {each.name: [held.getsockname()[1] for held in each.ports] for each in self.members}
        started = [each.started_at for each in self.members if each.started_at is not None]
        return [
            self.attempt,
            self.phase,
            [each.status() for each in self.members],
            ports,
            min(started, default=None),
            self.ended_at,
        ]

    @property
    def due_at(self) -> float | None:
        """Monotonic time when there is something to do about its end."""
        if self.kill_at is None or not self.repeats:
            return self.kill_at
        return min(self.kill_at, self.remind_at)

    def allot_gpus(self, gpu_ids: tuple[str, ...]) -> None:
        """Share out the GPUs that the gang was given."""
        if self.share_gpus:
            for member in self.members:
                member.gpu_ids = gpu_ids
            return
        start = 0
        for member in self.members:
            member.gpu_ids = gpu_ids[start : start + member.gpus]
            start += member.gpus

    def hold_ports(self, taken: set[int]) -> None:
        """Bind the loopback ports that its members asked for.

        Raises:
            OSError: there are none left.
        """
        for member in self.members:
            while len(member.ports) < member.port_count:
                held = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
                member.ports.append(held)
                held.bind(("127.0.0.1", 0))
                port = held.getsockname()[1]
                if port in taken:  # of a gang that was launched but does not listen yet
                    member.ports.pop().close()
                else:
                    taken.add(port)
                    self.ports += (port,)

    def release_ports(self) -> None:
        """Let go of the ports, so that the members can bind them."""
        for member in self.members:
            for held in member.ports:
                held.close()
            member.ports.clear()

    def start_record(self) -> dict[str, Any]:
        """The journal line before its start; the environment is not in it."""
        return {
            "r": "start",
            "attempt": self.attempt,
            "run": self.run,
            "directory": self.directory,
            "grace_s": self.grace_s,
            "members": [[member.name, member.essential] for member in self.members],
            "engine": self.engine,
            "scratch": self.scratch,
            "places": self.enclosure.places if self.enclosure else [],
        }

    def pids_record(self) -> dict[str, Any]:
        """The journal line after its start."""
        pids = [[member.pid, member.start_ticks, member.started_at] for member in self.members]
        return {"r": "pids", "attempt": self.attempt, "pids": pids}

    def exit_record(self, index: int) -> dict[str, Any]:
        """The journal line of a member's end."""
        return {"r": "exit", "attempt": self.attempt, "member": index, "status": self.members[index].status()}

    def end_record(self) -> dict[str, Any]:
        """The journal line of its own end."""
        return {"r": "end", "attempt": self.attempt, "ended_at": self.ended_at}

    def records(self) -> list[dict[str, Any]]:
        """All that the journal needs to know of it."""
        if self.phase not in (RUNNING, EXITED):
            return []
        records = [self.start_record(), self.pids_record()]
        ended = [index for index, member in enumerate(self.members) if member.ended_at is not None]
        records += [self.exit_record(index) for index in ended]
        if self.phase == EXITED:
            records.append(self.end_record())
        return records

    @classmethod
    def from_records(cls, records: list[dict[str, Any]]) -> GangProcesses:
        """The contrary of `records`."""
        start = records[0]
        members = [MemberProcess(name, essential) for name, essential in start["members"]]
        gang = cls(start["attempt"], start["run"], start["directory"], start["grace_s"], members)
        gang.phase = RUNNING
        gang.engine = start.get("engine")
        gang.scratch = start.get("scratch", [])
        if places := start.get("places"):
            from trainmaster.executors.supervisor.enclosures import Enclosure

            gang.enclosure = Enclosure(places)
        for record in records[1:]:
            if record["r"] == "pids":
                for member, (pid, ticks, started_at) in zip(members, record["pids"], strict=True):
                    member.pid, member.start_ticks, member.started_at = pid, ticks, started_at
            elif record["r"] == "exit":
                members[record["member"]].restore(record["status"])
            elif record["r"] == "end":
                gang.phase = EXITED
                gang.ended_at = record["ended_at"]
        return gang
