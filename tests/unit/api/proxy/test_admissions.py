"""What was allowed a moment ago: asked again a second later, once for all, and ended with the right."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace

import pytest

from trainmaster.api.proxy.admissions import CHECK_S, Admissions, RequestRefusedError, status_of
from trainmaster.api.proxy.grants import Grants
from trainmaster.service.apps.app_access import AppWay
from trainmaster.service.users.caller import ForbiddenError, UnknownCallerError
from trainmaster.spec.errors import NotFoundError, StoreError, UsageError


class Doors(Admissions):
    """Lets in as `now` says: by key what is there, or an error."""

    def __init__(self):
        self.at, self.asked, self.now = 1000.0, [], {}
        self.free = threading.Event()
        self.free.set()
        super().__init__(lambda: self.at, 5.0)

    def ask(self, key):
        self.asked.append(key)
        assert self.free.wait(60)
        found = self.now[key]
        if isinstance(found, Exception):
            raise found
        return found

    def words(self, key):
        return f"the door {key}"


@pytest.fixture
def doors():
    return Doors()


async def waits():
    task = asyncio.create_task(asyncio.Event().wait())
    await asyncio.sleep(0)
    return task


def test_it_is_asked_again_after_so_long(doors):
    async def play():
        doors.now["a"] = 1
        first = await doors.admitted("a")
        doors.at += 4.9
        assert await doors.admitted("a") is first
        assert doors.asked == ["a"]
        doors.at += 0.1
        assert await doors.admitted("a") is first
        assert (doors.asked, first.at) == (["a", "a"], doors.at)
        await doors.admitted("a", again=True)
        assert len(doors.asked) == 3

    asyncio.run(play())
    assert CHECK_S == 1.0


def test_another_target_ends_what_is_open_and_the_same_does_not(doors):
    async def play():
        doors.now["a"] = 1
        known = await doors.admitted("a")
        task = await waits()
        known.open.add(task)
        await doors.admitted("a", again=True)
        assert not task.cancelling()
        doors.now["a"] = 2
        assert (await doors.admitted("a", again=True)).target == 2
        assert task.cancelling()

    asyncio.run(play())


@pytest.mark.parametrize(
    ("error", "status", "ends"),
    [
        (UnknownCallerError("nobody", "log in"), 401, True),
        (ForbiddenError("no", "ask"), 403, True),
        (NotFoundError("none", "look"), 404, True),
        (UsageError("not yet", "wait"), 503, True),
        (StoreError("away", "wait"), 503, False),
    ],
)
def test_what_is_open_ends_with_the_right_but_not_with_the_database(doors, error, status, ends):
    async def play():
        doors.now["a"] = 1
        known = await doors.admitted("a")
        task = await waits()
        known.open.add(task)
        doors.now["a"] = error
        with pytest.raises(RequestRefusedError, match=error.args[0]) as refused:
            await doors.admitted("a", again=True)
        assert (refused.value.status, status_of(error)) == (status, status)
        assert refused.value.text == f"{error.args[0]}\n{error.hint}"
        assert bool(task.cancelling()) is ends
        assert ("a" in doors._known) is not ends
        if not ends:
            with pytest.raises(RequestRefusedError):
                await doors.admitted("b")

    doors.now["b"] = StoreError("away", "wait")
    asyncio.run(play())


def test_all_who_wait_are_one_question_and_who_goes_leaves_it_to_the_others(doors):
    async def play():
        complaints = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        doors.now["a"] = 1
        doors.free.clear()
        first, second = (asyncio.create_task(doors.admitted("a")) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        doors.free.set()
        assert (await second).target == 1
        assert (first.cancelled() or first.cancelling(), doors.asked) == (True, ["a"])
        doors.now["a"] = ForbiddenError("no", "ask")
        doors.free.clear()
        gone = asyncio.create_task(doors.admitted("a", again=True))
        while not doors._asking:
            await asyncio.sleep(0)
        gone.cancel()
        asking = doors._asking["a"]
        doors.free.set()
        await asyncio.wait([asking])
        await asyncio.sleep(0)
        assert not doors._asking
        del asking, gone
        assert complaints == []

    asyncio.run(play())


def test_the_watch_asks_for_what_is_open_and_forgets_the_rest(doors, monkeypatch, caplog):
    async def play():
        turns = asyncio.Queue()
        paused = []

        async def pause(seconds):
            paused.append(seconds)
            await turns.get()

        async def turn():
            turns.put_nowait(None)
            count = len(paused)
            while len(paused) == count:
                await yields()

        yields = lambda sleep=asyncio.sleep: sleep(0)  # noqa: E731
        doors.now.update({"a": 1, "b": 1, "c": 1, "d": 1})
        tasks = {}
        for key in "abd":
            tasks[key] = await waits()
            (await doors.admitted(key)).open.add(tasks[key])
        await doors.admitted("c")
        monkeypatch.setattr(asyncio, "sleep", pause)
        watch = asyncio.create_task(doors.watch())
        while not paused:
            await yields()
        doors.asked.clear()
        doors.now["b"] = ForbiddenError("no", "ask")
        doors.now["d"] = RuntimeError("a mistake of ours")
        doors.at += 5.0
        await turn()
        assert (doors.asked, set(doors._known)) == (["a", "b", "d"], {"a", "c"}), "c is five seconds old"
        assert [bool(tasks[key].cancelling()) for key in "abd"] == [False, True, True]
        assert "rights to the door d cannot be asked" in caplog.text
        doors.at += 0.1
        await turn()
        assert (set(doors._known), paused) == ({"a"}, [5.0] * 3)
        watch.cancel()

    asyncio.run(play())


def test_an_app_on_another_machine_has_longer_to_be_reached():
    ways = {"here": AppWay(1), "there": AppWay(1, open=object)}
    gate = SimpleNamespace(cookie="c", admit=lambda app, *_: ways[app])
    here, there = (Grants(gate).ask((app, frozenset(), "")) for app in ways)
    assert (here.connect, here.connect_s < there.connect_s) == (None, True)
    assert there.connect is not None
