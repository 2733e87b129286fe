"""`Cloud`: the instances of the API and the hosts behind them, kept in step."""

from __future__ import annotations

import base64
import copy
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from trainmaster.dataclass import dataclass
from trainmaster.lab.addresses import PublicAddresses, mac_of
from trainmaster.lab.cgroups import CgroupTree, remove_lab_groups
from trainmaster.lab.errors import LabError
from trainmaster.lab.host import Host, HostSpec
from trainmaster.lab.instance_types import TYPES
from trainmaster.lab.market import Market, Running
from trainmaster.lab.place import LabPlace
from trainmaster.lab.settings import LabSettings
from trainmaster.spec.errors import NotFoundError, UsageError

log = logging.getLogger(__name__)

#: Of EC2: name -> code.
STATES: Final = {
    "pending": 0,
    "running": 16,
    "shutting-down": 32,
    "terminated": 48,
    "stopping": 64,
    "stopped": 80,
}
LIVE: Final = ("pending", "running", "stopping", "stopped")
#: Amazon warns two minutes before it takes a spot machine back.
NOTICE_S: Final = 120.0
_BY_USER: Final = "Client.UserInitiatedShutdown: User initiated shutdown"
_BOOTS_AT_ONCE: Final = 8
_REFRESH_INTERVAL_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class InstanceCalls:
    """What the API's library does to its own records of an instance when it starts, stops, ends."""

    start: Callable[[Any], Any]
    stop: Callable[[Any], Any]
    terminate: Callable[[Any], Any]


class Cloud:
    """What the API's instances do in the world.

    The API's own objects (``instance``) carry the state; whatever takes time is done by threads, and the
    state follows, as in a real cloud.

    Args:
        place: of the lab.
        settings: of the lab.
        calls: keep the API's records.

    Attributes:
        market: limits and faults.
        changed: is called when a host has come or gone.
        connected: is called when a host has got its network, before anything runs there.
        forgotten: is told the id of a host that is gone for good.
        closed: is called when all hosts are.
    """

    def __init__(self, place: LabPlace, settings: LabSettings, calls: InstanceCalls) -> None:
        self._calls = calls
        self.place = place
        self.settings = settings
        self.market = Market(settings.zones, settings.most_hosts)
        self.public = PublicAddresses(settings.public_block)
        self.changed: Callable[[], None] = lambda: None
        self.connected: Callable[[], None] = lambda: None
        self.forgotten: Callable[[str], None] = lambda name: None
        self.closed: Callable[[], None] = lambda: None
        self._tree = CgroupTree()
        self._lock: threading.RLock = threading.RLock()
        self._hosts: dict[str, Host] = {}
        self._instances: dict[str, Any] = {}
        self._images: dict[str, tuple[Path, ...]] = {}
        self._notices: dict[str, tuple[float, str]] = {}
        self._numbers = 0
        self._workers = ThreadPoolExecutor(_BOOTS_AT_ONCE, thread_name_prefix="lab")
        self._closing = threading.Event()
        threading.Thread(target=self._refresh, daemon=True, name="refresh").start()

    @property
    def exclusively(self) -> threading.RLock:
        """Held by the thread that reads or changes the API's records; its library knows of no threads."""
        return self._lock

    # --- what the API asks for ---------------------------------------------------------------------

    def created(self, instance: Any) -> None:
        """An instance has been rented: boot its host."""
        for card in instance.nics.values():
            card.mac_address = mac_of(instance.private_ip)
        set_state(instance, "pending")
        with self._lock:
            self._instances[instance.id] = instance
            self._numbers += 1
            spec = self._spec(instance, self._numbers)
            self._hosts[instance.id] = Host(
                self.place,
                self.settings,
                self._tree,
                spec,
                lambda: self.connected(),
                lambda how: self._ended(instance, how),
            )
            host = self._hosts[instance.id]
        self._submit(self._boot, instance, host)

    def start(self, instance: Any) -> Any:
        """StartInstances: only what is stopped; what runs already stays as it is."""
        with self._lock:
            before = copy.copy(instance._state)
            if before.name in ("pending", "running"):
                return before
            if before.name != "stopped":
                raise UsageError(
                    f"The instance '{instance.id}' is not in a state from which it can be started."
                )
            self._calls.start(instance)
            set_state(instance, "pending")
            host = self._hosts[instance.id]
        self._submit(self._boot, instance, host)
        return before

    def stop(self, instance: Any) -> Any:
        """StopInstances."""
        return self._end(instance, "stopping", None)

    def terminate(self, instance: Any) -> Any:
        """TerminateInstances: as often as anybody likes."""
        return self._end(instance, "shutting-down", None)

    def reboot(self, instance: Any) -> None:
        """RebootInstances."""
        with self._lock:
            host = self._hosts.get(instance.id)
        if host is not None and instance._state.name == "running":
            self._submit(self._reboot, instance, host)

    def console(self, instance_id: str) -> str:
        """GetConsoleOutput."""
        host = self._hosts.get(instance_id)
        return host.console() if host else ""

    def save(self, instance_id: str, image: Any) -> None:
        """CreateImage: hosts that are started with it have what this one has now, when it is available."""
        instance, host = self.find(instance_id)

        def copy() -> None:
            place = self.place.images / image.id
            try:
                host.save(place)
            except (LabError, OSError):
                log.exception("%s", image.id)
                image.state = "failed"
                return
            with self._lock:
                self._images[image.id] = (place, *self._images.get(instance.image_id, ()))
            image.state = "available"

        image.state = "pending"
        self._workers.submit(copy)

    def running(self) -> list[Running]:
        """What takes capacity and quota now."""
        with self._lock:
            return [
                Running(i.instance_type, i._placement.zone, i.lifecycle == "spot")
                for i in self._instances.values()
                if i._state.name in ("pending", "running", "stopping")
            ]

    # --- what happens to it on request -------------------------------------------------------------

    def kill(self, instance_id: str) -> None:
        """The machine breaks: gone at once, its processes are not asked."""
        instance, _ = self.find(instance_id)
        self._end(instance, "shutting-down", 0.0, "Server.InternalError: Internal error")

    def interrupt(self, instance_id: str, notice_s: float = NOTICE_S) -> float:
        """Say in the metadata that the machine will be taken back, and do so; when, in Unix time."""
        instance, _ = self.find(instance_id)
        when = time.time() + notice_s
        with self._lock:
            self._notices[instance_id] = (when, "terminate")

        def take() -> None:
            reason = "Server.SpotInstanceTermination: Spot instance termination"
            # A later notice counts instead, and one that was stopped meanwhile has none any more.
            if not self._closing.is_set() and self._notices.get(instance_id) == (when, "terminate"):
                self._end(instance, "shutting-down", None, reason)

        timer = threading.Timer(notice_s, take)
        timer.daemon = True
        timer.start()
        return when

    def notice(self, instance_id: str) -> tuple[float, str] | None:
        """When it is taken back (Unix time) and what happens then."""
        return self._notices.get(instance_id)

    def find(self, name: str, *, up: bool = False) -> tuple[Any, Host]:
        """The instance with this id (or its only beginning, or address), and its host.

        Raises:
            NotFoundError: there is none, or it is terminated.
            UsageError: it must be running and is not.
        """
        with self._lock:
            known = [i for i in self._instances.values() if name and _is_called(i, name)]
            found = [i for i in known if i._state.name in LIVE]
            exact = [i for i in found if i.id == name] or found
            if not found and len(known) == 1:
                reason = known[0].state_reason.message
                raise NotFoundError(
                    f"{known[0].id} is {known[0]._state.name}" + (f": {reason}" if reason else ""),
                    "It does not come back; `trainmaster lab status` lists the others.",
                )
            if not name or len(exact) != 1:
                what = "is not unique" if name and exact else "is no host of the lab"
                raise NotFoundError(f"{name!r} {what}", "`trainmaster lab status` lists them.")
            instance = exact[0]
            host = self._hosts[instance.id]
        if up and not host.is_up:
            raise UsageError(
                f"{instance.id} does not run ({instance._state.name})", "Only a running host can do that."
            )
        return instance, host

    def by_address(self, address: str) -> tuple[Any, Host] | None:
        """Whose packet that is."""
        with self._lock:
            for instance_id, host in self._hosts.items():
                if host.is_connected and address in (host.spec.private, host.spec.public):
                    return self._instances[instance_id], host
        return None

    def all(self) -> list[tuple[Any, Host]]:
        """Every instance there was, in order, and its host."""
        with self._lock:
            return [(instance, self._hosts[key]) for key, instance in self._instances.items()]

    def states(self) -> list[tuple[str, ...]]:
        """What changes of instances without a call of the API; some of it by itself."""
        with self._lock:
            return [
                (i.id, i._state.name, i.state_reason.message or "", i.public_ip or "", i.private_ip or "")
                for i in self._instances.values()
            ]

    def close(self) -> None:
        """End every host."""
        self._closing.set()
        with self._lock:
            hosts = list(self._hosts.values())
        list(self._workers.map(lambda host: host.remove(0.0), hosts))
        self._workers.shutdown()
        remove_lab_groups(self._tree, self.place.mark)
        self.closed()

    # --- making it so ------------------------------------------------------------------------------

    def _spec(self, instance: Any, number: int) -> HostSpec:
        pairs = instance.ec2_backend.key_pairs
        pair = pairs.get(instance.key_name or "")
        encoded = str(instance.user_data) if instance.user_data else ""
        kind = TYPES[instance.instance_type]
        return HostSpec(
            instance=instance.id,
            zone=instance._placement.zone,
            private=instance.private_ip,
            public=instance.public_ip or "",
            limits=self.settings.scale.limits(kind),
            keys=(pair.material_public.decode().strip(),) if pair else (),
            user_data=base64.b64decode(encoded) if encoded else b"",
            number=number,
            image=tuple(map(str, self._images.get(instance.image_id, ()))),
            vcpus=kind.vcpus,
            cpu_baseline=kind.cpu_baseline,
        )

    def _boot(self, instance: Any, host: Host) -> None:
        if instance._state.name != "pending" or self._closing.is_set():
            return
        host.boot(self._spec(instance, host.spec.number), lambda: instance._state.name == "pending")
        with self._lock:
            if instance._state.name == "pending":
                set_state(instance, "running")
        self.changed()

    def _reboot(self, instance: Any, host: Host) -> None:
        host.stop()
        with self._lock:
            alive = instance._state.name == "running"
        if alive and not self._closing.is_set():
            host.boot()
            self.changed()

    def _end(self, instance: Any, state: str, grace_s: float | None, reason: str = "") -> Any:
        with self._lock:
            before = copy.copy(instance._state)
            if before.name not in (LIVE if state == "shutting-down" else ("pending", "running")):
                return before
            set_state(instance, state)
            explain(instance, reason or _BY_USER)  # what sees that it ends sees why
            host = self._hosts[instance.id]
        self._submit(self._finish, instance, host, state, grace_s, reason)
        return before

    def _finish(self, instance: Any, host: Host, state: str, grace_s: float | None, reason: str) -> None:
        last = state == "shutting-down"
        try:
            if last:
                host.remove(grace_s)
            else:
                host.stop(grace_s)
        except (LabError, OSError):
            log.exception("%s does not end", instance.id)
        with self._lock:
            self._notices.pop(instance.id, None)
            if instance._state.name != state:
                return  # stopped, and meanwhile terminated: that goes on by itself
            (self._calls.terminate if last else self._calls.stop)(instance)
            if reason:
                explain(instance, reason)  # the API's library has its own
        if last:
            self.forgotten(instance.id)
        self.changed()

    def _ended(self, instance: Any, how: str) -> None:
        """The host has ended by itself."""
        if self._closing.is_set():
            return
        log.info("%s: %s", instance.id, how)
        if how == "reboot":
            self._submit(self._reboot, instance, self._hosts[instance.id])
            return
        if how != "off":
            self._end(instance, "shutting-down", 0.0, f"Server.InternalError: {how}")
            return
        reason = "Client.InstanceInitiatedShutdown: Instance initiated shutdown"
        if instance.instance_initiated_shutdown_behavior == "terminate":
            self._end(instance, "shutting-down", 0.0, reason)
        else:
            self._end(instance, "stopping", 0.0, reason)

    def _submit(self, work: Callable[..., None], instance: Any, *arguments: Any) -> None:
        """Have a thread do something; what goes wrong ends the instance, and is written down."""

        def do() -> None:
            try:
                work(instance, *arguments)
            except Exception as error:
                log.exception("%s", instance.id)
                if not self._closing.is_set() and work != self._finish:
                    self._ended(instance, str(error))

        self._workers.submit(do)

    def _refresh(self) -> None:
        while not self._closing.wait(_REFRESH_INTERVAL_S):
            with self._lock:
                hosts = list(self._hosts.values())
            for host in hosts:
                if host.is_up:
                    try:
                        host.refresh_meminfo()
                        host.refresh_credits(_REFRESH_INTERVAL_S)
                    except (OSError, ValueError):
                        continue  # it is going down


def set_state(instance: Any, name: str) -> None:
    """Put an instance into a state of EC2."""
    instance._state.name, instance._state.code = name, STATES[name]


def explain(instance: Any, reason: str) -> None:
    """Say why an instance ends: ``CODE: in words``."""
    instance._reason = reason
    instance.state_reason.code, instance.state_reason.message = reason.partition(": ")[0], reason


def _is_called(instance: Any, name: str) -> bool:
    return instance.id.startswith(name) or name in (instance.private_ip, instance.public_ip)
