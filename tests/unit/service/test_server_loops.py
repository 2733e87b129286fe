"""Loops of a server: what goes wrong in one turn is logged, once, and the next one comes."""

from __future__ import annotations

import errno
import logging

import pytest

from trainmaster.service.server_loops import LoopErrorLog, is_passing
from trainmaster.spec.errors import StoreError


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.EIO, "what is wrong"),
        OSError(errno.ENOSPC, "what is wrong"),
        OSError(errno.EMFILE, "what is wrong"),
        StoreError("what is wrong", "Mend it."),
        RuntimeError("what is wrong"),
    ],
)
def test_a_loop_goes_on_and_says_once_why_a_turn_has_failed(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    errors, done = LoopErrorLog("quotes"), 0
    for number in range(6):
        with errors.caught():
            if number < 3:
                raise error
            done += 1
    assert done == 3
    told = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert ["what is wrong" in record.getMessage() for record in told] == [True]
    assert sum(record.getMessage() == "quotes: goes on" for record in caplog.records) == 1
    tracebacks = [record for record in caplog.records if record.exc_info]
    assert len(tracebacks) == isinstance(error, RuntimeError), "only of what may be a mistake of ours"


def test_who_is_to_end_ends() -> None:
    with pytest.raises(KeyboardInterrupt), LoopErrorLog("quotes").caught():
        raise KeyboardInterrupt


def test_only_what_this_machine_lacks_for_a_moment_passes() -> None:
    assert is_passing(OSError(errno.EMFILE, "Too many open files"))
    assert not is_passing(FileNotFoundError(errno.ENOENT, "No such file"))
    assert not is_passing(ValueError("x"))
