"""Messages are sent at least once, wherever the driver dies; see `service.notifications.delivery`."""

from __future__ import annotations

import random
import threading
from collections import Counter

import pytest

from trainmaster.db import AcceptedRun, Database, Note, RunChange, queries
from trainmaster.service.notifications.delivery import GIVE_UP_S, LONGEST_PAUSE_S, Delivery, deliver_left
from trainmaster.spec import Recipe
from trainmaster.spec.states import State
from trainmaster.spec.topics import Subscription

NOW = 1e9
BOTH = [Subscription(to="a", events=("run", "note")), Subscription(to="b")]


class Killed(BaseException):
    """The driver was killed here."""


class Receivers:
    """Take messages; some are away, and some lose their answer."""

    def __init__(self):
        self.got = []
        self.away = set()
        self.refused = set()

    def make(self, _name, to, _environ):
        self.to = to
        return self

    def send(self, message, _timeout_s):
        if self.to in self.away or message.event in self.refused:
            raise OSError(f"{self.to} is away: https://me:pw@host/")
        self.got.append((self.to, message))


class World:
    def __init__(self, path):
        self.now = NOW
        self.database = Database(f"sqlite:///{path / 'db'}")
        self.receivers = Receivers()
        recipe = Recipe.from_dict({"experiments": {"main": {"command": "true"}}, "notify": [{"to": "cat"}]})
        self.lease = self.database.create_run(
            AcceptedRun(
                "r", "r", recipe.model_dump_json(), "", "local", "", "file:///x", [("main", 1)],
                notify=[each.events for each in BOTH],
            ),
            NOW,
        )  # fmt: skip

    def delivery(self, outbox=None):
        return Delivery(
            outbox or self.database, self.lease, BOTH, {}, make=self.receivers.make, clock=lambda: self.now
        )

    def happens(self, text):
        self.database.commit(self.lease, [Note(text)], self.now)

    def told(self, to):
        return [message.message for receiver, message in self.receivers.got if receiver == to]


@pytest.fixture
def world(tmp_path):
    found = World(tmp_path)
    yield found
    found.database.close()


def test_each_is_told_once_in_order(world):
    for text in ("one", "two", "three"):
        world.happens(text)
    assert not world.delivery().deliver_due()
    assert world.told("a") == ["", "one", "two", "three"]
    assert world.told("b") == [""]
    ids = [message.id for _, message in world.receivers.got]
    assert len(set(ids)) == len(ids)
    world.delivery().deliver_due()
    assert len(world.receivers.got) == len(ids)


def test_who_is_away_is_left_alone_for_longer_and_longer_and_holds_up_nobody(world):
    delivery = world.delivery()
    world.receivers.away = {"a"}
    tries = Counter()
    make = world.receivers.make
    delivery._make = lambda name, to, environ: (tries.update(to), make(name, to, environ))[1]
    for second in range(0, 2000, 2):
        world.now = NOW + second
        assert delivery.deliver_due()
    assert world.told("b") == [""]
    assert tries["b"] == 1
    assert 12 <= tries["a"] <= 9 + 2000 / LONGEST_PAUSE_S + 1
    world.receivers.away = set()
    world.now += LONGEST_PAUSE_S
    assert not delivery.deliver_due()
    assert world.told("a") == [""]


def test_one_message_that_is_refused_holds_up_no_others(world):
    world.happens("good")
    first = world.database.messages("r")[0]
    world.receivers.refused = {first["event_id"]}
    delivery = world.delivery()
    for second in range(5):
        world.now = NOW + second
        delivery.deliver_due()
    assert world.told("a") == ["good"]


def test_after_a_day_it_is_given_up_and_an_event_says_so_of_which_nobody_is_told(world):
    world.receivers.away = {"a"}
    delivery = world.delivery()
    delivery.deliver_due()
    world.now = NOW + GIVE_UP_S - 1
    assert delivery.deliver_due()
    world.now = NOW + GIVE_UP_S + LONGEST_PAUSE_S
    assert not delivery.deliver_due()
    (note,) = [event for event in queries.events(world.database, "r") if event["kind"] == "note"]
    assert note["message"].startswith(
        "notify.0: event 1 was not told in 3 tries: a is away: https://***@host/"
    )


class Dying:
    """An outbox and a receiver that are killed at one of their lines; the database keeps what it has."""

    def __init__(self, world, rng, chance):
        self._world, self._rng, self._chance = world, rng, chance

    def _maybe(self):
        if self._rng.random() < self._chance:
            raise Killed

    def messages(self, *arguments, **page):
        self._maybe()
        return self._world.database.messages(*arguments, **page)

    def claim_message(self, *arguments):
        self._maybe()
        claimed = self._world.database.claim_message(*arguments)
        self._maybe()
        return claimed

    def end_message(self, *arguments):
        self._maybe()
        self._world.database.end_message(*arguments)
        self._maybe()


@pytest.mark.parametrize("seed", range(10))
def test_wherever_drivers_die_all_is_told_with_the_same_id(world, seed):
    rng = random.Random(seed)
    dying = Dying(world, rng, 0.15)
    expected = [""]
    taken: set[str] = set()
    real_end = world.database.end_message

    def end_message(lease, message, now, why=""):
        row = next(row for row in world.database.messages("r") if row["id"] == message)
        taken.add(f"r.{row['event_id']}.{row['subscription']}")
        real_end(lease, message, now, why)

    world.database.end_message = end_message
    make = world.receivers.make

    def make_checked(name, to, environ):
        found = make(name, to, environ)
        dying._maybe()
        return found

    while world.database.messages("r") or len(expected) < 6:
        if len(expected) < 6:
            expected.append(f"event {len(expected)}")
            world.happens(expected[-1])
        world.receivers.away = set(rng.sample("ab", rng.randrange(2)))
        delivery = world.delivery(dying)
        delivery._make = make_checked
        before = len(world.receivers.got)
        was_taken = set(taken)
        try:
            for _ in range(3):
                delivery.deliver_due()
                world.now += rng.choice([0.5, 2, 5])
        except Killed:
            world.lease = world.database.acquire("r", world.now)  # another driver takes over
        assert not was_taken & {message.id for _, message in world.receivers.got[before:]}, "told once more"
    ids = {message.id: (to, message.event) for to, message in world.receivers.got}
    assert len(set(ids.values())) == len(ids), "one id for each event and receiver"
    assert set(world.told("a")) == set(expected)
    assert set(world.told("b")) == {""}


def test_a_driver_that_lost_its_lease_sends_nothing(world):
    old = world.delivery()
    world.lease = world.database.acquire("r", NOW + 1)
    assert old.deliver_due(), "all is left"
    assert world.receivers.got == []
    assert not world.delivery().deliver_due()


def test_the_thread_ends_when_all_is_told(world):
    world.database.commit(world.lease, [RunChange(State.WAITING, State.DONE)], NOW)
    delivery = world.delivery()
    delivery.start()
    assert delivery.finish() == ""
    assert [message.after for to, message in world.receivers.got if to == "b"] == ["WAITING", "DONE"]


def test_a_receiver_that_hangs_is_not_waited_for(world):
    release = threading.Event()
    world.receivers.send = lambda message, timeout_s: release.wait(5)
    delivery = world.delivery()
    delivery.start()
    said = delivery.finish(is_hurried=lambda: True)
    release.set()
    assert "2 messages are not sent yet" in said
    assert "`trainmaster resume r`" in said
    delivery._thread.join(5)


def test_what_is_left_of_a_run_that_is_over_is_sent(world, tmp_path, monkeypatch):
    world.receivers.away = {"a", "b"}
    monkeypatch.setattr("trainmaster.service.notifications.delivery.Delivery.start", lambda self: None)
    world.database.release(world.lease, NOW + 1)
    world.database.create_run(AcceptedRun("s", "s", "{}", "", "local", "", "file:///x", [("main", 1)]), NOW)
    deliver_left(world.database, "s", {})
    token = world.database.run_row("r")["lease_token"]
    deliver_left(world.database, "r", {})
    row = world.database.run_row("r")
    assert (row["lease_token"], row["lease_owner"]) == (token + 1, None)
