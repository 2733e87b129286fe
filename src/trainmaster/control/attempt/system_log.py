"""The operating system's log of a machine: what is asked there, and the file beside an attempt's logs."""

from __future__ import annotations

import shlex
import subprocess
from typing import TYPE_CHECKING, Final

from trainmaster.control.task.layout import SYSTEM, AttemptPlace
from trainmaster.spec.private_files import write_private

if TYPE_CHECKING:
    from pathlib import Path

    from trainmaster.control.task.job_context import TaskContext

#: Of a machine's log so much is kept, the end of it.
LIMIT_BYTES: Final = 256 << 10
#: For all that is asked, as each part may take ten seconds.
WAIT_S: Final = 45.0
_PROGRAM: Final = """\
exec 2>&1
export LC_ALL=C
as=
has() { command -v "$1" >/dev/null 2>&1; }
show() { most=$1; shift; echo "==> $*"; timeout 10 $as "$@" </dev/null | tail -c "$most"; echo; }
read_file() { [ ! -s "$1" ] || show 32768 cat "$1"; }
date -u
"""
_OURS: Final = """\
! sudo -n true 2>/dev/null || as='sudo -n'
for file in /var/log/cloud-init-output.log /var/log/syslog /var/log/messages; do read_file "$file"; done
"""
_JOURNAL: Final = "! has journalctl || show 98304 journalctl -b -n 2000 --no-pager\n"
_MEMORY: Final = "read_file /sys/fs/cgroup/memory.events\n"
_KERNEL: Final = "! has dmesg || show 65536 dmesg -T\n"


def system_log_command(*, is_rented: bool, has_own_kernel: bool = True) -> str:
    """What is to be run on a machine: for the POSIX shell, of any login.

    Args:
        is_rented: it is there for its run only. Of others, what their services and users do is not asked.
        has_own_kernel: what its kernel says is of this machine.
    """
    parts = [_OURS if is_rented else "", _MEMORY]
    if has_own_kernel:
        parts += [_JOURNAL if is_rented else "", _KERNEL]
    return f"sh -c {shlex.quote(_PROGRAM + ''.join(parts))}"


def write_system_log(context: TaskContext, machine: str, said: str) -> None:
    """Keep what a machine says beside the logs of an attempt, instead of what it said before.

    Args:
        context: the attempt.
        machine: its id.
        said: the end of it is kept, without the values of secrets.

    Raises:
        OSError: it cannot be written.
    """
    if said.strip():
        put_system_log(context.place, machine, context.masked(said))


def put_system_log(place: AttemptPlace, machine: str, said: str) -> Path:
    """The same of an attempt's directory; where it is."""
    path, data = place.system_log(machine), said.encode(errors="replace")
    if len(data) > LIMIT_BYTES:
        data = data[-LIMIT_BYTES:].partition(b"\n")[2]
    write_private(path, data if data.endswith(b"\n") else data + b"\n")
    return path


def said_here() -> str:
    """What the kernel of this machine says; empty if it cannot be asked."""
    try:
        asked = subprocess.run(
            ["sh", "-c", system_log_command(is_rented=False)],
            stdin=subprocess.DEVNULL, capture_output=True, timeout=WAIT_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return asked.stdout.decode(errors="replace")


def keep_system_logs(context: TaskContext) -> str:
    """Keep what the machines of an attempt say that has just ended; of what is kept, in words.

    It never fails: the attempt's own end matters more than this.
    """
    try:
        context.site.keep_system_logs(context)
        found = kept_system_logs(context.place.directory)
    except OSError:
        return ""
    if not found:
        return ""
    names = ", ".join(path.name for path in found)
    return (
        f"what the operating system said is kept in {names}: `trainmaster logs {context.run} --system` "
        "shows it"
    )


def kept_system_logs(directory: Path) -> list[Path]:
    """Those that are kept of an attempt, by the names of their machines."""
    return sorted(directory.glob(f"{SYSTEM}*.log"))
