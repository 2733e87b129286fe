"""`HostFacts`: what a machine is, found out by a few lines of shell, as it may have no Python."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable
from typing import Final

from trainmaster.dataclass import dataclass

#: Below the user's home on the host.
DIRECTORY: Final = "~/.trainmaster-runtime"
_MARK: Final = "@@trainmaster-facts 1"
_STILL: Final = "@@still"

_PYTHON_SAYS: Final = (
    "import sys, sysconfig, platform; print(sys.version.split()[0], sys.implementation.name, "
    'sysconfig.get_config_var("SOABI"), getattr(sys, "_base_executable", sys.executable))'
)
_SCRIPT: Final = """\
set -u
root=%(root)s
echo '%(mark)s'
echo "boot $(cat /proc/sys/kernel/random/boot_id 2>/dev/null)"
echo "clock $(date +%%s.%%N)"
echo "home $HOME"
echo "root $root"
echo "user $(id -un)"
echo "os $(. /etc/os-release 2>/dev/null; echo "${PRETTY_NAME:-$(uname -s)}")"
echo "kernel $(uname -r)"
echo "arch $(uname -m)"
echo "cpus $(nproc 2>/dev/null || getconf _NPROCESSORS_ONLN)"
while read -r key value rest; do
  case $key in MemTotal:) echo "$key $value";; esac
done 2>/dev/null </proc/meminfo
place=$root
while [ ! -d "$place" ]; do place=${place%%/*}; [ -n "$place" ] || place=/; done
set -- $(df -Pk "$place" | tail -n 1)
echo "disk_kb ${4:-}"
[ -w "$place" ] && echo "writable $place"
[ -n %(shared)s ] && [ -e %(shared)s ] && echo "shared yes"
if command -v nvidia-smi >/dev/null 2>&1; then
  timeout 10 nvidia-smi -L 2>/dev/null | while read -r line; do
    case $line in GPU*) echo "gpu $line";; esac
  done
fi
for file in "$root"/packages/*/complete "$root"/runtimes/*/complete "$root"/code/*/complete; do
  [ -f "$file" ] && file=${file%%/complete} && echo "have ${file#"$root"/}"
done
for name in %(pythons)s; do
  path=$(command -v "$name") && said=$("$path" -IS -c %(says)s 2>/dev/null) && echo "python $said"
done
exit 0
"""

#: Of the index that pip would use, where somebody has named one: a company's mirror for instance.
_INTERNET: Final = (
    "import os, subprocess, sys, urllib.request as r; "
    "c = [sys.executable, '-m', 'pip', 'config', 'get', 'global.index-url']; "
    "s = subprocess.run(c, capture_output=True, text=True).stdout.strip(); "
    "u = os.environ.get('PIP_INDEX_URL') or s; "
    "r.urlopen(u or 'https://pypi.org/simple/', timeout=4).close()"
)


@dataclass(frozen=True, slots=True)
class PythonFacts:
    """A Python on the host.

    Attributes:
        path: of the interpreter itself. version: such as ``3.11.2``. implementation: such as ``cpython``.
        soabi: what compiled modules must be built for, such as ``cpython-311-x86_64-linux-gnu``.
    """

    path: str
    version: str
    implementation: str
    soabi: str

    @property
    def minor(self) -> tuple[int, int]:
        """Such as (3, 11)."""
        major, minor, *_ = self.version.split(".")
        return int(major), int(minor)


@dataclass(frozen=True, slots=True)
class HostFacts:
    """What a machine is.

    Attributes:
        home, user: of the login. root: where our things go.
        os, kernel, arch: in their own words.
        cpus: that the login may use.
        memory_bytes: that it has.
        disk_bytes: free where our things go. writable: whether they can be put there.
        gpus: a line each, as the driver's tool lists them.
        pythons: those that were found, the one of the inventory first.
        have: what is complete below the root, such as ``packages/1a2b``.
        clock_skew_s: how far its clock is ahead of ours.
        internet: whether a package index can be reached; None if it was not asked for.
        shared: whether it has what was asked about; files of ours may be there already.
        boot: differs each time that it boots; empty if it does not say.
    """

    home: str
    user: str
    root: str
    os: str
    kernel: str
    arch: str
    cpus: int
    memory_bytes: int
    disk_bytes: int
    writable: bool
    gpus: tuple[str, ...]
    pythons: tuple[PythonFacts, ...]
    have: frozenset[str]
    clock_skew_s: float
    internet: bool | None = None
    shared: bool = False
    boot: str = ""


def probe_script(directory: str = "", python: str = "", shared: str = "") -> str:
    """What to run on a host; `parse_facts` reads its answer.

    Args:
        directory: where our things go; may begin with ``~/``.
        python: to look at; empty to look for one.
        shared: something here that the host may see at the same path; empty for none.
    """
    where = directory or DIRECTORY
    root = (
        '"$HOME"' + shlex.quote(where[1:]) if where == "~" or where.startswith("~/") else shlex.quote(where)
    )
    usual = ("python3", *(f"python3.{minor}" for minor in range(11, 16)))
    names = [_at_home(python)] if python else list(usual)
    return _SCRIPT % {
        "root": root,
        "mark": _MARK,
        "pythons": " ".join(names),
        "says": shlex.quote(_PYTHON_SAYS),
        "shared": shlex.quote(shared),
    }


def still_there_command(root: str, keys: Iterable[str]) -> str:
    """What to run on a host that is known: it says its `HostFacts.boot` and which of ``keys`` it has."""
    names = " ".join(shlex.quote(key) for key in keys)
    return (
        f"cd {shlex.quote(root)} && echo {_STILL} $(cat /proc/sys/kernel/random/boot_id 2>/dev/null) && "
        f'for k in {names}; do if [ -f "$k/complete" ]; then echo "have $k"; fi; done'
    )


def parse_still_there(said: str) -> tuple[str, frozenset[str]]:
    r"""Read the answer to `still_there_command`: when it booted, and what it has.

    >>> parse_still_there("Welcome!\n@@still 7f3a\nhave packages/1\n")
    ('7f3a', frozenset({'packages/1'}))
    """
    _, _, text = said.partition(f"{_STILL} ")
    boot, *lines = text.splitlines() or [""]
    return boot.strip(), frozenset(line.removeprefix("have ") for line in lines if line.startswith("have "))


def internet_command(python: str) -> str:
    """What ends with 0 where a package index can be reached."""
    return f"exec {shlex.quote(python)} -I -c {shlex.quote(_INTERNET)}"


def parse_facts(said: str, asked_at: float, answered_at: float) -> HostFacts | None:
    """Read the answer to `probe_script`.

    Args:
        said: its standard output.
        asked_at: Unix seconds here when it was sent.
        answered_at: when the answer was there.

    Returns:
        None if that is no answer.
    """
    _, mark, text = said.partition(_MARK + "\n")
    values: dict[str, str] = {}
    lists: dict[str, list[str]] = {"gpu": [], "python": [], "have": []}
    for line in text.splitlines():
        key, _, value = line.partition(" ")
        if key in lists:
            lists[key].append(value)
        else:
            values[key] = value
    if not mark or "home" not in values or "arch" not in values:
        return None
    clock = _number(values.get("clock", "").replace("%N", "0"))
    return HostFacts(
        home=values["home"],
        user=values.get("user", ""),
        root=values.get("root", ""),
        os=values.get("os", ""),
        kernel=values.get("kernel", ""),
        arch=values["arch"],
        cpus=int(_number(values.get("cpus", ""))),
        memory_bytes=int(_number(values.get("MemTotal:", ""))) << 10,
        disk_bytes=int(_number(values.get("disk_kb", ""))) << 10,
        writable="writable" in values,
        shared="shared" in values,
        boot=values.get("boot", ""),
        gpus=tuple(lists["gpu"]),
        pythons=tuple(dict.fromkeys(found for line in lists["python"] if (found := _python(line)))),
        have=frozenset(lists["have"]),
        clock_skew_s=_skew(clock, asked_at, answered_at),
    )


def _skew(clock: float, asked_at: float, answered_at: float) -> float:
    """How far a clock is off that was read at some time in between: nothing, if it may be right.

    >>> _skew(105.0, 100.0, 110.0), _skew(200.0, 100.0, 110.0), _skew(90.0, 100.0, 110.0)
    (0.0, 90.0, -10.0)
    """
    if not clock:
        return 0.0
    return max(0.0, clock - answered_at) + min(0.0, clock - asked_at)


def _python(line: str) -> PythonFacts | None:
    words = line.split(" ", 3)
    if len(words) != 4 or words[0].count(".") < 1:  # version, implementation, SOABI, path
        return None
    version, implementation, soabi, path = words
    return PythonFacts(path, version, implementation, soabi)


def _number(text: str) -> float:
    """What a host says, which may be anything; 0 for what is no finite number."""
    try:
        value = float(text)
    except ValueError:
        return 0.0
    return value if math.isfinite(value) else 0.0


def _at_home(path: str) -> str:
    return '"$HOME"' + shlex.quote(path[1:]) if path.startswith("~/") else shlex.quote(path)
