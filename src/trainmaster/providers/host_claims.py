"""`Claim`: who uses how much of one of the user's hosts, written down on the host itself.

A directory on the host (``/var/tmp/trainmaster-claims``) holds a file per claim, so that all users and all
machines that use the host see the same. What follows from the claims is decided here, by pure functions;
it is written by a few lines of shell, only if nothing has changed since it was read, under a lock.
"""

from __future__ import annotations

import getpass
import hashlib
import json
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Protocol

from trainmaster.providers.base import NodeRequest, ProviderError
from trainmaster.providers.inventory import InventoryHost
from trainmaster.spec.errors import TrainmasterError

#: Before what our lines print; a host's start-up files may print whatever they like first.
MARK: Final = "@@trainmaster-claims 1"
_MOST_CLAIMS_BYTES: Final = 1 << 20
_LOCK_WAIT_S: Final = 20

# `exec 9<DIRECTORY` locks the directory itself: a lock file of another user could not be opened for writing
# in a directory that everybody may write to (fs.protected_regular).
_SCRIPT: Final = """\
set -u
directory=${TRAINMASTER_CLAIMS:-/var/tmp/trainmaster-claims}
if [ ! -d "$directory" ]; then
  mkdir -p "${directory%%/*}" && mkdir "$directory" && chmod 1777 "$directory"
fi 2>/dev/null
if [ ! -d "$directory" ] || [ -L "$directory" ] || [ ! -w "$directory" ]; then
  echo "cannot write to $directory" >&2; exit 3
fi
exec 9<"$directory" || exit 3
flock -w %(wait)d 9 || { echo "somebody has held the lock of $directory for %(wait)d s" >&2; exit 3; }
read_all() {
  for file in "$directory"/*.json; do [ -f "$file" ] && { head -c 4096 "$file"; echo; }; done 2>/dev/null
}
version() { read_all | cksum | tr ' ' -; }
put() {
  [ "$(version)" = "$2" ] || return 0
  { printf '%%s\\n' "$3" >"$directory/.$1.new" && mv -f "$directory/.$1.new" "$directory/$1.json"; } || exit 3
}
drop() { rm -f "$directory/$1.json"; }
%(action)s
echo '%(mark)s'
date +%%s
version
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
        all: every claim that is written there, also those that have run out.
    """

    now: float
    version: str
    all: tuple[Claim, ...]

    @property
    def live(self) -> list[Claim]:
        """Those that count."""
        return [claim for claim in self.all if claim.until > self.now]

    def of(self, owner: str, cluster: str) -> Claim | None:
        """The claim of a cluster, if it counts."""
        return next((c for c in self.live if (c.owner, c.cluster) == (owner, cluster)), None)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a script gave on a host: exit code, standard output, standard error."""

    code: int
    out: str
    err: str


class HostShell(Protocol):
    """Runs shell scripts on hosts; `trainmaster.remote` has the one that does so over SSH."""

    def run_all(self, hosts: Sequence[InventoryHost], script: str) -> list[Answer | TrainmasterError]:
        """Run a script of the POSIX shell on each host at the same time; answers in their order."""


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


def parse(answer: Answer, host: str) -> Claims:
    """Read what one of the scripts has printed.

    Raises:
        ProviderError: it failed.
    """
    _, mark, said = answer.out[-_MOST_CLAIMS_BYTES:].partition(MARK + "\n")
    lines = said.splitlines()
    if answer.code != 0 or not mark or len(lines) < 2:  # the clock and the version
        words = (answer.err.strip() or answer.out.strip()).splitlines()
        raise ProviderError(
            f"{host}: cannot keep claims there: {words[-1] if words else f'exit code {answer.code}'}",
            "It needs a POSIX shell, flock, cksum and head, and /var/tmp that its users can write to.",
        )
    found = [claim for line in lines[2:] if (claim := _claim(line)) is not None]
    return Claims(float(lines[0]), lines[1], tuple(found))


def _claim(line: str) -> Claim | None:
    """A line that is none of ours (another user may write what they like) counts for nothing."""
    try:
        values: dict[str, Any] = json.loads(line)
        return Claim(
            cluster=str(values["cluster"]),
            owner=str(values["owner"]),
            user=str(values["user"]),
            role=str(values["role"]),
            token=str(values["token"]),
            slots=int(values["slots"]),
            gpus=tuple(int(number) for number in values["gpus"]),
            until=float(values["until"]),
            labels=tuple((str(key), str(value)) for key, value in values["labels"]),
        )
    except (ValueError, KeyError, TypeError):
        return None


def misfit(host: InventoryHost, request: NodeRequest) -> str:
    """Why a host is not what a request asks for, whoever uses it; empty if it is.

    >>> misfit(InventoryHost(name="a", address="a", slots=2), NodeRequest("worker", 1, slots=4))
    'it has 2 slots, 4 are wanted'
    """
    for key, value in request.require.items():
        if host.labels.get(key) != value:
            return f"its label {key} is {host.labels.get(key) or 'not set'}, {value} is wanted"
    if host.slots and request.slots > host.slots:
        return f"it has {host.slots} slots, {request.slots} are wanted"
    if request.gpus > host.gpus:
        return f"it has {host.gpus} GPUs, {request.gpus} are wanted"
    return ""


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
    if reason := misfit(host, request):
        return reason
    live = claims.live
    users = ", ".join(sorted({f"{claim.user} ({claim.cluster})" for claim in live}))
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
        until=claims.now + request.lease_s,
    )


def this_user() -> str:
    """Whom others may ask about our claims."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"
