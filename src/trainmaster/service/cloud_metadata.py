"""Where clouds tell a machine its credentials, and how tasks of teams are kept from there."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from zlib import crc32

from trainmaster.executors.supervisor.processes import ATTEMPT_GROUPS
from trainmaster.spec.addresses import METADATA

#: One of each service: where one answers a task is asked of these.
ADDRESSES: Final = (
    "169.254.169.254",
    "169.254.170.2",
    "169.254.170.23",
    "169.254.42.42",
    "169.254.0.23",
    "100.100.100.200",
    "168.63.129.16",
    "fd00:ec2::254",
    "fd00:ec2::23",
    "fd20:ce::254",
    "fd00:c1::a9fe:a9fe",
    "fd00:42::42",
)
#: Of bash, its arguments are addresses: says which of them take a connection.
TRIAL: Final = r"""
for each in "$@"; do
  timeout 5 bash -c 'exec 3<>"/dev/tcp/$0/80" && echo "$0"' "$each" 2>/dev/null &
done
wait
"""
_TOOLS: Final = {4: "iptables", 6: "ip6tables"}
_PATIENCE_S: Final = 30


def keep_away(home: Path) -> str:
    """Have the kernel refuse what tasks of Unix users send there, from now on; again, it changes nothing.

    All processes of such an attempt have a group that no others have, whoever their user is: also those of
    users that are made later.

    Args:
        home: of the server; each has rules of its own.

    Returns:
        What is in the way, for people; empty if it was done.
    """
    try:
        for version, tool in _TOOLS.items():
            _call(f"{tool}-restore", "--noflush", "--wait", text=table(_chain(home), version))
            jump = ("OUTPUT", *_condition(), "-j", _chain(home))
            if not _holds(tool, "--wait", "-C", *jump):
                _call(tool, "--wait", "-I", *jump)
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    return ""


def let_through(home: Path) -> None:
    """Take the rules of `keep_away` back; again, it changes nothing."""
    if os.geteuid() != 0:
        return
    for tool in _TOOLS.values():
        try:
            while _holds(tool, "--wait", "-D", "OUTPUT", *_condition(), "-j", _chain(home)):
                pass
            if _holds(tool, "--wait", "-F", _chain(home)):
                _call(tool, "--wait", "-X", _chain(home))
        except (OSError, subprocess.SubprocessError):
            pass  # it is not there, so neither are they


def table(chain: str, version: int) -> str:
    """A chain as ``iptables-restore`` reads it, for one version of IP.

    Names may be asked for: some clouds answer that at the same addresses.

    >>> table("TM", 4).splitlines()[1:3]
    [':TM - [0:0]', '-A TM -p udp --dport 53 -j RETURN']
    """
    names = [f"-A {chain} -p {protocol} --dport 53 -j RETURN" for protocol in ("udp", "tcp")]
    there = [f"-A {chain} -d {network} -j REJECT" for network in METADATA if network.version == version]
    return "\n".join(["*filter", f":{chain} - [0:0]", *names, *there, "COMMIT", ""])


def _chain(home: Path) -> str:
    return f"TRAINMASTER-{crc32(os.fsencode(home)):08x}"


def _condition() -> Iterator[str]:
    first, last = ATTEMPT_GROUPS[0], ATTEMPT_GROUPS[-1]
    yield from ("-m", "owner", "--gid-owner", f"{first}-{last}", "--suppl-groups")


def _holds(tool: str, *arguments: str) -> bool:
    try:
        _call(tool, *arguments)
    except subprocess.CalledProcessError:
        return False
    return True


def _call(tool: str, *arguments: str, text: str = "") -> None:
    program = shutil.which(tool) or f"/usr/sbin/{tool}"
    done = subprocess.run(
        [program, *arguments], input=text, capture_output=True, text=True, check=False, timeout=_PATIENCE_S
    )
    if done.returncode:
        raise _RefusedError(done.returncode, tool, stderr=done.stderr)


class _RefusedError(subprocess.CalledProcessError):
    def __str__(self) -> str:
        return f"{self.cmd}: {' '.join(self.stderr.split())[:300]}"
