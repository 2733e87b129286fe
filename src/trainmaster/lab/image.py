"""`HostImage`: the root file system that all hosts share, a small Debian or Ubuntu made by debootstrap."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path
from typing import Final

from trainmaster.dataclass import dataclass
from trainmaster.lab.errors import LabError
from trainmaster.lab.settings import USER
from trainmaster.lab.shell import call

#: Beside what every Debian has. They are what people, Ansible and Trainmaster's node agent call on a host.
PACKAGES: Final = (
    "fuse3",
    "openmpi-bin",
    "openssh-server",
    "sudo",
    "iproute2",
    "iptables",
    "procps",
    "iputils-ping",
    "netcat-openbsd",
    "curl",
    "rsync",
    # For `container:` as an ordinary user. Two are what podman recommends; debootstrap knows no package by
    # what it provides, and podman asks for its network so.
    "podman",
    "crun",
    "netavark",
    "uidmap",
    "fuse-overlayfs",
)
#: Counted up when what is done to an image changes.
RECIPE: Final = 3
_MIRRORS: Final = {"debian": "http://deb.debian.org/debian", "ubuntu": "http://archive.ubuntu.com/ubuntu"}
_FALLBACK: Final = ("bookworm", _MIRRORS["debian"])
_PHASES: Final = (
    ("Retrieving", "downloading Debian packages"),
    ("Extracting", "unpacking"),
    ("Unpacking", "unpacking"),
    ("Configuring", "configuring"),
)
_POWER: Final = ("shutdown", "poweroff", "halt", "reboot")


@dataclass(frozen=True, slots=True)
class HostImage:
    """What an image is made of; the same makes the same image.

    Attributes:
        suite: release of the distribution. This machine's own where it has one that debootstrap knows: this
            machine's Python is to run there, so its C library must not be older.
        mirror: where packages are from.
        packages: beside the base system.
    """

    suite: str
    mirror: str
    packages: tuple[str, ...] = PACKAGES

    @classmethod
    def of_machine(cls, suite: str = "", mirror: str = "", more_packages: tuple[str, ...] = ()) -> HostImage:
        """The image for this machine, unless told otherwise."""
        own_suite, own_mirror = _own_release()
        return cls(suite or own_suite, mirror or own_mirror, (*PACKAGES, *more_packages))

    @property
    def key(self) -> str:
        """Its name in the cache."""
        scripts = "".join(map(_guest, ("power.sh", "containers.conf", "storage.conf")))
        text = "\n".join((str(RECIPE), self.suite, self.mirror, *self.packages, scripts, os.uname().machine))
        return f"{self.suite}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"

    def place(self, cache: Path) -> Path:
        """Its root directory, made or not."""
        return cache / "images" / self.key

    def ensure(self, cache: Path, progress: Callable[[str], None]) -> Path:
        """Make it unless it is there.

        Args:
            cache: of the lab.
            progress: is told what takes long.

        Raises:
            LabError: it cannot be made.
        """
        place = self.place(cache)
        with only_one(cache / "images", self.key):
            if place.is_dir():
                return place
            for old in place.parent.glob(f"{self.key}.partial-*"):
                shutil.rmtree(old, ignore_errors=True)
            draft = Path(tempfile.mkdtemp(prefix=f"{self.key}.partial-", dir=place.parent))
            try:
                self._build(draft, cache, progress)
                draft.chmod(0o755)
                draft.rename(place)
            finally:
                if draft.exists():
                    shutil.rmtree(draft, ignore_errors=True)
        return place

    def _build(self, root: Path, cache: Path, progress: Callable[[str], None]) -> None:
        debs = cache / "debs"
        debs.mkdir(parents=True, exist_ok=True)
        command = ["debootstrap", "--variant=minbase", f"--cache-dir={debs}"]
        command += [f"--include={','.join(self.packages)}", self.suite, str(root), self.mirror]
        progress(f"making the image of the hosts ({self.suite}, once, a few minutes)")
        # What it mounts ends with it, even if it is killed.
        wrapped = [
            "unshare",
            "--mount",
            "--pid",
            "--fork",
            "--kill-child",
            "--propagation",
            "private",
            *command,
        ]
        last = phase = ""
        process = subprocess.Popen(
            wrapped,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"},
        )
        assert process.stdout is not None
        try:
            for line in process.stdout:
                last = line.strip() or last
                now = next((word for start, word in _PHASES if line.startswith(f"I: {start}")), phase)
                if now != phase:
                    phase = now
                    progress(phase)
            code = process.wait()
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        if code != 0:
            raise LabError(
                f"debootstrap cannot make {self.suite} from {self.mirror}: {last.removeprefix('E: ')}",
                "Look at the network, --mirror and --suite; packages that came are kept for the next try.",
            )
        _finish(root)


def _finish(root: Path) -> None:
    """What makes the system a machine image."""
    call(["chroot", root, "useradd", "-m", "-s", "/bin/bash", "-p", "*", USER])
    sudoers = root / "etc/sudoers.d/90-cloud-init-users"
    sudoers.write_text(f"{USER} ALL=(ALL) NOPASSWD:ALL\n")
    sudoers.chmod(0o440)
    for key in (root / "etc/ssh").glob("ssh_host_*"):
        key.unlink()
    # There is no name server in the region; asking one that is not there takes seconds.
    switch = root / "etc/nsswitch.conf"
    lines = [line for line in switch.read_text().splitlines() if not line.startswith("hosts:")]
    switch.write_text("\n".join([*lines, "hosts: files"]) + "\n")
    for name in ("resolv.conf", "motd"):
        (root / "etc" / name).unlink(missing_ok=True)
        (root / "etc" / name).write_text("")
    (root / "etc/mtab").unlink(missing_ok=True)
    (root / "etc/mtab").symlink_to("../proc/self/mounts")  # fusermount3 looks there
    containers = root / "etc/containers"
    (containers / "containers.conf").write_text(_guest("containers.conf"))
    (containers / "storage.conf").write_text(_guest("storage.conf"))
    power = root / "usr/local/sbin/lab-power"
    power.write_text(_guest("power.sh"))
    power.chmod(0o755)
    for name in _POWER:
        (root / "usr/sbin" / name).unlink(missing_ok=True)
        (root / "usr/sbin" / name).symlink_to("/usr/local/sbin/lab-power")
    for directory in ("var/cache/apt/archives", "var/lib/apt/lists"):
        shutil.rmtree(root / directory, ignore_errors=True)
        (root / directory / "partial").mkdir(parents=True)


def _own_release() -> tuple[str, str]:
    try:
        lines = Path("/etc/os-release").read_text().splitlines()
    except OSError:
        return _FALLBACK
    values = {key: value.strip('"') for key, _, value in (line.partition("=") for line in lines)}
    mirror, suite = _MIRRORS.get(values.get("ID", "")), values.get("VERSION_CODENAME", "")
    if mirror is None or not (Path("/usr/share/debootstrap/scripts") / suite).exists():
        return _FALLBACK
    return suite, mirror


def _guest(name: str) -> str:
    return (resources.files("trainmaster.lab") / "guest" / name).read_text()


@contextlib.contextmanager
def only_one(directory: Path, name: str) -> Iterator[None]:
    """One process at a time makes what has this name; the others wait, and find it made."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / f".{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
