"""Two servers on one PostgreSQL: one goes on, once, with a run that drives itself and loses its machine."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from running_server import RunningServer

from trainmaster.service.on_cluster.driver_store import BEAT_S

pytest.importorskip("fastapi", reason="the extra `server` is not installed")
pytest.importorskip("boto3", reason="boto3 is not installed")

SCENES = Path(__file__).parents[1] / "unit/service/on_cluster"


@pytest.fixture
def scene(tm, postgres, tmp_path, monkeypatch):
    """A home whose run a machine drives."""
    monkeypatch.syspath_prepend(str(SCENES))
    from away_scene import Scene

    tm.env |= {
        "TRAINMASTER_DATABASE": postgres.new_url(),
        "TRAINMASTER_STORE": f"file://{tmp_path}/store",
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_ENDPOINT_URL": "http://127.0.0.1:9",  # nothing answers: who drives it rents nothing
    }
    found = Scene(tmp_path, monkeypatch, {**tm.env, "TRAINMASTER_HOME": str(tm.home)})
    yield found
    found.close()


@pytest.mark.parametrize("is_one_lost", [False, True], ids=["both are there", "one is lost"])
def test_a_run_that_lost_its_machine_is_gone_on_with_once(tm, scene, tmp_path, is_one_lost):
    (tmp_path / "other").mkdir()
    elsewhere = type(tm)(tmp_path / "other")  # a home of its own, on the same database
    elsewhere.env |= {name: value for name, value in tm.env.items() if name.startswith(("TRAIN", "AWS"))}
    elsewhere.env["TRAINMASTER_HOME"] = str(elsewhere.home)
    token = tm.call("token", "create", "ci", "--scopes", "admin", "--json").json["token"]
    one, two, other = servers = [RunningServer(user.start, token) for user in (tm, tm, elsewhere)]
    try:
        for server in servers:
            server.start()
        scene.hand_over(scene.begins)
        _, lease, publication = scene.drives(scene.drivers[-1])
        publication.begin()
        tm.until(lambda: two.ask("GET", f"/runs/{scene.run}")[1]["driver"], "its machine is heard of")
        if is_one_lost:
            one.process.kill()
        publication.on_sigterm()  # its machine goes, and says so
        scene.silence()
        tm.until(lambda: scene.row["away"] is None, "its home has it again")
        tm.until(lambda: scene.row["lease_token"] > lease.token, "it was driven from there")
        time.sleep(2 * BEAT_S)  # both have looked once more
        notes = [each["message"] for each in scene.home.events(scene.run) if each["kind"] == "note"]
        assert len([note for note in notes if "drives it from now on" in note]) == 1, notes
        late = tm.call("_drive", scene.run, "--lost")
        assert "another process has taken it back" in late.err
        assert scene.row["lease_token"] == lease.token + 1, "one has taken it, once"
        assert other.ask("GET", f"/runs/{scene.run}")[1]["state"] == "WAITING"
    finally:
        elsewhere.clean_up()
