"""The lab is taken down under a run: that is said, and `resume` starts nothing before it is up again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray", reason="ray is not installed")

from renter import Renter

pytestmark = [pytest.mark.ray, pytest.mark.timeout(900)]
SCALE = ["--cpu-scale", "0.25", "--memory-scale", "0.125", "--network-scale", "0.125"]


def test_a_lab_that_is_down_is_said_to_be_so(make_lab_user: Callable[[], Any], tmp_path: Path) -> None:
    user = make_lab_user()
    user.call("up", *SCALE)
    work = tmp_path / "work"
    work.mkdir()
    renter = Renter(user, work)
    try:
        renting = renter.run(renter.gang(workers=1, steps=10_000))
        renting.until_said("starts at 0")
        (machine,) = renter.machines(renting.run).values()
        user.call("terminate", machine)
        user.until_state(machine, "terminated")
        assert f"{machine} is terminated" in user.call("terminate", machine, code=2).stderr

        user.call("down")
        found = renting.end(code=1)
        assert found["reason"] == "INTERNAL"
        assert "the lab is down, and its machines with it" in renting.text
        assert "AWS cannot be reached" not in renting.text

        refused = renter.call("resume", renting.run, code=2)
        assert "trainmaster lab up" in refused.stderr
        status = renter.call("status", renting.run).stdout
        assert "INTERNAL" in status, "nothing was started, so nothing waits"
    finally:
        renter.kill_all()
