"""`on` of a recipe: what starts a workflow, and when schedules come."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

pytest.importorskip("cronsim", reason="the extra `server` is not installed")

from trainmaster.spec import Recipe
from trainmaster.spec.errors import RecipeError
from trainmaster.spec.trigger import Trigger, pushed_volumes


def recipe(on, more=""):
    return Recipe.from_text(f"name: j\n{more}on: {on}\nexperiments: {{a: {{command: x}}}}\n")


@pytest.mark.parametrize(
    ("on", "keys"),
    [
        ("webhook", ["webhook"]),
        ("{webhook: true}", ["webhook"]),
        ("{volume: cats/small}", ["volume cats/small"]),
        ("[webhook, {volume: a}]", ["webhook", "volume a"]),
        (
            '{schedule: "0  3 * * *", timezone: Europe/Berlin, catch_up: false}',
            ["schedule 0 3 * * * Europe/Berlin"],
        ),
    ],
)
def test_one_trigger_or_several_are_read_and_kept(on, keys):
    found = recipe(on)
    assert [each.key for each in found.on] == keys
    assert Recipe.model_validate_json(found.model_dump_json()).on == found.on
    assert Recipe.from_text(found.as_yaml()).on == found.on


@pytest.mark.parametrize(
    ("on", "message"),
    [
        ("[webhook, webhook]", "on.1: webhook a second time"),
        ('{schedule: "0 25 * * *"}', "Bad hour; write five fields"),
        ('{schedule: "0 3"}', "write five fields such as"),
        ('{schedule: "0 0 30 2 *"}', "Bad day-of-month"),
        ("{volume: a@3}", "without @"),
        ("{volume: s3://b/a}", "without @"),
        ("{volume: a, schedule: '0 3 * * *'}", "volume and schedule together"),
        ("{volume: a, timezone: UTC}", "`timezone` without `schedule`"),
        ("{schedule: '0 3 * * *', timezone: Mars/Base}", "is no time zone"),
        ("{webhook: false}", "write true, or leave it out"),
        ("[]", "write {volume: NAME}"),
        ("{}", "nothing; write {volume: NAME}"),
        ("daily", "write {volume: NAME}"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(on, message):
    with pytest.raises(RecipeError) as refused:
        recipe(on)
    assert message in str(refused.value)
    assert "recipe:2:" in str(refused.value)


def test_concurrency_is_for_workflows():
    assert recipe("webhook", "concurrency: skip\n").concurrency == "skip"
    with pytest.raises(RecipeError, match="`concurrency` without `on`"):
        Recipe.from_text("concurrency: skip\nexperiments: {a: {command: x}}\n")


def at(text):
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("schedule", "begin", "times"),
    [
        # 02:30 is left out on March 29th 2026 in Berlin: it comes at 03:00, which is 01:00 UTC.
        ("30 2 * * *", "2026-03-28T12:00", ["2026-03-29T01:00", "2026-03-30T00:30"]),
        # 02:30 is there twice on October 25th: it comes once.
        ("30 2 * * *", "2026-10-24T12:00", ["2026-10-25T00:30", "2026-10-26T01:30"]),
        ("30 2 * * *", "2026-10-25T00:30", ["2026-10-26T01:30"]),  # it has come
        ("30 2 * * *", "2026-10-25T01:10", ["2026-10-26T01:30"]),  # between the two
        ("30 2,3 * * *", "2026-03-28T12:00", ["2026-03-29T01:00", "2026-03-29T01:30"]),
        # With a * among minutes or hours it goes by the clock on the wall: never, or twice.
        ("*/30 2 * * *", "2026-03-28T12:00", ["2026-03-30T00:00", "2026-03-30T00:30"]),
        (
            "*/30 2 * * *",
            "2026-10-24T12:00",
            ["2026-10-25T00:00", "2026-10-25T00:30", "2026-10-25T01:00", "2026-10-25T01:30"],
        ),
        ("0,30 2 * * *", "2026-10-24T12:00", ["2026-10-25T00:00", "2026-10-25T00:30", "2026-10-26T01:00"]),
        ("30 2 * * 0", "2026-03-23T12:00", ["2026-03-29T01:00", "2026-04-05T00:30"]),  # each Sunday
        # What comes every hour comes every hour.
        ("0 * * * *", "2026-10-24T23:30", ["2026-10-25T00:00", "2026-10-25T01:00", "2026-10-25T02:00"]),
        ("0 * * * *", "2026-03-29T00:30", ["2026-03-29T01:00", "2026-03-29T02:00"]),
    ],
)
def test_schedules_keep_daylight_saving(schedule, begin, times):
    trigger = Trigger(schedule=schedule, timezone="Europe/Berlin")
    assert trigger.next_times(at(begin), len(times)) == [at(each) for each in times]


def test_pushes_are_found_where_commands_say_so():
    commands = [
        "python a.py\ntrainmaster volume push --jobs=2 out 'pets'",
        "trainmaster volume push x s3://b/y",
    ]
    assert pushed_volumes(iter(commands)) == ["pets"]
