"""What of a home belongs into a backup, and in which order. Pure."""

from __future__ import annotations

import re
from typing import Final

#: Entries of an archive.
DATABASE: Final = "database"
HOME: Final = "home"
MANIFEST: Final = "manifest.json"
#: Of the manifest; another one is not read.
FORM: Final = 1

#: Processes of one machine, sockets and keys that are made again, and a lab with its hosts.
_OF_THIS_MACHINE: Final = ("supervisor", "servers", "drivers", "access", "profiles", "lab")
_LEFT_OUT: Final = re.compile(
    rf"(?:{'|'.join(_OF_THIS_MACHINE)})(?:/.*)?"
    r"|trainmaster\.db(?:-.*)?"
    r"|(?:.*/)?[^/]*\.lock"
    r"|(?:.*/)?\.[^/]*in-the-making-[^/]*(?:/.*)?"
    r"|\.identity-[^/]*"
    r"|(?:taken/[^/]+/)?lab"
    # Data that are mounted or fetched again, /tmp of members.
    r"|(?:taken/[^/]+/)?runs/[^/]+/inputs/(?![^/]*\.json$).*"
    r"|(?:taken/[^/]+/)?runs/[^/]+/tasks/[^/]+/\d+/\d+/tmp(?:/.*)?"
)
_HEAD: Final = re.compile(r"store/(?:.*/heads/[^/]*|.*/manifest\.json)")
_PARTS: Final = re.compile(r"store/.*/manifests/[^/]*")
#: So many kinds of files there are: see `order`.
ORDERS: Final = 3


def is_kept(path: str) -> bool:
    """Whether a path below a home belongs into a backup, and what is below it may."""
    return _LEFT_OUT.fullmatch(path) is None


def order(path: str) -> int:
    """Which files are read first: what refers to others, as what it refers to was written before it.

    >>> order("store/volumes/pets/heads/000001.json"), order("store/volumes/pets/chunks/81/81c4")
    (0, 2)
    """
    return 0 if _HEAD.fullmatch(path) else 1 if _PARTS.fullmatch(path) else 2
