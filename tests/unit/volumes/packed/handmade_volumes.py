"""Volumes made row by row, also such as no push would make. No conftest.py: two of that name collide."""

import tempfile
from datetime import UTC, datetime
from pathlib import Path

from trainmaster.objects.object_store import ObjectStore
from trainmaster.volumes.packed.chunk_source import chunk_key
from trainmaster.volumes.packed.deletions import Deletions
from trainmaster.volumes.packed.hashes import chunk_digest, file_digest
from trainmaster.volumes.packed.head import Head, new_nonce
from trainmaster.volumes.packed.parquet import DIRECTORY, FILE, SYMLINK, TableWriter
from trainmaster.volumes.packed.releasing import create_head, stored_table, upload_tables

NO_HASH = bytes(16)


def file_row(path: bytes, size=0, chunk=0, offset=0, hash=NO_HASH, mode=0o644, mtime_ns=0):
    return (path, FILE, size, mode, mtime_ns, chunk, offset, hash, b"")


def folder_row(path: bytes, mode=0o755):
    return (path, DIRECTORY, 0, mode, 0, 0, 0, NO_HASH, b"")


def link_row(path: bytes, target: bytes):
    return (path, SYMLINK, 0, 0o777, 0, 0, 0, NO_HASH, target)


def publish_rows(url, rows, chunks, parts=None, limit=1 << 20, source_url="", **changes):
    """Publishes rows as they are; ``chunks`` are (size, sha256)."""
    store = ObjectStore(url)
    with tempfile.TemporaryDirectory() as scratch:
        tables = {}
        for name, values in (("files", rows), ("chunks", chunks), ("parts", parts)):
            if values is not None:
                tables[name] = Path(scratch) / name
                writer = TableWriter(tables[name], name)
                for row in values:
                    writer.append(*row)
                writer.close()
        described = {
            "version": 0,
            "created_at": datetime.now(UTC),
            "kind": "packed" if parts is None else "indexed",
            "order": "path",
            "chunk_limit_bytes": limit,
            "file_count": sum(row[1] == FILE for row in rows),
            "row_count": len(rows),
            "total_bytes": sum(row[2] for row in rows),
            "chunk_count": len(chunks),
            "files": stored_table(tables["files"]),
            "chunks": stored_table(tables["chunks"]),
            "parts": stored_table(tables["parts"]) if parts is not None else None,
            "source_url": source_url,
            "nonce": new_nonce(),
            **changes,
        }
        head = upload_tables(store, Head(**described), tables, Deletions(store))
        return create_head(store, head, None)


def publish_files(url, files, folders=(), links=(), limit=1 << 20):
    """Publishes files (path -> bytes) in chunks of up to ``limit`` bytes, the plainest way."""
    store = ObjectStore(url)
    rows, pieces, fill = [], [bytearray()], 0
    for path in sorted(files, key=lambda name: name.split(b"/")):
        data = files[path]
        if fill and fill + len(data) > limit:
            pieces.append(bytearray())
            fill = 0
        cuts, left = [], data
        rows.append([path, len(data), len(pieces) - 1, fill])
        while left:
            piece = left[: limit - fill]
            pieces[-1] += piece
            cuts.append(piece)
            left = left[len(piece) :]
            fill += len(piece)
            if left:
                pieces.append(bytearray())
                fill = 0
        rows[-1].append(file_digest(cuts))
    pieces = [bytes(piece) for piece in pieces if piece]
    for piece in pieces:
        store.put(chunk_key(chunk_digest(piece)), piece)
    folders = {b"", *folders}
    for path in (*files, *(path for path, _ in links), *list(folders)):
        while path:
            path = path.rpartition(b"/")[0]
            folders.add(path)
    return publish_rows(
        url,
        [file_row(*row) for row in rows]
        + [folder_row(path) for path in sorted(folders)]
        + [link_row(*link) for link in sorted(links)],
        [(len(piece), chunk_digest(piece)) for piece in pieces],
        limit=limit,
    )
