"""Pieces, connections that end, servers that are killed: in any order, what is there is what was sent."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainmaster.control.task.layout import Home
from trainmaster.db import Database, access
from trainmaster.service.uploads.uploads import UploadConflictError, Uploads
from trainmaster.service.users.caller import caller
from trainmaster.spec.errors import StoreError

WHO = caller("ann", "red", ["run"])
#: Of each piece: which server takes it, how far from the right place, how long it is, and its fate.
STEPS = st.lists(
    st.tuples(st.integers(0, 1), st.integers(-2, 2), st.integers(1, 30), st.sampled_from(["", "", "killed"])),
    max_size=30,
)


@settings(max_examples=40, deadline=None)
@given(STEPS)
def test_what_is_there_is_what_was_sent(steps):
    content = bytes(range(100))
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        database = Database(f"sqlite:///{root / 'tm.db'}")
        access.add_team(database, "red", None, 1.0)
        homes = [Home(root / name, root / "cache", f"file://{root}/store", "") for name in ("one", "two")]
        servers = [Uploads(home, database, {}) for home in homes]
        upload = servers[0].begin(WHO, "a", len(content), "volume")["upload"]
        for server, shift, length, fate in steps:
            offset = servers[server].get(WHO, upload)["offset"] + shift
            piece = content[max(offset, 0) : max(offset, 0) + length]
            try:
                if offset < 0 or not piece:
                    continue
                servers[server].check_next(WHO, upload, offset, len(piece))
                if fate:
                    servers[server]._store(upload).put(f"{offset:015d}-of-the-dead", b"?" * length)
                else:
                    servers[server].add(upload, offset, piece)
            except UploadConflictError:
                assert shift
        servers[1].write_to(upload, root / "file")
        there = (root / "file").read_bytes()
        assert there == content[: servers[0].get(WHO, upload)["offset"]]
        database.close()


def test_a_database_that_is_away_loses_nothing(tmp_path, monkeypatch):
    database = Database(f"sqlite:///{tmp_path / 'tm.db'}")
    access.add_team(database, "red", None, 1.0)
    uploads = Uploads(Home(tmp_path, tmp_path, f"file://{tmp_path}/store", ""), database, {})
    upload = uploads.begin(WHO, "a", 10, "volume")["upload"]
    uploads.add(upload, 0, b"01234")

    def away(*_, **__):
        raise StoreError("the database is away")

    with monkeypatch.context() as patch:
        patch.setattr(database, "write", away)
        with pytest.raises(StoreError):
            uploads.add(upload, 5, b"xxxxx")
    assert uploads.get(WHO, upload)["offset"] == 5
    uploads.add(upload, 5, b"56789")
    uploads.write_to(upload, tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == b"0123456789"
    uploads.remove(WHO, upload)
    assert not (tmp_path / "store" / "uploads" / upload).exists()
    database.close()
