"""A double of Infrastructure Manager's REST API, and a bench on it: for decisions and faults."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path
from typing import Any

from trainmaster.providers.base import NodeRequest, ProviderPlace
from trainmaster.providers.im.credentials import ImCredentials, parse_credentials
from trainmaster.providers.im.provider import ImProvider
from trainmaster.providers.im.radl import features_of
from trainmaster.providers.im.settings import ImCloud, ImSettings
from trainmaster.providers.offer import Offer
from trainmaster.transport.http_calls import HttpAnswer

URL = "http://127.0.0.1:8800"
SECRET = "hidden-key-of-the-cloud"
CREDENTIALS = f"""
type = InfrastructureManager; username = me; password = login-of-mine
id = west; type = OpenStack; host = https://keystone.example; username = u; password = {SECRET}
id = one; type = OpenNebula; host = one.example; username = u; password = another-secret
"""
NO_HOST = "Error launching the VMs of type x to cloud ID west of type OpenStack. No valid host was found."


@dataclass
class Machine:
    """One of the double's: what was asked for, and how far it is."""

    system: str
    features: dict[str, str]
    state: str = "configured"
    creating: bool = False
    configured: bool | None = True
    serial: int = 0
    message: str = ""

    @property
    def exported(self) -> dict[str, Any]:
        return {"creating": self.creating, "configured": self.configured, "destroy": False}


@dataclass
class Infrastructure:
    """One of the double's."""

    radl: str
    machines: dict[str, Machine] = field(default_factory=dict)
    next: int = 0
    begun: int = 0
    state: str = ""
    message: str = ""


@dataclass
class ImDouble:
    """What answers instead of IM. Attributes are how it is today.

    Attributes:
        full: no cloud has machines. refuses: no login is good. away: nobody answers.
        loses: calls whose answer never comes, by a part of ``METHOD PATH``; each once.
        breaks: what it says then: its own trouble. Else the connection ends.
        slow: infrastructures show machines only after so many looks.
        silent: so many descriptions are empty, as those of infrastructures that are just being made.
        busy: it destroys nothing, as it is at work on it.
        dies: the next document that asks for machines is the last one: it ends after so many of them, and
            nobody answers until it is started again.
        stays: additions go on after so many of their machines.
        quotas: of every cloud.
        estimate_error: what ``dry_run`` says.
    """

    infrastructures: dict[str, Infrastructure] = field(default_factory=dict)
    calls: list[tuple[str, str, str]] = field(default_factory=list)
    headers: list[Mapping[str, str]] = field(default_factory=list)
    full: bool = False
    refuses: bool = False
    away: bool = False
    loses: list[str] = field(default_factory=list)
    breaks: str = ""
    slow: int = 0
    silent: int = 0
    busy: bool = False
    dies: int | None = None
    stays: int | None = None
    quotas: dict[str, Any] = field(default_factory=dict)
    estimate_error: str = ""
    count: int = 0
    machines: int = 0

    def __call__(
        self, method: str, address: str, headers: Mapping[str, str], body: bytes | None, timeout_s: float
    ) -> HttpAnswer:
        path, text = address.removeprefix(URL), (body or b"").decode()
        if self.away:
            raise ConnectionRefusedError(111, "Connection refused")
        self.calls.append((method, path, text))
        self.headers.append(headers)
        if self.refuses and path != "/version":
            return self.error(401, "Error: Invalid InfrastructureManager credentials")
        answer = self.answer(method, path, text)
        for part in self.loses:
            if part in f"{method} {path}":
                self.loses.remove(part)
                if self.breaks:
                    return self.error(500, self.breaks)
                raise ConnectionResetError(104, "Connection reset by peer")
        return answer

    def start(self) -> None:
        """After it has died: what it was at work on it reads from its database, and never ends."""
        self.away = self.busy = False
        for machine in (one for each in self.infrastructures.values() for one in each.machines.values()):
            if machine.configured is None:
                machine.configured, machine.state = False, "unconfigured"

    @staticmethod
    def error(status: int, message: str) -> HttpAnswer:
        return HttpAnswer(status, json.dumps({"message": message, "code": status}))

    @staticmethod
    def uris(places: Iterable[str]) -> HttpAnswer:
        listed = [{"uri": f"{URL}/infrastructures/{each}"} for each in places]
        return HttpAnswer(200, json.dumps({"uri-list": listed}))

    def answer(self, method: str, path: str, body: str) -> HttpAnswer:
        place, _, query = path.partition("?")
        parts = place.strip("/").split("/")
        if place == "/version":
            return HttpAnswer(200, '{"version": "2.0.0"}')
        if parts[0] == "clouds":
            return HttpAnswer(200, json.dumps({"quotas": self.quotas}))
        if len(parts) == 1:
            return self.every(method, query, body)
        found = self.infrastructures.get(parts[1])
        if found is None:
            return self.error(404, "Invalid infrastructure ID or access not granted.")
        if len(parts) == 2 and method == "DELETE":
            if self.busy:
                return self.error(409, "Invalid State to perform this operation.")
            del self.infrastructures[parts[1]]
            return HttpAnswer(200, "")
        if len(parts) == 2:
            return self.add(parts[1], found, body)
        if parts[2:] == ["vms", parts[-2], "contmsg"]:
            if parts[3] not in found.machines:
                return self.error(404, "Invalid VM ID")
            return HttpAnswer(200, found.machines[parts[3]].message)
        if parts[2] == "vms":
            return self.machine(method, found, parts[3])
        return self.told(found, parts[2])

    def every(self, method: str, query: str, body: str) -> HttpAnswer:
        if method == "GET":
            return self.uris(self.infrastructures)
        if "dry_run" in query:
            return self.error(400, self.estimate_error) if self.estimate_error else HttpAnswer(200, "{}")
        self.count += 1
        name = f"0000-{self.count}"
        made = self.infrastructures[name] = Infrastructure(body)
        if self.full:
            made.state, made.message = "failed", f"2026-01-02 03:04:05.67: {NO_HOST}\n"
        else:
            self.make(made, body)
        return HttpAnswer(200, json.dumps({"uri": f"{URL}/infrastructures/{name}"}))

    def add(self, name: str, found: Infrastructure, body: str) -> HttpAnswer:
        if described := re.search(r"description trainmaster \([^)]*\)", body):
            found.radl = re.sub(r"description trainmaster \([^)]*\)", described[0], found.radl)
        if "deploy" in body and self.full:
            found.message += f"2026-01-02 03:04:05.67: All VMs failed. No contextualize.\n{NO_HOST}\n"
            return self.error(400, f"Error Adding resources: Error adding VMs: {NO_HOST}")
        # It takes off its list, too, what an earlier addition has not come to the end with.
        if "deploy" in body:
            found.machines = {n: one for n, one in found.machines.items() if not one.creating}
            found.next, found.begun = found.next - found.begun, 0
        if "deploy" not in body and self.slow:  # it takes it for all that there is to come
            found.state, found.message = "failed", "Infrastructure without any deploy. Exiting.\n"
        new = self.make(found, body)
        for machine in (found.machines[n] for n in new):
            machine.configured = None  # and never anything else, as nothing is configured then
            machine.state = machine.state.replace("configured", "running")
        self.cut(found, new)
        return self.uris(f"{name}/vms/{n}" for n in new)

    def cut(self, found: Infrastructure, new: list[str]) -> None:
        """An addition that does not come to its end, or not yet."""
        most = self.stays if self.dies is None else self.dies
        if most is None or not new:
            return
        for n in new[:most]:
            found.machines[n].state, found.machines[n].configured = "running", None
            found.machines[n].creating = True
        for n in new[most:]:
            del found.machines[n]
        found.begun = len(new)
        self.away = self.dies is not None
        self.dies = self.stays = None
        raise ConnectionResetError(104, "Connection reset by peer")

    def goes_on(self) -> None:
        """What it is at work on has come to its end: numbers are given anew, from the first that it adds."""
        for found in self.infrastructures.values():
            found.begun = 0
            new = [one for one in found.machines.values() if one.creating]
            kept = {n: one for n, one in found.machines.items() if not one.creating}
            for machine in new:
                machine.creating = False
            found.machines = kept | {str(len(kept) + i): one for i, one in enumerate(new)}

    def make(self, found: Infrastructure, body: str) -> list[str]:
        deploy = re.search(r"^deploy (\S+) (\d+) (\S+)$", body, re.MULTILINE)
        if deploy is None:
            return []
        new = [str(found.next + i) for i in range(int(deploy[2]))]
        found.next += len(new)
        features = features_of(body[body.index("system ") :])
        for n in new:
            found.machines[n] = Machine(deploy[1], features, serial=self.machines)
            self.machines += 1
        return new

    def machine(self, method: str, found: Infrastructure, numbers: str) -> HttpAnswer:
        listed = numbers.split(",")
        if missing := [n for n in listed if n not in found.machines]:
            return self.error(404, f"VM {missing[0]} does not exist")
        if method == "DELETE":
            for n in listed:
                del found.machines[n]
            return HttpAnswer(200, "")
        one = found.machines[numbers]
        features = one.features | {
            "state": one.state,
            "net_interface.0.ip": f"10.0.0.{10 + one.serial}",
            "net_interface.1.ip": f"192.0.2.{10 + one.serial}",
            "disk.0.os.credentials.private_key": "-----BEGIN KEY-----\nabc\n-----END KEY-----",
        }
        told = " and\n".join(f"{name} = '{value}'" for name, value in features.items())
        return HttpAnswer(200, f"system {one.system} (\n{told}\n)\n")

    def told(self, found: Infrastructure, what: str) -> HttpAnswer:
        if what == "radl" and self.silent:
            self.silent -= 1
            return HttpAnswer(200, "")
        if what == "radl":
            return HttpAnswer(200, found.radl)
        if what == "data":
            listed = [{"im_id": int(n)} | machine.exported for n, machine in found.machines.items()]
            return HttpAnswer(200, json.dumps({"data": json.dumps({"vm_list": listed})}))
        if what == "contmsg":
            of_machines = [f"VM {n}:\n{one.message}\n" for n, one in found.machines.items() if one.message]
            return HttpAnswer(200, found.message + "".join(of_machines))
        if self.slow:
            self.slow -= 1
            state = {"state": found.state or "pending", "vm_states": {}}
            return HttpAnswer(200, json.dumps({"state": state}))
        states = {n: machine.state for n, machine in found.machines.items()}
        state = found.state or next((one for one in states.values() if one != "configured"), "")
        state = state or next(iter(states.values()), "unknown")
        return HttpAnswer(200, json.dumps({"state": {"state": state, "vm_states": states}}))


def offer(cloud: str, name: str, **changes: Any) -> Offer:
    """What a price list says of a type."""
    known = Offer(
        provider="im",
        region=cloud,
        zone="",
        instance_type=name,
        vcpus=4.0,
        memory_bytes=16 << 30,
        accelerator="",
        accelerators=0.0,
        accelerator_memory_bytes=None,
        nic_gbps=None,
        nic_burst_gbps=None,
        cpu_credits="",
        price_usd_per_hour=0.2,
        spot=False,
        billing_quantum_s=60.0,
        billing_minimum_s=60.0,
        currency="USD",
        as_of=date(2026, 1, 2),
        source="test",
    )
    return replace(known, **changes)


OFFERS = (
    offer("west", "m1.large"),
    offer("west", "gpu.2", accelerator="V100", accelerators=2.0),
    offer("one", "medium"),
)


class ImBench:
    """Homes of one login on a double."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.im = ImDouble()
        self.now = 1_000_000.0
        self.settings = ImSettings(
            url=URL, clouds={"west": ImCloud(image="ost://k/1", gpu_image="ost://k/2"), "one": ImCloud(image="one://o/1")}
        )  # fmt: skip
        self.credentials: ImCredentials = parse_credentials(CREDENTIALS, Path("im.auth"))

    def home(self, name: str) -> ImProvider:
        place = ProviderPlace(self.root / name, name)
        sleep: Callable[[float], None] = self.later
        return ImProvider(
            self.settings, self.credentials, OFFERS, place, send=self.im, sleep=sleep, clock=lambda: self.now
        )

    def provider(self) -> ImProvider:
        return self.home("home")

    def neighbour(self) -> ImProvider:
        return self.home("neighbour")

    def request(self, role: str = "worker", **changes: Any) -> NodeRequest:
        """It has no spot machines, whatever wants some."""
        wanted = NodeRequest(role, 1, "m1.large", "west", token=f"{role}-0")
        return replace(wanted, **{**changes, "spot": False})

    def sent(self) -> list[dict[str, Any]]:
        found = []
        for method, path, body in self.im.calls:
            name = re.fullmatch(r"/infrastructures(?:/([^/?]+))?\?(?:async=1|context=0)", path)
            if method == "POST" and name:
                parameters = {"infrastructure": name[1]} if name[1] else {}
                operation = "POST /infrastructures/ID" if name[1] else "POST /infrastructures"
                found.append(
                    {"service": "im", "operation": operation, "parameters": {**parameters, "radl": body}}
                )
        self.im.calls.clear()
        return found

    def changed(self) -> list[str]:
        changes = [
            f"{method} {path}"
            for method, path, _ in self.im.calls
            if method != "GET" and "dry_run" not in path
        ]
        self.im.calls.clear()
        return changes

    @contextlib.contextmanager
    def without_capacity(self) -> Iterator[None]:
        self.im.full = True
        yield
        self.im.full = False

    @contextlib.contextmanager
    def without_permission(self) -> Iterator[None]:
        self.im.refuses = True
        yield
        self.im.refuses = False

    def later(self, seconds: float) -> None:
        self.now += seconds

    def left(self) -> list[str]:
        return list(self.im.infrastructures)
