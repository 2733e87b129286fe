"""`UploadFinishing`: whole uploads become code or a version of a volume, each once, in the background."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from trainmaster.artifacts.scratch import scratch_directory
from trainmaster.db import uploads as rows
from trainmaster.objects.errors import error_of, trouble_of
from trainmaster.service.code_uploads import CodeUploads
from trainmaster.service.uploads import UploadConflictError
from trainmaster.spec.errors import TrainmasterError, UsageError
from trainmaster.spec.private_files import make_private

if TYPE_CHECKING:
    from trainmaster.control.layout import Home
    from trainmaster.db import Database
    from trainmaster.service.caller import Caller
    from trainmaster.service.uploads import Uploads

#: So many at once; each needs room on this server's disk.
_AT_ONCE: Final = 2
_RENEW_S: Final = 5.0


class UploadFinishing:
    """Makes something of uploads.

    Args:
        home: of the server.
        database: of the home.
        uploads: of the home.
    """

    def __init__(self, home: Home, database: Database, uploads: Uploads) -> None:
        self._home = home
        self._database = database
        self._uploads = uploads
        self._pool = ThreadPoolExecutor(_AT_ONCE, "finishing an upload")

    def finish(self, caller: Caller, upload: str) -> Future[None] | None:
        """Have something made of an upload; safe to repeat, also on another server.

        Args:
            caller: whose it is.
            upload: its id; `Uploads.get` tells what became of it.

        Returns:
            What can be waited for; None if it is done already, or somebody is at it.

        Raises:
            UploadConflictError: it is not whole.
            NotFoundError: it is not there, or not the caller's to see.
        """
        caller.need("run")
        row = self._uploads.row(caller, upload)
        if row["received_bytes"] < row["size_bytes"]:
            missing = row["size_bytes"] - row["received_bytes"]
            raise UploadConflictError(
                f"{row['name']}: {missing:,} bytes are missing", f"Send them: PATCH /api/v1/uploads/{upload}."
            )
        token = rows.claim(self._database, [upload], self._database.clock_s())
        if token is None:
            return None
        code = CodeUploads(self._home, row["team"])

        def make(directory: Path) -> dict[str, Any]:
            file = directory / "file"
            self._uploads.write_to(upload, file)
            return {"code": code.add(file, row["name"])}

        return self._pool.submit(self._make, [upload], token, make)

    def stop(self) -> None:
        """Begin no more; what is under way is given up, and begun again by who asks for it."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _make(self, uploads: Sequence[str], token: int, make: Callable[[Path], dict[str, Any]]) -> None:
        state, result = "OPEN", None
        try:
            state, result = "DONE", self._made(uploads, token, make)
        except TrainmasterError as error:
            state = "FAILED" if isinstance(error, UsageError) else "OPEN"  # others are over some day
            result = {"title": str(error.args[0]), "hint": error.hint}
            raise
        finally:
            said = json.dumps(result) if result else None
            is_ours = rows.end(self._database, uploads, token, state, said, time.time())
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
        over = threading.Event()

        def renew() -> None:
            while not over.wait(_RENEW_S):
                with suppress(TrainmasterError):  # a database that is away comes back
                    rows.renew(self._database, uploads, token, self._database.clock_s())

        helper = threading.Thread(target=renew, name="upload claim", daemon=True)
        helper.start()
        try:
            yield
        finally:
            over.set()
            helper.join()
