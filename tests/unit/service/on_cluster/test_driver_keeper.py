"""What a machine is sent to drive its run, in the process that takes it in."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from trainmaster.service.on_cluster import keeper


def test_nobody_else_may_look_before_anything_was_read(tmp_path, monkeypatch):
    done = []

    def no_keeper(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(keeper, "forbid_looking", lambda: done.append("closed"))
    monkeypatch.setattr(keeper.subprocess, "Popen", no_keeper)
    read = SimpleNamespace(read=lambda: done.append("read") or b"{}")
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=read))
    with pytest.raises(KeyboardInterrupt):
        keeper.main(tmp_path / "place")
    assert done == ["closed", "read"]


def test_a_machine_that_is_kept_has_no_keys_of_the_driver_any_more(tmp_path):
    memory, place = tmp_path / "memory", tmp_path / "place"
    memory.mkdir()
    place.mkdir()
    (memory / "lab.json").write_text("{}")
    (place / "lab").symlink_to(memory)
    keeper.forget(place)
    assert not memory.exists()
    assert not place.exists()
