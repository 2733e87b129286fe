"""A lab comes, goes, and leaves nothing behind, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainmaster.providers.inventory import read_inventory


@pytest.fixture
def user(make_lab_user: Callable[[], Any]) -> Any:
    return make_lab_user()


def test_up_boots_hosts_and_down_takes_all_away(user: Any) -> None:
    found = user.json("up", "--hosts", 2, "--type", "m4.large", "--scale", 0.25)
    assert [host["state"] for host in found["hosts"]] == ["running", "running"]
    assert all(host.keys() == {"id", "address", "type", "state"} for host in found["hosts"])
    hosts = read_inventory(user.directory / "hosts.yaml").hosts
    assert [(h.name, h.address) for h in hosts] == [(h["id"], h["address"]) for h in found["hosts"]]
    assert all((h.user, h.slots) == ("admin", 1) for h in hosts)
    assert all(Path(h.python).parent == Path(sys.executable).parent for h in hosts)
    assert all(h.key and h.key.stat().st_mode & 0o77 == 0 for h in hosts)
    assert user.ssh(found["hosts"][0]["id"])("echo here") == "here"

    again = user.call("up")
    assert "was up already" in again.stderr
    assert user.json("status")["pid"] == found["pid"]

    user.call("down")
    assert not any(user.traces().values())
    assert not user.directory.exists()
    assert user.json("status") == {"hosts": [], "running": False}
    assert "no lab was up" in user.call("down").stderr


def test_disks_are_in_memory_where_the_home_cannot_hold_them(user: Any, tmp_path: Path) -> None:
    for name in ("lower", "upper", "work"):
        (tmp_path / name).mkdir()
    options = f"lowerdir={tmp_path}/lower,upperdir={tmp_path}/upper,workdir={tmp_path}/work"
    subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, user.home], check=True)
    try:
        said = user.call("up", "--hosts", 1, "--scale", 0.25).stderr
        assert "in memory" in said
        (host,) = user.json("status")["hosts"]
        assert user.ssh(host["id"])("echo x > f; cat f") == "x"
        user.call("down")
        assert not any(user.traces().values())
    finally:
        user.call("down")
        subprocess.run(["umount", user.home], check=True)


def test_after_a_crash_the_next_call_sweeps(user: Any) -> None:
    for verb in ("up", "down"):
        found = user.json("up", "--hosts", 1, "--scale", 0.25)
        assert len(found["hosts"]) == 1  # and none of the one that crashed
        os.kill(found["pid"], signal.SIGKILL)
        assert user.traces()["processes"]  # the hosts live on
        assert "sweeps away" in user.call("status").stderr
        said = user.call(verb)
        if verb == "up":
            assert "swept away" in said.stderr
            assert user.json("status")["hosts"] == []
            user.call("down")
        assert not any(user.traces().values())


def test_a_lab_whose_home_is_removed_ends_itself(user: Any) -> None:
    user.call("up", "--hosts", 1, "--scale", 0.25)
    (user.directory / "daemon.json").unlink()
    deadline = time.monotonic() + 120
    while any(user.traces().values()):
        assert time.monotonic() < deadline, user.traces()
        time.sleep(0.1)


def test_two_labs_do_not_see_each_other(user: Any, lab: Any) -> None:
    before = lab.json("status")
    mine = user.json("up", "--hosts", 1, "--scale", 0.25)
    assert mine["network"] != before["network"]
    user.call("down")
    assert lab.json("status")["pid"] == before["pid"]


def test_mistakes_are_told(user: Any, lab: Any) -> None:
    assert "no lab is up" in user.call("terminate", "i-0", code=2).stderr
    assert "Did you mean m4.xlarge?" in user.call("up", "--type", "m4.xlarg", code=2).stderr
    assert "--scale: -1 is no scale" in user.call("up", "--scale", "-1", code=2).stderr
    assert "lists them" in lab.call("freeze", "i-nothing", code=2).stderr
    assert "zones" in user.call("up", "--zones", "9", code=2).stderr


def test_who_is_not_root_is_told(user: Any) -> None:
    command = ["unshare", "--user", Path(sys.executable).with_name("trainmaster"), "lab", "up"]
    if subprocess.run(["unshare", "--user", "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("nobody may be somebody else here")
    done = subprocess.run(command, capture_output=True, text=True, env=user.env, check=False)
    assert done.returncode == 2, done.stderr
    assert "it needs root" in done.stderr
    assert "Traceback" not in done.stderr
