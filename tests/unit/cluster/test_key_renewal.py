"""Mounts get new keys in time, and nobody else does."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from trainmaster.cluster.node_files.data_wanted import Wanted
from trainmaster.cluster.node_files.removal import KeyRenewal
from trainmaster.objects.delegated_credentials import EXPIRES_VARIABLE
from trainmaster.spec.errors import PublishError
from trainmaster.testing.waits import until

NODE = SimpleNamespace(id="i-1")
HANGS = SimpleNamespace(id="i-0")


class World:
    """Keys that live for an hour, and a node that takes them or is silent."""

    def __init__(self):
        self.now = 1_000_000.0
        self.renewed = []
        self.is_silent = False
        self.is_over = threading.Event()
        self.asked = 0
        self.made = KeyRenewal(self, self.renew, lambda: self.now)
        self.made.close()  # no thread: the test looks by itself

    def environment(self, grants):
        return {"AWS_SESSION_TOKEN": f"{self.now:.0f}", EXPIRES_VARIABLE: f"{self.now + 3600:.0f}"}

    def renew(self, node, wanted):
        self.asked += 1
        if self.is_silent:
            raise PublishError("no answer")
        if node is HANGS:
            self.is_over.wait(60)
            return
        self.renewed.append(wanted.credentials["AWS_SESSION_TOKEN"])
        self.made.brought(node, wanted)

    def look(self):
        for thread in self.made.look():
            thread.join(60)

    def wanted(self, do="volume"):
        return Wanted("v", "/there", {"do": do}, ("s3://b/v",), self.environment(()))


@pytest.fixture
def world():
    return World()


def test_after_a_third_of_their_life_and_again_and_again(world):
    world.made.brought(NODE, world.wanted())
    for second, count in ((1199, 0), (1201, 1), (1300, 1), (2402, 2)):
        world.now = 1_000_000.0 + second
        world.look()
        assert len(world.renewed) == count, second


def test_a_node_that_is_silent_gets_them_at_a_later_look(world):
    world.made.brought(NODE, world.wanted())
    world.now += 1800
    world.is_silent = True
    world.look()
    world.is_silent = False
    world.look()
    assert world.renewed == ["1001800"]


def test_keys_that_last_and_files_that_are_there_need_none(world):
    world.made.brought(NODE, world.wanted(do="models"))
    world.made.brought(NODE, Wanted("v", "/other", {"do": "volume"}, ("s3://b/v",), {"AWS_REGION": "eu"}))
    world.now += 3000
    world.look()
    assert world.renewed == []


def test_a_node_that_hangs_keeps_no_other_waiting_and_is_asked_once_at_a_time(world):
    world.made.brought(HANGS, world.wanted())
    world.made.brought(NODE, world.wanted())
    world.now += 1300
    hanging = world.made.look()
    until(lambda: world.renewed and NODE.id not in world.made._asked, "the other one has its keys")
    assert world.made.look() == [], "it is still being asked"
    world.is_over.set()
    for thread in hanging:
        thread.join(60)
    assert world.renewed == ["1001300"]


def test_a_node_that_is_silent_until_its_keys_have_run_out_is_not_asked_any_more(world):
    world.made.brought(NODE, world.wanted())
    world.is_silent = True
    for later_s in (1800, 1700, 200, 200, 200):
        world.now += later_s
        world.look()
    assert world.asked == 3, "once more when they have run out: it may have been asleep"
