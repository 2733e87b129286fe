"""`Claim`: which cluster uses how much of one of the user's hosts, written down on the host itself.

A file per claim on the host, so that all users and all machines that use the host see the same. Each user's
files lie in a directory of their own, which is writable for us only (``/var/tmp/trainmaster-claims.u*``);
whose a claim is, and when it was written, is what the host's file system says, not what the claim says.

What follows from the claims is decided here, by pure functions; it is written by a few lines of shell, only
if nothing has changed since it was read, under a lock. What holds the lock for ever keeps others from new
claims, and is named; what they have claimed is prolonged and given back without it.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from typing import Final, Protocol

from trainmaster.dataclass import dataclass
from trainmaster.providers.base import NodeRequest
from trainmaster.providers.inventory import InventoryHost
from trainmaster.spec.errors import ProviderError, TrainmasterError
from trainmaster.spec.plain_json import parsed_json, typed
from trainmaster.spec.units import counted
from trainmaster.transport.base import Result

#: Before what our lines print; a host's start-up files may print whatever they like first.
MARK: Final = "@@trainmaster-claims 2"
_MOST_CLAIMS_BYTES: Final = 4 << 20
_LOCK_WAIT_S: Final = 20
#: No claim counts longer after it was last written, whatever it says.
MOST_LEASE_S: Final = 7 * 86400.0
_MOST_SLOTS: Final = 1 << 20
_MOST_SHOWN: Final = 60
_HEAD_LINES: Final = 4  # clock, user, version, memory with processors

# `exec 9<DIRECTORY` locks the directory itself, which any user may read. Reading needs no lock: files are
# renamed into their places. Newlines are taken out of what others wrote, so that no host speaks for another.
_SCRIPT: Final = """\
set -u
umask 022
directory=${TRAINMASTER_CLAIMS:-/var/tmp/trainmaster-claims}
above=${directory%%/*}
mkdir -p "$above" && mkdir "$directory" 2>/dev/null
lock=$above
if [ -d "$directory" ] && [ ! -L "$directory" ] && [ -r "$directory" ]; then lock=$directory; fi
find_own() {
  own=
  for each in "$directory".u*/; do
    each=${each%%/}
    if [ -d "$each" ] && [ ! -L "$each" ] && [ -O "$each" ]; then own=$each; return; fi
  done
}
show() {
  whose=$1; shift; shown=0
  for file; do
    [ -f "$file" ] && [ ! -L "$file" ] && [ -r "$file" ] || continue
    [ $shown -lt 100 ] || break
    shown=$((shown + 1))
    text=$(head -c 4096 "$file" | tr -d '\\000' | tr '\\n' ' ')
    printf '%%s %%s %%s\\n' "$whose" "$(stat -c '%%u %%Z' "$file")" "$text"
  done 2>/dev/null
}
read_all() {
  seen=' '
  for each in "$directory".u*/; do
    each=${each%%/}
    [ -d "$each" ] && [ ! -L "$each" ] && uid=$(stat -c %%u "$each") || continue
    case $seen in *" $uid "*) continue;; esac
    seen="$seen$uid "
    show "$uid" "$each"/*.json
  done
}
version() { read_all | cksum | tr ' ' -; }
holder() {
  inode=$(stat -c %%i "$lock")
  while read -r _ kind _ _ pid place _; do
    case $kind:$place in FLOCK:*:"$inode")
      printf '%%s (process %%s)' "$(stat -c %%U "/proc/$pid" 2>/dev/null || echo somebody)" "$pid"; return;;
    esac
  done </proc/locks
  printf somebody
}
fail() {
  # shellcheck disable=SC2046
  set -- $(df -Pk "$above" 2>/dev/null | tail -n 1)
  [ "${4:-1}" != 0 ] || echo "no space is left for $directory" >&2
  exit 3
}
put() {
  find_own
  exec 9<"$lock" || exit 3
  if flock -w %(wait)d 9; then
    [ "$(version)" = "$2" ] || return 0
  elif [ ! -f "$own/$1.json" ]; then
    echo "$(holder) has held the lock of $lock for more than %(wait)d s" >&2; exit 3
  fi
  if [ -z "$own" ]; then
    own=$(mktemp -d "$directory.uXXXXXXXX") && chmod 755 "$own" || fail
  fi
  new=$(mktemp "$own/.newXXXXXXXX") && printf '%%s\\n' "$3" >"$new" && chmod 644 "$new" &&
    mv -f "$new" "$own/$1.json" || fail
}
drop() {
  find_own
  [ -z "$own" ] || rm -f "$own/$1.json"
}
least() {
  least=$1
  while IFS=: read -r _ kinds path; do
    case ,$kinds, in ,,) top=/sys/fs/cgroup;; *,"$2",*) top=/sys/fs/cgroup/$2;; *) continue;; esac
    group=$top$path
    while :; do
      for limit in $("of_$2"); do [ "$limit" -ge "$least" ] || least=$limit; done
      case $group in "$top"|"$top"/|/) break;; esac
      group=${group%%/*}
    done
  done </proc/self/cgroup
  echo "$least"
}
of_memory() { cat "$group/memory.max" "$group/memory.limit_in_bytes" | grep -x '[0-9]\\{1,18\\}'; }
of_cpu() {
  quota='' period=''
  [ ! -r "$group/cpu.max" ] || read -r quota period <"$group/cpu.max"
  [ ! -r "$group/cpu.cfs_quota_us" ] || read -r quota <"$group/cpu.cfs_quota_us"
  [ ! -r "$group/cpu.cfs_period_us" ] || read -r period <"$group/cpu.cfs_period_us"
  case ${quota:-x}${period:-x} in *[!0-9]*) ;; *) echo $((quota * 1000 / period));; esac
}
memory() {
  bytes=0
  while read -r key size _; do [ "$key" != MemTotal: ] || bytes=$((size * 1024)); done </proc/meminfo
  least "$bytes" memory
}
processors() {
  least "$(($(OMP_NUM_THREADS= OMP_THREAD_LIMIT= nproc || getconf _NPROCESSORS_ONLN) * 1000))" cpu
}
%(action)s
echo '%(mark)s'
date +%%s
id -u
version
echo "$(memory 2>/dev/null || echo 0) $(processors 2>/dev/null || echo 0)"
read_all
exit 0
"""


@dataclass(frozen=True, slots=True)
class Claim:
    """So much of a host is used by a cluster.

    Attributes:
        cluster: whose it is. owner: the home that it belongs to. user: whom to ask about it.
        role, token: as in the request that it stands for.
        slots: how many; 0 for the whole host.
        gpus: which ones.
        until: Unix seconds by the host's clock from which on it counts no more.
        labels: as requested.
    """

    cluster: str
    owner: str
    user: str
    role: str
    token: str
    slots: int
    gpus: tuple[int, ...]
    until: float
    labels: tuple[tuple[str, str], ...] = ()

    @property
    def file(self) -> str:
        """Name of its file, without the ending: one per cluster and host."""
        return hashlib.sha256(f"{self.owner}\0{self.cluster}".encode()).hexdigest()[:24]

    def text(self) -> str:
        """As it is written on the host."""
        return json.dumps(asdict(self), sort_keys=True)


@dataclass(frozen=True, slots=True)
class Claims:
    """What a host says about itself.

    Attributes:
        now: its clock, Unix seconds.
        version: changes with what is claimed.
        own: the claims of the account that we are on the host, also those that have run out.
        others: the claims of other accounts, whatever they say of themselves.
        memory_bytes: main memory that our login may use; 0 if it does not say. cores: of its processors.
    """

    now: float
    version: str
    own: tuple[Claim, ...]
    others: tuple[Claim, ...] = ()
    memory_bytes: int = 0
    cores: float = 0.0

    @property
    def live(self) -> list[Claim]:
        """Those that count."""
        return [claim for claim in (*self.own, *self.others) if claim.until > self.now]

    def end_of(self, lease_s: float) -> float:
        """When a claim ends that begins now."""
        return self.now + min(lease_s, MOST_LEASE_S)

    def of(self, owner: str, cluster: str) -> Claim | None:
        """The claim of a cluster of ours, if it counts."""
        alike = (c for c in self.own if (c.owner, c.cluster) == (owner, cluster) and c.until > self.now)
        return next(alike, None)


class HostShell(Protocol):
    """Runs shell scripts on hosts; `trainmaster.transport` has the one that does so over SSH."""

    def run_all(self, hosts: Sequence[InventoryHost], script: str) -> list[Result | TrainmasterError]:
        """Run a script of the POSIX shell on each host at the same time; answers in their order."""

    def close(self) -> None:
        """Hang up everywhere; it may be used again."""


def read_script() -> str:
    """What prints the claims of a host."""
    return _script("")


def put_script(claim: Claim, version: str) -> str:
    """What writes a claim, unless another one was written after ``version``."""
    return _script(f"put {claim.file} {shlex.quote(version)} {shlex.quote(claim.text())}")


def drop_script(claims: Iterable[Claim]) -> str:
    """What takes claims away."""
    return _script("\n".join(f"drop {claim.file}" for claim in claims))


def _script(action: str) -> str:
    return _SCRIPT % {"wait": _LOCK_WAIT_S, "mark": MARK, "action": action}


def parse(answer: Result, host: str) -> Claims:
    """Read what one of the scripts has printed.

    Raises:
        ProviderError: it failed.
    """
    _, mark, said = answer.out[-_MOST_CLAIMS_BYTES:].partition(MARK + "\n")
    lines = said.split("\n")
    if answer.code != 0 or not mark or len(lines) < _HEAD_LINES or not lines[0].isdecimal():
        words = (answer.err.strip() or answer.out.strip()).splitlines()
        reason = _printable(words[-1], 300) if words else f"exit code {answer.code}"
        raise ProviderError(
            f"{host}: cannot keep claims there: {reason}",
            "It needs a POSIX shell, flock, coreutils, and /var/tmp that its users can write to.",
        )
    now, uid, version = float(lines[0]), lines[1], lines[2]
    sizes = [int(word) if word.isdecimal() else 0 for word in lines[3].split()[:2]]
    memory_bytes, millicores = (*sizes, 0, 0)[:2]
    found = [claim for line in lines[_HEAD_LINES:] if (claim := _claim(line, now)) is not None]
    own = tuple(claim for user, claim in found if user == uid)
    others = tuple(claim for user, claim in found if user != uid)
    return Claims(now, version, own, others, memory_bytes, millicores / 1000)


def _claim(line: str, now: float) -> tuple[str, Claim] | None:
    """Whose claim a line shows, and the claim; what others wrote that is none counts for nothing."""
    try:
        whose, uid, written, text = line.split(" ", 3)
        if whose != uid:
            return None  # somebody keeps what another one has written
        claim = typed(Claim, parsed_json(text))
        claim = replace(claim, until=min(claim.until, min(float(written), now) + MOST_LEASE_S))
    except (ValueError, OverflowError):
        return None
    is_sane = 0 <= claim.slots <= _MOST_SLOTS and all(0 <= number <= _MOST_SLOTS for number in claim.gpus)
    return (uid, claim) if is_sane else None


def _printable(text: str, most: int = _MOST_SHOWN) -> str:
    r"""What others wrote, for a terminal: no control characters, and not too much of it.

    >>> _printable("\x1b]0;evil\x07 bob")
    '?]0;evil? bob'
    """
    shown = "".join(char if char.isprintable() else "?" for char in text[: most + 1])
    return shown if len(shown) <= most else f"{shown[:most]}..."


def misfit(host: InventoryHost, request: NodeRequest, memory_bytes: int = 0) -> str:
    """Why a host is not what a request asks for, whatever uses it; empty if it is.

    Args:
        host: of the inventory.
        request: what is asked for.
        memory_bytes: that it has; 0 if unknown.

    >>> misfit(InventoryHost(name="a", address="a", slots=2), NodeRequest("worker", 1, slots=4))
    'it has 2 slots, 4 are wanted'
    """
    for key, value in request.require.items():
        if host.labels.get(key) != value:
            return f"its label {key} is {host.labels.get(key) or 'not set'}, {value} is wanted"
    if host.slots and (wanted := max(request.slots, request.cpus)) > host.slots:
        return f"it has {counted(host.slots, 'slot')}, {_wanted(wanted)}"
    if request.gpus > host.gpus:
        return f"it has {counted(host.gpus, 'GPU')}, {_wanted(request.gpus)}"
    if memory_bytes and request.memory_bytes > memory_bytes:
        return f"it has {memory_bytes / 1e9:.3g} GB of memory, {request.memory_bytes / 1e9:.3g} GB are needed"
    return ""


def _wanted(count: int) -> str:
    return f"{count} {'is' if count == 1 else 'are'} wanted"


def fit(host: InventoryHost, claims: Claims, request: NodeRequest, draft: Claim) -> Claim | str:
    """The claim for a request, or why there is no room for it now.

    >>> host, nobody = InventoryHost(name="a", address="a", slots=4, gpus=2), Claims(0.0, "", ())
    >>> draft = Claim("c", "home", "alice", "worker", "t", 0, (), 0.0)
    >>> claim = fit(host, nobody, NodeRequest("worker", 1, slots=3, gpus=1, lease_s=60), draft)
    >>> claim.slots, claim.gpus, claim.until
    (3, (0,), 60.0)
    >>> fit(host, Claims(0.0, "", (claim,)), NodeRequest("worker", 1, slots=2), draft)
    '3 of 4 slots are used by alice (c)'
    """
    if reason := misfit(host, request, claims.memory_bytes):
        return reason
    live = claims.live
    users = ", ".join(sorted({f"{_printable(claim.user)} ({_printable(claim.cluster)})" for claim in live}))
    whole = request.slots == 0 or host.slots == 0
    if live and (whole or any(claim.slots == 0 for claim in live)):
        return f"it is used by {users}"
    used = sum(claim.slots for claim in live)
    if not whole and used + request.slots > host.slots:
        return f"{used} of {host.slots} slots are used by {users}"
    taken = {number for claim in live for number in claim.gpus}
    free = [number for number in range(host.gpus) if number not in taken]
    wanted = host.gpus if request.slots == 0 else request.gpus
    if len(free) < wanted:
        return f"{len(taken)} of {host.gpus} GPUs are used by {users}"
    return replace(
        draft,
        slots=0 if whole else request.slots,
        gpus=tuple(free[:wanted]),
        until=claims.end_of(request.lease_s),
    )
