"""`UploadFinishing`: whole uploads become code or a version of a volume, in the background."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from sqlalchemy.engine import RowMapping

from trainmaster.artifacts.scratch import scratch_directory
from trainmaster.artifacts.unpacking import ARCHIVE_SUFFIXES, UnpackError, UnpackLimits, unpack
from trainmaster.control.attempt.data_urls import room_bytes
from trainmaster.control.task.layout import Home
from trainmaster.db import Database
from trainmaster.db import uploads as rows
from trainmaster.db.queries import RunFilter, is_among
from trainmaster.objects import ObjectStore
from trainmaster.objects.errors import FullStoreError, error_of, trouble_of
from trainmaster.service.server_loops import LoopErrorLog
from trainmaster.service.table_summary import summarised
from trainmaster.service.teams.team_volumes import is_volume_name, volumes_url
from trainmaster.service.uploads.code_uploads import CodeUploads, TeamQuotaError
from trainmaster.service.uploads.uploads import MAX_UPLOADS, UploadConflictError, Uploads
from trainmaster.service.users.caller import Caller
from trainmaster.spec.errors import TrainmasterError, UsageError
from trainmaster.spec.periodic import periodically
from trainmaster.spec.private_files import make_private
from trainmaster.spec.units import parse_bytes

#: What the volumes of a team may take in the store.
VOLUMES_VARIABLE: Final = "TRAINMASTER_TEAM_VOLUMES"
_VOLUMES: Final = "200GB"
#: So many at once; each needs room on this server's disk.
_AT_ONCE: Final = 2
_RENEW_S: Final = 5.0
#: Real data are seldom packed a hundredfold; what is smaller than this in the end does no harm.
_MOST_TIMES: Final = 100
_SMALL_BYTES: Final = 2 << 30
_MOST_FILES: Final = 2_000_000


class UploadFinishing:
    """Makes something of uploads.

    Args:
        home: of the server.
        database: of the home.
        uploads: of the home.
        environ: `VOLUMES_VARIABLE` is looked up there.
    """

    def __init__(
        self, home: Home, database: Database, uploads: Uploads, environ: Mapping[str, str] = os.environ
    ) -> None:
        self._home = home
        self._database = database
        self._uploads = uploads
        self._quota_bytes = parse_bytes(environ.get(VOLUMES_VARIABLE) or _VOLUMES)
        self._pool = ThreadPoolExecutor(_AT_ONCE, "finishing an upload")
        self._untold: dict[str, Future[None]] = {}

    def finish(
        self, caller: Caller, upload: str, volume: str = "", others: Sequence[str] = (), made_by: str = ""
    ) -> Future[None] | None:
        """Have something made of an upload; safe to repeat, also on another server.

        Args:
            caller: whose it is.
            upload: its id; `Uploads.get` tells what became of it.
            volume: the name of the volume that gets a new version; empty for code.
            others: uploads whose files are in the same version.
            made_by: the run whose task made the files; one that is not the caller's to see is not noted.

        Returns:
            What can be waited for, until `told` was called; None if it is done already, or another server is
            at it.

        Raises:
            UploadConflictError: it is not whole.
            NotFoundError: it is not there, or not the caller's to see.
            UsageError: that is no name for a volume.
        """
        caller.need("run")
        found = [self._uploads.row(caller, each) for each in dict.fromkeys((upload, *others))]
        for row in found:
            if row["received_bytes"] < row["size_bytes"]:
                missing = row["size_bytes"] - row["received_bytes"]
                raise UploadConflictError(
                    f"{row['name']}: {missing:,} bytes are missing",
                    f"Send them: PATCH /api/v1/uploads/{row['id']}.",
                )
        its = RunFilter(None if caller.sees_all else (caller.team,))
        if made_by and not is_among(self._database, made_by, its):
            made_by = ""
        make = self._maker(found, volume, made_by)
        if (made := self._untold.get(upload)) is not None:  # else what takes long to fail would never be told
            return made
        token = rows.claim(self._database, [row["id"] for row in found], self._database.clock_s())
        if token is None:
            return None
        made = self._pool.submit(self._make, [row["id"] for row in found], token, make)
        if made is not None:
            self._untold[upload] = made
        return made

    def told(self, upload: str) -> None:
        """A request was answered with what has become of it: the next one begins again, if it failed."""
        self._untold.pop(upload, None)

    def stop(self) -> None:
        """Begin no more; what is under way is given up, and begun again by the next request for it."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    # --- what is made ---------------------------------------------------------------------------------

    def _maker(
        self, found: Sequence[RowMapping], volume: str, made_by: str
    ) -> Callable[[Path], dict[str, Any]]:
        if len({(row["team"], row["kind"]) for row in found}) > 1 or len(found) > MAX_UPLOADS:
            raise UsageError("these do not belong together", f"At most {MAX_UPLOADS} of one team and kind.")
        if found[0]["kind"] == "code":
            if len(found) > 1 or volume:
                raise UsageError("code is one file, and no volume", "Begin an upload of the kind `volume`.")
            return lambda directory: self._code(found[0], directory)
        if len(found) > 1 and any(row["name"].endswith(ARCHIVE_SUFFIXES) for row in found):
            # Links of one archive could lead outside by those of another.
            raise UsageError("an archive among other files", "Send it alone, or unpack it first.")
        if not is_volume_name(volume) or "@" in volume:
            raise UsageError(
                f"volume: {volume[:80]!r} is no name of a volume",
                "Write letters, digits, '.', '_' and '-', such as pets.",
            )
        return lambda directory: self._volume(found, volume, directory, made_by)

    def _code(self, row: RowMapping, directory: Path) -> dict[str, Any]:
        self._uploads.write_to(row["id"], directory / "file")
        return {"code": CodeUploads(self._home, row["team"]).add(directory / "file", row["name"])}

    def _volume(
        self, found: Sequence[RowMapping], volume: str, directory: Path, made_by: str
    ) -> dict[str, Any]:
        from trainmaster.service.volumes import push

        base, files = volumes_url(self._home, found[0]["team"]), directory / "files"
        files.mkdir()
        packed_bytes = sum(row["size_bytes"] for row in found)
        most = self._room(found[0]["team"], base, packed_bytes, directory)
        for row in found:
            self._put(row, directory / "file", files, most)
        tables = summarised(files)
        report = push(files, f"{base}/{volume}", cache=directory / "cache", jobs=1, made_by=made_by)
        rows.describe(self._database, report.head.table_id, json.dumps(tables))
        return {
            "volume": volume,
            "version": report.version,
            "files": report.head.file_count,
            "size_bytes": report.head.total_bytes,
            "tables": len(tables),
        }

    def _put(self, row: RowMapping, packed: Path, files: Path, most: UnpackLimits) -> None:
        """The file, or what is in it if it is an archive, in its place below a directory."""
        name = row["name"]
        if name.endswith(ARCHIVE_SUFFIXES):
            self._uploads.write_to(row["id"], packed)
            unpack(packed, name, files, most)
            packed.unlink()
            return
        place = files / name
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.touch(exist_ok=False)
        except (FileExistsError, NotADirectoryError):
            raise UnpackError(f"{name} is there twice", "Give each file a name of its own.") from None
        self._uploads.write_to(row["id"], place)

    def _room(self, team: str | None, base: str, packed_bytes: int, directory: Path) -> UnpackLimits:
        """What a version may become: of the team's share, of this disk, and of what was sent."""
        here = room_bytes(directory, None)
        if 2 * packed_bytes > here:
            raise FullStoreError(
                f"{packed_bytes:,} bytes need twice their size on the server's disk, which has {here:,} left",
                "Free it, or ask the administrator to.",
            )
        most = min(here - packed_bytes, max(_MOST_TIMES * packed_bytes, _SMALL_BYTES))
        if team is not None:
            there = sum(each.size_bytes for each in ObjectStore(base).list())
            if there + packed_bytes > self._quota_bytes:
                raise TeamQuotaError(
                    f"{packed_bytes:,} bytes do not fit: volumes take {there:,} of {self._quota_bytes:,}",
                    "Delete unneeded versions: DELETE /api/v1/volumes/NAME?version=N.",
                )
            most = min(most, self._quota_bytes - there)
        return UnpackLimits(most, _MOST_FILES)

    # --- once, by one at a time ---------------------------------------------------------------------

    def _make(self, uploads: Sequence[str], token: int, make: Callable[[Path], dict[str, Any]]) -> None:
        if not rows.renew(self._database, uploads, token, self._database.clock_s()):
            return  # it has waited for its turn so long that somebody else has begun
        state, result = "OPEN", None
        try:
            state, result = "DONE", self._made(uploads, token, make)
        except TrainmasterError as error:
            state = "FAILED" if isinstance(error, UsageError) else "OPEN"  # others are over some day
            result = {"title": str(error.args[0]), "hint": error.hint}
            raise
        finally:
            said = json.dumps(result) if result else None
            is_ours = rows.end(self._database, uploads, token, state, said, self._database.clock_s())
        if is_ours:
            for upload in uploads:
                self._uploads.forget_parts(upload)

    def _made(
        self, uploads: Sequence[str], token: int, make: Callable[[Path], dict[str, Any]]
    ) -> dict[str, Any]:
        place = self._home.root / "uploads"
        try:
            make_private(place)
            with self._claimed(uploads, token), scratch_directory(place / "finishing") as directory:
                return make(directory)
        except OSError as error:
            words = f"there is no place for it on the server: {error.strerror or error}"
            raise error_of(
                trouble_of(error), words, "Free its disk, then finish the upload again."
            ) from error

    @contextmanager
    def _claimed(self, uploads: Sequence[str], token: int) -> Iterator[None]:
        """Renew a claim as long as somebody is at it."""
        errors = LoopErrorLog("claims of uploads")

        def renew() -> None:
            with errors.caught():
                rows.renew(self._database, uploads, token, self._database.clock_s())

        with periodically(renew, _RENEW_S, "upload claim"):
            yield
