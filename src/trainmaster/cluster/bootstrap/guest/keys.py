"""Lets the nodes of a cluster log in to each other, or no more.

Read from standard input: this program's arguments (a line of JSON). It says ``@@done`` or ``@@error REASON``.
"""

# ruff: noqa: T201 - it runs by itself, with the standard library of somebody else's Python
from __future__ import annotations

import fcntl
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any


def main() -> int:
    """Do as told; the exit code."""
    order = json.loads(sys.stdin.buffer.readline())
    try:
        if order["do"] == "add":
            _add(order)
        else:
            _remove(order)
    except OSError as error:
        print(f"@@error {error.strerror or error}: {error.filename or ''}", flush=True)
        return 1
    print("@@done", flush=True)
    return 0


def _add(order: dict[str, Any]) -> None:
    directory = Path(order["directory"])
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    directory.chmod(0o700)
    for name, text in order["files"].items():
        _replace(directory / name, text, 0o600)
    _authorize(order["mark"], order["line"])


def _remove(order: dict[str, Any]) -> None:
    _authorize(order["mark"], "")
    shutil.rmtree(order["directory"], ignore_errors=True)


def _authorize(mark: str, line: str) -> None:
    """Put a line into authorized_keys in place of those with the same mark."""
    home = Path("~/.ssh").expanduser()
    home.mkdir(mode=0o700, exist_ok=True)
    path = (home / "authorized_keys").resolve()
    lock = os.open(home / ".trainmaster-lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        exists = path.exists()
        before = path.read_text(encoding="utf-8", errors="surrogateescape") if exists else ""
        kept = [text for text in before.splitlines() if text.split()[-1:] != [mark]]
        after = "".join(f"{text}\n" for text in [*kept, *([line] if line else [])])
        if after != before:
            _replace(path, after, path.stat().st_mode & 0o777 if exists else 0o600)
    finally:
        os.close(lock)


def _replace(path: Path, text: str, mode: int) -> None:
    """Write a file, whole or not at all."""
    draft = path.with_name(f"{path.name}.trainmaster-{os.getpid()}")
    draft.unlink(missing_ok=True)
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(text)
        draft.chmod(mode)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(main())
