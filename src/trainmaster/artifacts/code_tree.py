# ruff: noqa: PTH113, PTH115, PTH116, PTH123
# Names are any bytes and files are many: os functions on plain text are exact, and four times as fast.
"""Which files of a directory are the user's code, and whether they are few enough to be copied around."""

import os
import stat
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from trainmaster.objects.names import link_stays_inside
from trainmaster.spec.errors import UsageError

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

LIMIT_BYTES = 100_000_000
# What a program can make again, and what git itself never tracks.
_NEVER = frozenset((".git", "__pycache__", ".mypy_cache", ".pytest_cache", ".ruff_cache"))
# What makes a directory an environment of venv or conda.
_ENVIRONMENT_MARKS = frozenset(("pyvenv.cfg", "conda-meta"))
# Once it is too large, how long we go on looking for what makes it so.
_BLAME_S = 1.0


class CodeFile(NamedTuple):
    """A file to be copied."""

    path: str
    place: str
    is_executable: bool


@dataclass(slots=True)
class CodeTree:
    """What belongs to the code.

    Attributes:
        files: in no order.
        links: symbolic links that stay inside, with their targets.
        folders: parents before their children.
        notes: what was left out that the user may miss.
        total_bytes: the size of all files.
    """

    files: list[CodeFile] = field(default_factory=list)
    links: list[tuple[str, str]] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    total_bytes: int = 0


# The .gitignore files that hold for a directory, the nearest last. For each: how many characters of a path
# lie above it, and what is to be put in front because it lies itself above the code.
_Rules = tuple[tuple[int, str, "GitIgnoreSpec"], ...]


def scan_code(directory: Path, source: str, exclude: Sequence[Path], *, is_filtered: bool) -> CodeTree:
    """Finds the code below a directory, reading nothing but .gitignore files.

    Left out are what .gitignore files say (those of the enclosing git work tree too), .git,
    caches of Python tools, environments of venv and conda, links that lead outside, and what
    is neither file nor directory.

    Args:
        directory: where the code is.
        source: what the recipe calls it, for messages.
        exclude: directories to be left out.
        is_filtered: False takes everything but ``.git``.

    Raises:
        UsageError: it is over 100 MB, or a directory cannot be read.
    """
    return _Scan(directory, source, exclude, is_filtered).run()


class _Scan:
    def __init__(self, directory: Path, source: str, exclude: Sequence[Path], is_filtered: bool) -> None:
        self._root = os.fspath(directory)
        self._source = source
        self._is_filtered = is_filtered
        self._excluded = _identities(exclude)
        self._tree = CodeTree()
        self._sizes: list[tuple[str, int]] = []
        self._links: dict[str, str] = {}

    def run(self) -> CodeTree:
        tree = self._tree
        pending: list[tuple[str, _Rules]] = [("", _rules_above(self._root) if self._is_filtered else ())]
        give_up_s = float("inf")
        while pending:
            folder, rules = pending.pop()
            self._enter(folder, rules, pending)
            if tree.total_bytes > LIMIT_BYTES:
                give_up_s = min(give_up_s, time.monotonic() + _BLAME_S)
                if time.monotonic() > give_up_s:
                    break
        if tree.total_bytes > LIMIT_BYTES:
            raise self._too_large(is_complete=not pending)
        for path, target in sorted(self._links.items()):
            if link_stays_inside(path, self._links):
                tree.links.append((path, target))
            else:
                tree.notes.append(
                    f"code: left out {path}: a symbolic link that leads outside, to {target}; "
                    "give what it points to as `data:`"
                )
        return tree

    def _enter(self, folder: str, rules: _Rules, pending: list[tuple[str, _Rules]]) -> None:
        place = f"{self._root}/{folder}" if folder else self._root
        try:
            with os.scandir(place) as found:
                entries = list(found)
        except FileNotFoundError:
            return
        except OSError as error:
            raise UsageError(
                f"code: {place} cannot be read: {error.strerror}.",
                "Change its permissions, or leave it out in .gitignore.",
            ) from error
        names = {entry.name for entry in entries}
        if self._is_filtered and folder and names & _ENVIRONMENT_MARKS:
            return
        if folder:
            self._tree.folders.append(folder)
        if self._is_filtered and ".gitignore" in names:
            spec = _read_rules(f"{place}/.gitignore")
            rules = (*rules, (len(folder) + 1 if folder else 0, "", spec))
        for entry in entries:
            path = f"{folder}/{entry.name}" if folder else entry.name
            self._see(entry, path, rules, pending)

    def _see(
        self, entry: "os.DirEntry[str]", path: str, rules: _Rules, pending: list[tuple[str, _Rules]]
    ) -> None:
        if entry.name == ".git" or (self._is_filtered and entry.name in _NEVER):
            return
        is_folder = entry.is_dir(follow_symlinks=False)
        if rules and _is_ignored(f"{path}/" if is_folder else path, rules):
            return
        try:
            if is_folder:
                if not (self._excluded and _identity(entry.path) in self._excluded):
                    pending.append((path, rules))
            elif entry.is_symlink():
                self._links[path] = os.readlink(entry.path)
            else:
                self._see_file(entry, path)
        except FileNotFoundError:
            return

    def _see_file(self, entry: "os.DirEntry[str]", path: str) -> None:
        status = entry.stat(follow_symlinks=False)
        if not stat.S_ISREG(status.st_mode):
            self._tree.notes.append(f"code: left out {path}: it is neither a file nor a directory")
            return
        self._tree.total_bytes += status.st_size
        self._tree.files.append(CodeFile(path, entry.path, bool(status.st_mode & 0o100)))
        self._sizes.append((path, status.st_size))

    def _too_large(self, *, is_complete: bool) -> UsageError:
        largest = ", ".join(f"{path} ({_size(size)})" for path, size in _largest(self._sizes))
        total = ("" if is_complete else "at least ") + _size(self._tree.total_bytes)
        return UsageError(
            f"code: {self._source} has {total}; {_size(LIMIT_BYTES)} is the limit. The largest: {largest}.",
            "List in .gitignore what the program does not need, and give data sets as `data:`.",
        )


def _largest(sizes: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
    """Names the three things to blame: as deep as one of them holds nearly all of what is above it."""
    totals: dict[str, int] = {}
    children: dict[str, set[str]] = {}
    for path, size in sizes:
        name = path
        while True:
            totals[name] = totals.get(name, 0) + size
            parent = name.rpartition("/")[0]
            children.setdefault(parent, set()).add(name)
            if not parent:
                break
            name = parent
    blamed = []
    for name in sorted(children.get("", ()), key=lambda name: -totals[name])[:3]:
        deepest = name
        while deepest in children:
            child = max(children[deepest], key=lambda name: totals[name])
            if totals[child] < 0.9 * totals[name]:
                break
            deepest = child
        blamed.append((f"{deepest}/" if deepest in children else deepest, totals[deepest]))
    return blamed


def _size(size_bytes: int) -> str:
    if size_bytes >= 1_000_000_000:
        return f"{size_bytes / 1e9:.1f} GB"
    if size_bytes >= 1_000_000:
        return f"{size_bytes / 1e6:.0f} MB"
    return f"{size_bytes / 1e3:.0f} kB"


def _identities(paths: Sequence[Path]) -> frozenset[tuple[int, int]]:
    return frozenset(identity for path in paths if (identity := _identity(os.fspath(path))) is not None)


def _identity(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return (status.st_dev, status.st_ino)


def _is_ignored(path: str, rules: _Rules) -> bool:
    # As git does: the last matching line of the nearest file that has one decides.
    for above, front, spec in reversed(rules):
        verdict = spec.check_file(front + path[above:]).include
        if verdict is not None:
            return verdict
    return False


def _read_rules(place: str) -> "GitIgnoreSpec":
    from pathspec import GitIgnoreSpec  # 20 ms, which most small folders need not pay

    try:
        with open(place, encoding="utf-8", errors="surrogateescape") as file:
            return GitIgnoreSpec.from_lines(file)
    except (OSError, ValueError) as error:
        raise UsageError(f"code: {place} cannot be read: {error}.", "Correct or remove it.") from error


def _rules_above(root: str) -> _Rules:
    """The .gitignore files between the top of the enclosing git work tree and the code, if there is one."""
    top = os.path.realpath(root)
    found: list[tuple[str, str]] = []
    folder, front = top, ""
    while not os.path.lexists(f"{folder}/.git"):
        parent, name = os.path.split(folder)
        if parent == folder:
            return ()
        folder, front = parent, f"{name}/{front}"
        if os.path.isfile(f"{folder}/.gitignore"):
            found.append((f"{folder}/.gitignore", front))
    rules: _Rules = tuple((0, front, _read_rules(place)) for place, front in reversed(found))
    # A folder that git ignores altogether, named as code all the same, is meant as it is.
    return () if rules and _is_ignored("", rules) else rules
