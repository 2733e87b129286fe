"""Lists, sends and receives directories. Runs on a host after `trees`, whose names it finds.

Read from standard input: this program's arguments (a line of JSON), of which ``do`` is one of these:

* ``list``: says what lies in directories.
* ``freeze``: gives files of a directory a second name, then says what lies in it.
* ``send``: sends files of a directory.
* ``make``: makes directories, and those above them.
* ``receive``: takes files, and puts a directory of them in the place of the one that is there: whole or not
  at all, once, however many do so at the same time. What a cut connection has left is used the next time.

The answers of the first three come after a line ``@@trees``. ``receive`` says ``@@want``, then
``@@done``; or ``@@have`` if there is nothing to do. It and ``make`` say ``@@error REASON`` if they fail, and
before that ``@@trouble full`` if it is for want of room.
"""

# ruff: noqa: T201, PTH103, PTH104, PTH108, PTH118, PTH120, PTH123
# It runs by itself; names are any bytes, and os functions on plain text are exact.
from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trainmaster.cluster.bootstrap.guest.trees import (
        MARK,
        Draft,
        TreeEntry,
        TreeError,
        Unpacker,
        explain,
        is_full,
        pack,
        remove,
        scan,
        settle,
    )

_READ_BYTES = 1 << 18
_POLL_S = 0.1
#: Others answer with listings.
_SPEAKING = ("receive", "make")


def main() -> int:
    """Do as told; the exit code."""
    order = json.loads(sys.stdin.buffer.readline())
    out = sys.stdout.buffer
    try:
        if order["do"] == "receive":
            return _receive(order)
        if order["do"] == "make":
            for directory in order["directories"]:
                os.makedirs(directory, exist_ok=True)
            print("@@done", flush=True)
            return 0
        out.write(MARK)
        if order["do"] == "freeze":
            _freeze(order)
        if order["do"] in ("list", "freeze"):
            _list(order, out)
        else:
            for piece in pack(order["directory"], [TreeEntry(*each) for each in order["entries"]]):
                out.write(piece)
    except OSError as error:
        said = explain(error, order.get("directory", ""))
        if is_full(error) and order["do"] in _SPEAKING:
            out.write(b"@@trouble full\n")
    except TreeError as error:
        said = str(error)
    else:
        out.flush()
        return 0
    out.write(
        b"@@error " + said.encode() + b"\n" if order["do"] in _SPEAKING else json.dumps(said).encode() + b"\n"
    )
    out.flush()
    return 1


def _freeze(order: Mapping[str, Any]) -> None:
    """Give files a second name: who replaces one takes the first name only."""
    (directory,) = order["directories"]
    remove(order["frozen"])
    os.makedirs(order["frozen"])
    for path in order["paths"]:
        place = os.path.join(order["frozen"], path)
        os.makedirs(os.path.dirname(place), exist_ok=True)
        os.link(os.path.join(directory, path), place, follow_symlinks=False)


def _list(order: Mapping[str, Any], out: BinaryIO) -> None:
    if order.get("stamp") and _read(order["stamp"]) == order["digest"]:
        out.write(b'"@@have"\n')
        return
    trees = [scan(root) for root in order["directories"]]
    if settle(entry for tree in trees for entry in tree):
        trees = [scan(root) for root in order["directories"]]
    for tree in trees:
        for entry in tree:
            out.write(json.dumps(entry).encode() + b"\n")
        out.write(b"null\n")


def _receive(order: Mapping[str, Any]) -> int:
    patience_s = int(order["patience_s"])
    signal.signal(signal.SIGALRM, _silence)
    os.makedirs(os.path.dirname(order["directory"]), exist_ok=True)
    with _only_one(order):
        if order["stamp"] and _read(order["stamp"]) == order["digest"]:
            print("@@have", flush=True)
            return 0
        print("@@want", flush=True)
        source = sys.stdin.buffer
        draft = Draft(
            order["directory"], [TreeEntry(*each) for each in json.loads(_within(patience_s, source, None))]
        )
        draft.missing()
        unpacker = Unpacker(draft.root, draft.wanted)
        try:
            while not unpacker.complete:
                piece = _within(patience_s, source, _READ_BYTES)
                if not piece:
                    raise TreeError("the files did not arrive whole")
                unpacker.feed(piece)
        finally:
            unpacker.close()
        if unpacker.changed:
            raise TreeError("files changed while they were sent")
        if order["stamp"]:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(order["stamp"])
        draft.exchange()
        if order["stamp"]:
            _write(order["stamp"], order["digest"])
    print("@@done", flush=True)
    return 0


def _within(patience_s: int, source: Any, size: int | None) -> bytes:  # noqa: ANN401 - a buffered reader
    """Read; each piece must arrive in time, as a connection may be lost without a word."""
    signal.alarm(patience_s)
    try:
        found: bytes = source.readline() if size is None else source.read1(size)
    finally:
        signal.alarm(0)
    return found


def _silence(_number: int, _frame: object) -> None:
    raise TreeError("nothing arrived for too long; the connection may be lost")


@contextlib.contextmanager
def _only_one(order: Mapping[str, Any]) -> Iterator[None]:
    name = hashlib.sha256(order["directory"].encode("utf-8", "surrogateescape")).hexdigest()[:32]
    locks = os.path.join(order["root"], "locks")
    os.makedirs(locks, mode=0o700, exist_ok=True)
    descriptor = os.open(os.path.join(locks, name), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + order["wait_s"]
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise TreeError(f"somebody else has been writing it for {order['wait_s']} s") from None
                time.sleep(_POLL_S)
        yield
    finally:
        os.close(descriptor)


def _read(place: str) -> str:
    try:
        with open(place, encoding="utf-8") as file:
            return file.read().strip()
    except FileNotFoundError:
        return ""


def _write(place: str, text: str) -> None:
    draft = f"{place}.{os.getpid()}"
    with open(draft, "w", encoding="utf-8") as file:
        file.write(text)
    os.rename(draft, place)


if __name__ == "__main__":
    sys.exit(main())
