"""A Ray of one's own on a busy machine."""

from __future__ import annotations

import subprocess

import pytest

from trainmaster.testing.private_ray import PrivateRay


@pytest.mark.parametrize("name", ["n1", "n2"])
def test_a_node_that_gave_up_is_started_again(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The head, too: Ray ends it if its parts take longer than 30 s."""
    ray = PrivateRay.__new__(PrivateRay)
    ended = subprocess.Popen("true")
    ended.wait()
    ray.names, ray._started = ["n1", "n2"], {name: ended}
    booted = list[str]()
    monkeypatch.setattr(PrivateRay, "kill", lambda ray, name: ray._started.pop(name))
    monkeypatch.setattr(PrivateRay, "boot", lambda _, name: booted.append(name))
    monkeypatch.setattr("trainmaster.testing.private_ray._START_S", 0.05)
    ray._until(lambda: bool(booted))
    assert booted == [name]
