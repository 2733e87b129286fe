"""What a machine is sent to drive its run, in the process that takes it in."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from trainmaster.service.on_cluster import driver_watchdog
from trainmaster.service.on_cluster.driver_watchdog import part

#: A watchdog whose drivers only say what they were sent, and end as the test says; it writes how they ended.
WATCHDOG = """
import subprocess, sys
from pathlib import Path
from trainmaster.service.on_cluster import driver_watchdog

DRIVER = '''
import sys
from trainmaster.service.on_cluster.driver_watchdog import read_part
assert read_part(sys.stdin.buffer) == b"first"
print("ready", flush=True)
assert read_part(sys.stdin.buffer) == b"last"
print("driving", flush=True)
sys.exit(int(sys.argv[1]))
'''
place, ended, *codes = sys.argv[1:]
drivers = []


def started(_place, first):
    command = [sys.executable, "-c", DRIVER, codes[len(drivers)]]
    driver = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    driver_watchdog._tell(driver, first)
    drivers.append(driver)
    return driver


driver_watchdog._started, driver_watchdog._LONGEST_PAUSE_S = started, 0.0
code = driver_watchdog.stay(Path(place))
Path(ended).write_text(f"{code} {[driver.returncode for driver in drivers]}")
"""


def kept(tmp_path, sent, codes=("0",), log="/dev/null"):
    """What a watchdog says to it, and its last words."""
    place, ended = tmp_path / "place", tmp_path / "ended"
    place.mkdir()
    command = [sys.executable, "-c", WATCHDOG, place, ended, *codes]
    with Path(log).open("wb") as err:
        done = subprocess.run(command, input=sent, stdout=subprocess.PIPE, stderr=err, check=True)
    assert not place.exists()
    return done.stdout.decode().split(), ended.read_text()


def test_a_driver_is_ready_before_it_is_to_begin(tmp_path):
    said, ended = kept(tmp_path, part(b"first") + part(b"last"))
    assert (said, ended) == (["ready", "driving"], "0 [0]")


def test_a_driver_that_ended_for_want_of_room_is_started_anew_though_its_log_takes_nothing(tmp_path):
    said, ended = kept(tmp_path, part(b"first") + part(b"last"), ("1", "1", "0"), "/dev/full")
    assert (said, ended) == (["ready", "driving"], "0 [1, 1, 0]")


@pytest.mark.parametrize("rest", [b"", part(b"last")[:-1]])
def test_a_home_that_is_killed_before_all_was_sent_leaves_no_driver(tmp_path, rest):
    said, ended = kept(tmp_path, part(b"first") + rest)
    assert (said, ended) == (["ready"], f"{driver_watchdog.REFUSED} [-9]")


def test_nobody_else_may_look_before_anything_was_read(tmp_path, monkeypatch):
    done = []
    monkeypatch.setattr(driver_watchdog, "forbid_looking", lambda: done.append("closed"))
    monkeypatch.setattr(driver_watchdog.subprocess, "Popen", lambda *_, **__: None)
    read = SimpleNamespace(read=lambda _: done.append("read") or b"")
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=read))
    assert driver_watchdog.main(tmp_path / "place") == 1
    assert done == ["closed", "read"]


def test_a_machine_that_is_kept_has_no_keys_of_the_driver_any_more(tmp_path):
    memory, place = tmp_path / "memory", tmp_path / "place"
    memory.mkdir()
    place.mkdir()
    (memory / "lab.json").write_text("{}")
    (place / "lab").symlink_to(memory)
    driver_watchdog.forget(place)
    assert not memory.exists()
    assert not place.exists()
