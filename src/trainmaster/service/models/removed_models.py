"""`remove_files`: files of models that were taken out of the registry, once they are not needed."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from trainmaster.artifacts.publishing import delete
from trainmaster.db import registry as rows
from trainmaster.objects import ObjectStore
from trainmaster.spec.errors import PublishError, one_line

if TYPE_CHECKING:
    from trainmaster.control.task.layout import Home
    from trainmaster.db import Database

log = logging.getLogger(__name__)


def remove_files(home: Home, database: Database, before: float) -> int:
    """Remove the files of models that were removed before a time; how many models.

    The run has the model no more before the first file goes, so it may be killed at any line and repeated.

    Args:
        home: of the server; what lies on another store than its own stays.
        database: of the home.
        before: Unix seconds.

    Raises:
        StoreError: the database cannot be used.
    """
    count = 0
    for row in rows.removed_before(database, before):
        if not row["uri"].startswith(home.store_url.rstrip("/") + "/"):
            continue
        try:
            if _is_elsewhere(row["uri"]) or not rows.give_up(database, row, before, database.clock_s()):
                continue
            delete(row["uri"])
        except PublishError as error:  # the next sweep tries again
            log.info("files of %s stay: %s", row["uri"], one_line(error))
            continue
        rows.forget(database, row)
        count += 1
    return count


def _is_elsewhere(uri: str) -> bool:
    """A directory of that name may be on the disk of another server, and not here."""
    return uri.startswith("file://") and next(iter(ObjectStore(uri).list("")), None) is None
