"""An object store that takes connections and answers nobody: it is told of soon, and holds nobody up."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from trainmaster.testing.private_s3 import NoS3Error, PrivateS3

#: Trains, leaves a model, and ends when the test lets it.
TRAIN = """
echo run >> $NOTES/ran
echo weights > $TRAINMASTER_OUTPUT_DIR/model.bin
while [ ! -e $NOTES/go ]; do sleep 0.05; done
"""


@pytest.fixture
def server(tm) -> Iterator[PrivateS3]:
    try:
        with PrivateS3() as found:
            tm.env |= found.environment()
            tm.env["TRAINMASTER_STORE"] = f"s3://{found.new_bucket()}/runs"
            yield found
            os.kill(found.pid, signal.SIGCONT)
    except NoS3Error as error:
        pytest.skip(str(error))


def trained_beside_silence(tm, server: PrivateS3):
    """A run whose training ends while the store says nothing any more."""
    call = tm.start("run", tm.task(TRAIN), "--json")
    tm.until_marks("ran")
    os.kill(server.pid, signal.SIGSTOP)
    (tm.notes / "go").touch()
    tm.until(lambda: "has not answered since" in call.err, call.err)
    return call


def test_it_is_told_and_saved_when_the_store_answers_again(tm, server):
    call = trained_beside_silence(tm, server)
    run = call.run_id()
    told = tm.call("status", run).out
    assert f"{run}: saving," in told
    assert "has not answered since" in told
    os.kill(server.pid, signal.SIGCONT)
    assert tm.summary(call.wait(0))["reason"] == "SUCCEEDED"
    assert tm.marks("ran") == ["run"], "trained once"


@pytest.mark.parametrize("interrupts", [pytest.param(1, marks=pytest.mark.crossings), 2])
def test_ctrl_c_ends_and_the_model_is_kept(tm, server, interrupts):
    call = trained_beside_silence(tm, server)
    for _ in range(interrupts):
        call.send(signal.SIGINT)
    ended = call.wait(130)
    assert f"trainmaster models save {call.run_id()}" in ended.err
    os.kill(server.pid, signal.SIGCONT)
    assert tm.resume(call.run_id())["reason"] == "SUCCEEDED"
    assert tm.marks("ran") == ["run"], "trained once"


def test_ctrl_c_while_its_last_model_is_saved_leaves_a_run_to_succeed(tm, server):
    call = tm.start("run", tm.task(TRAIN), "--json")
    tm.until_marks("ran")
    os.kill(server.pid, signal.SIGSTOP)
    (tm.notes / "go").touch()
    tm.until(lambda: "saving is late" in call.err, call.err)
    call.send(signal.SIGINT)
    tm.until(lambda: "stopping" in call.err, call.err)
    os.kill(server.pid, signal.SIGCONT)
    ended = call.wait(0)
    assert tm.summary(ended)["reason"] == "SUCCEEDED"
    assert "was interrupted" not in ended.err
