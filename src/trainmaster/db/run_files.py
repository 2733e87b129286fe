"""Files of runs that any server goes on with: logs and points as pieces, secrets sealed.

Only the holder of a run's lease writes, one transaction after the other, so ids of a run's pieces grow in
the order in which they are seen: a reader that remembers the last one misses nothing. A file ends where its
last piece does; one at offset 0 begins it anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from trainmaster.db import tables as t
from trainmaster.db.leases import Lease
from trainmaster.spec.errors import LeaseLostError

if TYPE_CHECKING:
    from trainmaster.db.database import Database

T = TypeVar("T")
#: Of one piece, and about as much as one transaction writes and one query reads.
PIECE_BYTES: Final = 1 << 20
#: Of what is private: the name of the values of secrets, by name as JSON.
SECRETS: Final = "secrets"


class Piece(NamedTuple):
    """A part of a file.

    Attributes:
        path: below the run's directory.
        offset: where it lies in the file.
        data: its bytes.
    """

    path: str
    offset: int
    data: bytes


def put_pieces(database: Database, lease: Lease, pieces: Sequence[Piece], gone: Iterable[str] = ()) -> None:
    """Write what has grown; a piece that comes twice, or replaces later ones, changes nothing else.

    Args:
        database: the database.
        lease: of the run.
        pieces: those of a file in order.
        gone: paths of files that are there no more.

    Raises:
        LeaseLostError: somebody else drives the run; nothing was written.
    """

    def write(connection: Connection) -> None:
        for path in gone:
            connection.execute(_FORGET, {"of_run": lease.run, "of_path": path, "since": 0})
        for piece in pieces:
            connection.execute(_FORGET, {"of_run": lease.run, "of_path": piece.path, "since": piece.offset})
            connection.execute(t.run_file.insert(), {"run_id": lease.run, **piece._asdict()})

    write_held(database, lease, write)


def put_private(
    database: Database, lease: Lease, sealed: Mapping[str, bytes], gone: Iterable[str] = ()
) -> None:
    """Write what only servers with the key may read.

    Args:
        database: the database.
        lease: of the run.
        sealed: by name.
        gone: names of what is needed no more.

    Raises:
        LeaseLostError: somebody else drives the run; nothing was written.
    """

    def write(connection: Connection) -> None:
        names = [*sealed, *gone]
        of_run = t.run_private.c.run_id == lease.run
        connection.execute(t.run_private.delete().where(of_run, t.run_private.c.name.in_(names)))
        rows = [{"run_id": lease.run, "name": name, "sealed": data} for name, data in sealed.items()]
        if rows:
            connection.execute(t.run_private.insert(), rows)

    write_held(database, lease, write)


def keep_here(database: Database, lease: Lease, home_id: str) -> None:
    """From now on a home has the files of a run.

    Raises:
        LeaseLostError: somebody else drives the run; nothing was written.
    """
    keep = t.run.update().where(t.run.c.id == lease.run).values(kept_by=home_id)
    write_held(database, lease, lambda connection: connection.execute(keep))


def sizes(database: Database, run: str) -> dict[str, int]:
    """How many bytes of each file of a run were written."""
    end = sa.func.max(t.run_file.c.offset + sa.func.length(t.run_file.c.data))
    query = sa.select(t.run_file.c.path, end.label("size")).where(t.run_file.c.run_id == run)
    return {row["path"]: int(row["size"]) for row in database.read(query.group_by(t.run_file.c.path))}


def pieces(database: Database, run: str, after: int = 0) -> Sequence[tuple[int, Piece]]:
    """The next pieces of a run with their ids, in the order in which they were written; none at the end."""
    size = t.run_file.c.id, sa.func.length(t.run_file.c.data).label("size")
    of_run = sa.select(*size).where(t.run_file.c.run_id == run, t.run_file.c.id > after)
    bytes_left, last = PIECE_BYTES, after
    for row in database.read(of_run.order_by(t.run_file.c.id).limit(1000)):
        if last != after and row["size"] > bytes_left:
            break
        last, bytes_left = row["id"], bytes_left - row["size"]
    if last == after:
        return []
    query = sa.select(t.run_file).where(
        t.run_file.c.run_id == run, t.run_file.c.id > after, t.run_file.c.id <= last
    )
    found = [
        (row["id"], Piece(row["path"], row["offset"], bytes(row["data"])))
        for row in database.read(query.order_by(t.run_file.c.id))
    ]
    return found or pieces(database, run, last)  # those that were counted were replaced meanwhile


def private_place(run: str, name: str) -> str:
    """What a private thing of a run is sealed for."""
    return f"run/{run}/{name}"


def private(database: Database, run: str) -> dict[str, bytes]:
    """What is sealed of a run, by name."""
    rows = database.read(sa.select(t.run_private).where(t.run_private.c.run_id == run))
    return {row["name"]: bytes(row["sealed"]) for row in rows}


def compact(database: Database, lease: Lease) -> None:
    """Put the pieces of each file together, as nothing is added to them any more.

    Raises:
        LeaseLostError: somebody else drives the run; what was put together stays so.
    """
    counted = (
        sa.select(t.run_file.c.path)
        .where(t.run_file.c.run_id == lease.run)
        .group_by(t.run_file.c.path)
        .having(sa.func.count() * PIECE_BYTES >= sa.func.sum(sa.func.length(t.run_file.c.data)) + PIECE_BYTES)
        .having(sa.func.count() > 1)
    )
    for row in database.read(counted):
        write_held(database, lease, partial(_compact, run=lease.run, path=row["path"]))


def _compact(connection: Connection, run: str, path: str) -> None:
    of_file = sa.select(t.run_file.c.data).where(t.run_file.c.run_id == run, t.run_file.c.path == path)
    data = b"".join(bytes(row.data) for row in connection.execute(of_file.order_by(t.run_file.c.offset)))
    connection.execute(_FORGET, {"of_run": run, "of_path": path, "since": 0})
    for offset in range(0, len(data), PIECE_BYTES):
        piece = Piece(path, offset, data[offset : offset + PIECE_BYTES])
        connection.execute(t.run_file.insert(), {"run_id": run, **piece._asdict()})


def write_held(
    database: Database,
    lease: Lease,
    work: Callable[[Connection], T],
    *,
    alone: bool = False,
    patient: bool = True,
) -> T:
    """One transaction that no other process can take the run over from: it waits for its end.

    Args:
        database: the database.
        lease: of the run.
        work: what is written.
        alone: no other such transaction of the run meanwhile.
        patient: False to try only once.

    Raises:
        LeaseLostError: somebody else drives the run; nothing was written.
    """
    held = sa.select(t.run.c.id).where(t.run.c.id == lease.run, t.run.c.lease_token == lease.token)

    def write(connection: Connection) -> T:
        if connection.execute(held.with_for_update(read=not alone)).first() is None:
            raise LeaseLostError.of(lease.run)
        return work(connection)

    return database.write(lambda connection, _: write(connection), patient=patient)


_FORGET = t.run_file.delete().where(
    t.run_file.c.run_id == sa.bindparam("of_run"),
    t.run_file.c.path == sa.bindparam("of_path"),
    t.run_file.c.offset >= sa.bindparam("since"),
)
