"""Runs on a node, in our runtime: does one order after the other for the driver, until that hangs up.

An order is a line of JSON on standard input, of which ``do`` is one of `_HERE` or `_ELSEWHERE`. Its
``environment``, with credentials of a store, holds for this order only, and shows in no list of processes.

The answer is lines of JSON: a list for each thing that is found; ``{"at": [BYTES, TOTAL]}`` or ``0`` now and
then as a sign of life; ``{"note": WORDS}`` to the user; ``{"bytes": N}`` before N bytes of files;
``{"want": true}`` where the bytes of files are awaited; at last ``{"done": RESULT}``, or
``{"error": TYPE, "words": WORDS, "hint": WORDS, "trouble": KIND, "url": URL}``, of which the kind is one of
`trainmaster.objects.errors`, and the URL that of the store or object, if it is known.
"""

# ruff: noqa: PTH103, PTH112, PTH118, PTH120
# Names are any bytes, and os functions on plain text are exact.
from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from trainmaster.cluster.bootstrap.host_programs.answering import explain, in_time, only_one, put
from trainmaster.cluster.node_files.order_output import ENDING, NoWayError, Order, OrderOutput
from trainmaster.cluster.node_files.trees import (
    TreeDraft,
    TreeEntry,
    TreeError,
    Unpacker,
    pack,
    remove,
    scan,
    settle,
)
from trainmaster.executors.supervisor.processes import forbid_core_dumps
from trainmaster.spec.errors import TrainmasterError

_READ_BYTES: Final = 1 << 18
#: Members of the task come first: sending and hashing takes what they leave.
_NICE: Final = 10
#: Where distributions keep the certificates of authorities.
_ROOTS: Final = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)


def main() -> None:
    """Do as told; then this process ends, though threads of libraries that speak with stores may not have."""
    try:
        os._exit(_obey())
    except OSError:  # its reader has gone
        os._exit(1)


def _obey() -> int:
    forbid_core_dumps()
    output = OrderOutput(os.fdopen(os.dup(1), "wb"))
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):  # nothing that a library says comes in between
        os.dup2(nowhere, descriptor)
    threading.Thread(target=output.live, daemon=True).start()
    for line in sys.stdin.buffer:
        order = json.loads(line)
        try:
            with _lent(order.get("environment", {})):
                done = _performing(order["do"])(order, output)
        except Exception as error:  # noqa: BLE001 - the caller is on another machine and has to be told
            output.say({"error": type(error).__name__, **_told(error, order)}, now=True)
            if order["do"] in ENDING:
                return 1
        else:
            output.say({"done": done}, now=True)
        output.at, output.outlives = None, False
    return 0


@contextlib.contextmanager
def _lent(environment: Mapping[str, str]) -> Iterator[None]:
    """Credentials hold for one order. Set here, they are in no /proc/PID/environ."""
    before = dict(os.environ)
    os.environ.update(environment)
    if environment:
        trust_somebody()
    try:
        yield
    finally:
        if environment:
            os.environ.clear()
            os.environ.update(before)


# -- files


def _look(order: Order, output: OrderOutput) -> Any:  # noqa: ANN401 - JSON
    """Say what lies in a directory; whether the one around it is there, None if the stamp is the same."""
    directory = order["directory"]
    if order.get("stamp") and _read(order["stamp"]) == order["digest"]:
        return None
    tree = scan(directory)
    if settle(tree):
        tree = scan(directory)
    output.say_all(tree)
    return os.path.isdir(os.path.dirname(directory))


def _freeze(order: Order, output: OrderOutput) -> None:
    """Give files a second name, then say what lies there: to replace one takes the first name only."""
    remove(order["frozen"])
    os.makedirs(order["frozen"])
    for path in order["paths"]:
        place = os.path.join(order["frozen"], path)
        os.makedirs(os.path.dirname(place), exist_ok=True)
        os.link(os.path.join(order["directory"], path), place, follow_symlinks=False)
    output.say_all(scan(order["directory"]))


def _thaw(order: Order, output: OrderOutput) -> None:
    """Take the second names away; say what lay there."""
    output.say_all(scan(order["frozen"]))
    remove(order["frozen"])


def _carry(order: Order, output: OrderOutput) -> None:
    """Say the bytes of files of a directory, as `pack` has them."""
    for piece in pack(order["directory"], [TreeEntry(*each) for each in order["entries"]]):
        output.say({"bytes": len(piece)}, piece, now=True)


def _make(order: Order, _: OrderOutput) -> None:
    """Make directories, and those above them."""
    for directory in order["directories"]:
        os.makedirs(directory, exist_ok=True)


def _receive(order: Order, output: OrderOutput) -> None:
    """Take files, and put a directory of them in the place of the one that is there: whole or not at all.

    Once, however many do so at the same time. What a cut connection has left is used the next time.
    """
    import hashlib

    patience_s = int(order["patience_s"])
    os.makedirs(os.path.dirname(order["directory"]), exist_ok=True)
    name = hashlib.sha256(order["directory"].encode("utf-8", "surrogateescape")).hexdigest()[:32]
    locks = os.path.join(order["root"], "locks")
    os.makedirs(locks, mode=0o700, exist_ok=True)
    with only_one(os.path.join(locks, name), "writing it", order["wait_s"]):
        if order.get("stamp") and _read(order["stamp"]) == order["digest"]:
            return
        output.say({"want": True}, now=True)
        source: Any = sys.stdin.buffer
        draft = TreeDraft(order["directory"], [TreeEntry(*each) for each in order["wanted"]])
        draft.missing()
        unpacker = Unpacker(draft.root, draft.wanted)
        try:
            while not unpacker.complete:
                piece = in_time(lambda: source.read1(_READ_BYTES), patience_s)
                if not piece:
                    raise TreeError("the files did not arrive whole")
                unpacker.feed(piece)
        finally:
            unpacker.close()
        if unpacker.changed:
            raise TreeError("files changed while they were sent")
        if order.get("stamp"):
            Path(order["stamp"]).unlink(missing_ok=True)
        draft.exchange()
        if order.get("stamp"):
            put(Path(order["stamp"]), order["digest"])


def _read(place: str) -> str:
    try:
        return Path(place).read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return ""


# -- an object store


def _reach(order: Order, output: OrderOutput) -> None:
    """Find out whether a store can be used from here."""
    from trainmaster.artifacts.sending import reach

    def give_up() -> None:
        words = f"no answer for {order['limit_s']:g} s"
        with contextlib.suppress(OSError):
            output.say({"error": "TimeoutError", "words": words, "trouble": "unreachable"}, now=True)
        os._exit(1)

    timer = threading.Timer(order["limit_s"], give_up)
    timer.daemon = True
    timer.start()
    try:
        reach(order["uri"])
    finally:
        timer.cancel()


def _send(order: Order, output: OrderOutput) -> None:
    """Upload files to where an artifact will be; say what a manifest will say of them."""
    from trainmaster.artifacts.sending import Sender, ToSend, entry_list

    _step_back()
    sender = Sender(order["uri"], order["folder"], Path(order["journal"]))
    output.say_all(map(entry_list, sender.send(ToSend(*each) for each in order["files"])))


def _restore(order: Order, _: OrderOutput) -> None:
    """Make a directory what an artifact is."""
    from trainmaster.artifacts.sending import bring_back

    _step_back()
    bring_back(order["uri"], Path(order["directory"]))


_HERE: Final[Mapping[str, Callable[[Order, OrderOutput], Any]]] = {
    "look": _look,
    "freeze": _freeze,
    "thaw": _thaw,
    "carry": _carry,
    "make": _make,
    "receive": _receive,
    "reach": _reach,
    "send": _send,
    "restore": _restore,
}
#: Modules beside this one that take longer to load, and their functions.
_ELSEWHERE: Final = {
    "image": ("image_orders", "bring_image"),
    "setup": ("image_orders", "make_setup"),
    **dict.fromkeys(("volume", "models", "url", "hdfs", "stage", "output"), ("data_orders", "provide_data")),
}


def _performing(do: str) -> Callable[[Order, OrderOutput], Any]:
    if do in _HERE:
        return _HERE[do]
    module, name = _ELSEWHERE[do]
    performing: Callable[[Order, OrderOutput], Any] = getattr(import_module(f"{__package__}.{module}"), name)
    return performing


def trust_somebody() -> None:
    """A bare image has no certificates of authorities: without any, not even plain HTTP is spoken."""
    if "SSL_CERT_FILE" in os.environ or "SSL_CERT_DIR" in os.environ or any(map(os.path.isfile, _ROOTS)):
        return
    with contextlib.suppress(ImportError):  # nodes are sent it where the driver has it
        import certifi

        os.environ["SSL_CERT_FILE"] = certifi.where()


def _step_back() -> None:
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, max(_NICE, os.getpriority(os.PRIO_PROCESS, 0)))


def _told(error: Exception, order: Order) -> dict[str, str]:
    from trainmaster.objects.errors import trouble_of, url_of

    if isinstance(error, TrainmasterError):
        words = str(error.args[0])
    elif isinstance(error, OSError):
        words = explain(error, order.get("directory", ""))
    else:
        words = " ".join(str(error).split())
    known = error.__cause__ if isinstance(error, NoWayError) and error.__cause__ else error
    return {
        "words": words or type(error).__name__,
        "hint": error.hint if isinstance(error, TrainmasterError) else "",
        "trouble": trouble_of(known).value,
        "url": " ".join(url_of(known).split()),
    }
