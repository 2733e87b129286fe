"""`models fsck`: what the database promises is on the object store, or is named."""

from __future__ import annotations

import secrets

import pytest

from trainmaster.objects import ObjectStore
from trainmaster.testing.private_s3 import NoS3Error, PrivateS3

COMMAND = """
    echo weights > $TRAINMASTER_OUTPUT_DIR/model.bin
    echo state > $TRAINMASTER_CHECKPOINT_DIR/state
"""


@pytest.fixture(params=["file", pytest.param("s3", marks=pytest.mark.s3)])
def kept(request, tm, monkeypatch):
    """A run with a model and a checkpoint; its store."""
    if request.param == "file":
        tm.env["TRAINMASTER_STORE"] = f"file://{tm.root}/store"
        yield tm.run(tm.task(COMMAND)), ObjectStore(tm.env["TRAINMASTER_STORE"])
        return
    try:
        server = PrivateS3()
    except NoS3Error as error:
        pytest.skip(str(error))
    with server:
        tm.env |= server.environment()
        tm.env["TRAINMASTER_STORE"] = f"s3://{server.new_bucket()}/{secrets.token_hex(2)}"
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        yield tm.run(tm.task(COMMAND)), ObjectStore(tm.env["TRAINMASTER_STORE"])


def fsck(tm, *arguments, code=0):
    result = tm.call("models", "fsck", "--json", *arguments, code=code)
    return result.json, result.err


def key_of(store, name: str) -> str:
    (key,) = [info.key for info in store.list() if info.key.endswith(f"/{name}")]
    return key


def test_what_is_whole_and_what_is_not(tm, kept):
    summary, store = kept
    run = summary["run"]
    found, err = fsck(tm)
    assert found == {"models": 1, "checkpoints": 1, "damaged": [], "unnamed": [], "unread": []}
    assert "1 model, 1 checkpoint, 0 damaged" in err
    store.put(f"models/{run}/main/0/files-00000000/left", b"12345")
    found, err = fsck(tm, run)
    assert [(rest["uri"], rest["bytes"]) for rest in found["unnamed"]] == [
        (store.url_of(f"models/{run}/main/0"), 5)
    ]
    model, state = key_of(store, "model.bin"), key_of(store, "state")
    store.put(model, b"weightz\n")
    assert fsck(tm)[0]["damaged"] == [], "of the right size"
    found, err = fsck(tm, "--deep", code=1)
    (damage,) = found["damaged"]
    assert damage["uri"] == summary["models"][0]["uri"]
    assert "other bytes" in damage["fault"]
    assert "train it again" in damage["advice"]
    store.delete([model])
    store.put(state, b"s")
    found, err = fsck(tm, code=1)
    faults = sorted(damage["fault"] for damage in found["damaged"])
    assert "'model.bin' is missing" in faults[0]
    assert "'state' should have 6 bytes and has 1" in faults[1]
    assert err.count("damaged: ") == 2
    store.delete([f"models/{run}/main/0/manifest.json"])
    found, err = fsck(tm, code=1)
    assert "its manifest is missing" in err
    assert "'state'" in err


@pytest.mark.parametrize("kept", [pytest.param("s3", marks=pytest.mark.s3)], indirect=True)
def test_a_store_that_cannot_be_read_hides_nothing_of_the_others(tm, kept):
    unread = kept[0]["run"]
    tm.env["TRAINMASTER_STORE"] = f"file://{tm.root}/store"
    whole = tm.run(tm.task(COMMAND))["run"]
    tm.env["AWS_SECRET_ACCESS_KEY"] = "another"
    found, err = fsck(tm, code=1)
    assert (found["models"], [one["run"] for one in found["unread"]]) == (1, [unread])
    assert f"not looked at: {unread}: " in err
    assert "1 run not looked at" in err
    assert fsck(tm, whole)[0]["unread"] == []
