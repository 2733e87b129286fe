"""Which processes the kernel killed: control groups and counters as the kernel shows them, in a directory."""

from __future__ import annotations

import time

import pytest

from trainmaster.executors.supervisor.enclosures import Enclosure
from trainmaster.executors.supervisor.gang_processes import MemberProcess
from trainmaster.executors.supervisor.oom import OomWatch

V1_MOUNTS = """\
35 31 0:32 / {sys}/cgroup/memory rw,relatime - cgroup cgroup rw,memory
41 31 0:38 / {sys}/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
"""
V2_MOUNTS = "30 23 0:26 / {sys}/cgroup rw,nosuid,nodev shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
V1_CONTROL = "oom_kill_disable 0\nunder_oom 0\noom_kill {}\n"
V2_EVENTS = "low 0\nhigh 0\nmax 12\noom 3\noom_kill {}\noom_group_kill 0\n"


class Node:
    """A ``/proc`` and a ``/sys``: we are in the control group ``/lab/us``."""

    def __init__(self, root, version):
        self.root, self.version = root, version
        self.kills = {"node": 0, "us": 0}
        self.member_number = 1000
        (root / "proc").mkdir()
        self.group_file = root / (
            "sys/cgroup/memory/lab/us/memory.oom_control"
            if version == 1
            else "sys/cgroup/lab/us/memory.events"
        )
        self.group_file.parent.mkdir(parents=True)
        mounts = V1_MOUNTS if version == 1 else V2_MOUNTS
        self.process("self", "/lab/us")
        (root / "proc/self/mountinfo").write_text(mounts.format(sys="/sys"))
        self.write()

    def write(self):
        lines = f"nr_free_pages 12\noom_kill {self.kills['node']}\ndrop_pagecache 0\n"
        (self.root / "proc/vmstat").write_text(lines)
        template = V1_CONTROL if self.version == 1 else V2_EVENTS
        self.group_file.write_text(template.format(self.kills["us"]))

    def process(self, pid, group):
        lines = f"5:memory:{group}\n1:name=systemd:/\n0::/\n" if self.version == 1 else f"0::{group}\n"
        (self.root / f"proc/{pid}").mkdir(exist_ok=True)
        (self.root / f"proc/{pid}/cgroup").write_text(lines)

    def kill(self, in_our_group):
        self.kills["node"] += 1
        self.kills["us"] += in_our_group
        self.write()

    def member(self, group="/lab/us"):
        self.member_number += 1
        member = MemberProcess(f"worker-{self.member_number}", essential=True)
        member.pid, member.started_at = self.member_number, time.time() - 5
        self.process(member.pid, group)
        return member

    def watch(self):
        return OomWatch(str(self.root))


def died(member, *, signal=9, exit_code=None):
    member.signal, member.exit_code = signal, exit_code
    return member


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def node(tmp_path, request):
    return Node(tmp_path, request.param)


def test_of_two_members_the_one_that_was_killed_by_the_kernel(node):
    watch, first, second = node.watch(), node.member(), node.member()
    watch.look([first.pid, second.pid])
    node.kill(in_our_group=True)
    assert watch.has_killed(died(first))
    assert not watch.has_killed(died(second)), "one kill explains one death"


def test_a_kill_between_the_reading_of_two_counters(node):
    watch, first, second = node.watch(), node.member("/lab/limited"), node.member("/lab/limited")
    node.kills["us"] += 1
    node.write()
    assert watch.has_killed(died(first))
    node.kills["node"] += 1
    node.write()
    assert not watch.has_killed(died(second)), "it is the same one"


def test_a_kill_by_hand(node):
    watch, member = node.watch(), node.member()
    watch.look([member.pid])
    assert not watch.has_killed(died(member))


def test_a_neighbour_in_another_container_ran_out_of_memory(node):
    watch, member = node.watch(), node.member()
    watch.look([member.pid])
    node.kill(in_our_group=False)
    assert not watch.has_killed(died(member))


def test_a_member_that_moved_to_a_group_of_its_own(node):
    watch, member = node.watch(), node.member("/lab/limited")
    watch.look([member.pid])
    node.kill(in_our_group=False)
    assert watch.has_killed(died(member))


def test_a_child_that_moved_to_a_group_of_its_own(node):
    watch, member = node.watch(), node.member()
    watch.look([member.pid])
    node.kill(in_our_group=False)
    assert watch.has_killed(died(member, signal=None, exit_code=137))


@pytest.mark.parametrize("ending", [{"signal": 15}, {"signal": None, "exit_code": 1}])
def test_other_endings_are_none_of_its_business(node, ending):
    watch, member = node.watch(), node.member()
    node.kill(in_our_group=True)
    assert not watch.has_killed(died(member, **ending))


def test_a_member_too_young_to_have_been_looked_at(node):
    watch, member = node.watch(), node.member("/lab/limited")
    node.kill(in_our_group=False)
    assert watch.has_killed(died(member))


def test_kills_before_its_start_and_long_ago(node, monkeypatch):
    watch, member = node.watch(), node.member()
    node.kill(in_our_group=True)
    watch.look([member.pid])
    member.started_at = time.time() + 1
    assert not watch.has_killed(died(member)), "it did not live yet"
    late = time.monotonic() + 100
    monkeypatch.setattr("trainmaster.executors.supervisor.oom.time.monotonic", lambda: late)
    member.started_at = time.time() - 1000
    assert not watch.has_killed(died(member)), "a child died of it long ago, and the member went on"


def test_kills_before_us_do_not_count(node):
    node.kill(in_our_group=True)
    assert not node.watch().has_killed(died(node.member()))


def test_we_were_moved(node):
    watch = node.watch()
    node.process("self", "/lab")
    node.kills["us"] = 40
    node.write()
    member = node.member("/lab")
    watch.look([member.pid])
    assert not watch.has_killed(died(member)), "another group's counter begins elsewhere"


def test_a_container_that_sees_its_part_of_the_tree(node):
    path = node.root / "proc/self/mountinfo"
    if node.version == 2:
        path.write_text("30 23 0:26 /lab /sys/cgroup/lab rw - cgroup2 cgroup2 rw\n")
    else:
        path.write_text("30 23 0:26 /lab /sys/cgroup/memory/lab rw - cgroup cgroup rw,memory\n")
    watch, member = node.watch(), node.member()
    watch.look([member.pid])
    node.kill(in_our_group=True)
    assert watch.has_killed(died(member))


def test_without_anything_to_read(tmp_path):
    member = MemberProcess("worker-0", essential=True)
    member.pid = 1
    watch = OomWatch(str(tmp_path))
    watch.look([1])
    assert not watch.has_killed(died(member))


def test_without_control_groups_the_node_counts(node):
    (node.root / "proc/self/mountinfo").write_text("")
    watch, member = node.watch(), node.member()
    watch.look([member.pid])
    node.kill(in_our_group=False)
    assert watch.has_killed(died(member))


def test_an_attempt_with_a_group_of_its_own_is_judged_by_that(node):
    watch, first, second, neighbour = node.watch(), node.member("/a"), node.member("/a"), node.member("/b")
    own = node.group_file.parent / "attempt" / node.group_file.name
    own.parent.mkdir()
    own.write_text(node.group_file.read_text())
    enclosure = Enclosure([str(own.parent / "none"), str(own.parent)])
    node.kill(in_our_group=False)
    assert not watch.has_killed(died(first), enclosure), "it was a process of somebody else"
    assert watch.has_killed(died(neighbour))
    node.kill(in_our_group=False)
    own.write_text((V1_CONTROL if node.version == 1 else V2_EVENTS).format(1))
    assert watch.has_killed(died(first), enclosure)
    assert not watch.has_killed(died(second), enclosure), "one kill explains one death"
    assert not watch.has_killed(died(neighbour)), "also for those that the node's counter judges"
