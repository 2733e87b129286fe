"""Webhooks: signed, sent at least once under one id, to public addresses only, given up after a day."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import socket
import threading

import pytest

from http_receiver import HttpReceiver, answer
from trainmaster.control.task.layout import Home
from trainmaster.db import AcceptedRun, Note, RunChange, Submission, access, webhook_rows
from trainmaster.service import Service
from trainmaster.service.notifications.webhook_targets import may_reach, post
from trainmaster.service.notifications.webhooks import GIVE_UP_S, SMTP_VARIABLE, Webhooks, next_wait_s
from trainmaster.service.users.caller import caller
from trainmaster.spec.addresses import NETWORKS_VARIABLE, address_of, named_networks
from trainmaster.spec.errors import NotFoundError, UsageError
from trainmaster.spec.states import EndReason, State
from trainmaster.spec.topics import APPROVAL_ANSWERED, APPROVAL_WANTED

NOW = 2e9
HOOK = "/hook?a=b"
LOCAL = {NETWORKS_VARIABLE: "127.0.0.0/8"}
METADATA = ("169.254.169.254", "fe80::1", "100.100.100.200", "168.63.129.16", "fd00:ec2::254")
MANAGER = caller("ann", "red", ["manage", "read"])


@pytest.fixture
def receiver():
    with HttpReceiver(usual=answer(200)) as found:
        yield found


@pytest.fixture
def service(tmp_path):
    home = Home(tmp_path, tmp_path / "cache", f"file://{tmp_path}/store", f"sqlite:///{tmp_path / 'a.db'}")
    found = Service(home)
    access.add_team(found.database, "red", {"monthly_usd": 10.0}, NOW)
    yield found
    found.close()


@pytest.fixture
def webhooks(service):
    return Webhooks(service, LOCAL)


def begin(service, run="r-1", team="red"):
    new = AcceptedRun(
        run, "r", "{}", "r.yaml", "aws", "code", "file:///s", [("main", 1)], submission=Submission("x", team)
    )
    return service.database.create_run(new, NOW)


def is_signed(secret, headers, body):
    key = base64.b64decode(secret.removeprefix("whsec_"))
    told = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    right = "v1," + base64.b64encode(hmac.new(key, told, hashlib.sha256).digest()).decode()
    return right in headers["webhook-signature"].split()


def send_due(webhooks, service, now):
    """Send what is due, one after the other; how many that were."""
    rows = webhook_rows.due(service.database, now, [], 100)
    for row in rows:
        webhooks.deliver(row, now)
    return len(rows)


def test_a_team_is_told_what_happens_to_its_runs(service, webhooks, receiver):
    made = webhooks.create(MANAGER, "webhook", receiver.url + HOOK)
    lease = begin(service)
    begin(service, "r-2", team=None)
    service.database.commit(lease, [RunChange(State.WAITING, State.RUNNING)], NOW)
    service.database.put_cost(lease, 8.5, NOW)
    over = RunChange(State.RUNNING, State.DONE, EndReason.SUCCEEDED)
    service.database.commit(lease, [over], NOW + 1)
    while send_due(webhooks, service, NOW + 2):
        pass
    told = [json.loads(asked.body) for asked in receiver.asked]
    assert sorted(event["type"] for event in told) == [
        "trainmaster.budget.reached", "trainmaster.run.ended", "trainmaster.run.started"
    ]  # fmt: skip
    for event, (_, path, headers, body) in zip(told, receiver.asked, strict=True):
        assert (path, event["specversion"], event["subject"]) == (HOOK, "1.0", "r-1")
        assert event["id"] == headers["webhook-id"]
        assert is_signed(made["secret"], headers, body)
    (ended,) = (event for event in told if event["type"] == "trainmaster.run.ended")
    assert (ended["data"]["reason"], ended["data"]["team"]) == ("SUCCEEDED", "red")
    assert {each["status"] for each in webhooks.deliveries(MANAGER, made["id"])} == {"HTTP 200"}


def test_turns_of_its_loop_send_what_is_due(service, webhooks, receiver, monkeypatch):
    monkeypatch.setattr(service.database, "clock_s", lambda: NOW + 2)
    webhooks.create(MANAGER, "webhook", receiver.url + HOOK)
    for number in (1, 2):
        lease = begin(service, f"r-{number}")
        service.database.commit(lease, [RunChange(State.WAITING, State.RUNNING)], NOW)
        webhooks.turn()
        assert len(receiver.asked) == number


def test_what_is_told_is_written_with_what_has_happened_or_not_at_all(service, webhooks, receiver):
    made = webhooks.create(MANAGER, "webhook", receiver.url + HOOK, ["run.started"])
    lease = begin(service)

    def broken(connection):
        raise RuntimeError

    with pytest.raises(RuntimeError):
        service.database.requeue(lease, NOW, broken)
    assert webhooks.deliveries(MANAGER, made["id"]) == []


def test_who_dies_while_it_sends_leaves_it_to_be_sent_under_the_same_id(service, webhooks, receiver):
    made = webhooks.create(MANAGER, "webhook", receiver.url + HOOK)
    webhooks.test(MANAGER, made["id"])
    at = webhooks.deliveries(MANAGER, made["id"])[0]["at"]
    (row,) = webhook_rows.due(service.database, at, [], 9)
    assert webhook_rows.claim(service.database, row, at + 60)
    assert not webhook_rows.claim(service.database, row, at + 60), "of two senders one sends"
    webhooks._send(row, at)
    assert send_due(webhooks, service, at + 59) == 0
    assert send_due(webhooks, service, at + 61) == 1
    first, second = (asked.headers["webhook-id"] for asked in receiver.asked)
    assert first == second == row["id"]


def test_failures_are_tried_again_for_a_day_and_then_it_is_disabled(service, webhooks, receiver):
    receiver.answers = [
        answer(500), answer(302, {"location": "/other"}), answer(429, {"retry-after": "900"})
    ]  # fmt: skip
    made = webhooks.create(MANAGER, "webhook", receiver.url + HOOK)
    webhooks.test(MANAGER, made["id"])
    at = webhooks.deliveries(MANAGER, made["id"])[0]["at"]
    waits = []
    for status in ("HTTP 500", "HTTP 302: redirects are not followed", "HTTP 429"):
        send_due(webhooks, service, at)
        (shown,) = webhooks.deliveries(MANAGER, made["id"])
        assert (shown["status"], shown["done_at"]) == (status, None)
        waits.append(shown["due_at"] - at)
        at = shown["due_at"]
    assert 5 <= waits[0] <= 5.5
    assert 30 <= waits[1] <= 33
    assert waits[2] == 900
    receiver.answers = [answer(500), answer(410)]
    webhooks.test(MANAGER, made["id"])
    send_due(webhooks, service, at + GIVE_UP_S)
    assert webhooks.show(MANAGER, made["id"])["disabled_at"] is None, "that one was tried for the first time"
    send_due(webhooks, service, at + GIVE_UP_S)
    hook = webhooks.show(MANAGER, made["id"])
    assert (hook["disabled_at"], hook["disabled_why"]) == (at + GIVE_UP_S, "HTTP 410")
    assert all(each["done_at"] for each in webhooks.deliveries(MANAGER, made["id"]))
    webhooks.test(MANAGER, made["id"])
    assert send_due(webhooks, service, at + 2 * GIVE_UP_S) == 0
    assert webhooks.enable(MANAGER, made["id"])["disabled_at"] is None
    assert send_due(webhooks, service, at + 2 * GIVE_UP_S) == 1


@pytest.mark.parametrize(("asks", "waits_s"), [("999999", 999_999), ("1000000", 0), ("soon", 0), ("", 0)])
def test_so_much_of_an_answer_is_read_and_believed(receiver, asks, waits_s):
    receiver.answers = [answer(503, {"retry-after": asks}, "come later"), answer(200, {}, "taken")]
    found = post(receiver.url, b"{}", {}, named_networks(LOCAL), most_bytes=4)
    assert (found.status, found.retry_after_s, found.body) == (503, waits_s, b"come")
    taken = post(receiver.url, b"{}", {}, named_networks(LOCAL))
    assert (taken.status, taken.trouble) == (200, "")
    assert taken.body == b"", "nothing is kept that nobody asked for"


def test_who_was_away_for_a_day_tries_a_few_times_before_it_gives_up(service, webhooks, receiver):
    made = webhooks.create(MANAGER, "webhook", receiver.url + HOOK)
    webhooks.test(MANAGER, made["id"])
    at = webhooks.deliveries(MANAGER, made["id"])[0]["at"] + 2 * GIVE_UP_S
    receiver.answers = [answer(500)] * 3
    for number in range(3):
        assert webhooks.show(MANAGER, made["id"])["disabled_at"] is None
        assert send_due(webhooks, service, at + 60.0 * number) == 1
    assert webhooks.show(MANAGER, made["id"])["disabled_at"] == at + 120.0


def test_who_sends_too_late_disables_nothing(service, webhooks, receiver):
    made = webhooks.create(MANAGER, "webhook", receiver.url + HOOK)
    webhooks.test(MANAGER, made["id"])
    at = webhooks.deliveries(MANAGER, made["id"])[0]["at"]
    (row,) = webhook_rows.due(service.database, at, [], 9)
    webhook_rows.claim(service.database, row, at)
    assert send_due(webhooks, service, at) == 1, "by somebody else meanwhile"
    webhook_rows.end(service.database, row, "HTTP 500", at, None, given_up=True)
    assert webhooks.show(MANAGER, made["id"])["disabled_at"] is None


def test_the_schedule_ends_after_a_day():
    age, tries = 0.0, 0
    while (wait := next_wait_s(tries + 1, age, jitter=1.0)) is not None:
        age, tries = age + wait, tries + 1
    assert age == GIVE_UP_S
    assert 9 <= tries <= 12


def test_two_secrets_sign_during_a_rotation(service, webhooks, receiver):
    made = webhooks.create(MANAGER, "webhook", receiver.url + HOOK)
    new = webhooks.rotate(MANAGER, made["id"])["secret"]
    webhooks.test(MANAGER, made["id"])
    at = webhooks.deliveries(MANAGER, made["id"])[0]["at"]
    send_due(webhooks, service, at)
    ((_, _, headers, body),) = receiver.asked
    assert is_signed(made["secret"], headers, body)
    assert is_signed(new, headers, body)
    webhooks.test(MANAGER, made["id"])
    send_due(webhooks, service, at + GIVE_UP_S + 10)
    assert not is_signed(made["secret"], *receiver.asked[-1][2:])
    stored = service.database.read(webhook_rows.hooks_query(None))[0]["secrets"]
    assert new.encode() not in stored
    assert made["secret"].encode() not in stored


def test_what_is_another_teams_is_not_there(webhooks, receiver):
    made = webhooks.create(MANAGER, "webhook", receiver.url + HOOK)
    other = caller("bob", "blue", ["manage"])
    assert webhooks.listed(other) == []
    for ask in (webhooks.show, webhooks.rotate, webhooks.remove, webhooks.test, webhooks.deliveries):
        with pytest.raises(NotFoundError):
            ask(other, made["id"])
    webhooks.remove(MANAGER, made["id"])
    assert webhooks.listed(MANAGER) == []


@pytest.mark.parametrize(
    "url",
    [
        "http://example.org/",
        "ftp://example.org/",
        "https://u:p@example.org/",
        "https://",
        "https://a b/",
        "https://example.org:0/",
        "https://example.org:65536/",
        "https://example.org:https/",
        "x",
    ],
)
def test_targets_that_are_refused_at_once(service, url):
    with pytest.raises(UsageError):
        Webhooks(service, {}).create(MANAGER, "webhook", url)


@pytest.mark.parametrize(
    "url", ["https://example.org", "https://example.org/a?b=c", "https://example.org:1/"]
)
def test_targets_with_a_port_and_without_are_taken(service, url):
    assert Webhooks(service, {}).create(MANAGER, "webhook", url)["target"]


METADATA = ("169.254.169.254", "fe80::1", "100.100.100.200", "168.63.129.16", "fd00:ec2::254")


@pytest.mark.parametrize("address", [*METADATA, "127.0.0.1", "192.168.0.1", "::1", "2002:7f00:1::"])
def test_addresses_that_are_not_reached(address):
    assert not may_reach(address_of(address), (), is_tls=True)
    everything = named_networks({NETWORKS_VARIABLE: "0.0.0.0/0,::/0"})
    assert may_reach(address_of(address), everything, is_tls=False) is (address not in METADATA)


def test_a_name_that_means_another_address_a_moment_later_changes_nothing(receiver):
    port = receiver.port
    asked = []

    def resolve(host, *_, **__):
        asked.append(host)
        address = "8.8.8.8" if len(asked) > 1 else "10.0.0.1"
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]

    answer = post(f"http://moving.example:{port}/", b"{}", {}, named_networks(LOCAL), resolve)
    assert "10.0.0.1, which this server does not connect to" in answer.trouble
    assert asked == ["moving.example"]
    assert post(receiver.url + HOOK, b"{}", {}, ()).trouble.startswith("127.0.0.1 is 127.0.0.1, which")
    assert receiver.asked == []


@pytest.mark.parametrize("begins", [b"", b"HTTP/1.1 200"])
def test_who_hangs_is_cut_off(begins):
    listener = socket.create_server(("127.0.0.1", 0))
    held = []

    def accept():
        connection, _ = listener.accept()
        held.append(connection)
        connection.sendall(begins)

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
    assert post(url, b"{}", {}, named_networks(LOCAL), timeout_s=0.2).trouble == "no answer within 0.2 s"
    thread.join()
    for each in (*held, listener):
        each.close()


def test_slack_and_email_are_told_in_words(service, receiver, monkeypatch):
    sent = []

    class Smtp:
        def __init__(self, *where, **_):
            sent.append(where)

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def ehlo_or_helo_if_needed(self):
            pass

        def has_extn(self, _):
            return False

        def send_message(self, mail):
            sent.append(mail)

    monkeypatch.setattr("smtplib.SMTP", Smtp)
    webhooks = Webhooks(service, {**LOCAL, SMTP_VARIABLE: "smtp://mail.example:2525"})
    with pytest.raises(UsageError, match="sends no e-mail"):
        Webhooks(service, LOCAL).create(MANAGER, "email", "ann@example.org")
    with pytest.raises(UsageError, match="no address"):
        webhooks.create(MANAGER, "email", "ann@example.org\nbcc: x@y")
    slack = webhooks.create(MANAGER, "slack", receiver.url + HOOK)
    webhooks.create(MANAGER, "email", "ann@example.org", ["run.ended"])
    assert "secret" not in slack
    lease = begin(service)
    over = RunChange(State.WAITING, State.DONE, EndReason.SUCCEEDED)
    service.database.commit(lease, [over], NOW)
    send_due(webhooks, service, NOW)
    ((_, _, headers, body),) = receiver.asked
    assert json.loads(body) == {"text": "r-1: a run has ended: SUCCEEDED"}
    assert "webhook-signature" not in headers
    assert sent[0] == ("mail.example", 2525)
    assert (sent[1]["To"], sent[1]["Subject"]) == ("ann@example.org", "r-1: a run has ended: SUCCEEDED")


def test_slack_is_told_once_that_a_named_experiment_waits_for_a_person(service, receiver):
    webhooks = Webhooks(service, LOCAL)
    webhooks.create(MANAGER, "slack", receiver.url + HOOK)
    lease = begin(service)
    for message, topic in (
        ("waits for a person's approval: `...`", APPROVAL_WANTED),
        ("deploy was denied by ann: no", APPROVAL_ANSWERED),
    ):
        service.database.commit(lease, [Note(message, "deploy", topic=topic)], NOW)
        send_due(webhooks, service, NOW)
    assert [json.loads(body)["text"] for *_, body in receiver.asked] == [
        "r-1: deploy waits for a person's approval: `...`",
        "r-1: deploy was denied by ann: no",
    ]
    denied = RunChange(State.WAITING, State.DONE, EndReason.DENIED, "denied by ann: no")
    service.database.commit(lease, [denied], NOW)
    send_due(webhooks, service, NOW)
    assert json.loads(receiver.asked[-1][-1]) == {"text": "r-1: a run has ended: denied by ann: no"}


def test_what_cannot_be_connected_to_has_no_status():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    answer = post(f"http://127.0.0.1:{port}/", b"{}", {}, named_networks(LOCAL))
    assert (answer.status, bool(answer.trouble), answer.retry_after_s) == (0, True, 0.0)
