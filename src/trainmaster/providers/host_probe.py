"""What hosts of one's own say of each other and of their GPUs: a script for all of them at the same time."""

from __future__ import annotations

import json
import random
import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from trainmaster.providers.examining import Finding, driver_finding, refused
from trainmaster.spec.errors import TrainmasterError
from trainmaster.spec.plain_json import parsed_json, typed
from trainmaster.spec.units import format_bytes
from trainmaster.transport.base import Result

if TYPE_CHECKING:
    from trainmaster.providers.host_claims import HostShell
    from trainmaster.providers.inventory import InventoryHost

#: The script is on so many hosts at once: each waits until the others have met it.
MOST_PROBED: Final = 16
#: Where runs write on hosts of one's own.
SCRATCH: Final = "/var/tmp"  # noqa: S108 - each has a directory of its own there
#: They wait for each other so long.
PATIENCE_S: Final = 10.0
#: With less room there hardly any run ends well.
_LOW_BYTES: Final = 1 << 30
#: For so long hosts send each other what they can. What counts is between these moments: neither what a card
#: lets through at first, nor what is under way when it ends.
_SENT_S: Final = 0.8
_COUNTED_S: Final = (0.2, 0.7)
#: Before the only line that counts: a host's start-up files may print what they like.
_MARK: Final = "@@trainmaster-probe "
#: Between processes that the system gives ports from: 32768 and up.
_PORTS: Final = (20_000, 32_000)
_PROBE: Final = """\
import json, re, shutil, socket, struct, subprocess, sys, threading, time
mark, port, peers, packages = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3]), json.loads(sys.argv[4])
free = shutil.disk_usage(sys.argv[5]).free if sys.argv[5] else None
senders, patience, sent_s, since, until = json.loads(sys.argv[6])
end = time.monotonic() + patience
met, why, heard, builds, driver, counted, received = [], {}, [], {}, "", [], []
def listen():
    server = socket.socket()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        server.bind(("", port))
        server.listen(64)
        while True:
            heard.append(server.accept())
            if senders: threading.Thread(target=count, args=(heard[-1][0],), daemon=True).start()
    except OSError: heard.extend(peers)
def meet(name, address):
    while name not in met and time.monotonic() < end:
        try:
            socket.create_connection((address, port), 2).close()
            met.append(name)
        except OSError as error:
            why[name] = str(error)
            time.sleep(.2)
def is_mine(address):
    try:
        own = socket.socket()
        own.bind((address, 0))
        own.close()
        return True
    except OSError: return False
def send(address):
    to = socket.create_connection((address, port), 2)
    to.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    to.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # the rest is not sent
    to.settimeout(.2)
    some, stop = bytes(1 << 18), time.monotonic() + sent_s
    while time.monotonic() < stop:
        try: to.send(some)
        except socket.timeout: pass
    to.close()
def count(one):
    room, first, one_s = bytearray(1 << 18), None, 0
    one.settimeout(sent_s + 1)
    try:
        while True:
            got, now = one.recv_into(room), time.monotonic()
            if not got: break
            if first is None: first = now
            if since <= now - first <= until: counted.append((now, got))
    except OSError: pass
    if first is not None: received.append(one)
threading.Thread(target=listen, daemon=True).start()
looks = [threading.Thread(target=meet, args=each) for each in peers.items()]
for each in looks: each.start()
try:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    said = subprocess.run(command, stdout=subprocess.PIPE, timeout=10).stdout.decode()
    driver = said.split("\\n")[0].strip()
except (OSError, subprocess.SubprocessError): pass
try: from importlib import metadata
except ImportError: packages = []
for name in packages:
    try: found = metadata.distribution(name)
    except metadata.PackageNotFoundError: continue
    builds[name] = ""
    try:
        said = open(str(found.locate_file(name + "/version.py"))).read()
        said = re.search(r"cuda\\W[^0-9\\n]*([0-9.]+)", said)
        builds[name] = said.group(1) if said else ""
    except OSError: pass
for each in looks: each.join()
while len(heard) < len(peers) and time.monotonic() < end: time.sleep(.05)
mine = [name for name in senders if is_mine(peers[name])]
rate = 0
if len(mine) == 1 and len(senders) > 1 and all(name in met for name in senders) and len(heard) >= len(peers):
    after = senders[(senders.index(mine[0]) + 1) % len(senders)]
    sends = threading.Thread(target=send, args=(peers[after],), daemon=True)
    sends.start()
    sends.join(sent_s + 3)
    end = time.monotonic() + sent_s + 1
    while not received and time.monotonic() < end: time.sleep(.01)
    if len(counted) > 1:
        took = counted[-1][0] - counted[0][0]
        rate = sum(got for _, got in counted[1:]) * 8e-6 / took if took > (until - since) / 2 else 0
told = {"mbps": rate, "met": met, "why": why, "builds": builds, "driver": driver, "free": free}
print(mark + json.dumps(told))
"""


def probe_script(
    peers: Mapping[str, str],
    builds: Mapping[str, str],
    scratch: str = "",
    senders: Sequence[str] = (),
    patience_s: float = PATIENCE_S,
) -> str:
    """For all of these hosts, which have to begin together.

    Args:
        peers: addresses by name, at most `MOST_PROBED`.
        builds: packages to look for.
        scratch: the directory whose free room is told; empty for none.
        senders: of the peers, those that send each other what they can for a moment, each to the next one, as
            the members of a gang do; see `told_mbps`.
        patience_s: for so long they wait for each other.
    """
    port = random.randrange(*_PORTS)  # noqa: S311 - one that is likely to be free
    words = [_MARK, str(port), json.dumps(dict(peers)), json.dumps(list(builds)), scratch]
    words.append(json.dumps([list(senders), patience_s, _SENT_S, *_COUNTED_S]))
    return f"exec python3 -c {shlex.quote(_PROBE)} {shlex.join(words)} </dev/null"


def probed(
    shell: HostShell,
    hosts: Sequence[InventoryHost],
    unused: Sequence[str],
    builds: Mapping[str, str],
    scratch: str,
    patience_s: float = PATIENCE_S,
) -> tuple[dict[str, Result | TrainmasterError], dict[str, float]]:
    """What hosts say of each other; and what those get that nothing uses, if they are two at least.

    Args:
        shell: runs it on them.
        hosts: at most `MOST_PROBED`.
        unused: names of those that may send.
        builds: as of `probe_script`.
        scratch: the same.
        patience_s: the same.
    """
    peers = {host.name: host.private_address or host.address for host in hosts}
    senders = [name for name in peers if name in unused]
    script = probe_script(peers, builds, scratch, senders, patience_s)
    answers = dict(zip(peers, shell.run_all(hosts, script), strict=True))
    return answers, {name: told_mbps(answers[name]) for name in senders if len(senders) > 1}


def told_mbps(answer: Result | TrainmasterError) -> float:
    """What a host got from another one while all sent, in Mbit/s; 0 if it does not say."""
    if isinstance(answer, TrainmasterError):
        return 0.0
    try:
        return typed(float, _said(answer).get("mbps", 0.0))
    except ValueError:
        return 0.0


def _said(answer: Result) -> dict[str, Any]:
    """Raises ValueError if it is not what the script says."""
    line = next((each for each in answer.out.splitlines() if each.startswith(_MARK)), "")
    return typed(dict[str, Any], parsed_json(line.removeprefix(_MARK)))


def probe_findings(
    name: str,
    peers: Sequence[str],
    answer: Result | TrainmasterError,
    builds: Mapping[str, str],
    advice: str = "Let them reach each other on all ports.",
) -> list[Finding]:
    """What a host has answered.

    Args:
        name: of the host.
        peers: all hosts that were asked.
        answer: of the script, or why there is none.
        builds: versions of CUDA by package, as images are built for.
        advice: what to do where hosts do not reach each other.
    """
    if isinstance(answer, TrainmasterError):
        return [refused(name, answer)]
    try:
        said = _said(answer)
    except ValueError:
        words = (answer.err or answer.out).strip().splitlines()[-1:] or ["it says nothing"]
        return [Finding(name, f"python3 does not run there: {words[0]}", ok=False, advice="Install python3.")]
    others = [peer for peer in peers if peer != name]
    unmet = [peer for peer in others if peer not in said["met"]]
    found = [
        Finding(
            "network",
            f"{name} does not reach {peer}: {said['why'].get(peer, 'no answer')}",
            ok=False,
            advice=advice,
        )
        for peer in unmet
    ]
    if not found and others:
        reached = f"all {len(others)} others" if len(others) > 1 else others[0]
        found = [Finding("network", f"{name} reaches {reached}")]
    free = said.get("free")
    if isinstance(free, int) and free < _LOW_BYTES:
        is_low = f"{name}: only {format_bytes(free)} are free where runs write"
        found.append(Finding("disk", is_low, ok=False, advice=f"Make room in {SCRATCH} there."))
    if driver := str(said["driver"]):
        there = {package: cuda for package, cuda in said["builds"].items() if cuda}
        found.append(driver_finding(name, driver, {**builds, **there}))
    return found
