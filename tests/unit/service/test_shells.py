"""`ssh` to machines of a run that has just begun."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from trainmaster.service import shells
from trainmaster.spec.errors import NotFoundError


class Bench:
    """A run whose machine comes at the third look."""

    def __init__(self, monkeypatch, comes_after=2, *, driven=True):
        self.looks, self.told = 0, []
        self._comes_after = comes_after
        monkeypatch.setattr(shells, "_node", self._node)
        monkeypatch.setattr(shells, "members_of", lambda *_: {"worker-0", "worker-1"})
        monkeypatch.setattr(shells, "is_driven", lambda *_: driven)
        monkeypatch.setattr(shells, "time", SimpleNamespace(monotonic=lambda: 0.0, sleep=lambda _: None))
        self.service = SimpleNamespace(database=SimpleNamespace(run_row=lambda _: {}, clock_s=lambda: 0.0))

    def _node(self, *_):
        self.looks += 1
        if self.looks <= self._comes_after:
            raise NotFoundError("run has no machines now", "Wait.")
        return "the node"

    def ask(self, member):
        return shells._awaited(self.service, None, "run", member, {}, self.told.append)


@pytest.mark.parametrize("member", [None, "worker-1"])
def test_a_machine_that_is_on_its_way_is_waited_for_and_that_is_said_once(monkeypatch, member):
    bench = Bench(monkeypatch)
    assert bench.ask(member) == "the node"
    assert bench.told == [f"run: waits for the machine of {member or 'its first member'}"]


def test_nobody_waits_for_a_member_that_there_is_none_of(monkeypatch):
    bench = Bench(monkeypatch)
    with pytest.raises(NotFoundError):
        bench.ask("worker-9")
    assert bench.looks == 1


def test_nobody_waits_for_machines_of_a_run_that_is_over(monkeypatch):
    bench = Bench(monkeypatch, driven=False)
    with pytest.raises(NotFoundError):
        bench.ask("worker-1")
    assert (bench.looks, bench.told) == (1, [])
