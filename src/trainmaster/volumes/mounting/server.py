"""The processes behind a mount.

The *server* answers the kernel. Its parent, the *guard*, does nothing but wait for it, and
takes the mount away however the server ended. If the guard is killed, the server is told by
the kernel and ends the mount itself; if both are, the next mount there clears what is left.

When the whole volume lies in the cache the kernel needs no answers any more: the server then only
waits for the mount to end, see `promoting`.

    python -m trainmaster.volumes.mounting.server guard URI DIRECTORY CACHE READY MEANS RECORD
    python -m trainmaster.volumes.mounting.server serve URI DIRECTORY CACHE READY MEANS RECORD GUARD
"""

import contextlib
import ctypes
import json
import os
import resource
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import numpy as np

from trainmaster.spec.errors import TrainmasterError, one_line
from trainmaster.volumes.errors import NoImageError
from trainmaster.volumes.mounting.delegated_credentials import hand_over, open_environment, take_over
from trainmaster.volumes.mounting.kernel import OwnMounts, fits, require_room, show, usable
from trainmaster.volumes.mounting.mounts import SERVER, TYPE, detach, library_version, mounted_at
from trainmaster.volumes.reading.slot_table import SUSPECT, VALID
from trainmaster.volumes.reading.volume import Volume

_SET_PARENT_DEATH_SIGNAL = 1
_TTL_S = 86_400
_THREADS = 16
_KNOWS_MAX_THREADS = (3, 12)
_GRACE_S = 5.0
_LOOK_AGAIN_MS = 1000
_LOOK_AGAIN_S = 0.5
_AFTER_TROUBLE_S = 60.0
# When so much of it was read, the rest is fetched too.
_MOST = 7 / 8


def command(
    role: str, uri: str, directory: str, cache: str, ready: int, means: str, record: int, module: str = SERVER
) -> list[str]:
    """Gives the command line of a guard; a server's has its guard's process number, too."""
    return [sys.executable, "-m", module, role, uri, directory, cache, str(ready), means, str(record)]


def environment() -> dict[str, str]:
    """Gives the environment of a guard: this interpreter's modules, nothing that changes them, no secrets."""
    return {**open_environment(), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def guard(
    uri: str, directory: str, cache: str, ready: int, means: str, record: int, module: str = SERVER
) -> int:
    """Runs a server until it ends, and leaves nothing behind.

    SIGTERM and SIGINT end the mount.

    Args:
        uri: of the volume's version.
        directory: where to mount it.
        cache: directory for chunks; empty: ``TRAINMASTER_CACHE``.
        ready: descriptor that is told, as JSON, when the mount is there or why it is not; -1: none.
        means: ``fuse``, ``kernel`` or empty, as :func:`mount` has it.
        record: see :func:`new_record`.
        module: what the server's process runs; it ends in :func:`main`.

    Returns:
        The server's exit code.
    """
    own = OwnMounts(directory, record)
    server: subprocess.Popen[bytes] | None = None
    stopping = False

    def stop(_signal: int, _frame: FrameType | None) -> None:
        nonlocal stopping
        stopping = True
        if server is not None:
            server.terminate()

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, stop)
    taken = hand_over()
    try:
        server = subprocess.Popen(
            [*command("serve", uri, directory, cache, ready, means, record, module), str(os.getpid())],
            stdin=taken,
            pass_fds=[record, *([ready] if ready >= 0 else [])],
            start_new_session=True,  # Ctrl-C is for the guard, which ends the server in order
            env=environment(),
        )
    finally:
        os.close(taken)
    if ready >= 0:
        os.close(ready)
    if stopping:
        server.terminate()
    try:
        while True:
            try:
                code = server.wait(_GRACE_S if stopping else 0.5)
                break
            except subprocess.TimeoutExpired:
                if stopping:  # it hangs
                    own.take_away()
                    server.kill()
    finally:
        own.take_away_remains()
    if not code or (stopping and code in (-signal.SIGTERM, -signal.SIGKILL)):
        _forget_log()
        return 0
    return code


def _forget_log() -> None:
    """A mount that ended as it should leaves nothing behind."""
    with contextlib.suppress(OSError):
        log = Path(os.readlink("/proc/self/fd/2"))  # noqa: PTH115 - no file of ours
        if log.suffix == ".log" and log.parent.name == "mounts":
            log.unlink()


class _Caller:
    """The process that waits for the mount to be there."""

    def __init__(self, ready: int, own: OwnMounts) -> None:
        self.ready = ready
        self._own = own
        self._told = threading.Lock()

    def tell(self, problem: str | None) -> None:
        """Says that it is there, or why it is not; only the first word counts.

        A mount that is silent is taken away.
        """
        with self._told:
            ready, self.ready = self.ready, -1
        if ready >= 0:
            try:
                os.write(ready, f"{json.dumps({'problem': problem})}\n".encode())
            except OSError:  # it was killed in this moment
                self._own.take_away()
                os._exit(0)
            os.close(ready)


def _watch(own: OwnMounts, caller: _Caller) -> None:
    """Makes SIGTERM end the mount at once, and a caller that goes before it was told anything, too.

    It also notes when a mount has ended, while the library still serves files that were open before.
    A thread does so: Python's own handlers wait until the library has left its loop. And the library's
    handler would take away whatever is mounted there by then.
    """
    asked, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGTERM, lambda _signal, _frame: None)

    table = os.open("/proc/self/mountinfo", os.O_RDONLY | os.O_CLOEXEC)

    def watch() -> None:
        while True:
            events = select.poll()
            events.register(asked, select.POLLIN)
            events.register(table, select.POLLPRI)
            if (ready := caller.ready) >= 0:
                events.register(ready, 0)
            found = [descriptor for descriptor, _ in events.poll()]
            own.look()
            if asked in found or (ready in found and caller.ready == ready):
                own.take_away()
                os._exit(0)

    threading.Thread(target=watch, daemon=True).start()


def serve(uri: str, directory: str, cache: str, ready: int, means: str, record: int, guard_pid: int) -> int:
    """Answers the kernel until the mount ends; where it asks nothing any more, only waits for that."""
    own = OwnMounts(directory, record)
    caller = _Caller(ready, own)
    _watch(own, caller)
    ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGTERM)
    if os.getppid() != guard_pid:  # it ended before it could be noticed
        return 0
    try:
        volume = Volume.open(uri, Path(cache) if cache else None)
        promotion = MountPromotion(volume, own)
        if means != "fuse" and promotion.at_once(insists=means == "kernel"):
            caller.tell(None)
            return _keep(own)

        version = library_version()
        import mfusepy

        from trainmaster.volumes.mounting.operations import MAX_READ_BYTES, VolumeOperations

        def mounted() -> None:
            caller.tell(None)
            if means != "fuse":
                promotion.start()

        operations = VolumeOperations(volume, lambda: _tell_when_mounted(own, mounted))
        options: dict[str, object] = {
            "fsname": f"trainmaster:{volume.uri}".replace(",", "\\,"),
            "subtype": "trainmaster",
            "ro": True,
            "kernel_cache": True,
            "use_ino": True,
            "default_permissions": True,
            "entry_timeout": _TTL_S,
            "attr_timeout": _TTL_S,
            "negative_timeout": _TTL_S,
            "max_read": MAX_READ_BYTES,
        }
        if version >= _KNOWS_MAX_THREADS:
            options["max_threads"] = _THREADS
        if _others_may_read():
            options["allow_other"] = True
        try:
            mfusepy.FUSE(operations, directory, foreground=True, **options)
        except RuntimeError as error:  # the library's way to say that it could not mount, or was stopped
            if not promotion.succeeded:
                caller.tell(f"the kernel or libfuse refused ({error}); its own words are in the log")
                return 1
    except TrainmasterError as error:
        caller.tell(one_line(error))
        return error.exit_code
    caller.tell("it was ended at once")
    promotion.end()
    volume.close()
    return _keep(own) if promotion.succeeded else 0


def _keep(own: OwnMounts) -> int:
    """Waits until a mount without a server is gone."""
    with Path("/proc/self/mountinfo").open("rb") as table:
        changes = select.poll()
        changes.register(table, select.POLLPRI)
        while own.are_there():
            changes.poll(_LOOK_AGAIN_MS)
    return 0


def _tell_when_mounted(own: OwnMounts, tell: Callable[[], None]) -> None:
    """Notes the mount, and asks it, from a thread: the answer comes when all is well."""
    mounted = mounted_at(own.directory)
    if mounted is None or mounted.type != TYPE:
        return
    own.add(mounted.device)

    def ask() -> None:
        os.statvfs(own.directory)
        # Long files are read in pieces of 128 KiB otherwise; only root may ask for more.
        with contextlib.suppress(OSError):
            Path(f"/sys/class/bdi/{mounted.device}/read_ahead_kb").write_text("1024")
        tell()

    threading.Thread(target=ask, daemon=True).start()


def _others_may_read() -> bool:
    if os.geteuid() == 0:
        return True
    try:
        lines = Path("/etc/fuse.conf").read_text().splitlines()
    except OSError:
        return False
    return "user_allow_other" in (line.strip() for line in lines)


def main(module: str = SERVER) -> None:
    """Runs a guard or a server as the command line says.

    Args:
        module: that this process runs: a server's is the same.
    """
    # Credentials of the store are in our memory; one byte forbids pipes of `core_pattern` too.
    with contextlib.suppress(ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (1, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    role, uri, directory, cache, ready, means, record, *rest = sys.argv[1:]
    take_over()
    if role == "guard":
        code = guard(uri, directory, cache, int(ready), means, int(record), module)
    else:
        code = serve(uri, directory, cache, int(ready), means, int(record), *map(int, rest))
    sys.stderr.flush()
    # Not sys.exit: threads that still fetch chunks would keep the process of an unused mount alive.
    os._exit(code)


class MountPromotion(threading.Thread):
    """Waits until the chunks are there, then puts the kernel's mount in the place of the server's.

    Files that are open in the old one, and directories that somebody is in, stay as they are.

    Attributes:
        succeeded: whether it has happened.
    """

    def __init__(self, volume: Volume, own: OwnMounts) -> None:
        super().__init__(name="promotion", daemon=True)
        self._volume = volume
        self._own = own
        self._directory = own.directory
        self._fits = usable() and fits(volume)
        self._prefixes = volume.chunk_prefixes() if self._fits else np.empty(0, np.uint64)
        self._ended = threading.Event()
        self._last_note = ""
        self.succeeded = False

    def at_once(self, *, insists: bool) -> bool:
        """Mounts it now if all is there and proved, in an empty place.

        Args:
            insists: fetch what is missing, and say why where it cannot be.

        Raises:
            TrainmasterError: only with ``insists``.
        """
        cache = self._volume.cache
        if not insists and not (self._fits and cache.resident(self._prefixes).all()):
            return False

        def ready(device: str) -> bool:
            self._own.add(device)
            return True

        try:
            if insists:
                require_room(self._volume)
            self.succeeded = show(
                self._volume, self._directory, when_ready=ready, beneath=False, patient=insists
            )
        except OSError as error:
            if insists:
                raise NoImageError(f"the kernel refused it ({error})") from error
            self._give_up(error)
        except TrainmasterError as error:
            if insists:
                raise
            if isinstance(error, NoImageError):
                self._give_up(error)
        return self.succeeded

    def run(self) -> None:
        """Looks again and again."""
        if not self._fits:
            return
        pause_s = _LOOK_AGAIN_S
        served = mounted_at(self._directory)

        def ready(device: str) -> bool:
            # Not in place of what others have mounted there while readers hold this one.
            if self._ended.is_set() or mounted_at(self._directory) != served:
                return False
            self._own.add(device)
            return True

        while not self._ended.wait(pause_s):
            pause_s = _LOOK_AGAIN_S
            if not self._is_nearly_there():
                continue
            try:
                self.succeeded = show(self._volume, self._directory, when_ready=ready, beneath=True)
                if self.succeeded:
                    detach(self._directory)
                return
            except (NoImageError, OSError) as error:
                self._give_up(error)
            except TrainmasterError as error:
                self._note(error)
                pause_s = _AFTER_TROUBLE_S

    def end(self) -> None:
        """Stops looking."""
        self._ended.set()

    def _is_nearly_there(self) -> bool:
        slots = self._volume.cache.slots
        slots.refresh()
        states, prefixes = slots.table.states(), slots.table.prefixes()
        there = prefixes[(states == VALID) | (states == SUSPECT)]
        return bool(np.isin(self._prefixes, there).mean() >= _MOST) if len(self._prefixes) else True

    def _give_up(self, error: Exception) -> None:
        self._note(error)
        self._ended.set()

    def _note(self, error: Exception) -> None:
        """For the log of the mount. The promotion is optional, so its failure is no error."""
        words = one_line(error) if isinstance(error, TrainmasterError) else str(error)
        if words != self._last_note:
            sys.stderr.write(f"note: the kernel does not read this volume itself: {words}\n")
            sys.stderr.flush()
        self._last_note = words


if __name__ == "__main__":
    main()
