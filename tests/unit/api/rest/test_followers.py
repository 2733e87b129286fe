"""Many follow one run over TCP: each is told everything once, and a slow one is not waited for."""

from __future__ import annotations

import asyncio
import json
from contextlib import closing

import pytest

pytest.importorskip("fastapi", reason="the extra `server` is not installed")
import uvicorn

from trainmaster.api.rest import hubs
from trainmaster.api.rest.app import make_app, make_state
from trainmaster.api.rest.limits import MAX_STREAMS
from trainmaster.control.task.layout import Home
from trainmaster.db import AcceptedRun, TaskChange
from trainmaster.service import Service
from trainmaster.spec import Recipe
from trainmaster.spec.states import State
from trainmaster.testing.waits import until

RECIPE = Recipe.from_dict({"name": "r", "experiments": {"main": {"command": "true"}}}).model_dump_json()
FOLLOWERS = 200
END = "the end\n"


class Live:
    """A run that writes as a test says, and the server of its home."""

    def __init__(self, root):
        self.service = Service(Home(root, root, f"file://{root}/s", f"sqlite:///{root / 't.db'}"))
        self.state = make_state(self.service, {})
        new = AcceptedRun("r-1", "r", RECIPE, "r.yaml", "local", "code", "file:///s", [("main", 1)])
        lease = self.service.database.create_run(new, 1.0)
        begun = TaskChange("main", 0, 1, State.WAITING, State.RUNNING, creates=True, opens=True)
        self.service.database.commit(lease, [begun], 2.0)
        self.place = self.service.home.attempt("r-1", "main", 0, 1)
        self.place.make_directories(["worker-0"])
        self.text, self.steps = "", 0
        config = uvicorn.Config(make_app(self.state), port=0, log_level="warning", lifespan="off")
        self.server = uvicorn.Server(config)

    @property
    def port(self):
        return self.server.servers[0].sockets[0].getsockname()[1]

    def write(self, text):
        with self.place.log("worker-0").open("a") as log:
            log.write(text)
        self.text += text
        with self.place.metrics("worker-0").open("a") as file:
            file.write(json.dumps({"step": self.steps}) + "\n")
        self.steps += 1

    def tokens(self, count):
        made = [self.state.access.create_token(f"page-{n}", ["read"])["token"] for n in range(count)]
        return [token for token in made for _ in range(MAX_STREAMS)]

    def run(self, scenario):
        """A scenario with the server in one loop."""

        async def both():
            serving = asyncio.create_task(self.server.serve())
            try:
                await so(lambda: self.server.started)
                async with asyncio.timeout(300):
                    await scenario
            finally:
                self.server.should_exit = True
                self.state.hubs.end()
                await serving

        asyncio.run(both())


async def so(is_so):
    await asyncio.to_thread(until, is_so, "what the server tells", 240)


class Follower:
    """One that comes back whenever it is sent away, until it has read the end."""

    def __init__(self, token):
        self.token, self.text, self.last, self.ids, self.steps, self.came = token, "", "", [], [], 0

    async def open(self, live):
        self.live = live
        reader, writer = await asyncio.open_connection("127.0.0.1", live.port, limit=1 << 18)
        asks = f"authorization: Bearer {self.token}\r\nlast-event-id: {self.last}"
        writer.write(f"GET /api/v1/runs/r-1/stream HTTP/1.0\r\n{asks}\r\n\r\n".encode())
        self.came += 1
        return reader, writer

    async def read(self, reader):
        told = {}
        assert b" 200 " in await reader.readline()
        while line := (await reader.readline()).decode():
            name, _, value = line.rstrip("\r\n").partition(": ")
            told[name] = value
            if not name and "data" in told:
                self.take(told["event"], json.loads(told["data"]))
                self.last, told = told["id"], {}
                if self.is_done():
                    return

    def take(self, kind, data):
        if kind == "log":
            self.text += data["text"]
        elif kind == "point":
            self.steps += [row["step"] for row in data["points"]]
        else:
            self.ids += [each["id"] for each in data["events"]]

    async def follow(self, live):
        while True:
            reader, writer = await self.open(live)
            with closing(writer):
                await self.read(reader)
            if self.is_done():
                return

    def is_done(self):
        """The last line and its point are written one after the other: either may come first."""
        return self.text.endswith(END) and len(self.steps) >= self.live.steps

    def has_all(self, live):
        one = len(self.ids) == len(set(self.ids)) > 0
        return one and self.text == live.text and self.steps == list(range(live.steps))


@pytest.fixture
def live(tmp_path, monkeypatch):
    monkeypatch.setattr(hubs, "LOOK_EVERY_S", 0.05)
    monkeypatch.setattr(hubs, "_GO_ON_S", 0)
    found = Live(tmp_path)
    yield found
    found.service.close()


def test_two_hundred_who_come_back_are_told_everything_once(live):
    everybody = [Follower(token) for token in live.tokens(FOLLOWERS // MAX_STREAMS)]
    live.write("before anybody came\n")

    async def scenario():
        async with asyncio.TaskGroup() as group:
            for each in everybody:
                group.create_task(each.follow(live))
            await so(lambda: all(each.text for each in everybody))
            live.write("while all listen\n")
            await so(lambda: all("listen" in each.text for each in everybody))
            live.state.hubs.end()  # as a server does that stops
            live.write("while all are away\n")
            await so(lambda: all(each.came > 1 and "away" in each.text for each in everybody))
            live.write(END)

    live.run(scenario())
    assert len(everybody) == FOLLOWERS
    assert all(each.has_all(live) for each in everybody)
    assert not live.state.streams._open


def test_who_does_not_read_is_sent_away_and_misses_nothing(live, monkeypatch):
    monkeypatch.setattr(hubs, "_PIECE", 2)
    monkeypatch.setattr(hubs, "_QUEUE", 2)
    slow, quick = (Follower(token) for token in live.tokens(2)[::MAX_STREAMS])
    live.write("begun\n")

    async def scenario():
        reader, writer = await slow.open(live)
        hub = live.state.hubs.of("r-1")
        await so(lambda: hub._listeners)
        (waits,) = hub._listeners
        async with asyncio.TaskGroup() as group:
            group.create_task(quick.follow(live))
            await so(lambda: quick.text)
            while waits in hub._listeners:  # until sockets and the queue hold no more
                live.write(("x" * 1023 + "\n") * 512)
                await so(lambda: len(quick.text) == len(live.text))
            assert waits.qsize() <= 1, "nothing is kept for it but that it is to come back"
            live.write(END)
        with closing(writer):
            await slow.read(reader)  # what was on its way
        assert not slow.text.endswith(END)
        await slow.follow(live)

    live.run(scenario())
    assert slow.has_all(live)
    assert quick.has_all(live)
