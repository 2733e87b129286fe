"""A finished model is never given up: the store refuses, or is away, and the run ends, waits or is killed."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from trainmaster.control.attempt import unpublished
from trainmaster.control.task.layout import Home
from trainmaster.db import queries
from trainmaster.service.models import unpublished_models
from trainmaster.service.service import Service
from trainmaster.testing.counting_proxy import CountingProxy
from trainmaster.testing.private_s3 import NoS3Error, PrivateS3
from trainmaster.testing.waits import until

#: Trains, leaves a model, and ends when the test lets it.
TRAIN = """
echo run >> $NOTES/ran
echo weights > $TRAINMASTER_OUTPUT_DIR/model.bin
while [ ! -e $NOTES/go ]; do sleep 0.05; done
"""


@pytest.fixture(scope="module")
def server() -> Iterator[PrivateS3]:
    try:
        with PrivateS3() as found:
            yield found
    except NoS3Error as error:
        pytest.skip(str(error))


@pytest.fixture
def store(server: PrivateS3, tm) -> Iterator[CountingProxy]:
    with CountingProxy(server.url) as proxy:
        tm.env |= server.environment(proxy.url)
        tm.env["TRAINMASTER_STORE"] = f"s3://{server.new_bucket()}/runs"
        yield proxy


def trained_while_refused(tm, store, code="ExpiredToken"):
    """A run whose training has ended, and whose model the store does not take."""
    call = tm.start("run", tm.task(TRAIN), "--json")
    tm.until_marks("ran")
    store.refuse(code)
    (tm.notes / "go").touch()
    tm.until(lambda: "saving is tried again" in call.err, call.err)
    return call


def model_of(tm, run):
    (model,) = tm.status(run)["models"]
    tm.call("models", "get", model["uri"], tm.root / "got")
    return (tm.root / "got" / "model.bin").read_text()


@pytest.mark.parametrize("code", ["ExpiredToken", "AccessDenied", "RequestTimeTooSkewed"])
def test_a_model_waits_for_credentials(tm, store, code):
    call = trained_while_refused(tm, store, code)
    run = call.run_id()
    assert code in call.err
    assert str(tm.home / "runs" / run) in call.err, "where it is"
    (unsaved,) = tm.status(run)["unsaved"]
    assert (unsaved["experiment"], unsaved["task"], unsaved["what"]) == ("main", 0, "model")
    store.refusal = None
    assert tm.summary(call.wait(0))["reason"] == "SUCCEEDED"
    assert model_of(tm, run) == "weights\n"
    assert tm.marks("ran") == ["run"], "trained once"
    assert "unsaved" not in tm.status(run)


def test_a_driver_that_is_killed_while_a_model_waits_loses_nothing(tm, store):
    call = trained_while_refused(tm, store)
    run = call.run_id()
    call.kill()
    call = tm.start("resume", run, "--json")
    tm.until(lambda: "saving is tried again" in call.err, call.err)
    store.refusal = None
    assert tm.summary(call.wait(0))["reason"] == "SUCCEEDED"
    assert model_of(tm, run) == "weights\n"
    assert tm.marks("ran") == ["run"]


@pytest.mark.parametrize(
    ("verb", "how"),
    [
        (("models", "save"), "Ctrl-C"),
        (("resume",), "cancel"),
        pytest.param(("models", "save"), "cancel", marks=pytest.mark.crossings),
        pytest.param(("resume",), "Ctrl-C", marks=pytest.mark.crossings),
    ],
)
def test_a_run_that_is_ended_keeps_its_model_here_and_saves_it_later(tm, store, how, verb):
    call = trained_while_refused(tm, store)
    run = call.run_id()
    if how == "Ctrl-C":
        call.send(signal.SIGINT)
    else:
        tm.call("cancel", run)
    ended = call.wait()
    assert ended.code == (130 if how == "Ctrl-C" else 1)
    assert f"trainmaster models save {run}" in ended.err
    (unsaved,) = tm.status(run)["unsaved"]
    assert unsaved["command"] == f"trainmaster models save {run}"
    unpublished_models = tm.home / "runs" / run / "tasks" / "main" / "0" / "1" / "output"
    assert unsaved["directory"] == str(unpublished_models)
    assert (unpublished_models / "model.bin").read_text() == "weights\n"
    assert str(unpublished_models) in tm.call("status", run).out

    refused = tm.call(*verb, run, code=1)
    assert "ExpiredToken" in refused.err
    assert tm.status(run)["unsaved"] == [unsaved], "nothing is lost by trying"
    store.refusal = None
    assert "saved: model main/0" in tm.call(*verb, run).err
    summary = tm.status(run)
    assert (summary["reason"], "unsaved" in summary) == ("SUCCEEDED", False)
    assert summary["experiments"]["main"]["tasks"]["succeeded"] == 1
    assert model_of(tm, run) == "weights\n"
    assert tm.marks("ran") == ["run"]
    assert not unpublished_models.exists(), "it is in the store"
    assert "nothing is kept" in tm.call("models", "save", run).err


def test_what_hung_on_a_kept_model_goes_on_with_resume(tm, store):
    recipe = tm.recipe(
        {
            "name": "job",
            "experiments": {
                "train": {"command": TRAIN},
                "test": {
                    "command": "cat $TRAINMASTER_DATA_MODEL/model.bin",
                    "data": {"model": {"from": "train"}},
                },
            },
        }
    )
    call = tm.start("run", recipe, "--json")
    tm.until_marks("ran")
    store.refuse("ExpiredToken")
    (tm.notes / "go").touch()
    tm.until(lambda: "saving is tried again" in call.err, call.err)
    run = call.run_id()
    tm.call("cancel", run)
    call.wait(1)
    store.refusal = None
    assert tm.resume(run)["reason"] == "SUCCEEDED"
    assert tm.marks("ran") == ["run"]
    assert "weights" in tm.logs(run)


def test_a_kept_model_that_was_removed_is_trained_again(tm, store):
    call = trained_while_refused(tm, store)
    run = call.run_id()
    tm.call("cancel", run)
    call.wait(1)
    store.refusal = None
    (tm.home / "runs" / run / "tasks" / "main" / "0" / "1" / "output" / "model.bin").unlink()
    assert tm.resume(run)["reason"] == "SUCCEEDED"
    assert tm.marks("ran") == ["run", "run"]


def test_the_next_attempt_goes_on_from_a_checkpoint_that_could_not_be_published(tm, store):
    recipe = tm.task(
        """
        cd $TRAINMASTER_CHECKPOINT_DIR
        echo "$TRAINMASTER_ATTEMPT: $(cat step 2>/dev/null)" >> $NOTES/ran
        if [ $TRAINMASTER_ATTEMPT = 1 ]; then
            echo 41 > step
            while [ ! -e $NOTES/go ]; do sleep 0.05; done
            exit 3
        fi
        cp step $TRAINMASTER_OUTPUT_DIR/model.bin
        """,
        retries=1,
    )
    call = tm.start("run", recipe, "--json")
    tm.until_marks("ran")
    store.refuse("ExpiredToken")
    (tm.notes / "go").touch()
    tm.until_marks("ran", 2)
    assert tm.marks("ran") == ["1: ", "2: 41"], "while nobody could publish or read anything"
    store.refusal = None
    assert tm.summary(call.wait(0))["reason"] == "SUCCEEDED"
    assert model_of(tm, call.run_id()) == "41\n"


def test_many_kept_models_are_saved_under_a_lease_that_is_renewed(tm, store, monkeypatch):
    """More than are read at once; and each takes longer than a lease would last by itself."""
    recipe = tm.task(TRAIN, parameters={"x": [1, 2]})
    call = tm.start("run", recipe, "--json")
    tm.until_marks("ran", 2)
    store.refuse("ExpiredToken")
    (tm.notes / "go").touch()
    run = call.run_id()
    tm.until(lambda: len(tm.status(run).get("unsaved", ())) == 2, call.err)
    call.send(signal.SIGINT)
    call.wait(130)
    store.refusal = None

    for name, value in tm.env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(queries, "_MOST", 1)
    monkeypatch.setattr(unpublished_models, "RENEW_S", 0.01)
    service = Service(Home.from_environment(tm.env))
    expires = []

    def publish(context, metrics):
        row = service.database.run_row(run)
        until(lambda: service.database.run_row(run)["lease_expires_at"] > row["lease_expires_at"], "renewed")
        expires.append(context.task)
        return publish_kept(context, metrics)

    publish_kept = unpublished.publish_kept
    monkeypatch.setattr(unpublished, "publish_kept", publish)
    saved = service.save_kept(run)
    assert [model.name for model in saved] == ["main/0", "main/1"]
    assert sorted(expires) == [0, 1]
    assert tm.status(run)["reason"] == "SUCCEEDED"
