"""The audit is sent on: each row at least once, in order, from where the receiver is, whatever is killed."""

from __future__ import annotations

import json
import socket
from collections import Counter

import pytest

from trainmaster.db import Database, audit
from trainmaster.db.leases import LEASE_S
from trainmaster.service.notifications.webhook_targets import ReceiverResponse
from trainmaster.service.users import audit_feed
from trainmaster.service.users.audit import Audit
from trainmaster.service.users.audit_feed import AUTHORIZATION_VARIABLE, VARIABLE, AuditFeed
from trainmaster.spec.errors import UsageError

URL = "https://audit.example.org/in"


class Receiver:
    """Takes what is posted; or says what `trouble` says."""

    def __init__(self):
        self.rows, self.trouble, self.headers, self.posts = [], "", {}, 0

    def __call__(self, url, body, headers, allowed):
        self.posts += 1
        self.headers = headers
        if not self.trouble:
            self.rows += [json.loads(line) for line in body.splitlines()]
        return ReceiverResponse(0, self.trouble) if self.trouble else ReceiverResponse(204)


class Clock:
    now = 1000.0

    def __call__(self, *_):
        return self.now


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request, tmp_path, monkeypatch):
    is_server = request.param == "postgresql"
    url = request.getfixturevalue("postgres").new_url() if is_server else f"sqlite:///{tmp_path / 't.db'}"
    found = Database(url)
    monkeypatch.setattr(found, "clock_s", Clock())
    yield found
    found.close()


@pytest.fixture
def receiver():
    return Receiver()


def fill(database, count):
    for number in range(count):
        row = {"at": 1.0, "name": "ann", "team": None, "address": "", "status": 200, "token": None}
        audit.note(database, {**row, "action": f"POST /{number}"})


def feed_of(database, receiver, *targets, home="h", **environ):
    return AuditFeed(database, home, {VARIABLE: " ".join(targets or (URL,)), **environ}, receiver)


def ids(rows):
    return [row["id"] for row in rows]


def test_all_rows_are_sent_as_they_come_and_can_be_verified_there(database, receiver, monkeypatch):
    monkeypatch.setattr(audit_feed, "_AT_ONCE", 4)
    feed = feed_of(database, receiver, **{AUTHORIZATION_VARIABLE: "Bearer x"})
    fill(database, 10)
    feed.feed()
    fill(database, 1)
    feed.feed()
    feed.feed()
    assert (len(receiver.rows), receiver.posts) == (11, 4)
    assert receiver.headers["authorization"] == "Bearer x"
    before = audit.BEGINNING
    for row in receiver.rows:
        assert (row["before"], row["hash"]) == (before, audit.hash_of(before, row))
        before = row["hash"]
    (sent,) = Audit(database).sent()
    assert (sent["sent"], sent["trouble"], sent["target"]) == (receiver.rows[-1]["id"], "", URL)


def test_a_receiver_that_is_away_is_tried_again_and_misses_nothing(database, receiver):
    feed = feed_of(database, receiver)
    fill(database, 3)
    receiver.trouble = "ConnectionRefusedError"
    feed.feed()
    feed.feed()  # not at once
    assert receiver.posts == 1
    for _ in range(9):
        database.clock_s.now += 400.0
        feed.feed()
    assert (receiver.posts, receiver.rows) == (10, [])
    assert Audit(database).sent()[0]["trouble"] == "ConnectionRefusedError"
    receiver.trouble = ""
    fill(database, 2)
    database.clock_s.now += 400.0
    feed.feed()
    assert len(receiver.rows) == 5
    assert Audit(database).sent()[0]["failures"] == 0


def test_one_that_is_away_holds_up_no_other(database, receiver, tmp_path):
    receiver.trouble = "HTTP 503"
    fill(database, 2)
    feed_of(database, receiver, URL, f"file://{tmp_path}/audit.jsonl").feed()
    assert len((tmp_path / "audit.jsonl").read_text().splitlines()) == 2


def test_who_is_killed_after_it_sent_has_it_sent_again(database, receiver, monkeypatch):
    fill(database, 3)
    feed = feed_of(database, receiver)
    monkeypatch.setattr(audit, "change_sink", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        feed.feed()
    monkeypatch.undo()
    monkeypatch.setattr(database, "clock_s", Clock())
    database.clock_s.now += LEASE_S + 1
    other = feed_of(database, receiver)
    other._owner = "another process"
    other.feed()
    assert Counter(ids(receiver.rows)) == dict.fromkeys(ids(receiver.rows), 2)


def test_one_server_sends_at_a_time(database, receiver, monkeypatch):
    fill(database, 3)
    one, other = feed_of(database, receiver), feed_of(database, receiver)
    other._owner = "another process"
    send = one._send

    def meanwhile(url, lines):
        other.feed()
        return send(url, lines)

    monkeypatch.setattr(one, "_send", meanwhile)
    one.feed()
    assert len(receiver.rows) == 3
    fill(database, 1)
    database.clock_s.now += LEASE_S + 1
    other.feed()
    one.feed()
    assert len(receiver.rows) == 4


def test_a_file_has_a_line_a_row_and_a_line_that_was_cut_stays_alone(database, receiver, tmp_path):
    place = tmp_path / "a b.jsonl"
    fill(database, 2)
    feed = feed_of(database, receiver, f"file://{tmp_path}/a%20b.jsonl")
    feed.feed()
    assert place.stat().st_mode & 0o777 == 0o600
    with place.open("a") as file:
        file.write('{"id": 3, "na')  # the disk was full
    fill(database, 1)
    feed.feed()
    *whole, cut, last = place.read_text().splitlines()
    assert (len(whole), cut, json.loads(last)["action"]) == (2, '{"id": 3, "na', "POST /0")
    place.unlink()  # `logrotate`
    fill(database, 1)
    feed.feed()
    assert len(place.read_text().splitlines()) == 1


def test_files_are_of_one_machine_each(database, receiver, tmp_path):
    fill(database, 2)
    for home in ("h-1", "h-2"):
        feed_of(database, receiver, f"file://{tmp_path}/{'audit.jsonl'}", home=home).feed()
    assert len((tmp_path / "audit.jsonl").read_text().splitlines()) == 4


def test_a_disk_that_is_full_is_waited_for(database, receiver, tmp_path, monkeypatch):
    fill(database, 2)
    feed = feed_of(database, receiver, f"file://{tmp_path}/no/audit.jsonl")
    feed.feed()
    assert "No such file" in Audit(database).sent()[0]["trouble"]
    (tmp_path / "no").mkdir()
    database.clock_s.now += 400.0
    feed.feed()
    assert Audit(database).sent()[0]["trouble"] == ""


def test_syslog_has_it(database, receiver, tmp_path, monkeypatch):
    monkeypatch.setattr(audit_feed, "_SYSLOG", str(tmp_path / "log"))
    feed = feed_of(database, receiver, "syslog:")
    fill(database, 2)
    feed.feed()
    assert Audit(database).sent()[0]["trouble"]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as log:
        log.bind(str(tmp_path / "log"))
        database.clock_s.now += 400.0
        feed.feed()
        told = [log.recv(4096).decode() for _ in range(2)]
    assert all(each.startswith("<85>trainmaster: {") for each in told)
    assert json.loads(told[1].partition(": ")[2])["action"] == "POST /1"


@pytest.mark.parametrize("url", ["ftp://h/x", "file://host/x", "/var/log/x", "https://u:p@h/", "syslog://h"])
def test_what_is_no_receiver_is_refused_at_once(database, receiver, url):
    with pytest.raises(UsageError):
        feed_of(database, receiver, url)
