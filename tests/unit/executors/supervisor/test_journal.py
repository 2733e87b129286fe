import json
import os
import resource
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostile_bytes import changed_json
from trainmaster.executors.base import GangStatus
from trainmaster.executors.supervisor import journal
from trainmaster.executors.supervisor.gang_processes import EXITED, RUNNING, GangProcesses, MemberProcess
from trainmaster.executors.supervisor.journal import Journal, parse, worked_until
from trainmaster.spec.processes import start_ticks


def ended_gang(name: str) -> GangProcesses:
    members = [MemberProcess("worker-0", True), MemberProcess("ps-0", False)]
    gang = GangProcesses(name, "run-1", "/tmp/x", 3.0, members)
    for number, member in enumerate(members):
        member.pid, member.start_ticks, member.started_at = 100 + number, 7, 5.0
        member.ended_at, member.exit_code = 6.5, number
    members[1].stopped = True
    gang.phase, gang.ended_at = EXITED, 6.5
    return gang


def running_gang(name: str) -> GangProcesses:
    gang = GangProcesses(name, "run-1", "/tmp/y", 20.0, [MemberProcess("worker-0", True)])
    gang.members[0].pid = 300
    gang.phase = RUNNING
    return gang


def fill(path, *gangs: GangProcesses) -> Journal:
    journal = Journal(str(path))
    journal.replay()
    for gang in gangs:
        for record in gang.records():
            journal.add(record)
    journal.flush()
    return journal


def test_round_trip(tmp_path):
    gangs = [ended_gang("a/\udcff"), running_gang("b")]
    fill(tmp_path / "journal", *gangs)
    replayed = [
        GangProcesses.from_records(records)
        for records in Journal(str(tmp_path / "journal")).replay().values()
    ]
    assert [gang.status() for gang in replayed] == [gang.status() for gang in gangs]
    assert [gang.records() for gang in replayed] == [gang.records() for gang in gangs]


def test_what_another_version_tells_is_understood():
    row = ended_gang("a").status()
    first, *_ = GangStatus.of_row(row).members
    more = [*row[:2], [[*member, "newer"] for member in row[2]], *row[3:]]
    less = [*row[:2], [member[:-1] for member in row[2]], *row[3:]]
    for each in (more, less):
        assert GangStatus.of_row(each).members[0] == first
    records = ended_gang("a").records()
    older = [{**each, "status": each["status"][:-1]} if each["r"] == "exit" else each for each in records]
    assert parse(b"\n".join(json.dumps(each).encode() for each in older)) == {"a": older}
    assert GangProcesses.from_records(older).status() == row


JOURNAL = [record for gang in (ended_gang("a"), running_gang("b")) for record in gang.records()]
JOURNAL += [{"r": "forget", "attempts": ["nobody"]}]


@given(st.integers(0, len(JOURNAL) - 1), st.data())
def test_whatever_became_of_it_a_supervisor_can_start(number, data):
    lines = [json.dumps(record).encode() for record in JOURNAL]
    lines[number] = data.draw(changed_json(JOURNAL[number]))
    for records in parse(b"\n".join(lines)).values():
        gang = GangProcesses.from_records(records)
        json.dumps([gang.status(), gang.records()])
        assert all(member.pid is None or member.pid > 1 for member in gang.members), "signals go there"
    untouched = {record.get("attempt") for record in JOURNAL} - {JOURNAL[number].get("attempt"), None}
    assert {*parse(b"\n".join(lines))} >= untouched or JOURNAL[number]["r"] == "forget"


def test_forgotten(tmp_path):
    journal = fill(tmp_path / "journal", ended_gang("a"), ended_gang("b"))
    journal.add({"r": "forget", "attempts": ["a", "nobody"]})
    journal.flush()
    assert list(Journal(str(tmp_path / "journal")).replay()) == ["b"]
    assert b'"a"' not in (tmp_path / "journal").read_bytes()


def test_cut_at_every_byte(tmp_path):
    """Whatever is left of it is read, a record is there whole or not at all."""
    fill(tmp_path / "journal", ended_gang("a"), running_gang("b"), ended_gang("c"))
    data = (tmp_path / "journal").read_bytes()
    lines_before = -1
    for size in range(len(data) + 1):
        attempts = parse(data[:size])
        lines = sum(len(records) for records in attempts.values())
        # a line without its newline is whole already
        assert lines - data[:size].count(b"\n") in (0, 1)
        assert lines >= lines_before
        lines_before = lines
        for records in attempts.values():
            GangProcesses.from_records(records)
    assert lines_before == data.count(b"\n")


def test_goes_on_after_a_torn_line(tmp_path):
    fill(tmp_path / "journal", ended_gang("a"))
    with (tmp_path / "journal").open("ab") as file:
        file.write(b'{"r":"start","attempt":"to')
    journal = Journal(str(tmp_path / "journal"))
    assert list(journal.replay()) == ["a"]
    for record in ended_gang("b").records():
        journal.add(record)
    journal.flush()
    assert list(Journal(str(tmp_path / "journal")).replay()) == ["a", "b"]


def test_rubbish_is_left_out():
    assert parse(b'\x00\xff\n[]\n3\n{}\n{"r":"exit","attempt":"x"}\n{"r":"forget"}\n') == {}


def test_full_disk(tmp_path):
    """A line is there whole or not at all, and what could wait is written later."""
    journal = fill(tmp_path / "journal", ended_gang("a"))
    size = (tmp_path / "journal").stat().st_size
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, hard))
    try:
        for record in ended_gang("b").records():
            journal.add(record)
        with pytest.raises(OSError, match=r"journal|large"):
            journal.flush()
        assert (tmp_path / "journal").stat().st_size == size
        with pytest.raises(OSError, match=r"journal|large"):
            journal.write(running_gang("never").start_record())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    journal.flush()
    assert list(Journal(str(tmp_path / "journal")).replay()) == ["a", "b"]


def test_rewritten_when_large(tmp_path, monkeypatch):
    monkeypatch.setattr(journal, "COMPACT_BYTES", 1000)
    kept = fill(tmp_path / "journal", ended_gang("a"))
    assert not kept.is_large()
    for record in ended_gang("b").records() * 10:
        kept.add(record)
    kept.flush()
    assert kept.is_large()
    kept.rewrite(ended_gang("b").records())
    assert not kept.is_large()
    kept.add({"r": "forget", "attempts": ["b"]})
    kept.flush()
    assert Journal(str(tmp_path / "journal")).replay() == {}
    assert os.listdir(tmp_path) == ["journal"]  # noqa: PTH208


def test_environment_is_not_in_it():
    client = SimpleNamespace(run="r", env={"KEY": "secret-1"})
    member = {
        "name": "worker-0",
        "script": "echo secret-2",
        "cwd": "/",
        "env": {"A": "secret-3"},
        "ports": 0,
        "essential": True,
        "gpus": 0,
    }
    request = {
        "attempt": "a",
        "directory": "/",
        "members": [member],
        "hold": False,
        "share_gpus": False,
        "grace_s": 1.0,
    }
    gang = GangProcesses.from_request(request, client)
    gang.phase = RUNNING
    assert "secret" not in repr(gang.records())


def test_until_when_members_have_worked(tmp_path):
    (tmp_path / "supervisor").mkdir()
    journal = fill(tmp_path / "supervisor" / "journal", ended_gang("a"), running_gang("b"))
    home = str(tmp_path)
    assert worked_until(home, "run-1", 50.0) == 6.5, "the process of b has gone, without a word"
    assert worked_until(home, "run-2", 50.0) is None
    assert worked_until(f"{home}/none", "run-1", 50.0) is None
    alive = running_gang("c")
    alive.members[0].pid, alive.members[0].start_ticks = os.getpid(), start_ticks(os.getpid())
    for record in alive.records():
        journal.add(record)
    journal.flush()
    assert worked_until(home, "run-1", 50.0) == 50.0
