"""Quotes and plans that are asked of a server: what works on them, who sees them, what becomes of a crash."""

from __future__ import annotations

import errno
import hashlib
import itertools
import json
import secrets

import pytest

from trainmaster.control.task.layout import Home
from trainmaster.db import quote_requests as rows
from trainmaster.providers import load_catalogue
from trainmaster.service import Service
from trainmaster.service.driving.submissions import RunRequest, Submissions
from trainmaster.service.quotes.candidate_offers import CandidateOffers
from trainmaster.service.quotes.measuring_runs import measuring_runs
from trainmaster.service.quotes.quote_requests import (
    MOST_AT_ONCE,
    PLAN,
    QUOTE,
    QuoteAsk,
    QuoteRequests,
    TooManyError,
)
from trainmaster.service.quotes.quote_service import Quoter
from trainmaster.service.run_planning import RunPlanner
from trainmaster.service.users.access import Access
from trainmaster.service.users.accounts import Accounts
from trainmaster.service.users.caller import caller
from trainmaster.spec import Recipe, read_recipe
from trainmaster.spec.errors import InterruptedByUser, NotFoundError, RecipeError, StoreError, UsageError
from trainmaster.spec.states import State

OWNER = caller("owner", None, ["read", "run"])
RED = caller("ann", "red", ["read", "run"])
BLUE = caller("bob", "blue", ["read", "run"])
RECIPE = "name: job\nexperiments:\n  main: {command: 'true'}\n"
RENTED = """\
name: job
provider: aws
experiments:
  main:
    command: python train.py
    steps: 1000
    batch: {global: 64}
    distributed: {strategy: ps-async, workers: 4}
"""


@pytest.fixture
def service(tmp_path):
    home = Home(tmp_path, tmp_path / "cache", f"file://{tmp_path}/store", f"sqlite:///{tmp_path / 'd.db'}")
    found = Service(home)
    access = Access(found.database)
    access.make_team("red", None)
    access.make_team("blue", None)
    yield found
    found.close()


def requests(service):
    access = Access(service.database)
    return QuoteRequests(service, Submissions(service, access, {}, is_private=True), {})


def work_once(service, quotes):
    worker = secrets.token_hex(4)
    row = rows.claim(service.database, worker, service.database.clock_s(), 30.0)
    if row is not None:
        quotes.work(worker, row)
    return row


def test_a_policy_answers_for_a_team_without_measuring_its_code(service):
    quotes = requests(service)
    ask = QuoteAsk(RENTED, policy="cost-opt", catalogue="fc2-2018", parameter_server="m4.large")
    asked = quotes.send(RED, QUOTE, ask)
    assert (asked["state"], asked["answer"], asked["told"]) == (State.WAITING, None, [])
    assert work_once(service, quotes)["id"] == asked["id"]
    found = quotes.show(RED, QUOTE, asked["id"])
    assert (found["state"], found["error"]) == (State.DONE, None), found["error"]
    assert found["answer"]["policy"] == "cost-opt"
    assert found["answer"]["cluster"]["worker"]["count"] == 4
    assert work_once(service, quotes) is None


@pytest.mark.parametrize("workers", ["4", "1..8", "auto"])
@pytest.mark.parametrize(
    ("strategy", "machines"),
    [("allreduce", {"worker": 1}), ("ps-async", {"chief": 1, "worker": 1, "ps": 1})],
)
def test_what_is_unknown_of_a_teams_job_is_measured_on_one_machine_within_a_cap(
    service, tmp_path, monkeypatch, workers, strategy, machines
):
    quotes = requests(service)
    text = RENTED.replace("workers: 4", f"workers: {workers}").replace("ps-async", strategy)
    asked = quotes.send(RED, QUOTE, QuoteAsk(text, catalogue="fc2-2018"))["id"]
    work_once(service, quotes)
    answer = quotes.show(RED, QUOTE, asked)["answer"]
    assert "code of others is not measured" in answer["notes"][0]
    assert (answer["measurements"], answer["total"]) == (0, {"time_s": None, "cost_usd": None})
    assert 10 < answer["unknown"]["starts_s"]["p5"] < answer["unknown"]["starts_s"]["p95"] < 600
    assert "machines" in {each["phase"] for each in answer["phases"]}
    assert answer["to_measure"]["main"]["provider"] == "aws"
    (run,) = quotes.measuring_runs(RED, asked)
    assert (run.experiment, run.instance, run.seconds) == ("main", "m4.large", 60.0)
    assert 0 < run.usd < run.cap_usd < 0.5
    (tmp_path / "recipe.yaml").write_text(text)
    small = read_recipe(tmp_path / "recipe.yaml", overrides=run.overrides)
    assert {role.name: role.count for role in small.experiments["main"].members()} == machines
    assert (small.budget.total_usd, small.experiments["main"].timeout_s) == (run.cap_usd, 60.0)
    with pytest.raises(UsageError, match="at most"):
        quotes.measure(RED, asked, run.cap_usd / 2)
    begun = []

    def submit(_, who, request, key):
        begun.append((who, request.max_usd, key))
        return ("r",)

    monkeypatch.setattr(Submissions, "submit", submit)
    assert quotes.measure(RED, asked, run.cap_usd) == ["r"]
    assert begun == [(RED, run.cap_usd, f"{asked}-main-m4.large")]


@pytest.mark.parametrize("measure", [True, False])
@pytest.mark.parametrize(
    ("workers", "budget", "measured"), [("4", "$9", [4]), ("4", "$0.1", []), ("1", "$9", [0])]
)
def test_a_gang_without_a_length_is_measured_with_all_its_workers_within_the_budget(
    service, measure, workers, budget, measured
):
    quotes = requests(service)
    text = RENTED.replace("    steps: 1000\n", "").replace("workers: 4", f"workers: {workers}")
    text = text.replace("provider: aws", f"provider: aws\nbudget: {{total: {budget}}}")
    asked = quotes.send(RED, QUOTE, QuoteAsk(text, catalogue="fc2-2018", measure=measure))["id"]
    work_once(service, quotes)
    found = quotes.show(RED, QUOTE, asked)
    assert found["error"] is None
    assert found["answer"]["total"] == {"time_s": None, "cost_usd": None}
    runs = quotes.measuring_runs(RED, asked)
    assert [run.workers for run in runs] == measured
    for run in runs:
        assert f"experiments.main.distributed.workers={workers}" in run.overrides


@pytest.mark.parametrize(("command", "measured"), [("train", ["main"]), ("other", ["main", "again"])])
def test_equal_gangs_of_a_recipe_are_measured_once(service, command, measured):
    quotes = requests(service)
    head, gang = RENTED.replace("    steps: 1000\n", "").split("  main:\n")
    text = f"{head}  main:\n{gang}  again:\n    after: main\n{gang.replace('train', command)}"
    asked = quotes.send(RED, QUOTE, QuoteAsk(text, catalogue="fc2-2018"))["id"]
    work_once(service, quotes)
    assert [run.experiment for run in quotes.measuring_runs(RED, asked)] == measured


@pytest.mark.parametrize(
    ("whose", "is_private", "ends"), [(RED, True, True), (OWNER, False, True), (OWNER, True, False)]
)
@pytest.mark.parametrize("kind", [QUOTE, PLAN])
def test_what_takes_too_much_of_a_processor_ends_with_what_to_write_instead(
    tmp_path, monkeypatch, whose, is_private, ends, kind
):
    """Others than the owner have one that all share; who has a server for himself has it all."""
    home = Home(tmp_path, tmp_path / "cache", f"file://{tmp_path}/store", f"sqlite:///{tmp_path / 'd.db'}")
    service = Service(home)
    submissions = Submissions(service, Access(service.database), {}, is_private=is_private)
    quotes = QuoteRequests(service, submissions, {})
    monkeypatch.setattr("trainmaster.service.driving.submissions._PROCESSOR_S", 0.0)
    text = RENTED.replace("workers: 4", "workers: 1..64")
    asked = quotes.send(whose, kind, QuoteAsk(text, catalogue="fc2-2018", measure=False))["id"]
    work_once(service, quotes)
    error = quotes.show(whose, kind, asked)["error"] or {}
    service.close()
    assert (error.get("title") == "it takes more than 0 s of a processor here") is ends, error
    assert ("`parameters` of one experiment" in error.get("hint", "")) is ends


def test_code_that_was_not_sent_cannot_be_measured_and_a_quote_needs_none(service, monkeypatch):
    monkeypatch.setattr(Submissions, "is_shared", lambda *_: False)
    quotes = requests(service)
    text = "name: job\nexperiments:\n  main: {command: python train.py}\n"
    told = []
    for measure in (True, False):
        asked = quotes.send(OWNER, QUOTE, QuoteAsk(text, measure=measure))["id"]
        work_once(service, quotes)
        told.append(quotes.show(OWNER, QUOTE, asked)["error"])
    assert "there is no train.py as no code was sent" in told[0]["title"]
    assert "no code was sent" not in json.dumps(told[1])


def test_of_several_places_the_one_of_the_quote_is_measured(service, tmp_path):
    (tmp_path / "recipe.yaml").write_text(RENTED.replace("aws", "[hosts, aws]"))
    recipe = read_recipe(tmp_path / "recipe.yaml")
    types = {"workers": ["m4.large"], "servers": [], "traffic_mbps": {}, "usd_per_hour": {"m4.large": 0.1}}
    assert measuring_runs(recipe, {"main": {**types, "provider": "hosts"}}) == []
    (run,) = measuring_runs(recipe, {"main": {**types, "provider": "aws"}})
    changed = recipe.model_copy(update={"overrides": run.overrides})
    small = Recipe.from_text(changed.as_yaml())
    assert (small.provider, small.places) == ("aws", ())


def test_the_rest_of_what_is_known_in_part_can_be_measured_first(service):
    quotes = requests(service)
    text = RENTED.replace("    distributed: {strategy: ps-async, workers: 4}\n", "")
    text += "  other:\n    command: python other.py\n    steps: 100\n"
    text += "  eval:\n    command: python eval.py\n    steps: 9\n    data: {m: {from: main}}\n"
    points = "job,sync,nodes,workers,local_batch,step_time_s\nmain,allreduce,1,1,64,0.2\n"
    asked = quotes.send(RED, QUOTE, QuoteAsk(text, catalogue="fc2-2018", measurements=points))["id"]
    work_once(service, quotes)
    answer = quotes.show(RED, QUOTE, asked)["answer"]
    assert list(answer["experiments"]) == ["main"]
    assert set(answer["not_quoted"]) == {"other", "eval"}
    (run,) = quotes.measuring_runs(RED, asked)
    assert (run.experiment, run.seconds) == ("other", 60.0), "what needs a model of another one waits for it"


def test_a_service_beside_the_training_is_not_measured(service):
    quotes = requests(service)
    text = RENTED + "  web:\n    after: main\n    command: python web.py\n    serve: {port: 8000}\n"
    asked = quotes.send(RED, QUOTE, QuoteAsk(text, catalogue="fc2-2018"))["id"]
    work_once(service, quotes)
    assert [run.experiment for run in quotes.measuring_runs(RED, asked)] == ["main"]


def test_a_team_may_leave_the_number_of_workers_open(service, tmp_path):
    """What is unknown is not measured here: the fewest are taken, and it is said."""
    (tmp_path / "recipe.yaml").write_text(RENTED.replace("workers: 4", "workers: 2..8"))
    recipe, told = read_recipe(tmp_path / "recipe.yaml"), []
    offers = CandidateOffers("aws", load_catalogue("fc2-2018"))
    quoter = Quoter(service.of_team("red"), told.append, None, offers, measures=False)
    settled = quoter.settle(recipe, {})
    assert settled.experiments["main"].distributed.workers == 2
    assert "code of others is not measured here" in told[0]


ENDS = {
    "removed": (lambda access, at: at.remove_member("red", "ann"), "ann is not in team red any more"),
    "demoted": (
        lambda access, at: at.set_member("red", "ann", "viewer"),
        "ann may not send, approve or end runs",
    ),
    "disabled": (
        lambda access, at: at.change_user("ann", is_disabled=True),
        "may not use this server any more",
    ),
    "revoked": (lambda access, at: access.revoke_token("a"), "the token a was revoked"),
}


@pytest.mark.parametrize("when", ["before", "meanwhile"])
@pytest.mark.parametrize("end", ENDS)
def test_a_quote_ends_with_the_right_of_who_has_asked_for_it(service, monkeypatch, end, when):
    access, accounts, quotes = Access(service.database), Accounts(service.database), requests(service)
    accounts.create_user("ann")
    accounts.set_member("red", "ann", "member")
    ann = access.by_token(access.create_token("a", ["read", "run"], "red", account="ann")["token"])
    lose, why = ENDS[end]
    interrupted = []

    def quote(planner, *_):
        assert when == "meanwhile"
        quotes.end_unallowed()
        assert quotes.show(RED, QUOTE, asked)["state"] == State.RUNNING, "she may still"
        lose(access, accounts)
        quotes.end_unallowed()
        assert quotes.show(RED, QUOTE, asked)["state"] == State.DONE, "whatever the planner does yet"
        raise InterruptedByUser("it was interrupted")

    monkeypatch.setattr(RunPlanner, "quote", quote)
    monkeypatch.setattr(RunPlanner, "interrupt", lambda planner: interrupted.append(planner))
    asked = quotes.send(ann, QUOTE, QuoteAsk(RENTED, policy="cost-opt"))["id"]
    if when == "before":
        lose(access, accounts)
    work_once(service, quotes)
    found = quotes.show(RED, QUOTE, asked)
    assert (found["state"], found["answer"], why in found["error"]["title"]) == (State.DONE, None, True)
    assert len(interrupted) == (when == "meanwhile")


@pytest.mark.parametrize(("measurements", "is_told"), [(0, False), (3, True)])
def test_the_guess_that_earlier_versions_made_of_an_unknown_job_is_no_quote_now(
    service, measurements, is_told
):
    """Answers are kept for a week: those had no ``unknown``, and told what jobs of any kind take."""
    quotes = requests(service)
    name = quotes.send(OWNER, QUOTE, QuoteAsk(RENTED))["id"]
    spans = {
        "time_s": {"p5": 60.0, "p50": 90.0, "p95": 7200.0},
        "cost_usd": {"p5": 0.0, "p50": 0.0, "p95": 0.0},
    }
    one = {"measurements": measurements, **spans}
    old = {"policy": "quote", **one, "experiments": {"main": one}, "total": spans}
    rows.end(service.database, rows.named(name), 1e12, answer=json.dumps(old), error=None)
    told = quotes.show(OWNER, QUOTE, name)["answer"]
    nothing = {"time_s": None, "cost_usd": None}
    assert told["total"] == (spans if is_told else nothing)
    assert told["experiments"]["main"] == one | ({} if is_told else nothing)


def test_what_another_team_asked_is_not_there(service):
    quotes = requests(service)
    asked = quotes.send(RED, QUOTE, QuoteAsk(RENTED, policy="cost-opt"))["id"]
    for kind, who in ((QUOTE, BLUE), (QUOTE, OWNER), (PLAN, RED)):
        with pytest.raises(NotFoundError):
            quotes.show(who, kind, asked)
        with pytest.raises(NotFoundError):
            quotes.cancel(who, kind, asked)
    assert quotes.show(caller("root", None, ["admin"]), QUOTE, asked)["asked_by"] == "ann"


def test_a_team_has_only_so_many_under_way(service):
    quotes = requests(service)
    ask = QuoteAsk(RENTED, policy="cost-opt")
    asked = [quotes.send(RED, QUOTE, ask)["id"] for _ in range(MOST_AT_ONCE)]
    with pytest.raises(TooManyError):
        quotes.send(RED, QUOTE, ask)
    quotes.send(BLUE, QUOTE, ask)
    quotes.cancel(RED, QUOTE, asked[1])
    assert quotes.show(RED, QUOTE, asked[1])["error"]["title"] == "it was cancelled"
    quotes.send(RED, PLAN, ask)


def test_wrong_requests_are_refused_at_once(service):
    quotes = requests(service)
    with pytest.raises(RecipeError):
        quotes.send(RED, QUOTE, QuoteAsk("name: x\nwrong: 1\n"))
    with pytest.raises(UsageError, match="rented machines only"):
        quotes.send(RED, QUOTE, QuoteAsk(RECIPE))
    with pytest.raises(UsageError, match="no such policy"):
        quotes.send(RED, QUOTE, QuoteAsk(RENTED, policy="best"))
    with pytest.raises(UsageError, match="no catalogue"):
        quotes.send(RED, QUOTE, QuoteAsk(RENTED, catalogue="/etc/passwd"))
    with pytest.raises(NotFoundError, match="was sent"):
        quotes.send(RED, QUOTE, QuoteAsk(RENTED, code="0" * 64))


def test_what_a_server_leaves_behind_is_begun_again_once_by_another(service):
    quotes = requests(service)
    asked = quotes.send(RED, QUOTE, QuoteAsk(RENTED, policy="cost-opt", catalogue="fc2-2018"))["id"]
    database = service.database
    now = database.clock_s()
    assert rows.claim(database, "one", now, 30.0)["id"] == asked
    assert rows.claim(database, "two", now + 29, 30.0) is None, "its server may live"
    assert rows.write(database, "one", {"told": json.dumps(["half"])})
    assert rows.claim(database, "two", now + 31, 30.0)["id"] == asked
    assert not rows.write(database, "one", {"told": "[]"}), "what the first one still writes is for nobody"
    assert not rows.end(database, rows.held_by("one"), now, answer="{}", error=None)
    assert quotes.show(RED, QUOTE, asked)["told"] == [
        "the server that worked on it has ended: it was begun again"
    ]
    row = rows.claim(database, "three", now + 62, 3000.0)
    quotes.work("three", row)
    assert "have ended, 2 times" in quotes.show(RED, QUOTE, asked)["error"]["title"]


def test_a_plan_is_accepted_as_it_was_asked(service):
    quotes = requests(service)
    asked = quotes.send(RED, PLAN, QuoteAsk(RENTED, allow_stale=True, can_agree=False))["id"]
    with pytest.raises(UsageError, match="not ready"):
        quotes.accept(RED, asked, None)
    answer = {"id": asked, "most_usd_per_hour": 1.25}
    rows.end(service.database, rows.named(asked), 1e12, answer=json.dumps(answer), error=None)
    with pytest.raises(NotFoundError):
        quotes.accept(BLUE, asked, None)
    request = quotes.accept(RED, asked, 5.0)
    assert (request.agreed_usd_per_hour, request.max_usd, request.allow_stale) == (1.25, 5.0, True)
    assert request.recipe == RENTED


def test_old_digests_of_requests_stay():
    whole = {"recipe": "x", "code": None, "provider": None, "max_usd": None}
    assert RunRequest("x").digest() == hashlib.sha256(json.dumps(whole).encode()).hexdigest()
    assert RunRequest("x").digest() != RunRequest("x", allow_stale=True).digest()


def test_a_server_that_stops_gives_back_what_it_works_on(service, monkeypatch):
    quotes = requests(service)
    asked = quotes.send(RED, QUOTE, QuoteAsk(RENTED, policy="cost-opt"))["id"]

    def interrupted(*_):
        quotes.stop()
        raise InterruptedByUser("stopped", "")

    monkeypatch.setattr(RunPlanner, "quote", interrupted)
    for number in range(4):
        row = rows.claim(service.database, f"w-{number}", service.database.clock_s(), 30.0)
        assert row["id"] == asked
        quotes.work(f"w-{number}", row)
    assert quotes.show(RED, QUOTE, asked)["state"] == State.WAITING
    assert quotes.show(RED, QUOTE, asked)["told"] == []


def test_a_server_answers_again_after_the_database_was_away_for_long(service, monkeypatch):
    quotes = requests(service)
    looks, tried = itertools.count(1), []

    def away():
        tried.append(True)
        raise StoreError("the database cannot be read", "")

    def wait(_):
        if next(looks) == 20:
            quotes.stop()

    monkeypatch.setattr(quotes, "_begin", away)
    monkeypatch.setattr(quotes._wake, "wait", wait)
    quotes._watch()
    assert len(tried) == 20, "each look may begin one"


def test_a_server_that_lacks_descriptors_or_room_begins_again_as_often_as_it_takes(service, monkeypatch):
    quotes = requests(service)
    asked = quotes.send(RED, QUOTE, QuoteAsk(RENTED, policy="cost-opt", catalogue="fc2-2018"))["id"]
    quote = RunPlanner.quote

    def lacks(*_):
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(RunPlanner, "quote", lacks)
    for number in range(8):
        later = service.database.clock_s() + 100 * number
        quotes._work(f"w-{number}", rows.claim(service.database, f"w-{number}", later, 30.0))
        assert quotes.show(RED, QUOTE, asked)["error"] is None
    monkeypatch.setattr(RunPlanner, "quote", quote)
    quotes._work("w", rows.claim(service.database, "w", later + 100, 30.0))
    found = quotes.show(RED, QUOTE, asked)
    assert (found["state"], found["error"]) == (State.DONE, None)
