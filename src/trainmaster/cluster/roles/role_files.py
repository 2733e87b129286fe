"""What a role consists of: its digest, and which roles a requirements.yml names."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from trainmaster.spec.errors import UsageError


def digest_of_tree(directory: Path) -> str:
    """A hash of all files of a role: their paths, contents and who may run them."""
    digest = hashlib.sha256()
    for path in sorted(directory.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            mode = "x" if path.stat().st_mode & 0o100 else "-"
            inner = hashlib.sha256(path.read_bytes()).hexdigest()
            digest.update(f"{path.relative_to(directory)}\0{mode}\0{inner}\n".encode())
    return digest.hexdigest()


def require_role(directory: Path, shown: str) -> Path:
    """A role's directory.

    Raises:
        UsageError: it is none.
    """
    if not directory.is_dir():
        raise UsageError(
            f"roles: there is no directory {shown} in the code", "A path begins at the code's top."
        )
    if not any((directory / part).is_dir() for part in ("tasks", "meta", "handlers")):
        raise UsageError(
            f"roles: {shown} is no role: it has no tasks/main.yml", "Name the role's own directory."
        )
    return directory


def required_names(document: object, shown: str) -> tuple[list[str], bool]:
    """Names of the roles that a requirements.yml asks for, and whether it asks for collections.

    Args:
        document: as it was read.
        shown: the file's name, for messages.

    Raises:
        UsageError: it is no such file.
    """
    roles: Any = document
    collections: Any = None
    if isinstance(document, dict):
        roles, collections = document.get("roles") or [], document.get("collections")
    if not isinstance(roles, list):
        raise UsageError(f"roles: {shown} is no list of roles", "See `ansible-galaxy role install --help`.")
    return [_name(entry, shown) for entry in roles], bool(collections)


def _name(entry: object, shown: str) -> str:
    if isinstance(entry, str):
        entry = {"src": entry}
    if isinstance(entry, dict):
        if isinstance(name := entry.get("name"), str) and _is_plain(name):
            return name
        source = entry.get("src") or entry.get("role")
        if isinstance(source, str) and source:
            place = source.partition(",")[0].rstrip("/")
            name = place.rpartition("/")[2] if "/" in place else place
            for suffix in (".git", ".tar.gz"):
                name = name.removesuffix(suffix)
            if _is_plain(name):
                return name
    raise UsageError(f"roles: {shown}: {entry!r} names no role", "Write {name: NAME, src: URL, version: V}.")


def _is_plain(name: str) -> bool:
    return bool(name) and "/" not in name and not name.startswith((".", "~")) and "{{" not in name
