"""Putting a lab up, and taking it down."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from trainmaster.dataclass import dataclass
from trainmaster.lab import access, requirements
from trainmaster.lab.addresses import free_block, used_networks
from trainmaster.lab.cleanup import daemons, remove_leftovers
from trainmaster.lab.client import LabClient
from trainmaster.lab.errors import LabError
from trainmaster.lab.image import HostImage
from trainmaster.lab.instance_types import TYPES, SizeScale
from trainmaster.lab.place import LabPlace
from trainmaster.lab.runtime import Runtime
from trainmaster.lab.settings import MOST_HOSTS, MOST_ZONES, REGION, STOP_GRACE_S, ZONES, LabSettings
from trainmaster.lab.shell import call
from trainmaster.spec.errors import UsageError

START_TIMEOUT_S: Final = 60.0
BOOT_TIMEOUT_S: Final = 120.0
#: Where one lab at a time looks for addresses and takes some.
_EVERYBODY: Final = Path("/run")


@dataclass(frozen=True, slots=True)
class LabOptions:
    """What a lab is to be like; everything has a usual value."""

    region: str = REGION
    zones: int = ZONES
    scale: SizeScale | None = None
    suite: str = ""
    mirror: str = ""
    packages: tuple[str, ...] = ()
    port: int = 0
    most_hosts: int = MOST_HOSTS
    stop_grace_s: float = STOP_GRACE_S
    credits_speed: float = 0.0


def up(place: LabPlace, options: LabOptions, progress: Callable[[str], None]) -> tuple[LabClient, bool]:
    """Put a lab up, or find the one that is.

    Args:
        place: of the lab.
        options: of a new one; one that is up stays as it is.
        progress: is told what takes long, and what was swept away.

    Returns:
        The lab, and whether it is new.

    Raises:
        UsageError: this user or machine cannot have one.
        LabError: it does not start.
    """
    if os.geteuid() == 0 and (found := LabClient.attach(place)):
        return found, False
    requirements.require()
    if not 1 <= options.zones <= MOST_ZONES:
        raise UsageError(f"--zones: {options.zones} zones", f"A lab has 1 to {MOST_ZONES}.")
    _check_path(place.directory)
    place.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    owner = place.directory.parent.stat()
    os.chown(place.directory, owner.st_uid, owner.st_gid)
    with _locked(place.lock):
        if found := LabClient.attach(place):
            return found, False
        if left := remove_leftovers(place):
            progress(f"swept away what an earlier lab had left: {', '.join(left)}")
        image = HostImage.of_machine(options.suite, options.mirror, options.packages).ensure(
            place.cache, progress
        )
        runtime = Runtime.of_machine()
        layer = runtime.ensure(image, place.cache)
        if not _can_hold_disks(place, layer):
            progress(
                f"{place.directory} is on a file system that cannot hold disks: the hosts' are in memory"
            )
            place.hosts.mkdir(mode=0o700)
            call(["mount", "-t", "tmpfs", "-o", "mode=700", "tmlab", place.hosts])
        with _locked(_EVERYBODY):
            settings = _settings(place, options, (str(layer), str(image)), runtime)
            settings.save(place.settings_file)
            return _start(place), True


def down(place: LabPlace) -> list[str]:
    """Take a lab down, whatever state it is in; what there was of it.

    Raises:
        UsageError: this user cannot.
    """
    if not place.directory.is_dir():
        return []
    if os.geteuid() != 0:
        requirements.require()
    with _locked(place.lock):
        ended = _end_daemon(place)
        found = ["the lab"] if ended else []
        found += remove_leftovers(place)
        place.lock.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            place.directory.rmdir()
    return found


def boot(place: LabPlace, client: LabClient, count: int, kind: str, spot: bool = False) -> dict[str, Any]:
    """Rent hosts, wait until ssh answers on all, and write ``hosts.yaml``; the lab's status then.

    Raises:
        LabError: one does not come up.
    """
    wanted = set(client.do("boot", count=count, type=kind, spot=spot)["ids"])
    deadline = time.monotonic() + BOOT_TIMEOUT_S
    while True:
        status = client.do("status")
        hosts = [host for host in status["hosts"] if host["id"] in wanted]
        for host in hosts:
            if host["state"] not in ("pending", "running"):
                reason = status["conditions"][host["id"]].get("reason", "")
                raise LabError(f"host {host['id']} did not come up: {reason}", f"See {place.log}.")
        if all(host["state"] == "running" and answers(host["address"]) for host in hosts):
            break
        if time.monotonic() > deadline:
            raise LabError(
                f"no ssh on all of {sorted(wanted)} after {BOOT_TIMEOUT_S:.0f} s", f"See {place.log}."
            )
        time.sleep(0.05)
    scale = SizeScale(**status["scale"])
    cpus = {name: scale.limits(found).cpus for name, found in TYPES.items()}
    access.write_for_owner(place.hosts_file, access.hosts_yaml(place, status, cpus, sys.executable))
    return status


def answers(address: str, timeout_s: float = 1.0) -> bool:
    """Whether sshd greets there."""
    try:
        with socket.create_connection((address, 22), timeout_s) as connection:
            connection.settimeout(timeout_s)
            return connection.recv(4) == b"SSH-"
    except OSError:
        return False


def _settings(place: LabPlace, options: LabOptions, layers: Sequence[str], runtime: Runtime) -> LabSettings:
    return LabSettings(
        region=options.region,
        zones=tuple(f"{options.region}{letter}" for letter in "abcd"[: options.zones]),
        network=str(free_block(used_networks(), place.identity)),
        scale=options.scale or SizeScale.of_machine(),
        layers=tuple(layers),
        shared=runtime.shared,
        path=runtime.path,
        python=runtime.python,
        access_key_id="AKIA" + secrets.token_hex(8).upper(),
        secret_access_key=secrets.token_urlsafe(30),
        image_id=f"ami-{place.identity}{'0' * 9}",
        control_token=secrets.token_urlsafe(32),
        port=options.port,
        most_hosts=options.most_hosts,
        stop_grace_s=options.stop_grace_s,
        credits_speed=options.credits_speed,
    )


def _start(place: LabPlace) -> LabClient:
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("AWS_", "MOTO_"))}
    with place.log.open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "trainmaster.lab.daemon", place.directory, place.cache, place.identity],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            env=environment,
            start_new_session=True,
        )
    deadline = time.monotonic() + START_TIMEOUT_S
    try:
        while (client := LabClient.attach(place)) is None:
            if process.poll() is not None or time.monotonic() > deadline:
                lines = place.log.read_text(errors="replace").strip().splitlines()
                last = lines[-1] if lines else f"exit code {process.returncode}"
                raise LabError(f"the lab's daemon does not start: {last}", f"See {place.log}.")
            time.sleep(0.02)
    except BaseException:  # Ctrl-C as well: half a lab is none
        process.kill()
        process.wait()
        text = place.log.read_bytes()
        remove_leftovers(place)
        place.log.write_bytes(text)
        raise
    return client


def _end_daemon(place: LabPlace) -> bool:
    """Ask the daemon to end, and wait for it; `remove_leftovers` ends what does not listen."""
    found = daemons(place)
    for pid in found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + START_TIMEOUT_S / 2
    while daemons(place) and time.monotonic() < deadline:
        time.sleep(0.02)
    return bool(found)


def _can_hold_disks(place: LabPlace, layer: Path) -> bool:
    """Whether an overlay can write there: not on an overlay, as a container's own files are, nor on NFS."""
    draft = place.directory / "probe"
    for name in ("upper", "work", "root"):
        (draft / name).mkdir(parents=True, exist_ok=True)
    options = f"lowerdir={layer},upperdir={draft}/upper,workdir={draft}/work"
    command = ["unshare", "--mount", "--propagation", "private"]
    try:
        call([*command, "mount", "-t", "overlay", "overlay", "-o", options, draft / "root"])
    except LabError:
        return False
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return True


def _check_path(path: Path) -> None:
    """Mount options are separated by these."""
    if bad := sorted(set(str(path)) & set(":,\\\n\"'")):
        raise UsageError(
            f"{path}: a lab cannot be in a path with {' '.join(map(repr, bad))}",
            "Set TRAINMASTER_HOME to another one.",
        )


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Only one process at a time; a directory may be locked as well as a file."""
    if not path.exists():
        path.touch(mode=0o600)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
