"""`MemberOpenings`: ways to members are opened in threads that requests do not need."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from functools import partial

import pytest

pytest.importorskip("fastapi", reason="the extra `server` is not installed")
from starlette.concurrency import run_in_threadpool

from trainmaster.api.rest.limits import MemberOpenings


def test_a_user_waits_for_machines_a_few_times_and_never_in_a_thread_of_requests():
    gate, begun, begins = threading.Event(), [], threading.Semaphore(0)

    def wait(user):
        begun.append(user)
        begins.release()
        return gate.wait(60)

    async def work():
        openings = MemberOpenings(2, 45)
        users = [*("ann",) * 50, *(f"user-{number}" for number in range(50))]
        tasks = [asyncio.create_task(openings.open(user, partial(wait, user))) for user in users]
        for _ in range(45):  # more than there are threads for requests
            assert await run_in_threadpool(begins.acquire, timeout=60)
        assert (len(begun), max(Counter(begun).values())) == (45, 2)
        gate.set()
        assert await asyncio.gather(*tasks) == [True] * 100

    asyncio.run(work())
    assert len(begun) == 100


def test_what_goes_wrong_gives_the_turn_back():
    async def work():
        openings = MemberOpenings(1, 1)
        for _ in range(3):
            with pytest.raises(ZeroDivisionError):
                await openings.open("ann", lambda: 1 / 0)

    asyncio.run(work())
