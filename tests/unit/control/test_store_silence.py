"""`StoreSilence`: when a store is asked, and what is told of it."""

import pytest

from trainmaster.control.notes.store_silence import AGAIN_S, PATIENCE_S, StoreSilence


class NoTasks:
    run = "job-1"

    def live_tasks(self):
        return []


@pytest.fixture
def store():
    return {"answers": True, "asked": 0}


@pytest.fixture
def silence(store):
    def ask(url):
        assert url == "s3://b"
        store["asked"] += 1
        return store["answers"]

    return StoreSilence("s3://b", ask, lambda work: work())


def told(silence, pending, now):
    return [note.message for note in silence.look(NoTasks(), pending, now)]


def test_who_waits_for_nothing_asks_nothing(silence, store):
    for now in range(1000, 1100):
        assert told(silence, 0, float(now)) == []
        assert told(silence, now % 2, float(now)) == [], "jobs that begin and end show that it answers"
    assert store["asked"] == 0


def test_silence_is_told_once_and_its_end_too(silence, store):
    store["answers"] = False
    assert told(silence, 1, 1000.0) == []
    assert not silence.is_silent
    assert told(silence, 1, 1000.0 + PATIENCE_S) == []
    (first,) = told(silence, 1, 1001.0 + PATIENCE_S)
    assert "s3://b has not answered since" in first
    assert silence.is_silent
    later = 1001.0 + PATIENCE_S + AGAIN_S
    assert told(silence, 0, later) == []
    store["answers"] = True
    assert told(silence, 0, later + AGAIN_S) == [], "what was asked before is heard first"
    assert silence.is_silent
    assert told(silence, 0, later + 2 * AGAIN_S) == ["s3://b answers again"]
    assert not silence.is_silent
