"""Work of a server that takes long: who may ask for it, what is told, and that it holds up no plans."""

from __future__ import annotations

import pytest

pytest.importorskip("blake3", reason="the extra `volumes` is not installed")

from trainmaster.control.task.layout import Home
from trainmaster.db import quote_requests as rows
from trainmaster.service import Service
from trainmaster.service.driving.submissions import Submissions
from trainmaster.service.quotes.quote_ask import QuoteAsk
from trainmaster.service.quotes.quote_requests import PLAN, QuoteRequests
from trainmaster.service.teams.team_operations import KINDS, Operations, operations
from trainmaster.service.users.access import Access
from trainmaster.service.users.caller import ForbiddenError, caller
from trainmaster.service.volumes import push
from trainmaster.spec.errors import NotFoundError
from trainmaster.spec.states import State

RED = caller("ann", "red", ["read", "run", "manage"])
MEMBER = caller("max", "red", ["read", "run"])
BLUE = caller("bob", "blue", ["read", "run", "manage"])
RECIPE = "name: job\nprovider: aws\nexperiments:\n  main: {command: 'true'}\n"


@pytest.fixture
def service(tmp_path):
    home = Home(tmp_path, tmp_path / "cache", f"file://{tmp_path}/store", f"sqlite:///{tmp_path}/d.db")
    found = Service(home)
    for team in ("red", "blue"):
        Access(found.database).make_team(team, None)
    source = tmp_path / "files"
    source.mkdir()
    (source / "a").write_text("a")
    push(str(source), f"{home.store_url}/teams/red/volumes/pets", cache=home.cache)
    yield found
    found.close()


@pytest.fixture
def requests(service):
    submissions = Submissions(service, Access(service.database), {}, is_private=True)
    return QuoteRequests(service, submissions, {}, operations(service))


def work(service, requests):
    row = rows.claim(service.database, "worker", service.database.clock_s(), 30.0)
    requests.work("worker", row)


def test_a_volume_is_looked_through_and_collected_for_its_team_only(service, requests):
    mine = Operations(service, requests, RED)
    asked = mine.check_volume("pets@1", deep=True, jobs=1)
    assert asked["state"] == State.WAITING
    for other in (BLUE, caller("own", None, ["read", "run"])):
        with pytest.raises(NotFoundError):
            Operations(service, requests, other).show(asked["id"])
        with pytest.raises(NotFoundError):
            Operations(service, requests, other).check_volume("pets", deep=True, jobs=1)
    work(service, requests)
    found = mine.show(asked["id"])
    assert (found["error"], found["told"]) == (None, ["version 1 was looked through"])
    assert (found["answer"]["damaged"], found["answer"]["versions"][0]["files"]) == (0, 1)
    for text in ("pets@2", "cats", "../pets", "s3://bucket/pets"):
        with pytest.raises(NotFoundError):
            mine.check_volume(text, deep=False, jobs=1)


def test_only_managers_have_garbage_collected(service, requests):
    with pytest.raises(ForbiddenError):
        Operations(service, requests, MEMBER).collect_garbage("pets", 0.0, now=True)
    asked = Operations(service, requests, RED).collect_garbage("pets", 0.0, now=True)
    work(service, requests)
    found = Operations(service, requests, MEMBER).show(asked["id"])
    assert (found["answer"]["under_way"], found["answer"]["kept_chunks"]) == (0, 1)


def test_one_that_goes_on_holds_up_no_plan_and_begins_again_elsewhere(service, requests):
    first = Operations(service, requests, RED).check_volume("pets", deep=False, jobs=1)["id"]
    second = Operations(service, requests, RED).check_volume("pets", deep=False, jobs=1)["id"]
    plan = requests.send(BLUE, PLAN, QuoteAsk(RECIPE))["id"]
    database, now = service.database, service.database.clock_s()
    assert rows.claim(database, "a", now, 30.0)["id"] == first
    assert rows.claim(database, "b", now, 30.0, KINDS)["id"] == plan
    assert rows.claim(database, "c", now, 30.0, KINDS) is None
    assert rows.claim(database, "d", now, 30.0)["id"] == second
    assert rows.claim(database, "e", now + 60.0, 30.0)["id"] == first, "its server has ended"


def test_one_that_is_cancelled_ends_when_it_tells_something(service, requests):
    asked = Operations(service, requests, RED).check_volume("pets", deep=False, jobs=1)["id"]
    row = rows.claim(service.database, "worker", service.database.clock_s(), 30.0)
    Operations(service, requests, MEMBER).cancel(asked)
    requests._work("worker", row)
    found = Operations(service, requests, RED).show(asked)
    assert (found["state"], found["answer"]) == (State.DONE, None)
    with pytest.raises(NotFoundError):
        Operations(service, requests, BLUE).cancel(asked)
