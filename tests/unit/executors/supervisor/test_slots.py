import random

from hypothesis import given, settings
from hypothesis import strategies as st

from trainmaster.executors.supervisor.slots import Slots, Ticket


def make(capacity: int, *runs: str, gpus=()) -> Slots:
    slots = Slots()
    for run in runs or ("r",):
        slots.set_capacity(run, capacity, gpus)
    return slots


def keys(tickets) -> list[str]:
    return [ticket.key for ticket in tickets]


def test_first_come_first_served():
    slots = make(2)
    for index in range(5):
        slots.add(Ticket(str(index), "r", 1, "g", 99))
    assert keys(slots.grant()) == ["0", "1"]
    slots.remove("1")
    assert keys(slots.grant()) == ["2"]
    slots.remove("3")
    slots.remove("0")
    assert keys(slots.grant()) == ["4"]


def test_full_group_lets_others_pass():
    slots = make(4)
    for key, group in [("a1", "a"), ("a2", "a"), ("b1", "b")]:
        slots.add(Ticket(key, "r", 1, group, 1))
    assert keys(slots.grant()) == ["a1", "b1"]
    slots.remove("a1")
    assert keys(slots.grant()) == ["a2"]


def test_runs_take_turns():
    slots = make(1, "x", "y")
    for index in range(3):
        slots.add(Ticket(f"x{index}", "x", 1, "gx", 99))
    for index in range(3):
        slots.add(Ticket(f"y{index}", "y", 1, "gy", 99))
    order = []
    while granted := slots.grant():
        order += keys(granted)
        slots.remove(order[-1])
    assert order == ["x0", "y0", "x1", "y1", "x2", "y2"]


def test_big_gang_does_not_starve():
    slots = make(4)
    slots.add(Ticket("s0", "r", 1, "small", 99))
    slots.add(Ticket("s1", "r", 1, "small", 99))
    running = keys(slots.grant())
    slots.add(Ticket("big", "r", 4, "big", 99))
    for index in range(2, 100):
        slots.add(Ticket(f"s{index}", "r", 1, "small", 99))
    started = []
    for _ in range(50):
        granted = keys(slots.grant())
        started += granted
        running += granted
        if "big" in granted:
            break
        slots.remove(running.pop(0))
    assert "big" in started
    assert len(started) < 12


def test_small_ones_fill_the_gaps_meanwhile():
    slots = make(4)
    slots.add(Ticket("long", "r", 3, "g1", 99))
    slots.grant()
    slots.add(Ticket("big", "r", 4, "g2", 99))
    slots.add(Ticket("small", "r", 1, "g3", 99))
    assert keys(slots.grant()) == ["small"]


def test_larger_than_everything_runs_alone():
    slots = make(2)
    slots.add(Ticket("one", "r", 1, "g", 1))
    slots.add(Ticket("huge", "r", 9, "h", 1))
    assert keys(slots.grant()) == ["one"]
    slots.remove("one")
    assert keys(slots.grant()) == ["huge"]
    slots.add(Ticket("two", "r", 1, "g", 1))
    assert slots.grant() == []


def test_gpus_are_allotted_once():
    slots = make(9, gpus=("0", "1", "2"))
    for index in range(3):
        slots.add(Ticket(str(index), "r", 1, "g", 99, gpus=2))
    (first,) = slots.grant()
    assert first.gpu_ids == ("0", "1")
    slots.remove("0")
    (second,) = slots.grant()
    assert second.gpu_ids == ("0", "1")


def test_impossible_gpus_do_not_hold_back_others():
    slots = make(2, gpus=("0",))
    slots.add(Ticket("never", "r", 1, "g", 99, gpus=2))
    for index in range(20):
        slots.add(Ticket(str(index), "r", 1, "h", 99))
    done = []
    while granted := slots.grant():
        done += keys(granted)
        for ticket in granted:
            slots.remove(ticket.key)
    assert len(done) == 20


def test_unknown_key_is_ignored():
    make(1).remove("nobody")


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 6), st.integers(1, 40))
def test_invariants(seed: int, capacity: int, count: int):
    """Never too many, in order within a group, and everybody's turn comes."""
    chance = random.Random(seed)
    slots = make(capacity, "x", "y")
    limits = {group: chance.randint(1, 5) for group in "abcd"}
    waiting, running, started = {}, {}, []
    for index in range(count):
        group = chance.choice("abcd")
        run = "x" if group in "ab" else "y"
        waiting[str(index)] = Ticket(str(index), run, chance.randint(1, 7), group, limits[group])
        slots.add(waiting[str(index)])
    for _ in range(10 * count):
        for ticket in slots.grant():
            started.append(ticket)
            del waiting[ticket.key]
            running[ticket.key] = ticket
        used = sum(ticket.need for ticket in running.values())
        assert used == slots.used
        assert used <= capacity or len(running) == 1
        for group, limit in limits.items():
            mine = [ticket for ticket in running.values() if ticket.group == group]
            assert sum(ticket.need for ticket in mine) <= limit or len(mine) == 1
        if not running:
            break
        key = chance.choice(list(waiting) if waiting and chance.random() < 0.1 else list(running))
        waiting.pop(key, None)
        running.pop(key, None)
        slots.remove(key)
    assert not waiting
    assert not running
    assert slots.used == 0
    for group in limits:
        numbers = [ticket.number for ticket in started if ticket.group == group]
        assert numbers == sorted(numbers)


def test_a_run_of_which_nothing_runs_is_told_who_holds_what_it_needs():
    slots = make(4, "x", "y", "z")
    slots.add(Ticket("x0", "x", 4, "gx", 99))
    slots.grant()
    slots.add(Ticket("y0", "y", 2, "gy", 99, 1))
    slots.add(Ticket("z0", "z", 1, "gz", 99))
    assert slots.grant() == []
    assert slots.queue_place("x") is None
    assert slots.queue_place("y") == [2, 1, 1, {"x": 4}, {}, 0]
    assert slots.queue_place("z") == [1, 0, 2, {"x": 4}, {}, 0]
    slots.remove("x0")
    assert keys(slots.grant()) == ["z0"]  # y needs a GPU that nobody offers it
    assert slots.queue_place("y") == [2, 1, 1, {"z": 1}, {}, 0]
    assert slots.queue_place("z") is None
    slots.remove("y0")
    assert slots.queue_place("y") is None


def test_a_run_does_not_wait_for_itself():
    slots = make(1, "x")
    slots.add(Ticket("x0", "x", 1, "gx", 99))
    slots.add(Ticket("x1", "x", 1, "gx", 99))
    assert keys(slots.grant()) == ["x0"]
    assert slots.queue_place("x") is None
    assert slots.queue_place("never heard of") is None
