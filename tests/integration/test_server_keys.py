"""Another key for what is sealed, while a server has runs, webhooks and workflows that need it."""

from __future__ import annotations

import os
import sqlite3
import time
import urllib.error

import pytest
from running_server import RunningServer

from trainmaster.testing.waits import until

pytest.importorskip("fastapi", reason="the extra `server` is not installed")

NIGHTLY = "name: nightly\non: webhook\nexperiments: {main: {command: 'true'}}\n"
SECRETS = 200


@pytest.fixture
def server(tm):
    found = RunningServer(
        tm.start, tm.call("token", "create", "t", "--scopes", "read,run,manage,admin").out.strip()
    )
    found.start()
    yield found
    found.process.kill()


def sealed_with(tm):
    """How many secrets each key has sealed, the most first."""
    with sqlite3.connect(tm.home / "trainmaster.db", timeout=30) as database:
        found = database.execute(
            "SELECT substr(sealed, 1, 5), count(*) FROM team_secret GROUP BY 1"
        ).fetchall()
    return sorted((count for _, count in found), reverse=True)


def test_a_key_is_changed_below_a_live_server_and_kill_9(server, tm):
    workflow = server.ask("POST", "/workflows", {"recipe": NIGHTLY})[1]
    looked = server.ask("POST", "/doctor", {"places": ["hosts", "local"], "recipe": NIGHTLY})[1]
    found = {each["what"]: each for each in looked["findings"]}
    assert (looked["ok"], found["local: nightly"]["ok"], found["hosts: settings"]["ok"]) == (
        False,
        True,
        False,
    )
    assert "hosts:" in found["hosts: settings"]["advice"]
    tm.call("team", "create", "red")
    for number in range(SECRETS):
        server.open("PUT", f"/api/v1/secrets/S{number}?team=red", {"value": f"value-{number}"}).close()
    old, *_ = tm.call("server", "key", "--json").json["keys"]
    assert (old["seals"], old["values"]) == (True, SECRETS + 1)

    cut = 0
    for least in (1, 60, 120):  # each is killed somewhere else
        rotation = tm.start("server", "key", "rotate")
        until(lambda: rotation.over or sealed_with(tm)[-1] >= least, "some are sealed anew")  # noqa: B023
        cut += not rotation.over
        rotation.kill()
        server.open("PUT", "/api/v1/secrets/S0?team=red", {"value": "by a server that goes on"}).close()
    assert cut
    done = tm.call("server", "key", "rotate", "--json").json
    assert done["lost"] == []
    new, *others = tm.call("server", "key", "--json").json["keys"]
    assert (new["seals"], new["values"], {each["values"] for each in others}) == (True, SECRETS + 1, {0})
    assert old["key"] in [each["key"] for each in others]

    # The server goes on with what it has: nobody started it again.
    secret, hook = workflow["secret"], workflow["hook"]
    assert server.open("POST", hook, {}, Authorization=f"Bearer {secret}").status == 202
    with pytest.raises(urllib.error.HTTPError, match=r"401|403"):
        server.open("POST", hook, {}, Authorization="Bearer whsec_wrong")
    server.open("PUT", "/api/v1/secrets/TOLD?team=red", {"value": "a new one"}).close()
    assert tm.call("server", "key", "--json").json["keys"][0]["values"] == SECRETS + 2

    assert "changed a moment ago" in tm.call("server", "key", "drop", old["key"], code=2).err
    an_hour_ago = time.time() - 3600.0
    os.utime(tm.home / "server.key", (an_hour_ago, an_hour_ago))
    tm.call("server", "key", "drop", old["key"])
    assert old["key"] not in tm.call("server", "key").out
    tm.call("server", "key", "drop", new["key"], code=2)
