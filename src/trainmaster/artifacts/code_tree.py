# ruff: noqa: PTH113, PTH115, PTH116, PTH123, PTH208
# Names are any bytes and files are many: os functions on plain text are exact, and four times as fast.
"""Which files of a directory are the user's code, and whether they are few enough to be copied around."""

import json
import os
import re
import stat
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from trainmaster.dataclass import dataclass, field
from trainmaster.objects.names import link_stays_inside
from trainmaster.spec.errors import UsageError, fails_as

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

LIMIT_BYTES = 100_000_000
# What a program can make again, and what git itself never tracks.
_NEVER = frozenset((".git", "__pycache__", ".mypy_cache", ".pytest_cache", ".ruff_cache"))
# What makes a directory an environment of venv or conda.
_ENVIRONMENT_MARKS = frozenset(("pyvenv.cfg", "conda-meta"))
# Ignored names that are not worth telling: tools write them, and write them again. Of names with a dot, all.
_MADE = frozenset(("build", "dist", "htmlcov", "lightning_logs", "mlruns", "node_modules", "wandb"))
_MADE_ENDINGS = (".egg-info", ".log", ".pyc", ".pyo", ".swp", "~")
# So many ignored files are looked at for their sizes: a folder of results may hold millions.
_MOST_MEASURED = 20_000
# What needs no quotes in a list of YAML.
_PLAIN = re.compile(r"[\w./-]+")
# Once it is too large, how long we go on looking for what makes it so.
_BLAME_S = 1.0


class CodeFile(NamedTuple):
    """A file to be copied."""

    path: str
    place: str
    is_executable: bool


@dataclass(frozen=True, slots=True)
class NotSent:
    """A file or a folder (its name ends with a slash) that .gitignore leaves out.

    Attributes:
        path: below the code.
        size_bytes: of all files in it.
        files: how many; of a very large folder those that were counted.
    """

    path: str
    size_bytes: int
    files: int


@dataclass(slots=True)
class CodeTree:
    """What belongs to the code.

    Attributes:
        files: in no order.
        links: symbolic links that stay inside, with their targets.
        folders: parents before their children.
        notes: what was left out that the user may miss.
        total_bytes: the size of all files.
        ignored: what .gitignore leaves out and somebody may miss, with its places.
    """

    files: list[CodeFile] = field(default_factory=list)
    links: list[tuple[str, str]] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    total_bytes: int = 0
    ignored: list[tuple[str, str]] = field(default_factory=list)

    def not_sent(self) -> tuple[NotSent, ...]:
        """What .gitignore leaves out, the largest first."""
        if not self.ignored:
            return ()
        sent, found, left = {file.place for file in self.files}, [], _MOST_MEASURED
        for path, place in self.ignored:
            sizes = list(islice(_sizes_of(place, sent), left))
            left -= len(sizes)
            if sizes:
                found.append(NotSent(path, sum(sizes), len(sizes)))
        return tuple(sorted(found, key=lambda each: (-each.size_bytes, each.path)))


def not_sent_note(not_sent: Sequence[NotSent]) -> str:
    """What .gitignore leaves out as a line for people; empty if it is nothing."""
    if not not_sent:
        return ""
    count, size_bytes = sum(each.files for each in not_sent), sum(each.size_bytes for each in not_sent)
    largest = ", ".join(f"{each.path} ({_size(each.size_bytes)})" for each in not_sent[:3])
    name = not_sent[0].path
    pattern = name if _PLAIN.fullmatch(name) else json.dumps(name)
    return (
        f"not sent, as .gitignore says: {count} file{'s' * (count != 1)}, {_size(size_bytes)}: {largest}"
        f"{', ...' * (len(not_sent) > 3)} (`code: {{include: [{pattern}]}}` sends it)"
    )


# The .gitignore files that hold for a directory, the nearest last. For each: how many characters of a path
# lie above it, and what is to be put in front because it lies itself above the code.
_Rules = tuple[tuple[int, str, "GitIgnoreSpec"], ...]
# A folder to be looked into, the rules that hold there, and whether it is ignored: then only what is
# included by name is taken of it.
_Pending = tuple[str, _Rules, bool]


def scan_code(
    directory: Path,
    source: str,
    exclude: Sequence[Path],
    *,
    is_filtered: bool,
    include: Sequence[str] = (),
) -> CodeTree:
    """Finds the code below a directory, reading nothing but .gitignore files.

    Left out are what .gitignore files say (those of the enclosing git work tree too), .git,
    caches of Python tools, environments of venv and conda, links that lead outside, and what
    is neither file nor directory.

    Args:
        directory: where the code is.
        source: what the recipe calls it, for messages.
        exclude: directories and files to be left out.
        is_filtered: False takes everything but ``.git``.
        include: patterns as in a .gitignore at the top of the code: what is taken whatever these say.

    Raises:
        UsageError: it is over 100 MB, a directory cannot be read, or nothing fits ``include``.
    """
    return _Scan(directory, source, exclude, is_filtered, include).run()


class _Scan:
    def __init__(
        self,
        directory: Path,
        source: str,
        exclude: Sequence[Path],
        is_filtered: bool,
        include: Sequence[str],
    ) -> None:
        self._root = os.fspath(directory)
        self._source = source
        self._is_filtered = is_filtered
        self._excluded = _identities(exclude) | _own_output()
        self._included = _spec(include) if include else None
        self._has_included = False
        self._folders: set[str] = set()
        self._include = include
        self._tree = CodeTree()
        self._sizes: list[tuple[str, int]] = []
        self._links: dict[str, str] = {}

    def run(self) -> CodeTree:
        tree = self._tree
        pending: list[_Pending] = [("", _rules_above(self._root) if self._is_filtered else (), False)]
        give_up_s = float("inf")
        while pending:
            self._enter(*pending.pop(), pending)
            if tree.total_bytes > LIMIT_BYTES:
                give_up_s = min(give_up_s, time.monotonic() + _BLAME_S)
                if time.monotonic() > give_up_s:
                    break
        if tree.total_bytes > LIMIT_BYTES:
            raise self._too_large(is_complete=not pending)
        if self._included is not None and not self._has_included:
            raise UsageError(
                f"code.include: {', '.join(self._include)}: there is no such file in {self._root}.",
                "Write patterns as in a .gitignore at the top of the code, such as data/*.txt.",
            )
        for path, target in sorted(self._links.items()):
            if link_stays_inside(path, self._links):
                tree.links.append((path, target))
            else:
                tree.notes.append(
                    f"code: left out {path}: a symbolic link that leads outside, to {target}; "
                    "give what it points to as `data:`"
                )
        return tree

    def _enter(self, folder: str, rules: _Rules, is_ignored: bool, pending: list[_Pending]) -> None:
        place = f"{self._root}/{folder}" if folder else self._root
        with fails_as(
            f"code: {place} cannot be read", "Change its permissions, or leave it out in .gitignore."
        ):
            try:
                with os.scandir(place) as found:
                    entries = list(found)
            except FileNotFoundError:
                return
        names = {entry.name for entry in entries}
        if self._is_filtered and folder and names & _ENVIRONMENT_MARKS:
            return
        if not is_ignored:
            self._take_folder(folder)
        if self._is_filtered and ".gitignore" in names:
            spec = _read_rules(f"{place}/.gitignore")
            rules = (*rules, (len(folder) + 1 if folder else 0, "", spec))
        for entry in entries:
            path = f"{folder}/{entry.name}" if folder else entry.name
            self._see(entry, path, rules, is_ignored, pending)

    def _see(
        self,
        entry: "os.DirEntry[str]",
        path: str,
        rules: _Rules,
        is_ignored: bool,
        pending: list[_Pending],
    ) -> None:
        if entry.name == ".git" or (self._is_filtered and entry.name in _NEVER):
            return
        is_folder = entry.is_dir(follow_symlinks=False)
        name = f"{path}/" if is_folder else path
        was_ignored = is_ignored
        if self._included is not None and self._included.match_file(name):
            self._has_included |= not is_folder
            if is_ignored and not is_folder:
                self._take_folder(path.rpartition("/")[0])
            is_ignored = False
        elif is_ignored or (rules and _is_ignored(name, rules)):
            is_ignored = True
        try:
            if is_folder:
                if self._excluded and _identity(entry.path) in self._excluded:
                    return
                if not is_ignored or self._included is not None:
                    pending.append((path, rules, is_ignored))
            if is_ignored and not was_ignored and not _is_made(entry.name):
                self._tree.ignored.append((name, entry.path))
            if is_ignored or is_folder:
                return
            if entry.is_symlink():
                self._links[path] = os.readlink(entry.path)
            else:
                self._see_file(entry, path)
        except FileNotFoundError:
            return

    def _take_folder(self, folder: str) -> None:
        """Take a folder, and those above it that were ignored until something in them was included."""
        missing = []
        while folder and folder not in self._folders:
            missing.append(folder)
            folder = folder.rpartition("/")[0]
        self._folders.update(missing)
        self._tree.folders += reversed(missing)

    def _see_file(self, entry: "os.DirEntry[str]", path: str) -> None:
        status = entry.stat(follow_symlinks=False)
        if not stat.S_ISREG(status.st_mode):
            self._tree.notes.append(f"code: left out {path}: it is neither a file nor a directory")
            return
        if (status.st_dev, status.st_ino) in self._excluded:
            return
        self._tree.total_bytes += status.st_size
        self._tree.files.append(CodeFile(path, entry.path, bool(status.st_mode & 0o100)))
        self._sizes.append((path, status.st_size))

    def _too_large(self, *, is_complete: bool) -> UsageError:
        largest = ", ".join(f"{path} ({_size(size)})" for path, size in _largest(self._sizes))
        total = ("" if is_complete else "at least ") + _size(self._tree.total_bytes)
        return UsageError(
            f"code: {self._source} has {total}, more than the limit of {_size(LIMIT_BYTES)}. "
            f"The largest: {largest}.",
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
        return f"{size_bytes / 1e6:.{size_bytes < 10_000_000:d}f} MB"
    return f"{size_bytes / 1e3:.0f} kB" if size_bytes >= 1_000 else f"{size_bytes} bytes"


def _is_made(name: str) -> bool:
    return name.startswith(".") or name in _MADE or name in _NEVER or name.endswith(_MADE_ENDINGS)


def _sizes_of(place: str, sent: Collection[str]) -> Iterator[int]:
    """Sizes of the files at and below a place that are not sent, and that somebody may miss."""
    try:
        status = os.lstat(place)
        if stat.S_ISREG(status.st_mode) and place.rstrip("/") not in sent:
            yield status.st_size
        if not stat.S_ISDIR(status.st_mode):
            return
        names = os.listdir(place)
    except OSError:
        return
    if not _ENVIRONMENT_MARKS.intersection(names):
        for name in names:
            if not _is_made(name):
                yield from _sizes_of(f"{place}/{name}", sent)


def _identities(paths: Sequence[Path]) -> frozenset[tuple[int, int]]:
    return frozenset(identity for path in paths if (identity := _identity(os.fspath(path))) is not None)


def _own_output() -> frozenset[tuple[int, int]]:
    """Files that this command prints to (``trainmaster run recipe.yaml > run.txt``): they are no code."""
    return frozenset(found for number in (1, 2) if (found := _identity(number)) is not None)


def _identity(path: str | int) -> tuple[int, int] | None:
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


def _spec(lines: Iterable[str]) -> "GitIgnoreSpec":
    from pathspec import GitIgnoreSpec  # 20 ms, which most small folders need not pay

    with fails_as("code.include", "Write patterns as in .gitignore.", on=ValueError):
        return GitIgnoreSpec.from_lines(lines)


def _read_rules(place: str) -> "GitIgnoreSpec":
    from pathspec import GitIgnoreSpec

    with (
        fails_as(f"code: {place} cannot be read", "Correct or remove it.", on=(OSError, ValueError)),
        open(place, encoding="utf-8", errors="surrogateescape") as file,
    ):
        return GitIgnoreSpec.from_lines(file)


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
