"""Lists, sends and receives directories. Runs on a host after `answering` and `trees`, whose names it finds.

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

# ruff: noqa: T201, PTH103, PTH108, PTH118, PTH120, PTH123
# It runs by itself; names are any bytes, and os functions on plain text are exact.
from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Mapping
from typing import Any, BinaryIO

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trainmaster.cluster.bootstrap.guest.answering import (
        Refused,
        explain,
        in_time,
        is_full,
        only_one,
        put,
    )
    from trainmaster.cluster.bootstrap.guest.trees import (
        MARK,
        Draft,
        TreeEntry,
        TreeError,
        Unpacker,
        pack,
        remove,
        scan,
        settle,
    )

_READ_BYTES = 1 << 18
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
    except (TreeError, Refused) as error:
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
    """Give files a second name: to replace one takes the first name only."""
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
    import hashlib
    from pathlib import Path

    patience_s = int(order["patience_s"])
    os.makedirs(os.path.dirname(order["directory"]), exist_ok=True)
    name = hashlib.sha256(order["directory"].encode("utf-8", "surrogateescape")).hexdigest()[:32]
    locks = os.path.join(order["root"], "locks")
    os.makedirs(locks, mode=0o700, exist_ok=True)
    with only_one(os.path.join(locks, name), "writing it", order["wait_s"]):
        if order["stamp"] and _read(order["stamp"]) == order["digest"]:
            print("@@have", flush=True)
            return 0
        print("@@want", flush=True)
        source: Any = sys.stdin.buffer
        wanted = json.loads(in_time(source.readline, patience_s))
        draft = Draft(order["directory"], [TreeEntry(*each) for each in wanted])
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
        if order["stamp"]:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(order["stamp"])
        draft.exchange()
        if order["stamp"]:
            put(Path(order["stamp"]), order["digest"])
    print("@@done", flush=True)
    return 0


def _read(place: str) -> str:
    try:
        with open(place, encoding="utf-8") as file:
            return file.read().strip()
    except FileNotFoundError:
        return ""


if __name__ == "__main__":
    sys.exit(main())
