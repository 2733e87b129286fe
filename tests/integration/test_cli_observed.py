"""Observed, not guessed: what `status` says that members have used, and the samples below it."""

from __future__ import annotations

import json

import pytest

#: Member 0 receives, member 1 sends twelve megabytes in three seconds, and half of a core is kept busy.
TALK = """
import os, socket, time
address = ("127.0.0.1", int(os.environ["MASTER_PORT"]))
if os.environ["RANK"] == "0":
    connection, _ = socket.create_server(address).accept()
    while connection.recv(1 << 16):
        pass
    hoard = bytearray(b"x") * (100 << 20)
    time.sleep(1.2)
else:
    while True:
        try:
            connection = socket.create_connection(address)
            break
        except OSError:
            time.sleep(0.05)
    for _ in range(120):
        connection.sendall(bytes(100_000))
        time.sleep(0.025)
    connection.close()
    end = time.process_time() + 1
    while time.process_time() < end:
        pass
"""


@pytest.fixture
def talk(tm):
    tm.write("talk.py", TALK)
    return tm.task(
        "python talk.py", distributed={"strategy": "allreduce", "workers": 2}, framework="torchrun"
    )


def test_what_was_used(tm, talk):
    summary = tm.run(talk)
    run = summary["run"]
    usage = summary["experiments"]["main"]["usage"]
    receiver, sender = usage["members"]["worker-0"], usage["members"]["worker-1"]
    for member in (receiver, sender):
        assert 3 < member["seconds"] <= summary["seconds"]
    assert receiver["peak_rss_bytes"] > 100 << 20 > sender["peak_rss_bytes"]
    assert sender["cpu_seconds"] >= 1
    assert sender["cpu_share"] == pytest.approx(sender["cpu_seconds"] / sender["seconds"], rel=0.02)
    assert usage["cpu_seconds"] == pytest.approx(sender["cpu_seconds"] + receiver["cpu_seconds"], abs=0.01)
    assert usage["tasks"] == 1
    text = tm.call("status", run).out
    assert "main used: " in text
    assert " cores, " in text
    if "bytes_sent" not in sender:
        pytest.skip("this kernel or sandbox does not tell what TCP connections carry")
    assert 12_000_000 <= sender["bytes_sent"] <= 12_000_010, "SYN and FIN count as one each"
    assert 12_000_000 <= receiver["bytes_received"] <= 12_000_010
    assert receiver["bytes_sent"] < 10
    assert "MB/s out" in text


def test_samples_while_it_runs(tm, talk):
    call = tm.start("run", talk, "--json")
    run = call.run_id()
    path = tm.home / "runs" / run / "tasks" / "main" / "0" / "1" / "samples.jsonl"
    tm.until(lambda: path.exists() and path.read_bytes().count(b"\n") >= 5, "five lines")
    found = tm.status(run)["experiments"]["main"]
    assert found["usage"]["members"].keys() == {"worker-0", "worker-1"}
    call.wait(0)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for name in ("worker-0", "worker-1"):
        lines = [row for row in rows if row["member"] == name]
        assert lines[0]["processes"] > 0, "while it runs"
        assert lines[-1]["processes"] == 0, "its end"
        for key in ("seconds", "cpu_seconds", "peak_rss_bytes", "bytes_sent", "bytes_received"):
            values = [row[key] for row in lines]
            assert values == sorted(values, key=lambda value: value or 0), "totals never fall"


def test_short_tasks_have_no_usage(tm):
    run = tm.run(tm.task("true"))["run"]
    assert "usage" not in tm.status(run)["experiments"]["main"]
    assert "used:" not in tm.call("status", run).out
    assert not list((tm.home / "runs").rglob("samples.jsonl"))
