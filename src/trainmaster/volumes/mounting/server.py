"""The processes behind a mount.

The *server* answers the kernel. Its parent, the *guard*, does nothing but wait for it, and
takes the mount away however the server ended. If the guard is killed, the server is told by
the kernel and ends the mount itself; if both are, the next mount there clears what is left.

    python -m trainmaster.volumes.mounting.server guard|serve URI DIRECTORY CACHE READY
"""

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from trainmaster.spec.errors import TrainmasterError, one_line
from trainmaster.volumes.mounting.mounts import detach, is_ours, library_version, mounted_at

_SET_PARENT_DEATH_SIGNAL = 1
_TTL_S = 86_400
_THREADS = 16
_KNOWS_MAX_THREADS = (3, 12)
_GRACE_S = 5.0


def command(role: str, uri: str, directory: str, cache: str, ready: int) -> list[str]:
    """Gives the command line of a guard or a server."""
    module = "trainmaster.volumes.mounting.server"
    return [sys.executable, "-m", module, role, uri, directory, cache, str(ready)]


def environment() -> dict[str, str]:
    """Gives the environment of a guard: this interpreter's modules, and nothing that changes them."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def guard(uri: str, directory: str, cache: str, ready: int) -> int:
    """Runs a server until it ends, and leaves nothing behind.

    SIGTERM and SIGINT end the mount.

    Args:
        uri: of the volume's version.
        directory: where to mount it.
        cache: directory for chunks; empty: ``TRAINMASTER_CACHE``.
        ready: descriptor that is told, as JSON, when the mount is there or why it is not; -1: none.

    Returns:
        The server's exit code.
    """
    server: subprocess.Popen[bytes] | None = None
    stopping = False

    def stop(_signal: int, _frame: FrameType | None) -> None:
        nonlocal stopping
        stopping = True
        if server is not None:
            server.terminate()

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, stop)
    server = subprocess.Popen(
        command("serve", uri, directory, cache, ready),
        pass_fds=[ready] if ready >= 0 else [],
        start_new_session=True,  # Ctrl-C is for the guard, which ends the server in order
        env=environment(),
    )
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
                if stopping:
                    # Readers hold it, or it hangs: nobody finds the mount any more, and it ends.
                    detach(directory)
                    server.kill()
    finally:
        if is_ours(directory):
            detach(directory)
    if stopping or not code:
        _forget_log()
        return 0
    return code


def _forget_log() -> None:
    """A mount that ended as it should leaves nothing behind."""
    with contextlib.suppress(OSError):
        log = Path(os.readlink("/proc/self/fd/2"))  # noqa: PTH115 - no file of ours
        if log.suffix == ".log" and log.parent.name == "mounts":
            log.unlink()


def serve(uri: str, directory: str, cache: str, ready: int) -> int:
    """Answers the kernel until the mount ends."""
    ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGTERM)
    guard_pid = os.getppid()

    def tell(problem: str | None) -> None:
        nonlocal ready
        if ready >= 0:
            with contextlib.suppress(OSError):
                os.write(ready, json.dumps({"problem": problem}).encode())
            os.close(ready)
            ready = -1

    try:
        version = library_version()
        import mfusepy

        from trainmaster.volumes.mounting.operations import MAX_READ_BYTES, VolumeOperations
        from trainmaster.volumes.reading.volume import Volume

        volume = Volume.open(uri, Path(cache) if cache else None)
        if os.getppid() != guard_pid:
            return 1
        operations = VolumeOperations(volume, lambda: _tell_when_mounted(directory, tell))
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
        mfusepy.FUSE(operations, directory, foreground=True, **options)
    except TrainmasterError as error:
        tell(one_line(error))
        return error.exit_code
    except RuntimeError as error:  # the library's way to say that it could not mount
        tell(f"the kernel or libfuse refused ({error}); its own words are in the log")
        return 1
    tell("it was ended at once")
    volume.close()
    return 0


def _tell_when_mounted(directory: str, tell: Callable[[str | None], None]) -> None:
    """Asks the mount itself, from a thread: the answer comes when all is well."""

    def ask() -> None:
        os.statvfs(directory)
        mounted = mounted_at(directory)
        if mounted is not None and is_ours(directory):
            # Long files are read in pieces of 128 KiB otherwise; only root may ask for more.
            with contextlib.suppress(OSError):
                Path(f"/sys/class/bdi/{mounted.device}/read_ahead_kb").write_text("1024")
            tell(None)

    threading.Thread(target=ask, daemon=True).start()


def _others_may_read() -> bool:
    if os.geteuid() == 0:
        return True
    try:
        lines = Path("/etc/fuse.conf").read_text().splitlines()
    except OSError:
        return False
    return "user_allow_other" in (line.strip() for line in lines)


def main() -> None:
    """Runs a guard or a server as the command line says."""
    role, uri, directory, cache, ready = sys.argv[1:]
    code = {"guard": guard, "serve": serve}[role](uri, directory, cache, int(ready))
    sys.stderr.flush()
    # Not sys.exit: threads that still fetch chunks would keep a mount's process alive that nobody needs.
    os._exit(code)


if __name__ == "__main__":
    main()
