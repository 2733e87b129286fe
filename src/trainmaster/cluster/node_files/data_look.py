"""Whether data are still at their place on a node, and what went wrong with them there last."""

from __future__ import annotations

import hashlib
import os
import shlex
from typing import Final

from trainmaster.volumes.mounting.providing import SETTLED

_LOST: Final = "@@lost"
_RUN: Final = "@@run "
_ERROR: Final = "error: "
#: Whether data are at a place: a link that leads somewhere, a mount that answers, or files.
_HOLDS: Final = (
    'h() { if [ -L "$1" ]; then [ -d "$1/" ]; return; fi; '
    'timeout 20 stat -f -- "$1" >/dev/null 2>&1 || return 1; '
    '[ "$(stat -c %d -- "$1")" != "$(stat -c %d -- "${1%/*}")" ] || '
    '[ -n "$(find "$1" -mindepth 1 -maxdepth 1 -print -quit 2>/dev/null)" ]; }; '
)


def look_command(there: str, cache: str) -> str:
    """What to ask a node's shell; `heard` understands the answer.

    Args:
        there: where the data are.
        cache: that of the node's mounts.
    """
    log = f"{cache}/mounts/{hashlib.sha256(os.fsencode(there)).hexdigest()[:16]}.log"
    return (
        f"{_HOLDS} h {shlex.quote(there)} || echo {_LOST}; "
        f"grep -s -e '^{_ERROR}' -e '^{SETTLED}$' {shlex.quote(log)} | tail -n 1; true"
    )


def heard(said: str) -> tuple[bool, str]:
    r"""Whether nothing is there any more, and what went wrong last with a mount, in its own words.

    >>> heard("@@lost\nerror: the token has expired\n")
    (True, 'the token has expired')
    """
    lines = said.splitlines()
    words = next((line.removeprefix(_ERROR) for line in lines if line.startswith(_ERROR)), "")
    return _LOST in lines, words


def end_mounts_command(directory: str) -> str:
    """A shell command that ends what is mounted below a directory, and removes an HDFS that lies there.

    What reads a mount still may finish. Without it, removing the directory would go through a whole
    volume, file by file, in vain; and daemons would go on writing there.
    """
    return (
        # The process that looks after daemons ends them when its order is gone, and then lets go of its lock.
        f"for tm in {shlex.quote(directory)}/hdfs {shlex.quote(directory)}/*/hdfs; do "
        'if [ -e "$tm/order.json" ]; then rm -f -- "$tm/order.json"; '
        'timeout 20 flock -s "$tm/pid" true && rm -rf -- "$tm"; fi; done; '
        # The kernel's table knows no links.
        f"below=$(cd -- {shlex.quote(directory)} 2>/dev/null && pwd -P) && "
        'while read -r _ _ _ _ at _; do case $at in "$below"/*) '
        'umount -l -- "$at" 2>/dev/null || fusermount3 -u -z -q -- "$at" 2>/dev/null || '
        'fusermount -u -z -q -- "$at" ;; '
        "esac; done < /proc/self/mountinfo"
    )


def mounted_runs_command(runs: str) -> str:
    """What to ask a node's shell for the runs that have something mounted, or an HDFS; see `mounted_runs`.

    Args:
        runs: the directory of all runs there.
    """
    return (
        f"below=$(cd -- {shlex.quote(runs)} 2>/dev/null && pwd -P) && "
        'while read -r _ _ _ _ at _; do case $at in "$below"/*) '
        f'at=${{at#"$below"/}}; echo "{_RUN}${{at%%/*}}" ;; esac; done < /proc/self/mountinfo && '
        'for at in "$below"/*/*/hdfs/order.json; do [ ! -e "$at" ] || '
        f'{{ at=${{at#"$below"/}}; echo "{_RUN}${{at%%/*}}"; }}; done; true'
    )


def mounted_runs(said: str) -> list[str]:
    r"""The ids of the runs.

    >>> mounted_runs("hello\n@@run a-1\n@@run a-1\n@@run b-2\n")
    ['a-1', 'b-2']
    """
    found = (line.removeprefix(_RUN) for line in said.splitlines() if line.startswith(_RUN))
    return list(dict.fromkeys(found))
