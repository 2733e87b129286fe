"""`Host`: a machine of the lab: namespaces, an overlay, limits, and process 1 in it."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Final

from trainmaster.dataclass import dataclass
from trainmaster.lab.addresses import mac_of, port_of
from trainmaster.lab.cgroups import CgroupTree, HostCgroup
from trainmaster.lab.credits import CpuCredits
from trainmaster.lab.errors import LabError
from trainmaster.lab.host_keys import SshKey
from trainmaster.lab.instance_types import HostLimits
from trainmaster.lab.place import LabPlace
from trainmaster.lab.region import BRIDGE, drop_namespace, make_host_namespaces
from trainmaster.lab.settings import USER, LabSettings
from trainmaster.lab.shell import call, inside, ip_batch
from trainmaster.lab.user_data import BootPlan, plan_boot

#: A packet of 64 KB, as cards make them, must stay whole; else the shaping costs more than the traffic.
_BURST_BYTES: Final = 128 * 1024
_QUEUE_S: Final = 0.05
#: Of what a host says so much is kept, as EC2 does.
_CONSOLE_CHARACTERS: Final = 64 << 10
#: Not even in the host's own user namespace.
_WITHHELD: Final = "-sys_module,-sys_rawio,-sys_time"
#: Cloud-init's, on the disk.
_BOOTED: Final = "var/lib/cloud/instance"
_REBOOT_CODES: Final = (10, -signal.SIGHUP)
_OFF_CODES: Final = (0, -signal.SIGINT)
_SSHD: Final = """\
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
UseDNS no
PrintMotd no
PidFile none
Subsystem sftp internal-sftp
AcceptEnv LANG LC_*
"""


@dataclass(frozen=True, slots=True)
class HostSpec:
    """What a host is to be at its next boot.

    Attributes:
        instance: its id.
        zone: where it stands.
        private: its address in the VPC.
        public: its other address, empty for none.
        limits: what it may use.
        keys: public keys that its user has from the start.
        user_data: as the API was given it.
        number: counts the hosts of the lab, to spread them over the CPUs.
        image: directories of what it starts with beside the system, the uppermost first.
        vcpus, cpu_baseline: of its type, see `InstanceType`.
    """

    instance: str
    zone: str
    private: str
    public: str
    limits: HostLimits
    keys: tuple[str, ...]
    user_data: bytes
    number: int
    image: tuple[str, ...] = ()
    vcpus: int = 1
    cpu_baseline: float = 1.0

    @property
    def name(self) -> str:
        """Host name, as Amazon gives it."""
        return "ip-" + self.private.replace(".", "-")


class Host:
    """One host, from its first boot to its end. All methods may be called by any thread.

    Args:
        place: of the lab.
        settings: of the lab.
        tree: control groups of this machine.
        spec: what it is.
        connected: is called when its network is there and nothing runs in it yet.
        ended: is told when the host ends by itself: ``off``, ``reboot`` or what went wrong.

    Attributes:
        is_connected: whether it has a network card.
        boot_number: which boot this is; what was done to its network is gone with the next.
    """

    def __init__(
        self,
        place: LabPlace,
        settings: LabSettings,
        tree: CgroupTree,
        spec: HostSpec,
        connected: Callable[[], None],
        ended: Callable[[str], None],
    ) -> None:
        self._place = place
        self._settings = settings
        self._tree = tree
        self._connected = connected
        self._ended = ended
        self.is_connected = False
        self.boot_number = 0
        self._lock = threading.RLock()
        self._last_said = ""
        self._process: subprocess.Popen[bytes] | None = None
        self._wanted = False
        self._credits: CpuCredits | None = None
        if settings.credits_speed and spec.cpu_baseline < 1:
            self._credits = CpuCredits(spec.cpu_baseline, settings.credits_speed)
        self._counted = (time.monotonic(), 0.0)
        self._share = 1.0
        self.spec = spec
        self.cgroup = HostCgroup(tree, place.mark, spec.instance)
        self.directory = place.host(spec.instance)
        self.namespace = place.namespace(spec.instance)
        self.users = self.directory / "users"
        self.port = port_of(spec.instance)
        self.key = SshKey.generate()
        self.is_frozen = False
        self.is_cut = False
        self._plan = plan_boot(spec.user_data, spec.keys, USER)
        if public := next((v for k, v in self._plan.host_keys.items() if k.endswith(".pub")), ""):
            self.key = SshKey("", " ".join(public.split()[:2]))

    @property
    def is_up(self) -> bool:
        """Whether its process 1 runs."""
        return self._process is not None and self._process.poll() is None

    def boot(self, spec: HostSpec | None = None, still: Callable[[], bool] = lambda: True) -> None:
        """Switch it on, with another address perhaps, if that is still wanted when it is its turn.

        Raises:
            LabError: the kernel refuses something.
        """
        with self._lock:
            if not still():
                return
            self.spec = spec or self.spec
            self._clear()
            self._connect()
            self._connected()
            self.cgroup.make(self.spec.limits, self.spec.number)
            self._share = 1.0
            self._write_seed()
            self._start()

    def stop(self, grace_s: float | None = None) -> None:
        """Switch it off: its processes are asked first, unless the grace is 0."""
        with self._lock:
            self._wanted = False
            grace = self._settings.stop_grace_s if grace_s is None else grace_s
            with contextlib.suppress(OSError):
                self.cgroup.thaw()
            process = self._process
            if process is not None and process.poll() is None and grace > 0 and (pid := self._listening()):
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGTERM)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(grace + 2)
            self._clear()

    def remove(self, grace_s: float | None = None) -> None:
        """Switch it off, and take its disk away."""
        with self._lock:
            self.stop(grace_s)
            self._last_said = self.console()
            shutil.rmtree(self.directory, ignore_errors=True)

    def save(self, place: Path) -> None:
        """Copy what its disk has beside that which it started with; other hosts start with it.

        Each of those is a new one: what says that it has booted before is left out.

        Raises:
            LabError: there is no room.
        """
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            call(["cp", "-a", self.directory / "disk" / "upper", place])
        except LabError:
            shutil.rmtree(place, ignore_errors=True)  # else what has filled the disk stays there
            raise
        shutil.rmtree(place / _BOOTED, ignore_errors=True)

    def freeze(self) -> None:
        """Stop every process in it where it is; the network stays."""
        with self._lock:
            if self.is_up:
                self.cgroup.freeze()
                self.is_frozen = True

    def cut(self) -> None:
        """Pull its cable."""
        with self._lock:
            if self.is_up:
                ip_batch(self._place.region_namespace, [f"link set {self.port} down"])
                self.is_cut = True

    def heal(self) -> None:
        """Undo `freeze` and `cut`."""
        with self._lock:
            if self.is_up:
                self.cgroup.thaw()
                ip_batch(self._place.region_namespace, [f"link set {self.port} up"])
            self.is_frozen = self.is_cut = False

    def console(self) -> str:
        """What its process 1 and sshd said last, also when its disk is gone."""
        try:
            return (self.directory / "console.log").read_text(errors="replace")[-_CONSOLE_CHARACTERS:]
        except OSError:
            return self._last_said

    def refresh_meminfo(self) -> None:
        """Say in the host's ``/proc/meminfo`` how much memory it has, and has left."""
        used, cached = self.cgroup.memory_bytes()
        # In place: the file is mounted in the host.
        with contextlib.suppress(FileNotFoundError), (self.directory / "meminfo").open("r+") as file:
            file.write(meminfo(self.spec.limits.memory_bytes, used, cached))
            file.truncate()

    @property
    def cpu_credits(self) -> float | None:
        """What it has left, as EC2 counts them (minutes of a vCPU); None if it needs none."""
        return round(self._credits.balance_s * self.spec.vcpus / 60, 2) if self._credits else None

    def refresh_credits(self, until_next_s: float) -> None:
        """Take the credits for what it has computed since the last time, and give it what is left.

        Args:
            until_next_s: it will be called again after so long.
        """
        if self._credits is None:
            return
        (then, before_s), (now, cpu_s) = self._counted, (time.monotonic(), self.cgroup.cpu_s())
        self._counted = now, cpu_s
        cores = self.spec.limits.cpu_cores
        self._credits.spend(max(0.0, cpu_s - before_s) / cores / max(now - then, 1e-3), now - then)
        share = self._credits.share(until_next_s)
        if share != self._share:
            self.cgroup.limit_cpu(cores * share)
            self._share = share

    # --- booting ---------------------------------------------------------------------------------

    def _connect(self) -> None:
        """Its network card, and the cable to the bridge."""
        spec, region = self.spec, self._place.region_namespace
        make_host_namespaces(self.namespace, self.users)
        ip_batch(
            region,
            [
                f"link add {self.port} type veth peer name eth0 "
                f"address {mac_of(spec.private)} netns {self.namespace}",
                f"link set {self.port} master {BRIDGE} up",
            ],
        )
        prefix = self._settings.block.prefixlen
        lines = ["link set lo up", f"address add {spec.private}/{prefix} dev eth0", "link set eth0 up"]
        if spec.public:  # not on the card, as on EC2: Open MPI would take it for the card's only address
            lines.append(f"address add {spec.public}/32 dev lo")
        lines.append(f"route add default via {self._settings.gateway} src {spec.private}")
        ip_batch(self.namespace, lines)
        shaping = ["root", *rate_words(spec.limits.nic_mbps)]
        for namespace, device in ((region, self.port), (self.namespace, "eth0")):
            call(inside(namespace, "tc", "qdisc", "add", "dev", device, *shaping))
        self.boot_number += 1
        self.is_connected = True

    def _write_seed(self) -> None:
        spec, plan, directory = self.spec, self._plan, self.directory
        seed = directory / "seed"
        seed.mkdir(parents=True, exist_ok=True, mode=0o700)
        (directory / "meminfo").write_text(meminfo(spec.limits.memory_bytes, 0, 0))
        (seed / "firstboot.sh").write_text(plan.script())
        for name, text in self._host_key_files(plan).items():
            (seed / name).touch(mode=0o600)
            (seed / name).write_text(text)
        keys = [f"HostKey /run/lab/{path.name}\n" for path in sorted(seed.glob("ssh_host_*_key"))]
        (seed / "sshd_config").write_text(_SSHD + "".join(keys) + f"SetEnv PATH={self._settings.path}\n")
        values = {
            "HOST_NAME": plan.hostname or spec.name,
            "ADDRESS": spec.private,
            "LAYERS": ":".join((*spec.image, *self._settings.layers)),
            "SHARED": "\n".join(self._settings.shared),
            "PATH_ON_HOSTS": self._settings.path,
            "CGROUPS": " ".join(self._tree.hierarchies),
            "SHM_BYTES": spec.limits.memory_bytes // 2,
            "DISK": directory / "disk",
            "STOP_GRACE_MS": int(self._settings.stop_grace_s * 1000),
        }
        lines = [f"{key}={shlex.quote(str(value))}\n" for key, value in values.items()]
        (seed / "env").write_text("".join(lines))

    def _host_key_files(self, plan: BootPlan) -> dict[str, str]:
        if plan.host_keys:
            return {name: text.rstrip("\n") + "\n" for name, text in plan.host_keys.items()}
        name = "ssh_host_ed25519_key"
        return {name: self.key.private, f"{name}.pub": f"{self.key.public} root@{self.spec.name}\n"}

    def _start(self) -> None:
        script = resources.files("trainmaster.lab") / "guest" / "init.sh"
        join = "".join(f"echo $$ > {shlex.quote(str(d))}/cgroup.procs && " for d in self.cgroup.directories)
        command = [
            *inside(self.namespace, "setpriv", "--bounding-set", _WITHHELD),
            *("unshare", "--mount", "--uts", "--ipc", "--pid", "--cgroup", "--fork", "--kill-child"),
            *("--propagation", "private", "bash", str(script), str(self.directory)),
        ]
        with (self.directory / "console.log").open("ab") as console:
            process = subprocess.Popen(
                ["bash", "-c", f'{join} exec "$@"', "bash", *command],
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd="/",
                env={
                    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
                    "LANG": "C.UTF-8",
                },
            )
        self._process, self._wanted = process, True
        self.is_frozen = self.is_cut = False
        watch = threading.Thread(target=self._watch, args=(process,), daemon=True, name=self.spec.instance)
        watch.start()

    def _watch(self, process: subprocess.Popen[bytes]) -> None:
        code = process.wait()
        if self._process is not process or not self._wanted:
            return
        if code in _OFF_CODES:
            self._ended("off")
        elif code in _REBOOT_CODES:
            self._ended("reboot")
        else:
            said = [line for line in self.console().splitlines() if line.strip() and "dmesg(1)" not in line]
            self._ended(f"process 1 ended with {code}: {said[-1].strip() if said else 'it said nothing'}")

    def _listening(self) -> int | None:
        """Process 1 of the host as this machine knows it, if it is far enough to be asked to stop."""
        assert self._process is not None
        pid = self._process.pid
        try:
            first = int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])
            status = Path(f"/proc/{first}/status").read_text()
        except (OSError, ValueError, IndexError):
            return None
        caught = int(status.partition("SigCgt:")[2].split()[0], 16)
        return first if caught & 1 << (signal.SIGTERM - 1) else None

    def _clear(self) -> None:
        """End what runs in it, and let go of its network; the disk stays."""
        self._wanted = self.is_connected = False
        process, self._process = self._process, None
        if process is not None:  # first: it may be about to join the group
            with contextlib.suppress(OSError):
                self.cgroup.thaw()
            process.kill()
            process.wait()
        self.cgroup.remove()
        if self._place.region_namespace.exists():
            call(inside(self._place.region_namespace, "ip", "link", "delete", self.port), check=False)
        drop_namespace(self.namespace)
        drop_namespace(self.users)
        self.is_frozen = self.is_cut = False


def rate_words(nic_mbps: float) -> list[str]:
    """What ``tc qdisc`` calls a network card of this rate.

    >>> " ".join(rate_words(93.75))
    'tbf rate 93750kbit burst 131072 limit 585937'
    """
    limit = max(2 * _BURST_BYTES, int(nic_mbps * 1e6 / 8 * _QUEUE_S))
    return ["tbf", "rate", f"{int(nic_mbps * 1000)}kbit", "burst", str(_BURST_BYTES), "limit", str(limit)]


def meminfo(total_bytes: int, used_bytes: int, cached_bytes: int) -> str:
    """``/proc/meminfo`` of a machine of this size.

    >>> print(meminfo(2**30, 2**20, 0).splitlines()[0])
    MemTotal:        1048576 kB
    """
    free = max(0, total_bytes - used_bytes - cached_bytes)
    values = {
        "MemTotal": total_bytes,
        "MemFree": free,
        "MemAvailable": free + cached_bytes,
        "Buffers": 0,
        "Cached": cached_bytes,
        "SwapCached": 0,
        "Active": used_bytes,
        "Inactive": cached_bytes,
        "SwapTotal": 0,
        "SwapFree": 0,
        "Shmem": 0,
        "Slab": 0,
        "SReclaimable": 0,
    }
    return "".join(f"{key + ':':<16} {value // 1024:>7} kB\n" for key, value in values.items())
