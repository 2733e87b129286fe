"""What takes long tells what it does to what iterates, and ends in order when it is interrupted."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from trainmaster.api.streams import RunInterrupts, WorkStream, interruptible


def test_all_is_told_in_order_and_then_it_ends():
    stream = WorkStream(lambda tell: [tell(number) for number in range(3)])
    assert list(stream) == [0, 1, 2]
    assert list(stream) == [], "however often it is asked"


def test_what_went_wrong_is_raised_where_it_is_told():
    def work(tell):
        tell("one")
        raise KeyError("two")

    stream = WorkStream(work)
    assert next(stream) == "one"
    with pytest.raises(KeyError, match="two"):
        next(stream)


def test_ctrl_c_is_passed_on_and_handlers_come_back():
    before = signal.getsignal(signal.SIGINT)
    asked, told = [], threading.Event()

    def work(tell):
        tell("begun")
        assert told.wait(10)
        tell("ended in order")

    def interrupt():
        asked.append(1)
        told.set()
        return len(asked)

    with interruptible(WorkStream(work, interrupt)) as stream:
        assert next(stream) == "begun"
        os.kill(os.getpid(), signal.SIGINT)
        assert list(stream) == ["ended in order"]
    assert (asked, signal.getsignal(signal.SIGINT)) == ([1], before)


def test_where_nothing_can_end_in_order_it_is_left_and_unwinds():
    may_go_on, unwound = threading.Event(), threading.Event()

    def work(tell):
        try:
            tell("begun")
            assert may_go_on.wait(10)
            tell("nobody hears this")
            tell("nor this")
        except BaseException:
            unwound.set()
            raise

    def ask():
        with interruptible(WorkStream(work)) as stream:
            assert next(stream) == "begun"
            os.kill(os.getpid(), signal.SIGINT)
            list(stream)

    with pytest.raises(KeyboardInterrupt):
        ask()
    may_go_on.set()
    assert unwound.wait(10)


class CountingController:
    def __init__(self):
        self.interrupts = 0

    def interrupt(self):
        self.interrupts += 1
        return self.interrupts


def test_a_run_is_asked_to_end_as_soon_as_it_has_a_controller():
    interrupts, first, second = RunInterrupts(), CountingController(), CountingController()
    assert interrupts.ask() == 1
    assert interrupts.ask() == 0, "nothing ends in order: who asks again does not wait"
    interrupts.started(first)
    assert first.interrupts == 1
    assert interrupts.ask() == 2
    interrupts.started(second)  # it goes on elsewhere
    assert (first.interrupts, second.interrupts) == (2, 0)
    assert interrupts.ask() == 3
    assert second.interrupts == 1


def test_what_another_thread_is_about_to_pass_on_ends_in_order():
    """Ctrl-C, as the controller begins: its thread takes it, and has not asked yet."""
    interrupts, controller = RunInterrupts(), CountingController()
    interrupts._waiting = Taken()
    interrupts._controllers.append(controller)
    assert interrupts.ask() == 1


class Taken(list):
    """All that is put in is taken by another thread at once."""

    def append(self, _):
        pass
