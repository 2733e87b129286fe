"""Makes what a run needs on a node: our directory, its working copy of the code, and a ``python`` on PATH.

Read from standard input: this program's arguments (a line of JSON). It says ``@@done`` or ``@@error REASON``.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import sys
from pathlib import Path
from typing import Any

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trainmaster.cluster.bootstrap.guest.answering import Refused, answer, only_one, put


def perform(order: dict[str, Any]) -> str:
    """Make it; what to say."""
    root = Path(order["root"])
    _make_root(root)
    with only_one(root / ".lock", "at work in it"):
        _make_tools(root, order)
        _make_code(root / "runs" / order["run"], order)
    return "done"


def _make_root(root: Path) -> None:
    """Where anybody may write, somebody else may have been faster."""
    with contextlib.suppress(FileExistsError):
        root.mkdir(0o700)
    status = root.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise Refused(f"{root} is there already and not a directory of this user: remove it")
    if stat.S_IMODE(status.st_mode) & 0o077:
        root.chmod(0o700)


def _make_tools(root: Path, order: dict[str, Any]) -> None:
    """``bin/python`` starts what the login's ``python3`` is: the user's packages are found by that."""
    python = os.path.expanduser(order["python"])  # noqa: PTH111 - "~" is that of the login
    if "/" not in python:
        python = shutil.which(python) or order["otherwise"]
    if not os.access(python, os.X_OK):
        raise Refused(f"there is no Python at {python}")
    for name in ("python", "python3"):
        _write(root / "bin" / name, f'#!/bin/sh\nexec {_quoted(python)} "$@"\n', 0o755)
    for path, text in order["files"].items():
        _write(root / path, text, 0o644)
    tools, place = root / "tools", str(Path(python).parent)
    if not tools.is_symlink() or os.readlink(tools) != place:  # noqa: PTH115
        draft = root / f".tools-{os.getpid()}"
        draft.unlink(missing_ok=True)
        draft.symlink_to(place)
        draft.replace(tools)


def _make_code(run: Path, order: dict[str, Any]) -> None:
    run.mkdir(parents=True, exist_ok=True)
    code, draft = run / "code", run / ".code.draft"
    if code.is_dir():
        return
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir()
    if order["layer"]:
        shutil.copytree(order["layer"], draft, symlinks=True, dirs_exist_ok=True, copy_function=_copy)
    for path in order["folders"]:
        (draft / path).mkdir(parents=True, exist_ok=True)
    for path, target in order["links"]:  # in the layer their targets stand in their place
        with contextlib.suppress(FileNotFoundError):
            (draft / path).unlink()
        (draft / path).symlink_to(target)
    draft.rename(code)


def _copy(source: str, target: str) -> None:
    """Copy a file; layers are made of read-only masters, copies are the members' own."""
    shutil.copy2(source, target, follow_symlinks=False)
    if not os.path.islink(target):  # noqa: PTH114
        os.chmod(target, os.stat(target).st_mode | stat.S_IWUSR)  # noqa: PTH101, PTH116


def _write(path: Path, text: str, mode: int) -> None:
    with contextlib.suppress(OSError):
        if path.read_text(encoding="utf-8") == text:
            return
    path.parent.mkdir(parents=True, exist_ok=True)
    put(path, text, mode)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


if __name__ == "__main__":
    sys.exit(answer(perform))
