"""Puts a layer on a host: whole or not at all, once, however many do so at the same time.

Read from standard input: this program's arguments (a line of JSON), then, if it has said ``@@want``, an
archive. It says ``@@have`` if there is nothing to do, ``@@done`` at the end, ``@@linked`` if the very files
were here already, and ``@@error REASON``.
"""

# ruff: noqa: T201 - it runs by itself, with the standard library of somebody else's Python
from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trainmaster.cluster.bootstrap.host_programs.answering import Refused, answer, in_time, only_one

_ERROR_LINES = 3


class Input:
    """Standard input of which each piece must arrive in time: a connection may be lost without a word."""

    def __init__(self, patience_s: int) -> None:
        self._patience_s = patience_s

    def read(self, size: int) -> bytes:
        """Read so many bytes, or what is left."""
        return in_time(lambda: sys.stdin.buffer.read(size), self._patience_s)


def perform(order: dict[str, Any]) -> str:
    """Put the layer there; what to say."""
    locks = Path(order["root"], "locks")
    locks.mkdir(mode=0o700, parents=True, exist_ok=True)
    kind = order["kind"]
    with only_one(locks / f"{kind}-{order['name']}", f"installing {kind}", order["wait_s"]):
        return "have" if _is_complete(order) else _install(order)


def _place(order: dict[str, Any]) -> Path:
    return Path(order["root"], order["kind"], order["name"])


def _is_complete(order: dict[str, Any]) -> bool:
    marker = _place(order) / "complete"
    if order["again"] or not marker.exists():
        return False
    with contextlib.suppress(OSError):
        os.utime(marker)  # when it was last asked for, for what cleans up
    return True


def _install(order: dict[str, Any]) -> str:
    place = _place(order)
    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    beginning = f".partial-{order['name']}-"
    for left in place.parent.glob(f"{beginning}*"):  # we hold the lock: they are orphaned
        shutil.rmtree(left, ignore_errors=True)
    draft = place.parent / f"{beginning}{os.getpid()}"
    old = place.parent / f"{beginning}{os.getpid()}-old"
    draft.mkdir(0o700)
    said = "done"
    try:
        if _sees_the_same(order):
            _link(order, draft / order["inside"])
            said = "linked"
        elif order.get("pip"):
            _run_pip(order["pip"], draft / order["inside"])
        else:
            print("@@want", flush=True)
            _unpack(draft / order["inside"], order["patience_s"], order["members"])
        for path, text in order.get("files", {}).items():
            _write(draft / path, text)
        for path, target in order.get("links", {}).items():
            (draft / path).parent.mkdir(parents=True, exist_ok=True)
            (draft / path).symlink_to(target)
        _write(draft / "complete", f"{time.time()}\n")
        if place.exists():
            place.rename(old)
        draft.rename(place)
    finally:
        for leftover in (draft, old):
            shutil.rmtree(leftover, ignore_errors=True)
    return said


def _sees_the_same(order: dict[str, Any]) -> bool:
    """Whether this machine has the very files already: a shared file system, an image made from the other.

    They must be root's or ours, so that others cannot slip something in.
    """
    trusted = (0, os.getuid())
    try:
        for path, size, changed in order.get("same", ()):
            name, slash, rest = path.partition("/")
            status = os.stat(order["tops"][name] + slash + rest)  # noqa: PTH116 - thousands of them
            if (status.st_size, status.st_mtime_ns) != (size, changed) or status.st_uid not in trusted:
                print(f"{path} is another one here", file=sys.stderr)
                return False
    except OSError as error:
        print(f"{error.filename}: {error.strerror}", file=sys.stderr)
        return False
    return bool(order.get("same"))


def _link(order: dict[str, Any], place: Path) -> None:
    """A link for each file or directory at the top; bytecode comes along."""
    place.mkdir(parents=True, exist_ok=True)
    for name, path in order["tops"].items():
        (place / name).symlink_to(path)


def _unpack(place: Path, patience_s: int, members: int) -> None:
    """Unpack so many files; one that ends between two files does not look cut short by itself."""
    import tarfile  # mostly a layer is there, or linked

    count = 0
    place.mkdir(parents=True, exist_ok=True)
    try:
        with tarfile.open(fileobj=Input(patience_s), mode="r|gz") as archive:  # type: ignore[call-overload]
            safe = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
            for member in archive:
                if ".." in Path(member.name).parts or Path(member.name).is_absolute():
                    raise Refused(f"{member.name} would lie outside")
                archive.extract(member, place, **safe)
                count += 1
        if count != members:
            raise EOFError(f"{count} of {members} files")
    except (tarfile.TarError, EOFError) as error:
        raise Refused(f"the archive did not arrive whole ({error})") from None


def _run_pip(arguments: list[str], place: Path) -> None:
    import subprocess

    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--disable-pip-version-check",
        "--no-input",
        "--no-compile",
    ]
    command += ["--only-binary", ":all:", "--quiet", "--target", str(place), *arguments]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        said = [line for line in (done.stdout + done.stderr).strip().splitlines() if line.strip()]
        raise Refused("pip: " + (" / ".join(said[-_ERROR_LINES:]) or f"exit code {done.returncode}"))


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(answer(perform))
