"""A machine that is taken for lost: whether it answers, and what becomes of what is under way with it."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trainmaster.cluster import node_links
from trainmaster.cluster.cluster_executor import ClusterExecutor
from trainmaster.cluster.member_places import MemberPlaces
from trainmaster.cluster.node_links import NodeFailureDetector, NodeLinks, greets
from trainmaster.transport.base import Target


@pytest.fixture
def server() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        yield made


def target(server: socket.socket, **more: Any) -> Target:
    return Target("n", "127.0.0.1", server.getsockname()[1], **more)


def say(server: socket.socket, words: bytes) -> threading.Thread:
    def answer() -> None:
        client, _ = server.accept()
        with client:
            client.sendall(words)

    thread = threading.Thread(target=answer)
    thread.start()
    return thread


def test_who_greets_is_there(server: socket.socket) -> None:
    for words, is_there in ((b"SSH-2.0-x\r\n", True), (b"HTTP/1.1 400\r\n", False), (b"", False)):
        thread = say(server, words)
        assert greets(target(server)) is is_there
        thread.join()


def test_who_is_silent_or_refuses_is_not(server: socket.socket) -> None:
    assert greets(target(server), 0.1) is False  # the kernel takes the connection, nobody speaks
    place = target(server)
    server.close()
    assert greets(place, 0.1) is False


@pytest.mark.parametrize(("after_s", "answers"), [(5.0, True), (9.0, False)])
def test_who_is_too_busy_to_greet_soon_is_there_and_who_is_frozen_is_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, after_s: float, answers: bool
) -> None:
    """Of a gang with a failed member, whose end is the script's fault if all its machines are there."""
    node: Any = Node("i-1", Target("n", "192.0.2.1"))

    class Slow(Connection):
        timeout_s = 0.0

        def settimeout(self, timeout_s: float) -> None:
            self.timeout_s = timeout_s

        def recv(self, _: int) -> bytes:
            if self.timeout_s < after_s:
                raise TimeoutError
            return b"SSH-"

    def connect(_: object, timeout_s: float) -> Slow:
        made = Slow()
        made.settimeout(timeout_s)
        return made

    monkeypatch.setattr(node_links, "time", SimpleNamespace(sleep=lambda _: None, monotonic=time.monotonic))
    monkeypatch.setattr(socket, "create_connection", connect)
    detector = ClusterExecutor(
        {}, lambda *_: None, lambda _: None, MemberPlaces(tmp_path.joinpath)
    )._ends._detector
    detector.suspect("a", [node])
    assert detector.is_there("a", node) is answers


def test_who_is_behind_another_machine_cannot_be_judged(server: socket.socket) -> None:
    assert greets(target(server, jump=Target("j", "192.0.2.1")), 0.1) is True


class Connection:
    is_closed = False

    def __init__(self) -> None:
        self.closed = threading.Event()

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None: ...

    def close(self) -> None:
        self.closed.set()


class Node:
    """One that is silent, or not."""

    def __init__(self, name: str, place: Target) -> None:
        self.id, self.seat, self.target = name, "worker-0", place
        self.made: list[Connection] = []

    def connect(self) -> Connection:
        self.made.append(Connection())
        return self.made[-1]

    connection = connect


def test_what_is_under_way_with_a_dead_one_ends(server: socket.socket) -> None:
    place = target(server)
    server.close()
    dead, other = Node("i-1", place), Node("i-2", place)
    links = NodeLinks()
    verdicts = NodeFailureDetector(links)
    node: Any = dead
    links.use(node, lambda _: None)
    another: Any = other
    links.use(another, lambda _: None)
    assert verdicts.is_there("a", node), "nobody has doubted it"
    with links.own(node):
        verdicts.suspect("a", [node, node])
        assert verdicts.is_there("a", node) is False
        assert all(connection.closed.wait(5) for connection in dead.made)
        assert len(dead.made) == 2
    assert not other.made[0].closed.is_set()
    assert verdicts.is_there("b", node), "another attempt's node, which may have come back"
    verdicts.forget("a")
    assert verdicts.is_there("a", node)
    links.use(node, lambda _: None)
    assert len(dead.made) == 3, "connected anew"


def test_a_hundred_attempts_on_one_node_knock_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server of a node that is well turns away those that are too many at once."""
    knocks, answer = [], threading.Event()

    def greets(place: Target, _: float) -> bool:
        knocks.append(place)
        answer.wait(5)
        return True

    monkeypatch.setattr(node_links, "greets", greets)
    node: Any = Node("i-1", Target("n", "192.0.2.1"))
    verdicts = NodeFailureDetector(NodeLinks())
    attempts = [f"run/sweep/{number}/1" for number in range(100)]
    for attempt in attempts:
        verdicts.suspect(attempt, [node])
    answer.set()
    assert all(verdicts.is_there(attempt, node) for attempt in attempts)
    assert len(knocks) == 1
    verdicts.suspect("run/sweep/0/2", [node])
    assert verdicts.is_there("run/sweep/0/2", node)
    assert len(knocks) == 2, "what was so a while ago need not be so now"


def test_who_is_turned_away_without_a_word_knocks_once_more(
    server: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_links, "_AGAIN_S", 0.0, raising=False)

    def answer() -> None:
        for words in (b"", b"SSH-2.0-x\r\n"):  # as sshd does beyond MaxStartups
            client, _ = server.accept()
            with client:
                client.sendall(words)

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    node: Any = Node("i-1", target(server))
    verdicts = NodeFailureDetector(NodeLinks())
    verdicts.suspect("a", [node])
    assert verdicts.is_there("a", node)
    thread.join(5)
    assert not node.made, "nothing was hung up"
