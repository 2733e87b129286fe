"""Control groups of attempts, as the kernel shows them, in a directory."""

from __future__ import annotations

import pytest

from trainmaster.executors.supervisor import control_groups

#: What the kernel puts into a group that others rule.
FILES = {
    1: {"memory": ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes"), "pids": ("pids.max",)},
    2: {"": ("memory.max", "memory.swap.max", "pids.max")},
}


@pytest.fixture(params=[1, 2])
def version(request):
    return request.param


@pytest.fixture
def root(tmp_path, version):
    """A ``/proc`` and a ``/sys``, where we are in the group ``/lab/us``."""
    (tmp_path / "proc/self").mkdir(parents=True)
    if version == 1:
        mounts = "".join(
            f"3{number} 31 0:32 / /sys/cgroup/{each} rw - cgroup cgroup rw,{each}\n"
            for number, each in enumerate(("memory", "pids"))
        )
        groups = "5:memory:/lab/us\n6:pids:/lab/us\n0::/\n"
        places = [tmp_path / "sys/cgroup" / each / "lab/us" for each in ("memory", "pids")]
    else:
        mounts = "30 23 0:26 / /sys/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n"
        groups = "0::/lab/us\n"
        places = [tmp_path / "sys/cgroup/lab/us"]
    (tmp_path / "proc/self/mountinfo").write_text(mounts)
    (tmp_path / "proc/self/cgroup").write_text(groups)
    for place in places:
        place.mkdir(parents=True)
    return tmp_path


def below(root, *names):
    return [f"{root}/sys/cgroup/{name}" for name in names]


def test_they_lie_below_our_own_or_where_that_cannot_be_beside_it(root, version):
    wanted = ("memory/lab/us/mine", "pids/lab/us/mine") if version == 1 else ("lab/mine",)
    assert control_groups.places("mine", str(root)) == below(root, *wanted)


def test_there_are_none_where_none_are_mounted(root):
    (root / "proc/self/mountinfo").write_text("22 1 0:20 / /sys rw - sysfs sysfs rw\n")
    assert control_groups.places("mine", str(root)) == []


def test_the_namespace_of_a_container_ends_at_its_own(root, version):
    if version == 1:
        pytest.skip("there they lie below")
    (root / "proc/self/cgroup").write_text("0::/\n")
    assert control_groups.places("mine", str(root)) == below(root, "mine")


def test_memory_with_swap_and_processes_are_bounded(root, version):
    found = {}
    for names, place in zip(FILES[version].values(), control_groups.places("mine", str(root)), strict=True):
        for name in names:  # the kernel makes them with the directory
            path = root / place / name
            path.parent.mkdir(exist_ok=True)
            path.write_text("max")
        assert control_groups.make(place, 1 << 30, 99)
        found |= {name: (root / place / name).read_text() for name in names}
    swap = {"memory.swap.max": "0"} if version == 2 else {"memory.memsw.limit_in_bytes": f"{1 << 30}"}
    memory = "memory.max" if version == 2 else "memory.limit_in_bytes"
    assert found == {memory: f"{1 << 30}", "pids.max": "99", **swap}


def test_a_group_that_bounds_nothing_does_not_stay(root):
    for place in control_groups.places("mine", str(root)):
        assert not control_groups.make(place, 1 << 30, 99)
        assert not (root / place).exists()
        control_groups.remove(place)


def test_a_controller_is_asked_to_rule_what_lies_below(root, version):
    if version == 1:
        pytest.skip("there each always does")
    asked = root / "sys/cgroup/lab/cgroup.subtree_control"
    asked.write_text("cpu memory\n")
    (place,) = control_groups.places("mine", str(root))
    control_groups.make(place, 1 << 30, 99)
    assert asked.read_text() == "+pids"
