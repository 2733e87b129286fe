"""A run is carried to a database of its own and back: nothing lost, nothing twice, by one at a time."""

from __future__ import annotations

import json
from dataclasses import asdict, fields

import pytest
from database_nouns import NOW

from trainmaster.db import Database, RunChange, TaskChange, queries, run_files, run_rows, run_transfer
from trainmaster.db import tables as t
from trainmaster.db.retry_policy import Try
from trainmaster.db.run_facts import facts_of, put_fact
from trainmaster.db.run_files import Piece
from trainmaster.spec.errors import LeaseLostError
from trainmaster.spec.facts import Fact
from trainmaster.spec.states import EndReason, State
from trainmaster.spec.topics import TAKEN_BACK


@pytest.fixture
def machine(tmp_path):
    """The database of the machine that is to drive the run."""
    database = Database(f"sqlite:///{tmp_path}/machine.db")
    yield database
    database.close()


def all_news(database, run, events=0, pieces=0):
    found = []
    while not (news := run_transfer.news_of(database, run, events, pieces)).is_empty:
        found.append(news)
        events, pieces = news.last_event, news.last_piece
    return found


def messages(database, run):
    return [row["message"] for each in all_news(database, run) for row in each.events]


def through_json(value):
    return type(value)(**json.loads(json.dumps({name: getattr(value, name) for name in value.__slots__})))


def sent(database, lease, machine, away):
    """The run, driven by the machine from now on."""
    begun = run_transfer.newest(database, lease.run)
    rows, news = run_transfer.rows_of(database, lease.run), all_news(database, lease.run, begun[0])
    run_transfer.go_away(database, lease, away)
    changes = {"away": None, "lease_owner": None, "lease_token": rows.run["lease_token"] + 1}
    for _ in range(2):  # its driver may have been killed in between
        run_transfer.settle(machine, through_json(rows), list(map(through_json, news)), changes)
    return (0, begun[1]), machine.acquire(lease.run, NOW)


def test_a_run_comes_back_as_it_is_on_the_machine(database, lease, machine):
    run, away = lease.run, {"claim": 1, "news": 0}
    run_files.put_pieces(database, lease, [Piece("tasks/a/0/1/x.log", 0, b"one\n")])
    events = len(messages(database, run))
    begun, there = sent(database, lease, machine, away)
    assert there.token > lease.token
    run_files.put_pieces(machine, there, [Piece("tasks/a/0/1/x.log", 4, b"two\n")])
    machine.commit(there, [RunChange(State.WAITING, State.RUNNING)], NOW)
    machine.commit(there, [RunChange(State.RUNNING, State.DONE, EndReason.SUCCEEDED, "well")], NOW)

    news = all_news(machine, run, *begun)
    rows = run_transfer.rows_of(machine, run)
    before = json.dumps(away)
    after = {**away, "news": len(news)}
    assert run_transfer.bring(database, run, before, after, news, rows, is_alive=True)
    # One that had looked at the same time brings nothing twice.
    assert not run_transfer.bring(database, run, before, after, news, rows, is_alive=True)
    row = database.run_row(run)
    assert (row["state"], row["reason"], row["message"]) == ("DONE", "SUCCEEDED", "well")
    assert run_files.sizes(database, run) == {"tasks/a/0/1/x.log": 8}
    assert messages(database, run)[-1] == "well"
    assert len(messages(database, run)) == events + len(messages(machine, run))


def test_what_was_found_out_goes_there_and_comes_back(database, lease, machine):
    """Which version of a volume the first task saw is the same wherever the run is driven."""
    run, away = lease.run, {"claim": 1, "news": 0}
    put_fact(database, lease, Fact.VOLUME, "pets", "@1")
    _, there = sent(database, lease, machine, away)
    assert put_fact(machine, there, Fact.VOLUME, "pets", "@2") == "@1"
    put_fact(machine, there, Fact.VOLUME, "cats", "@7")
    for news in (1, 2):  # what was brought comes again with each state
        before, after = database.run_row(run)["away"], {**away, "news": news}
        rows = run_transfer.RunRows(**json.loads(json.dumps(asdict(run_transfer.rows_of(machine, run)))))
        assert run_transfer.bring(database, run, before, after, [], rows, is_alive=True)
    found = {(Fact.VOLUME, "pets"): "@1", (Fact.VOLUME, "cats"): "@7"}
    assert facts_of(database, run) == found
    with pytest.raises(LeaseLostError):  # of a driver at home that has not noticed
        put_fact(database, lease, Fact.VOLUME, "dogs", "@9")
    assert run_transfer.bring(database, run, json.dumps(after), away, [], rows, is_alive=False)
    assert queries.noted_at(database, run, TAKEN_BACK) == 0.0
    assert run_transfer.come_back(database, run, json.dumps(away), "it is driven from here")
    assert queries.noted_at(database, run, TAKEN_BACK) > 0.0
    back = database.acquire(run, NOW)
    assert put_fact(database, back, Fact.VOLUME, "cats", "@8") == "@7"


def test_labels_that_are_written_here_while_it_is_away_stay(database, lease, machine):
    run, away = lease.run, {"claim": 1, "news": 0}
    database.write(lambda to, _: run_rows.describe(to, run, lambda _: {"project": "x"}, "here"))
    sent(database, lease, machine, away)
    assert machine.run_row(run)["labels"] == '{"project":"x"}'
    database.write(lambda to, _: run_rows.describe(to, run, lambda old: {**old, "b": "y"}, None))
    rows = run_transfer.rows_of(machine, run)
    assert run_transfer.bring(database, run, json.dumps(away), {**away, "news": 1}, [], rows, is_alive=True)
    row = database.run_row(run)
    assert (row["labels"], row["note"]) == ('{"project":"x","b":"y"}', "here")


def test_nobody_drives_a_run_here_that_is_away(database, lease, machine):
    away = {"claim": 1, "news": 0}
    _, there = sent(database, lease, machine, away)
    assert database.acquire(lease.run, NOW) is None
    with pytest.raises(LeaseLostError):
        database.commit(lease, [RunChange(State.WAITING, State.RUNNING)], NOW)
    with pytest.raises(LeaseLostError):
        run_transfer.go_away(database, lease, away)
    machine.commit(there, [RunChange(State.WAITING, State.RUNNING)], NOW)
    rows = run_transfer.rows_of(machine, lease.run)
    assert run_transfer.bring(database, lease.run, json.dumps(away), away, (), rows, is_alive=False)
    assert run_transfer.come_back(database, lease.run, json.dumps(away))
    assert not run_transfer.come_back(database, lease.run, json.dumps(away))
    back = database.acquire(lease.run, NOW)
    assert back is not None
    assert back.token > there.token


def test_a_run_goes_and_comes_back_though_the_answer_was_lost(database, lease, monkeypatch):
    write = database.write

    def twice(work, **how):
        write(work, **how)
        return write(lambda connection, _: work(connection, Try(again=True)), **how)

    monkeypatch.setattr(database, "write", twice)
    away = {"claim": 1, "news": 0}
    run_transfer.go_away(database, lease, away)
    with pytest.raises(LeaseLostError):
        run_transfer.go_away(database, lease, {**away, "claim": 2})
    assert not run_transfer.come_back(database, lease.run, json.dumps({**away, "claim": 2}))
    assert run_transfer.come_back(database, lease.run, json.dumps(away))


def test_tasks_and_attempts_come_back_once(database, lease, machine):
    run, away = lease.run, {"claim": 1, "news": 0}
    name = database.experiment_rows(run)[0]["name"]
    _, there = sent(database, lease, machine, away)
    change = TaskChange(name, 0, 1, State.WAITING, State.ACQUIRING, creates=True, opens=True)
    machine.commit(there, [change], NOW)
    for _ in range(2):
        rows = run_transfer.rows_of(machine, run)
        assert run_transfer.bring(database, run, json.dumps(away), away, (), rows, is_alive=True)
    assert [row["number"] for row in database.live_task_rows(run)] == [0]


#: Tables with rows of a run that stay in the database that it was started in, and why no driver needs them.
STAYS = {
    "admission": "whose turn it is was decided before",
    "app": "what its home shows of it",
    "endpoint": "a run with a service is driven by its home",
    "ledger": "its home charges it",
    "model_move": "a run that promotes is driven by its home",
    "model_version": "names are given at home",
    "outbox": "its home tells of the events that come back",
    "removed_model": "its home removes them",
    "run_model": "its home holds the versions that it began with; their places are in the recipe",
    "sink": "a run with sinks is driven by its home",
    "sink_cursor": "likewise",
    "submission": "that it was sent is known",
    "workflow_firing": "what has started it",
}


def test_each_table_with_rows_of_a_run_is_carried_or_is_known_to_stay():
    of_run = {
        table.name
        for table in t.metadata.sorted_tables
        if any(column in table.c for column in ("run_id", "experiment_id"))
    }
    carried = {field.name.removesuffix("s") for field in fields(run_transfer.RunRows)} - {"run"}
    carried = carried - {"private", "fact"} | {"run_private", "run_fact", "event", "run_file"}
    assert carried | STAYS.keys() == of_run, "carry it in `RunRows` or `News`, or say here why it stays"
    assert not carried & STAYS.keys()
