"""Teams share the slots of a node: deficit round robin, whatever each of them asks for."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from trainmaster.executors.supervisor.slots import Slots, Ticket


class Node:
    """One node whose tasks take so many turns of a clock."""

    def __init__(self, capacity, **most):
        self.slots, self.capacity = Slots(), capacity
        self.most, self.count, self.started, self.live = most, 0, [], {}

    def ask(self, team, needs, run=""):
        run = run or f"of-{team}"
        self.slots.set_capacity(run, self.capacity, (), team, self.most.get(team, 0))
        for need in needs:
            self.count += 1
            self.slots.add(Ticket(f"{team}:{self.count}", run, need, f"{run}/train", 10**9))

    def grant(self):
        granted = self.slots.grant()
        for ticket in granted:
            self.live[ticket.key] = ticket
            self.started.append((ticket.key.split(":")[0], ticket.need))
        return granted

    def end(self, key):
        del self.live[key]
        self.slots.remove(key)

    def held(self, team):
        return sum(ticket.need for key, ticket in self.live.items() if key.startswith(f"{team}:"))


def test_one_task_starts_within_a_turn_although_another_team_has_a_million():
    node = Node(2)
    node.ask("news", [1] * 10_000)
    assert len(node.grant()) == 2
    node.ask("games", [1])
    assert node.grant() == []
    node.end(next(iter(node.live)))
    assert [ticket.key.split(":")[0] for ticket in node.grant()] == ["games"]


def test_runs_of_a_team_are_no_more_than_one_team():
    node = Node(1)
    for number in range(9):
        node.ask("news", [1] * 100, run=f"news-{number}")
    node.ask("games", [1] * 100)
    for _ in range(40):
        node.grant()
        node.end(next(iter(node.live)))
    names = [team for team, _ in node.started]
    assert names.count("games") == names.count("news") == 20


def test_who_holds_less_is_next_whoever_has_waited_longer():
    node = Node(4)
    node.ask("news", [1] * 4)
    node.grant()  # long ones
    node.ask("news", [1] * 4)
    node.ask("games", [1] * 4)
    for _ in range(2):
        node.end(next(key for key in node.live if key.startswith("news")))
        node.grant()
    assert (node.held("news"), node.held("games")) == (2, 2)


def test_nothing_is_saved_up_during_a_pause():
    node = Node(1)
    node.ask("news", [1] * 100)
    for _ in range(50):
        node.grant()
        node.end(next(iter(node.live)))
    node.ask("games", [1] * 50)
    for _ in range(20):
        node.grant()
        node.end(next(iter(node.live)))
    names = [team for team, _ in node.started[50:]]
    assert 9 <= names.count("news") <= 11


def test_a_team_never_holds_more_than_it_may_and_is_told_so():
    node = Node(4, news=2)
    node.ask("news", [1, 1, 1])
    assert len(node.grant()) == 2
    node.ask("news", [1], run="second")
    assert node.grant() == []
    assert node.slots.queue_place("second") == [1, 0, 2, {"of-news": 2}, {}, 2]
    node.ask("games", [1, 1, 1])
    assert len(node.grant()) == 2
    node.ask("other", [1])
    assert node.slots.queue_place("of-other") == [1, 0, 1, {}, {"news": 2, "games": 2}, 4]
    node.most["news"] = 3
    node.ask("news", [])
    assert node.grant() == [], "the node is full"
    node.end(next(key for key in node.live if key.startswith("games")))
    assert [ticket.run for ticket in node.grant()] == ["of-other"]


def test_a_limit_that_is_lowered_holds_nobody_else_back():
    node = Node(4, news=4)
    node.ask("games", [1, 1, 1])
    node.grant()
    node.ask("news", [4])
    for _ in range(6):  # small ones overtake it until it is its turn
        node.ask("games", [1])
        node.grant()
        node.end(next(iter(node.live)))
    node.most["news"] = 2
    node.ask("news", [])
    node.ask("games", [1])
    assert node.grant()


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 8), st.integers(2, 4))
def test_no_team_starves_no_slot_is_idle_and_no_limit_is_passed(seed, capacity, teams):
    rng = random.Random(seed)
    names = [f"t{number}" for number in range(teams)]
    node = Node(capacity, **{name: rng.choice([0, 0, rng.randint(1, capacity)]) for name in names})
    largest = {name: node.most[name] or capacity for name in names}
    waiting = dict.fromkeys(names, 0)
    given_to_others = dict.fromkeys(names, 0)
    for _ in range(200):
        name = rng.choice(names)
        if rng.random() < 0.5:
            needs = [rng.randint(1, largest[name]) for _ in range(rng.randint(1, 5))]
            if not waiting[name]:
                given_to_others[name] = 0
            waiting[name] += len(needs)
            node.ask(name, needs)
        elif node.live:
            node.end(rng.choice(list(node.live)))
        for ticket in node.grant():
            team = ticket.key.split(":")[0]
            waiting[team] -= 1
            given_to_others[team] = 0
            for other in names:
                if other != team and waiting[other] and not node.held(other):
                    given_to_others[other] += ticket.need
        held = {each: node.held(each) for each in names}
        total = sum(held.values())
        assert total <= capacity
        assert all(not node.most[each] or held[each] <= node.most[each] for each in names)
        assert total or not any(waiting.values()), "nothing runs, and somebody waits"
        assert all(given_to_others[each] <= 2 * capacity * (teams + 1) for each in names)
    for _ in range(10_000):  # all of it comes to an end
        if not node.live:
            break
        node.end(rng.choice(list(node.live)))
        for ticket in node.grant():
            waiting[ticket.key.split(":")[0]] -= 1
    assert not any(waiting.values())


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 6), st.integers(2, 4), st.booleans())
def test_teams_that_always_want_more_hold_the_same(seed, capacity, teams, has_gangs):
    rng = random.Random(seed)
    node = Node(capacity)
    largest = {f"t{number}": rng.randint(1, capacity) if has_gangs else 1 for number in range(teams)}
    for name, most in largest.items():
        node.ask(name, [rng.randint(1, most) for _ in range(600)])
    node.grant()
    held = dict.fromkeys(largest, 0)
    for _ in range(400):
        node.end(rng.choice(list(node.live)))
        node.grant()
        now = {name: node.held(name) for name in largest}
        held = {name: held[name] + now[name] for name in largest}
        if not has_gangs:
            assert max(now.values()) - min(now.values()) <= 1, "as many as one another at each moment"
    assert min(held.values()) * 5 >= max(held.values()) * 2, held
