"""Pipes by which processes of a home tell each other that there is something new."""

from __future__ import annotations

import os
import threading

from trainmaster.service.driving.wake_pipes import SUFFIX, WakePipe, wake_all

LONG_S = 60.0


def test_who_waits_is_told_and_reads_all_of_it(tmp_path):
    pipe = WakePipe(tmp_path / f"a{SUFFIX}")
    assert not pipe.wait(0.0)
    wake_all(tmp_path, "run-1")
    wake_all(tmp_path, "run-2")
    assert pipe.read() == {"run-1", "run-2"}
    assert pipe.read() == set()
    teller = threading.Thread(target=wake_all, args=(tmp_path, "run-3"))
    teller.start()
    assert pipe.wait(LONG_S)
    teller.join()
    assert not pipe.wait(0.0), "what was told before is read"
    pipe.close()
    assert not list(tmp_path.iterdir())


def test_all_are_told_and_what_a_killed_process_left_is_removed(tmp_path):
    left = tmp_path / f"gone{SUFFIX}"
    os.mkfifo(left)
    pipes = [WakePipe(tmp_path / f"{name}{SUFFIX}") for name in "ab"]
    wake_all(tmp_path, "x")
    assert [pipe.read() for pipe in pipes] == [{"x"}, {"x"}]
    assert not left.exists()
    for pipe in pipes:
        pipe.close()


def test_one_that_comes_after_another_one_takes_its_place(tmp_path):
    first = WakePipe(tmp_path / f"a{SUFFIX}")
    second = WakePipe(tmp_path / f"a{SUFFIX}")
    wake_all(tmp_path, "x")
    assert (first.read(), second.read()) == (set(), {"x"})
    second.close()
    os.close(first.fileno())


def test_who_tells_never_waits_for_who_does_not_read(tmp_path):
    wake_all(tmp_path / "no such directory", "x")
    pipe = WakePipe(tmp_path / f"a{SUFFIX}")
    for _ in range(2000):  # a pipe has room for 64 KiB
        wake_all(tmp_path, "x" * 100)
    assert {text[:1] for text in pipe.read()} == {"x"}
    pipe.close()
