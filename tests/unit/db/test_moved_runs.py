"""A run that goes on at another provider: all of that is written, or nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
from database_nouns import NOW, everything, new_run

from trainmaster.db import ClusterRow
from trainmaster.spec.errors import LeaseLostError, UsageError

HERE = ClusterRow("r-1.a", "hosts", "home", "ENDED", "{}")
THERE = ClusterRow("r-1.a", "lab", "home", "PLANNED", '{"new": true}')
WORDS = "it goes on at lab, as hosts has no machines: all are in use"


def test_all_of_it_or_nothing(database):
    lease = database.create_run(replace(new_run(), provider="hosts", clusters=[HERE]), NOW)
    stale = replace(lease, token=lease.token + 1)
    before = everything(database)

    def refuses(_connection):
        raise UsageError("the month's budget is spent", "")

    for who, admit, error in (
        (lease, refuses, UsageError),
        (stale, lambda _: None, LeaseLostError),
    ):
        with pytest.raises(error):
            database.move_run(who, "lab", '{"x": 1}', [THERE], NOW, WORDS, admit)
        assert everything(database) == before

    for _ in range(2):  # a driver that was not answered does it again
        database.move_run(lease, "lab", '{"x": 1}', [THERE], NOW, WORDS, lambda _: None)
    row, (cluster,) = database.run_row("r-1"), database.clusters_of("r-1")
    assert (row["provider"], row["recipe"]) == ("lab", '{"x": 1}')
    assert (cluster["provider"], cluster["state"], cluster["data"]) == ("lab", "PLANNED", THERE.data)
    assert WORDS in [event["message"] for event in everything(database)["event"]]
