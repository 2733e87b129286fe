"""Makes what a run needs on a node: our directory, its working copy of the code, and a ``python`` on PATH.

Read from standard input: this program's arguments (a line of JSON). It says ``@@done`` or ``@@error REASON``.
"""

# No pathlib: each run begins this program on each node, and it takes longer to load than all else here.
from __future__ import annotations

import contextlib
import os
import stat
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from trainmaster.cluster.bootstrap.host_programs.answering import Refused, answer, only_one, put, unlink


def perform(order: dict[str, Any]) -> str:
    """Make it; what to say."""
    root = order["root"]
    _make_root(root)
    with only_one(f"{root}/.lock", "at work in it"):
        _make_tools(root, order)
        _make_code(f"{root}/runs/{order['run']}", order)
    return "done"


def _make_root(root: str) -> None:
    """Where anybody may write, somebody else may have been faster."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(root, 0o700)
    status = os.lstat(root)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise Refused(f"{root} is there already and not a directory of this user: remove it")
    if stat.S_IMODE(status.st_mode) & 0o077:
        os.chmod(root, 0o700)


def _make_tools(root: str, order: dict[str, Any]) -> None:
    """``bin/python`` starts what the login's ``python3`` is: the user's packages are found by that."""
    python = os.path.expanduser(order["python"])  # "~" is that of the login
    if "/" not in python:
        on_path = (f"{place}/{python}" for place in os.get_exec_path() if place)
        python = next(filter(_is_program, on_path), order["otherwise"])
    if not os.access(python, os.X_OK):
        raise Refused(f"there is no Python at {python}")
    for name in ("python", "python3"):
        _write(f"{root}/bin/{name}", f'#!/bin/sh\nexec {_quoted(python)} "$@"\n', 0o755)
    for path, text in order["files"].items():
        _write(f"{root}/{path}", text, 0o644)
    tools, place = f"{root}/tools", os.path.dirname(python)
    if not os.path.islink(tools) or os.readlink(tools) != place:
        draft = f"{root}/.tools-{os.getpid()}"
        unlink(draft)
        os.symlink(place, draft)
        os.replace(draft, tools)


def _is_program(path: str) -> bool:
    return os.path.isfile(path) and os.access(path, os.X_OK)


def _make_code(run: str, order: dict[str, Any]) -> None:
    os.makedirs(run, exist_ok=True)
    code, draft = f"{run}/code", f"{run}/.code.draft"
    if os.path.isdir(code):
        return
    if order["layer"] or os.path.exists(draft):
        import shutil  # loads all that packs and unpacks archives

        shutil.rmtree(draft, ignore_errors=True)
        if order["layer"]:
            shutil.copytree(order["layer"], draft, symlinks=True, copy_function=_copy)
    os.makedirs(draft, exist_ok=True)
    for path in order["folders"]:
        os.makedirs(f"{draft}/{path}", exist_ok=True)
    for path, target in order["links"]:  # in the layer their targets stand in their place
        unlink(f"{draft}/{path}")
        os.symlink(target, f"{draft}/{path}")
    os.rename(draft, code)


def _copy(source: str, target: str) -> None:
    """Copy a file; layers are made of read-only masters, copies are the members' own."""
    import shutil

    shutil.copy2(source, target, follow_symlinks=False)
    if not os.path.islink(target):
        os.chmod(target, os.stat(target).st_mode | stat.S_IWUSR)


def _write(path: str, text: str, mode: int) -> None:
    with contextlib.suppress(OSError), open(path, encoding="utf-8") as file:
        if file.read() == text:
            return
    os.makedirs(os.path.dirname(path), exist_ok=True)
    put(path, text, mode)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


if __name__ == "__main__":
    sys.exit(answer(perform))
