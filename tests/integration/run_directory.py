"""All that lies below a run's directory, and what carries each to another driver.

What a run needs, or says, lies in its record: whichever home, server or machine drives it has that. A file
that is in no line of this table fails the tests that look through directories of runs.
"""

from __future__ import annotations

import re
from enum import Enum, auto
from pathlib import Path
from typing import Final, NamedTuple

from trainmaster.service.driving.replication import _files


class By(Enum):
    """What carries it."""

    ROW = auto()  #: Rows of the database say the same.
    REPLICA = auto()  #: `Replication` sends it.
    STORE = auto()  #: It is on the object store.
    NOTHING = auto()  #: Nobody else needs it.


class Entry(NamedTuple):
    """Files below the run's directory.

    Attributes:
        path: a pattern; what is below a directory that matches is meant, too.
        by: what carries them.
        why: that is enough.
    """

    path: str
    by: By
    why: str


_TASK: Final = r"tasks/[^/]+/\d+/\d+"
_MEMBER: Final = r"[A-Za-z0-9_][A-Za-z0-9._-]*"
ENTRIES: Final = [
    Entry(r"code", By.STORE, "its snapshot, by digest (`send_code`); what tasks change there stays there"),
    Entry(
        r"inputs/volume-[0-9a-f]{12}", By.ROW, "`run_fact` has the version; it is mounted or fetched again"
    ),
    Entry(r"inputs/model-[^/]+", By.STORE, "a registered model, whose place the recipe of the row says"),
    Entry(r"inputs/hdfs", By.STORE, "blocks of an HDFS of this machine; they are staged again"),
    Entry(r"inputs/hdfs(-[^/]+)?\.json", By.REPLICA, "which HDFS has what was staged"),
    Entry(r"inputs/[^/]+\.lock", By.NOTHING, "locks of processes of this machine"),
    Entry(r"inputs/(?!volume-)[^/.][^/]*", By.STORE, "models of another experiment, by its rows"),
    Entry(r"control\.log", By.NOTHING, "what a driver says to itself; each has its own"),
    Entry(r"wandb", By.ROW, "made of metrics, from where the rows of `sink_cursor` say"),
    Entry(rf"{_TASK}/{_MEMBER}\.log(\.\d+)?", By.REPLICA, "what a member, or Ansible, has said"),
    Entry(rf"{_TASK}/{_MEMBER}\.metrics\.jsonl", By.REPLICA, "what a member reports"),
    Entry(rf"{_TASK}/shown", By.REPLICA, "how far a driver has shown the first member's log"),
    Entry(rf"{_TASK}/samples\.jsonl(\.\d+)?", By.REPLICA, "what members use of their machines"),
    Entry(rf"{_TASK}/places\.json", By.REPLICA, "on which machines members are"),
    Entry(rf"{_TASK}/restored\.json", By.REPLICA, "what the attempt has begun with"),
    Entry(rf"{_TASK}/staging\.lock", By.NOTHING, "a lock of threads of this process"),
    Entry(rf"{_TASK}/output", By.STORE, "the model once it is published; before, it is with its members"),
    Entry(rf"{_TASK}/members", By.STORE, "parts of the same"),
    Entry(rf"{_TASK}/checkpoint", By.STORE, "published every `checkpoint.every` and at the end"),
    Entry(rf"{_TASK}/tmp", By.NOTHING, "/tmp of members that run as a user of their own"),
]


def entry_of(path: str) -> Entry | None:
    """The line that a path below the run's directory belongs to."""
    return next((entry for entry in ENTRIES if re.fullmatch(rf"{entry.path}(/.*)?", path)), None)


def by_entry(run_directory: Path) -> dict[str, list[str]]:
    """All files below a run's directory by the pattern of their line; those in none under an empty one."""
    found: dict[str, list[str]] = {}
    for path in sorted(run_directory.rglob("*")):
        if path.is_symlink() or not path.is_dir():
            relative = str(path.relative_to(run_directory))
            entry = entry_of(relative)
            found.setdefault("" if entry is None else entry.path, []).append(relative)
    return found


def check(run_directory: Path) -> dict[str, list[str]]:
    """See that all that is there has a line, and that what sends files sends those that it should.

    Returns:
        The files by pattern.
    """
    found = by_entry(run_directory)
    lost = found.get("", [])
    assert lost == [], f"{lost}: carried by nothing: a row, or a line in tests/integration/run_directory.py"
    replicated = {path for entry in ENTRIES if entry.by is By.REPLICA for path in found.get(entry.path, ())}
    places = [run_directory / "inputs", *run_directory.glob("tasks/*/*/*")]
    sent = {f"{place.relative_to(run_directory)}/{name}" for place in places for name, _, _ in _files(place)}
    assert sent == replicated, "`Replication` sends other files than those that this table says"
    return found
