"""`Uploads`: files that are sent to a server in pieces, over any number of connections.

The pieces are objects in the home's object store, and rows say which count. So any server goes on with an
upload that another one has begun, and what a server has said that it has is there after ``kill -9``.
"""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from sqlalchemy.engine import RowMapping

from trainmaster.control.task.layout import Home
from trainmaster.db import Database, workflow_rows
from trainmaster.db import uploads as rows
from trainmaster.db.row_values import columns
from trainmaster.objects import ObjectStore
from trainmaster.objects.names import stays_inside
from trainmaster.service.server_loops import ServerLoop
from trainmaster.service.uploads.code_uploads import MAX_BYTES as MAX_CODE_BYTES
from trainmaster.service.uploads.code_uploads import TeamQuotaError, collect_code
from trainmaster.service.users.caller import Caller
from trainmaster.spec.errors import NotFoundError, RunError, TrainmasterError, UsageError
from trainmaster.spec.units import parse_bytes

KINDS: Final = ("code", "volume")
#: As much of a piece is in memory at once.
PART_BYTES: Final = 4 << 20
#: A client that sends a byte at a time gets no further.
MAX_PARTS: Final = 50_000
#: Of a team, at once; and of one version of a volume.
MAX_UPLOADS: Final = 1000
#: What a team may have at once that is not made into something yet.
QUOTA_VARIABLE: Final = "TRAINMASTER_UPLOADS"
_QUOTA: Final = "50GB"
#: What was unused for so long is removed, in seconds.
UNUSED_S: Final = 24 * 3600.0
_COLLECT_EVERY_S: Final = 600.0
_ID: Final = re.compile(r"[0-9a-f]{32}")
_MAX_NAME: Final = 300


class UploadConflictError(RunError):
    """The bytes are not those that come next, or somebody makes something of the upload just now (409)."""


class TooMuchError(UsageError):
    """More than may be, or than was announced (HTTP 413)."""


class Uploads(ServerLoop):
    """Uploads of a home, with those of other teams kept from a caller.

    Args:
        home: of the server.
        database: of the home.
        environ: `QUOTA_VARIABLE` is looked up there.
    """

    def __init__(self, home: Home, database: Database, environ: Mapping[str, str] = os.environ) -> None:
        super().__init__("unused uploads", _COLLECT_EVERY_S, is_awaited=False)
        self._home = home
        self._database = database
        self._store_url = f"{home.store_url.rstrip('/')}/uploads"
        self._quota_bytes = parse_bytes(environ.get(QUOTA_VARIABLE) or _QUOTA)

    # --- what callers do ----------------------------------------------------------------------------

    def begin(self, caller: Caller, name: str, size_bytes: int, kind: str) -> dict[str, Any]:
        """Begin to send a file.

        Raises:
            UsageError: it has no good name, or is too large for its kind.
            QuotaError: the team has no room left.
        """
        caller.need("run")
        if kind not in KINDS:
            raise UsageError(f"kind: {kind!r}", f"An upload becomes {' or '.join(KINDS)}.")
        check_name(name)
        if kind == "code" and size_bytes > MAX_CODE_BYTES:
            raise TooMuchError(
                f"code of {size_bytes:,} bytes; it may have {MAX_CODE_BYTES:,}",
                "Leave data sets out of it, and send them as a volume.",
            )
        if not 0 <= size_bytes <= PART_BYTES * MAX_PARTS:
            raise TooMuchError(
                f"an upload of {size_bytes:,} bytes",
                f"At most {PART_BYTES * MAX_PARTS:,}: send several files.",
            )
        now = self._database.clock_s()
        upload = secrets.token_hex(16)
        row = {
            "id": upload,
            "team": caller.team,
            "name": name,
            "kind": kind,
            "state": "OPEN",
            "size_bytes": size_bytes,
            "created_at": now,
            "used_at": now,
        }
        there = rows.add(self._database, row, self._quota_bytes, MAX_UPLOADS)
        if there is not None:
            raise TeamQuotaError(
                f"{size_bytes:,} bytes do not fit: {there[1]} uploads have {there[0]:,} of "
                f"{self._quota_bytes:,} bytes, and may be {MAX_UPLOADS}",
                "Finish or delete those: GET /api/v1/uploads lists them. They end by themselves after a day.",
            )
        return self.get(caller, upload)

    def get(self, caller: Caller, upload: str) -> dict[str, Any]:
        """How far an upload is, and what became of it.

        Raises:
            NotFoundError: it is not there, or not the caller's to see.
        """
        return self._shown(self._row(caller, upload))

    def open_ones(self, caller: Caller, name: str | None = None) -> list[dict[str, Any]]:
        """What the caller's team has begun, newest first; with a name never that of other teams."""
        caller.need("run")
        teams = None if caller.sees_all and name is None else (caller.team,)
        return [self._shown(row) for row in rows.of_teams(self._database, teams, name)]

    def check_next(self, caller: Caller, upload: str, offset: int, size_bytes: int | None = None) -> int:
        """Refuse bytes that are not those that come next, before they are read.

        Args:
            caller: who sends.
            upload: its id.
            offset: of the first of them.
            size_bytes: how many there are said to be, if that is known.

        Returns:
            How many may come.
        """
        caller.need("run")
        row = self._row(caller, upload)
        if row["state"] != "OPEN" or row["received_bytes"] != offset:
            raise self._conflict(row, offset)
        left = int(row["size_bytes"]) - offset
        if size_bytes is not None and size_bytes > left:
            raise too_much(left)
        return left

    def add(self, upload: str, offset: int, data: bytes | bytearray) -> int:
        """Keep the bytes that come next; `check_next` was asked before.

        Returns:
            Where the next ones begin.

        Raises:
            UploadConflictError: another connection was quicker.
            PublishError: the store does not take them.
        """
        key = f"{offset:015d}-{secrets.token_hex(8)}"
        store = self._store(upload)
        store.put(key, memoryview(data))
        if not rows.add_part(self._database, upload, offset, len(data), key, self._database.clock_s()):
            store.delete([key])
            raise self._conflict(rows.find(self._database, upload), offset)
        return offset + len(data)

    def remove(self, caller: Caller, upload: str) -> None:
        """Give an upload up.

        Raises:
            UploadConflictError: something is made of it just now.
        """
        caller.need("run")
        row = self._row(caller, upload)
        if not rows.remove(self._database, upload, self._database.clock_s()):
            raise self._conflict(row, 0)
        self._forget(upload)

    # --- what is made of them -----------------------------------------------------------------------

    def row(self, caller: Caller, upload: str) -> RowMapping:
        """The row of an upload that a caller sees."""
        return self._row(caller, upload)

    def write_to(self, upload: str, path: Path) -> None:
        """Write a whole upload to a file.

        Raises:
            PublishError: a part cannot be read.
            OSError: the file cannot be written.
        """
        store = self._store(upload)
        with path.open("wb") as file:
            for part in rows.parts(self._database, upload):
                for block in store.blocks(part["key"]):
                    file.write(block)

    def forget_parts(self, upload: str) -> None:
        """Something was made of it: its row stays for a while, to tell a client that asks again."""
        self._store(upload).delete_all("")
        rows.forget(self._database, upload, keeps_row=True)

    # --- what is unused -----------------------------------------------------------------------------

    def turn(self) -> None:
        """Remove what is unused."""
        self.collect(self._database.clock_s())

    def collect(self, now: float) -> None:
        """Remove what was unused for a day, and old code; several servers may do so at once."""
        collect_code(self._home, now, workflow_rows.kept_code(self._database))
        for row in rows.unused(self._database, now - UNUSED_S):
            if rows.remove(self._database, row["id"], self._database.clock_s()):
                self._forget(row["id"])
        for folder in ObjectStore(self._store_url).folders():
            if _ID.fullmatch(folder) and rows.find(self._database, folder) is None:
                self._store(folder).delete_all("")

    # --- parts --------------------------------------------------------------------------------------

    def _row(self, caller: Caller, upload: str) -> RowMapping:
        row = rows.find(self._database, upload) if _ID.fullmatch(upload) else None
        if row is None or not caller.sees(row["team"]):
            raise NotFoundError(
                f"there is no upload {upload[:32]!r}", "It may have ended: what is unused goes after a day."
            )
        return row

    def _store(self, upload: str) -> ObjectStore:
        return ObjectStore(f"{self._store_url}/{upload}")

    def _forget(self, upload: str) -> None:
        self._store(upload).delete_all("")
        rows.forget(self._database, upload)

    def _conflict(self, row: RowMapping | None, offset: int) -> TrainmasterError:
        if row is None:
            return NotFoundError("this upload was removed", "Begin it again.")
        if row["state"] in ("FINISHING", "DONE"):
            return UploadConflictError("this upload is whole, and something is made of it", "Wait for that.")
        return UploadConflictError(
            f"the next byte is {row['received_bytes']:,}, not {offset:,}",
            "Ask with HEAD where to go on; another connection may have sent the same.",
        )

    def _shown(self, row: RowMapping) -> dict[str, Any]:
        state, is_whole = row["state"], row["received_bytes"] == row["size_bytes"]
        if state == "FINISHING" and not rows.is_finishing(row, self._database.clock_s()):
            state = "OPEN"  # the server that did it was killed
        return {
            "upload": row["id"],
            **columns(row, "name", "kind"),
            "state": "WHOLE" if state == "OPEN" and is_whole else state,
            "size_bytes": row["size_bytes"],
            "offset": row["received_bytes"],
            "created_at": row["created_at"],
            "expires_at": row["used_at"] + UNUSED_S,
            "result": json.loads(row["result"]) if row["result"] else None,
        }


def too_much(left_bytes: int) -> TooMuchError:
    """More bytes come than were announced."""
    return TooMuchError(
        f"more than the {left_bytes:,} bytes that are missing", "Begin an upload of the right size."
    )


def check_name(name: str) -> None:
    """Refuse names that are no relative paths below a directory.

    Raises:
        UsageError: it is none.
    """
    is_plain = name.isprintable() and "\\" not in name and len(name.encode()) <= _MAX_NAME
    if not is_plain or not stays_inside(name):
        raise UsageError(
            f"name: {name[:80]!r} is no name for a file",
            f"Write a relative path of at most {_MAX_NAME} bytes, such as data/train.csv.",
        )
