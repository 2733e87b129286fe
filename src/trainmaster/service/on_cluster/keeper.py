"""``python -m trainmaster.service.on_cluster.keeper PLACE``: has a run driven on this machine, come what may.

Called through SSH with an `Assignment` on standard input; says ``driving``, or why not, and leaves a process
that starts the driver anew whenever it was killed. What was sent is in the memory of these two only, which
other processes of the same user cannot read. The driver itself is `on_cluster/machine_driver.py`.
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
from pathlib import Path

#: Of a driver that need not be started anew: the run is over, or another one drives it.
OVER = 0
REFUSED = 4
#: How it begins to say that it drives, or why it does not.
DRIVING, FAILED = b"driving", b"failed: "
_SET_DUMPABLE = 4
_LONGEST_PAUSE_S = 30.0
_WELL_AFTER_S = 60.0


def main(place: Path) -> int:
    """Start a keeper that outlives us, and pass on what its driver says first."""
    forbid_looking()  # it takes minutes until the driver has said something
    data = sys.stdin.buffer.read()
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (place / "driver.log").open("ab") as log:
        keeper = subprocess.Popen(
            [sys.executable, "-P", "-m", __spec__.name, str(place), "--stay"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            cwd="/",
            start_new_session=True,
        )
    assert keeper.stdin is not None
    assert keeper.stdout is not None
    keeper.stdin.write(data)
    keeper.stdin.close()
    said = keeper.stdout.readline()
    sys.stdout.buffer.write(said or FAILED + b"it ended without a word\n")
    return 0 if said.startswith(DRIVING) else 1


def stay(place: Path) -> int:
    """Start the driver until the run is over."""
    forbid_looking()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    data = sys.stdin.buffer.read()
    pause_s, is_told = 1.0, False
    while True:
        begun = time.monotonic()
        driver = subprocess.Popen(
            [sys.executable, "-P", "-m", "trainmaster.service.on_cluster.machine_driver", str(place)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd="/",
        )
        assert driver.stdin is not None
        assert driver.stdout is not None
        try:
            driver.stdin.write(data)
            driver.stdin.close()
        except BrokenPipeError:
            pass
        said = driver.stdout.readline()
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
        print(f"the driver ended with {code}", file=sys.stderr, flush=True)
        pause_s = 1.0 if time.monotonic() - begun > _WELL_AFTER_S else min(2 * pause_s, _LONGEST_PAUSE_S)
        time.sleep(pause_s)


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
