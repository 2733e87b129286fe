"""Lets the nodes of a cluster log in to each other, or no more.

Read from standard input: this program's arguments (a line of JSON). It says ``@@done`` or ``@@error REASON``.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trainmaster.cluster.bootstrap.host_programs.answering import answer, only_one, put


def perform(order: dict[str, Any]) -> str:
    """Do as told; what to say."""
    if order["do"] == "add":
        _add(order)
    else:
        _remove(order)
    return "done"


def _add(order: dict[str, Any]) -> None:
    directory = Path(order["directory"])
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    directory.chmod(0o700)
    for name, text in order["files"].items():
        put(directory / name, text)
    _authorize(order["mark"], order["line"])


def _remove(order: dict[str, Any]) -> None:
    _authorize(order["mark"], "")
    shutil.rmtree(order["directory"], ignore_errors=True)


def _authorize(mark: str, line: str) -> None:
    """Put a line into authorized_keys in place of those with the same mark."""
    home = Path("~/.ssh").expanduser()
    home.mkdir(mode=0o700, exist_ok=True)
    path = (home / "authorized_keys").resolve()
    with only_one(home / ".trainmaster-lock", "writing it"):
        exists = path.exists()
        before = path.read_text(encoding="utf-8", errors="surrogateescape") if exists else ""
        kept = [text for text in before.splitlines() if text.split()[-1:] != [mark]]
        after = "".join(f"{text}\n" for text in [*kept, *([line] if line else [])])
        if after != before:
            put(path, after, path.stat().st_mode & 0o777 if exists else 0o600)


if __name__ == "__main__":
    sys.exit(answer(perform))
