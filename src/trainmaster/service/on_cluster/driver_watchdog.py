"""``python -m trainmaster.service.on_cluster.driver_watchdog PLACE``: has a run driven on this machine.

Called through SSH. It is sent an `Assignment`, and says ``ready`` when a driver could begin at once; then the
`Record` to begin with, and says ``driving``, or why not. It leaves a process that starts the driver anew when
it was killed; if its caller hangs up before it was sent all, it leaves nothing. What was sent is in the
memory of these two only, which other processes of the same user cannot read. The driver itself is
`on_cluster/machine_driver.py`.
"""

# ruff: noqa: T201 - what it prints is its answer
from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import IO

#: Of a driver that need not be started again: the run is over, or another one drives it.
OVER = 0
REFUSED = 4
#: How it begins to say that it could drive, that it does, or why it does not.
READY, DRIVING, FAILED = b"ready", b"driving", b"failed: "
_SIZE_BYTES = 8
_SET_DUMPABLE = 4
_LONGEST_PAUSE_S = 30.0
_WELL_AFTER_S = 60.0


def main(place: Path) -> int:
    """Start a watchdog that outlives us, and pass on what it is to do and what its driver says to that."""
    forbid_looking()  # it takes minutes until the driver has said something
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (place / "driver.log").open("ab") as log:
        watchdog = subprocess.Popen(
            [sys.executable, "-P", "-m", __spec__.name, str(place), "--stay"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            cwd="/",
            start_new_session=True,
        )
    for answer in (READY, DRIVING):
        data = read_part(sys.stdin.buffer)
        if data is None:  # its home drives on, or was killed: the watchdog sees that we end
            return 1
        _tell(watchdog, data)
        said = _heard(watchdog)
        sys.stdout.buffer.write(said or FAILED + b"it ended without a word\n")
        sys.stdout.buffer.flush()
        if not said.startswith(answer):
            return 1
    return 0


def stay(place: Path) -> int:
    """Have a driver ready; when it is sent the rest, have the run driven until it is over."""
    forbid_looking()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    first = read_part(sys.stdin.buffer)
    if first is None:
        return 0
    driver = _started(place, first)
    print((said := _heard(driver) or FAILED).decode().rstrip("\n"), flush=True)
    last = read_part(sys.stdin.buffer) if said.startswith(READY) else None
    if last is None:  # it is driven elsewhere
        driver.kill()
        driver.wait()
        forget(place)
        return REFUSED
    pause_s, is_told = 1.0, False
    while True:
        begun = time.monotonic()
        _tell(driver, last)
        said = _heard(driver)
        if not is_told and (said or driver.wait() == REFUSED):
            is_told = True
            print((said or FAILED).decode().rstrip("\n"), flush=True)
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            if not said.startswith(DRIVING):
                driver.wait()
                return REFUSED
        code = driver.wait()
        if code in (OVER, REFUSED):
            forget(place)
            return 0
        with suppress(OSError):  # the disk may be full, which the next driver waits for
            os.write(sys.stderr.fileno(), f"the driver ended with {code}\n".encode())
        pause_s = 1.0 if time.monotonic() - begun > _WELL_AFTER_S else min(2 * pause_s, _LONGEST_PAUSE_S)
        time.sleep(pause_s)
        driver = _started(place, first)
        _heard(driver)  # that it is ready


def _started(place: Path, first: bytes) -> subprocess.Popen[bytes]:
    """A driver that makes itself ready."""
    driver = subprocess.Popen(
        [sys.executable, "-P", "-m", "trainmaster.service.on_cluster.machine_driver", str(place)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd="/",
    )
    _tell(driver, first)
    return driver


def _tell(other: subprocess.Popen[bytes], data: bytes) -> None:
    assert other.stdin is not None
    with suppress(BrokenPipeError):
        other.stdin.write(part(data))
        other.stdin.flush()


def _heard(other: subprocess.Popen[bytes]) -> bytes:
    """A line; empty if it ended without one."""
    assert other.stdout is not None
    return other.stdout.readline()


def part(data: bytes) -> bytes:
    """What is sent of something whose end is to be known before the stream's; `read_part` reads it."""
    return len(data).to_bytes(_SIZE_BYTES, "big") + data


def read_part(stream: IO[bytes]) -> bytes | None:
    """What `part` made; None if the stream ended before all of it was there."""
    size = stream.read(_SIZE_BYTES)
    if len(size) < _SIZE_BYTES:
        return None
    wanted = int.from_bytes(size, "big")
    data = stream.read(wanted)
    return data if len(data) == wanted else None


def forget(place: Path) -> None:
    """Remove what the driver had, of a machine that is kept: there are keys in it, also in memory."""
    memory = place / "lab"
    if memory.is_symlink():
        shutil.rmtree(memory.resolve(), ignore_errors=True)
    shutil.rmtree(place, ignore_errors=True)


def forbid_looking() -> None:
    """No other process of this user may read our memory or environment, nor does a core dump have it."""
    ctypes.CDLL(None).prctl(_SET_DUMPABLE, 0, 0, 0, 0)


if __name__ == "__main__":
    sys.exit((stay if sys.argv[2:] == ["--stay"] else main)(Path(sys.argv[1])))
