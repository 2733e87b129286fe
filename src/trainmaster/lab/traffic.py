"""`TrafficControl`: keeps what passes between hosts, and how fast, in step with the groups and links set."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Protocol

from trainmaster.lab import netem
from trainmaster.lab.delay_line import QUEUE
from trainmaster.lab.errors import LabError
from trainmaster.lab.firewall import PacketFilter, filter_table, permissions
from trainmaster.lab.host import Host, rate_words
from trainmaster.lab.links import OUTSIDE, End, Link, Links
from trainmaster.lab.place import LabPlace
from trainmaster.lab.region import METADATA_ADDRESS
from trainmaster.lab.settings import LabSettings
from trainmaster.lab.shell import call, inside

log = logging.getLogger(__name__)

_PLAIN: Final = "*mangle\n:PREROUTING ACCEPT [0:0]\nCOMMIT\n"


class Line(Protocol):
    """What delays and loses packets."""

    def apply(self, hosts: Mapping[str, Host], tables: Mapping[str, Mapping[str, Link]]) -> None:
        """Let this hold from now on: host -> sender -> link."""

    def close(self) -> None:
        """Stop."""


class TrafficControl:
    """The packet filters and lines of all hosts; called whenever something has changed, it does what differs.

    Args:
        place: of the lab.
        settings: of the lab.
        everybody: gives every instance and its host.
        exclusively: held while the API's records are read.
    """

    def __init__(
        self,
        place: LabPlace,
        settings: LabSettings,
        everybody: Callable[[], list[tuple[Any, Host]]],
        exclusively: Any,
    ) -> None:
        self._place = place
        self._settings = settings
        self._everybody = everybody
        self._exclusively = exclusively
        self._lock = threading.Lock()
        self._filter = PacketFilter(place.region_namespace)
        self._line: Line | None = None
        self._filters: dict[str, tuple[object, str]] = {}
        self.links = Links()

    @property
    def kind(self) -> str:
        """``netem`` or ``user space`` as soon as there is a line, else nothing."""
        return "" if self._line is None else "netem" if isinstance(self._line, NetemLine) else "user space"

    def refresh(self) -> None:
        """Let every host have what it should."""
        with self._lock:
            with self._exclusively:
                there = [(instance, host) for instance, host in self._everybody() if host.is_connected]
                tables = {host: self._table(instance) for instance, host in there}
                hosts = {instance.id: host for instance, host in there}
            for host, table in tables.items():
                self._write(host, table)
            ends = [End(i.id, h.spec.zone, (h.spec.private, h.spec.public)) for i, h in there]
            ends.append(End(OUTSIDE, "", (self._settings.root_address,)))
            wanted = self.links.tables(ends)
            if self._line is None and wanted:
                self._line = make_line(self._place, self._filter)
            if self._line is not None:
                self._line.apply(hosts, wanted)

    def forget(self, name: str) -> None:
        """A host is gone for good."""
        with self._lock:
            self.links.forget(name)
            self._filters.pop(name, None)

    def close(self) -> None:
        """Stop the line."""
        with self._lock:
            if self._line is not None:
                self._line.close()

    def _write(self, host: Host, table: str) -> None:
        name, boot = host.spec.instance, host.boot_number
        if self._filters.get(name) == (boot, table):
            return
        try:
            self._filter.write(host.namespace, table)
        except LabError:
            if host.is_connected and host.boot_number == boot:
                raise
            return  # it went down meanwhile
        self._filters[name] = (boot, table)

    def _table(self, instance: Any) -> str:
        members: dict[str, list[str]] = {}
        for other, host in self._everybody():
            if host.is_connected:
                for group in groups_of(other):
                    members.setdefault(group.id, []).append(host.spec.private)
        groups = groups_of(instance)
        ingress = [p for group in groups for p in permissions(group.ingress_rules, members)]
        egress = [p for group in groups for p in permissions(group.egress_rules, members)]
        return filter_table(ingress, egress, METADATA_ADDRESS)


def groups_of(instance: Any) -> list[Any]:
    """The security groups of an instance, each once."""
    found = {group.id: group for group in instance.security_groups}
    for card in instance.nics.values():
        found |= {group.id: group for group in card.group_set}
    return [found[key] for key in sorted(found)]


def make_line(place: LabPlace, packets: PacketFilter) -> Line:
    """The kernel's own line where it has one, else ours."""
    if netem.is_there(place.region_namespace):
        return NetemLine(place.region_namespace)
    return UserSpaceLine(packets)


class NetemLine:
    """The kernel's delay line, at the bridge's end of each host's cable.

    Args:
        region: namespace of the bridge.
    """

    def __init__(self, region: Path) -> None:
        self._region = region
        self._done: dict[str, tuple[object, list[str]]] = {}

    def apply(self, hosts: Mapping[str, Host], tables: Mapping[str, Mapping[str, Link]]) -> None:
        """See `Line`."""
        for name, host in hosts.items():
            rate = host.spec.limits.nic_mbps
            lines = netem.commands(host.port, rate, tables.get(name, {}))
            if not tables.get(name):
                lines = [f"qdisc replace dev {host.port} root {' '.join(rate_words(rate))}"]
            before = self._done.get(name)
            if before == (host.boot_number, lines) or (before is None and not tables.get(name)):
                continue
            call(inside(self._region, "tc", "qdisc", "del", "dev", host.port, "root"), check=False)
            call(inside(self._region, "tc", "-batch", "-"), text="\n".join(lines) + "\n")
            self._done[name] = (host.boot_number, lines)

    def close(self) -> None:
        """See `Line`."""


class UserSpaceLine:
    """Our own delay line, a process that the hosts' packet filters ask.

    Args:
        packets: writes the rules that let it be asked.
    """

    def __init__(self, packets: PacketFilter) -> None:
        self._packets = packets
        self._rules: dict[str, tuple[object, str]] = {}
        self._process = self._start()

    def apply(self, hosts: Mapping[str, Host], tables: Mapping[str, Mapping[str, Link]]) -> None:
        """See `Line`."""
        # Hosts that had a line keep it: to close a queue would drop what waits in it.
        state = {
            str(host.namespace): {a: (link.delay_s, link.loss) for a, link in tables.get(name, {}).items()}
            for name, host in hosts.items()
            if name in tables or name in self._rules
        }
        if self._process.poll() is not None:
            log.warning("the delay line had ended with %s", self._process.returncode)
            self._process = self._start()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps({"hosts": state}) + "\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            raise LabError(
                "the delay line has ended: this kernel has neither netem nor NFQUEUE", "See daemon.log."
            )
        # Only now: what is queued without a receiver would pass at once, which is no delay.
        for name, host in hosts.items():
            rules = queue_rules(tables.get(name, {}))
            before = self._rules.get(name)
            if before == (host.boot_number, rules) or (before is None and rules == _PLAIN):
                continue
            try:
                self._packets.write(host.namespace, rules)
            except LabError:
                if host.is_connected:
                    raise
            self._rules[name] = (host.boot_number, rules)

    def close(self) -> None:
        """See `Line`."""
        self._process.kill()
        self._process.wait()

    @staticmethod
    def _start() -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "trainmaster.lab.delay_line"]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/")


def queue_rules(senders: Iterable[str]) -> str:
    """The table ``mangle`` of a host: packets from these senders go through the queue.

    >>> print(queue_rules(["198.18.0.5"]), end="")
    *mangle
    :PREROUTING ACCEPT [0:0]
    -A PREROUTING -s 198.18.0.5/32 -i eth0 -j NFQUEUE --queue-num 7 --queue-bypass
    COMMIT
    """
    lines = _PLAIN.splitlines()
    rules = [
        f"-A PREROUTING -s {s}/32 -i eth0 -j NFQUEUE --queue-num {QUEUE} --queue-bypass"
        for s in sorted(senders)
    ]
    return "\n".join([*lines[:-1], *rules, lines[-1]]) + "\n"
