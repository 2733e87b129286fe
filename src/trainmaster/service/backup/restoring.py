"""`restore`: a home and its database from the file of a backup, whole or not at all."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from trainmaster.artifacts.scratch import is_occupied, move_into_place, scratch_directory
from trainmaster.artifacts.unpacking import UnpackError, UnpackLimits, unpack
from trainmaster.control.task.layout import Home, sqlite_url
from trainmaster.db import copies
from trainmaster.db.engine import SCHEMA_REVISION, make_engine, open_database
from trainmaster.db.migrations import FIRST_REVISION
from trainmaster.objects.names import stays_inside
from trainmaster.service.backup.writing import DATABASE, FORM, HOME, MANIFEST
from trainmaster.spec.errors import UsageError, fails_as

_AGAIN: Final = "Nothing was restored. Take another backup, or copy this one here again."


def restore(file: Path, *, goes_on: bool, environ: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Make the home that the variables name, which is empty, of a backup; and its database.

    Args:
        file: the backup.
        goes_on: the home that it was made of is gone for good: what was under way goes on here.
        environ: the variables; None for this process's.

    Returns:
        ``home``, ``at`` (of the backup), ``files``, ``held`` (runs that were ended), ``elsewhere``.

    Raises:
        UsageError: the home or its database is not empty, or the file is damaged, newer, or no backup.
        StoreError: the database cannot be used.
    """
    file, home = file.expanduser().absolute(), Home.from_environment(environ, makes=False)
    if is_occupied(home.root):
        raise UsageError(
            f"{home.root} is not empty: nothing was restored",
            "TRAINMASTER_HOME names another place; or stop what runs there, and move that directory away.",
        )
    if not file.is_file():
        raise UsageError(f"there is no file {file}", "`trainmaster server backup FILE` writes one.")
    is_inside = home.database_url == sqlite_url(home.root / "trainmaster.db")
    hint = "It needs room for the backup, and must be no mount point. Nothing was restored."
    with fails_as(f"{home.root} cannot be made", hint), scratch_directory(home.root) as scratch:
        scratch.chmod(0o700)
        manifest = _unpacked(file, scratch)
        held = _make_right(scratch / DATABASE, manifest, home, goes_on=goes_on)
        root = scratch / HOME
        _mark_clusters(root, manifest["database"], home)
        if is_inside:
            (scratch / DATABASE).rename(root / "trainmaster.db")
        else:
            copies.fill(scratch / DATABASE, home.database_url, manifest["id"])
        os.sync()  # what appears with the next step is on the disk
        if not move_into_place(root, home.root):
            raise UsageError(f"{home.root} is not empty any more", "Somebody else was quicker.")
    if not is_inside:
        copies.forget_mark(home.database_url)
    # Copies of runs that other servers drive: they may be newer than what the database knows now.
    shutil.rmtree(home.cache / "replicas", ignore_errors=True)
    return {
        "home": str(home.root),
        "at": manifest["at"],
        "files": len(manifest["files"]),
        "held": held,
        "elsewhere": manifest["elsewhere"],
    }


def _unpacked(file: Path, scratch: Path) -> dict[str, Any]:
    """The manifest of a backup, of which all is there as it says."""
    try:
        # Nothing is believed: `unpack` writes nowhere else, and the archive of a backup has files only.
        unpack(file, "backup.tar", scratch, UnpackLimits(shutil.disk_usage(scratch).free))
        manifest: dict[str, Any] = json.loads((scratch / MANIFEST).read_bytes())
        form, schema = int(manifest["form"]), str(manifest["schema"])
    except (UnpackError, ValueError, KeyError, TypeError, FileNotFoundError) as error:
        raise UsageError(f"{file} is damaged, or no backup: {error}", _AGAIN) from error
    if schema < FIRST_REVISION:
        raise UsageError(
            f"{file} was written by a build before 0.2.0 (schema {schema})",
            "Nothing was restored. The build that wrote it can restore it.",
        )
    if form != FORM or schema > SCHEMA_REVISION:
        raise UsageError(
            f"{file} was written by Trainmaster {manifest.get('version')} (schema {schema}), this one knows "
            f"schemas up to {SCHEMA_REVISION}",
            "Nothing was restored. Update this one first (pip install -U trainmaster).",
        )
    (scratch / MANIFEST).unlink()
    try:
        _check(scratch, manifest)
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{file} is damaged: {error}", _AGAIN) from error
    return manifest


def _check(scratch: Path, manifest: dict[str, Any]) -> None:
    """Compare all files with the manifest; make directories and links; give back modes.

    Raises:
        ValueError: what does not fit.
    """
    wanted = dict(manifest["files"])
    root = scratch / HOME
    root.mkdir(exist_ok=True)
    for path in sorted(scratch.rglob("*")):
        status, name = path.lstat(), str(path.relative_to(scratch))
        if stat.S_ISDIR(status.st_mode):
            continue
        said = wanted.pop(name, None)
        if said is None or not stat.S_ISREG(status.st_mode):
            raise ValueError(f"{name} is not in its manifest")
        with path.open("rb") as content:
            digest = hashlib.file_digest(content, "sha256").hexdigest()
        if (status.st_size, digest) != (said["size"], said["sha256"]):
            raise ValueError(f"{name} is not as its manifest says")
        path.chmod(int(said["mode"]) & 0o777)
    if wanted:
        raise ValueError(f"{min(wanted)} is missing")
    for name in (*manifest["directories"], *manifest["links"]):
        if not stays_inside(name):
            raise ValueError(f"{name!r} would lie outside")
    for name in manifest["directories"]:
        (root / name).mkdir(parents=True, exist_ok=True)
    # Last of all, so that nothing is written through one; where they lead is the users' business, as before.
    for name, target in manifest["links"].items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        if (root / name).parent.resolve() != (root / name).parent.absolute():
            raise ValueError(f"{name!r} lies behind a link")
        (root / name).symlink_to(target)
    for name in sorted(manifest["directories"], reverse=True):
        (root / name).chmod(int(manifest["directories"][name]) & 0o777)
    root.chmod(0o700)


def _make_right(file: Path, manifest: dict[str, Any], home: Home, *, goes_on: bool) -> int:
    """Bring the database to this version's schema and to its new place; how many runs were ended."""
    file.chmod(0o600)
    engine = open_database(sqlite_url(file))
    try:
        with engine.begin() as connection:
            copies.relocate(connection, Path(manifest["home"]), home.root)
            if goes_on:
                return 0
            at = time.strftime("%F %H:%M", time.localtime(manifest["at"]))
            why = f"it was under way when the backup of {at} was made; `trainmaster resume` goes on with it"
            return copies.hold(connection, manifest["at"], why)
    finally:
        engine.dispose()


def _mark_clusters(root: Path, before: str, home: Home) -> None:
    """Machines say beside their keys which database knows them: it is the restored one now."""
    now = make_engine(home.database_url).url.render_as_string(hide_password=True)
    for mark in root.glob("clusters/*/database"):
        if mark.read_text() == before:
            mark.write_text(now)
