"""`SlowCalls`: what others' machines may keep waiting has threads that requests do not need."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

pytest.importorskip("fastapi", reason="the extra `server` is not installed")
from starlette.concurrency import run_in_threadpool

from trainmaster.api.rest import clusters, images, offers, runs
from trainmaster.api.rest.limits import SLOW_CALLS_OF_ONE, SlowCalls
from trainmaster.spec.errors import UsageError
from trainmaster.testing.waits import until
from trainmaster.web import clusters as cluster_pages
from trainmaster.web import examples, new_run
from trainmaster.web import offers as offer_pages
from trainmaster.web import run as run_pages
from trainmaster.web import runs as run_lists


def test_a_user_waits_for_machines_a_few_times_and_never_in_a_thread_of_requests():
    gate, begun, begins = threading.Event(), [], threading.Semaphore(0)

    def wait(user):
        begun.append(user)
        begins.release()
        return gate.wait(60)

    async def work():
        openings = SlowCalls(2, 45)
        users = [*("ann",) * 50, *(f"user-{number}" for number in range(50))]
        tasks = [asyncio.create_task(openings.run(user, partial(wait, user))) for user in users]
        for _ in range(45):  # more than there are threads for requests
            assert await run_in_threadpool(begins.acquire, timeout=60)
        assert (len(begun), max(Counter(begun).values())) == (45, 2)
        gate.set()
        assert await asyncio.gather(*tasks) == [True] * 100

    asyncio.run(work())
    assert len(begun) == 100


def test_what_goes_wrong_gives_the_turn_back():
    async def work():
        openings = SlowCalls(1, 1)
        for _ in range(3):
            with pytest.raises(ZeroDivisionError):
                await openings.run("ann", lambda: 1 / 0)

    asyncio.run(work())


def test_a_place_that_keeps_a_team_waiting_keeps_no_other_team_waiting(served, monkeypatch):
    """Such as a team's own login that leads to what answers a byte in five seconds."""
    gate, asked = threading.Event(), []

    def hangs(*_args):
        asked.append(1)
        assert gate.wait(60)
        raise UsageError("no answer")

    monkeypatch.setattr("trainmaster.api.rest.offers.list_offers", hangs)

    def asks():
        return served.ask("red-read", "GET", "/api/v1/offers").status_code

    with ThreadPoolExecutor(50) as pool:  # more than there are threads for requests
        waits = [pool.submit(asks) for _ in range(50)]
        until(lambda: len(asked) == SLOW_CALLS_OF_ONE)
        assert served.ask("blue-read", "GET", "/api/v1/runs").status_code == 200
        assert served.ask("red-read", "GET", "/api/v1/runs").status_code == 200
        assert len(asked) == SLOW_CALLS_OF_ONE
        gate.set()
        assert {each.result(60) for each in waits} == {422}
    assert len(asked) == 50


@pytest.mark.parametrize(
    "route",
    [
        offers.offers,
        offers.refresh,
        runs.send,
        runs.dry_run,
        runs.check,
        runs.fetch_system_log,
        clusters.examine_places,
        clusters.end_many,
        clusters.end,
        images.images,
        images.remove,
        offer_pages.offers,
        cluster_pages.places,
        cluster_pages.end,
        new_run.send,
        new_run.show_plan,
        run_lists.send_again,
        run_pages.send_again,
        examples.run,
    ],
)
def test_routes_that_ask_places_take_no_thread_of_requests(route):
    assert asyncio.iscoroutinefunction(route)
