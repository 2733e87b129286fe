"""What is due of workflows, and whose turn it is: pure, so it is tried with many schedules and restarts."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("cronsim", reason="the extra `server` is not installed")

from trainmaster.service.workflows.decisions import (
    LONGEST_CHAIN,
    Waiting,
    chain_fault,
    due_time,
    due_version,
    loop_at,
    plan,
)
from trainmaster.spec.trigger import Trigger

#: A day before daylight saving begins in Berlin and New York (2026), and before it ends.
DAYS = (1774656000.0, 1792800000.0, 1772928000.0)
SCHEDULES = (
    "0 3 * * *",
    "30 2 * * *",
    "*/7 * * * *",
    "0 */2 * * *",
    "15 1-3 * * *",
    "0 0 1 1 *",
    "59 23 * * 0",
)


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(SCHEDULES),
    st.sampled_from(("UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe")),
    st.sampled_from(DAYS),
    st.lists(st.floats(0.5, 30_000.0), min_size=1, max_size=40),
    st.booleans(),
)
def test_of_all_times_each_is_started_or_skipped_once_whenever_servers_look(
    schedule, zone, begin, gaps, catch_up
):
    trigger = Trigger(schedule=schedule, timezone=zone, catch_up=catch_up)
    now, seen, decided = begin, begin, []
    for gap in gaps:
        now += gap
        due = due_time(trigger, seen, now)
        if due is None:
            continue
        assert seen < due.seen <= now
        seen = due.seen
        decided.append(due.seen)
        assert due_time(trigger, seen, now) is None, "nothing is decided twice"
    times = []
    for at in trigger.times(begin):
        if at > now:
            break
        times.append(at)
    assert set(decided) <= set(times), "only times of the schedule start something"
    assert not times or decided[-1] == times[-1], "the newest one is never lost"


def test_what_was_missed_is_made_up_for_once_and_told():
    nightly = Trigger(schedule="0 3 * * *")
    due = due_time(nightly, 0.0, 3 * 86400.0 + 7200.0)
    assert (due.cause, due.message) == ("1970-01-03T03:00:00Z", "2 earlier times were missed")
    assert due_time(nightly, 0.0, 4 * 3600.0).message == "it was missed, and is made up for"
    assert due_time(nightly, 0.0, 3 * 3600.0 + 1.0).message == ""
    strict = Trigger(schedule="0 3 * * *", catch_up=False)
    assert not due_time(strict, 0.0, 4 * 3600.0).starts
    assert due_time(strict, 0.0, 3 * 3600.0 + 1.0).starts
    yearly = Trigger(schedule="0 0 1 1 *")
    assert due_time(yearly, 86400.0, 3.2e7).cause == "1971-01-01T00:00:00Z", "longer ago than a fortnight"


@given(st.integers(0, 30), st.lists(st.integers(1, 30), max_size=12, unique=True))
def test_the_newest_version_starts_a_run_and_those_between_are_named(seen, versions):
    due = due_version("pets", float(seen), versions)
    fresh = sorted(version for version in versions if version > seen)
    if not fresh:
        assert due is None
        return
    assert (due.seen, due.cause) == (fresh[-1], f"pets@{fresh[-1]}")
    assert bool(due.message) == (len(fresh) > 1)
    assert due.message.startswith("version ") == (len(fresh) == 2)


@settings(deadline=None)
@given(
    st.sampled_from(("wait", "skip", "cancel")),
    st.lists(st.tuples(st.sampled_from(("fire", "look", "end", "die")), st.integers(0, 3)), max_size=40),
)
def test_one_run_goes_on_at_a_time_and_the_newest_start_is_not_lost(concurrency, steps):
    """Two servers look whenever; one may die between what it decided and what it writes."""
    waiting, running, ended, number = {}, [], {}, 0
    for what, _ in [*steps, ("end", 0), ("look", 0), ("end", 0), ("look", 0)]:
        if what == "fire":
            number += 1
            waiting[number] = Waiting(number, f"pets@{number}", 0.0)
        elif what == "end" and running:
            running.clear()
        elif what in ("look", "die"):
            found = plan(concurrency, list(waiting.values()), [f"run-{each}" for each in running], 1.0)
            if what == "die":
                continue
            for firing, why in found.skip.items():
                assert why
                ended[firing] = waiting.pop(firing)
            if found.cancel:
                assert concurrency == "cancel"
                running.clear()
            if found.start is not None:
                assert not running
                running.append(waiting.pop(found.start).firing)
    assert len(running) <= 1
    if concurrency != "skip":
        assert not number or number in running or number not in waiting


def test_what_is_put_off_is_not_started_before_its_time():
    assert plan("wait", [Waiting(1, "a", 9.0)], [], 5.0).start is None
    assert plan("wait", [Waiting(1, "a", 9.0)], [], 9.0).start == 1
    found = plan("wait", [Waiting(1, "a", 0.0), Waiting(2, "b", 0.0)], [], 1.0)
    assert (found.start, found.skip) == (2, {1: "b came before it could start"})
    assert plan("skip", [Waiting(1, "a", 0.0)], ["r"], 1.0).skip == {1: "r was under way"}
    assert plan("cancel", [Waiting(1, "a", 0.0)], ["r"], 1.0).cancel == ("r",)


def test_loops_are_found_as_far_as_recipes_tell():
    others = {"clean": ({"raw"}, {"pets"}), "idle": ({"x"}, set())}
    assert loop_at("train", {"pets"}, {"raw"}, others) == ["train", "clean", "train"]
    assert loop_at("train", {"pets"}, {"pets"}, {}) == ["train", "train"]
    assert loop_at("train", {"pets"}, {"models"}, others) == []
    assert loop_at("clean", {"raw"}, {"pets"}, others) == [], "a new revision replaces the one before"


def test_chains_end():
    names = {"a": "clean", "b": "train"}
    assert chain_fault("a", ["a", "b"], names).startswith("a loop: clean -> train -> clean;")
    assert chain_fault("c", ["a", "b"], names) == ""
    assert "no more than that" in chain_fault("c", [str(each) for each in range(LONGEST_CHAIN)], names)


def test_a_loop_of_others_does_not_keep_anybody_busy():
    others = {"a": ({"x"}, {"y"}), "b": ({"y"}, {"x"})}
    assert loop_at("c", {"z"}, {"x"}, others) == []
    long = {**others, "d": ({"y"}, {"z"})}
    assert loop_at("c", {"z"}, {"x"}, long) == ["c", "a", "d", "c"], "the shortest"


def test_of_many_versions_the_last_few_are_named():
    assert due_version("p", 0, range(1, 7)).message == "versions 1, 2, 3, 4, 5 were skipped: 6 is newer"
    assert due_version("p", 0, range(1, 9)).message == "versions 3, 4, 5, 6, 7 ... were skipped: 8 is newer"
    assert due_version("p", 0, [1]).message == ""


def test_a_time_is_late_after_a_minute():
    nightly, strict = Trigger(schedule="0 3 * * *"), Trigger(schedule="0 3 * * *", catch_up=False)
    at = 3 * 3600.0
    assert (due_time(nightly, 0.0, at).message, due_time(nightly, 0.0, at + 60.0).message) == ("", "")
    assert due_time(nightly, 0.0, at + 61.0).message == "it was missed, and is made up for"
    assert due_time(nightly, 0.0, 86400.0 + at).message == "1 earlier time was missed"
    missed = due_time(strict, 0.0, at + 61.0)
    assert (missed.starts, missed.message) == (False, "it was missed, and catch_up is false")
    assert due_time(nightly, 0.0, at - 1.0) is None


def test_eight_workflows_start_each_other_and_no_more():
    assert chain_fault("x", [str(each) for each in range(7)], {}) == ""
    assert chain_fault("x", [str(each) for each in range(8)], {}).startswith("8 workflows")


class Times:
    """A schedule, and from when on its times were gone through."""

    catch_up = True

    def __init__(self, *times):
        self.asked, self.all = [], times

    def times(self, after):
        self.asked.append(after)
        return iter([at for at in self.all if at > after])


def test_of_a_year_that_was_missed_two_weeks_are_gone_through_unless_it_is_a_rare_schedule():
    now, day = 1000 * 86400.0, 86400.0
    often, rare = Times(now - 300 * day, now - day), Times(now - 300 * day)
    assert due_time(often, now - 365 * day, now).seen == now - day
    assert due_time(rare, now - 365 * day, now).seen == now - 300 * day
    assert (often.asked, rare.asked) == ([now - 14 * day], [now - 14 * day, now - 365 * day])
