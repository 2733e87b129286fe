"""Workflows over REST: kept, started by volumes and webhooks, once each; what starts nothing is told."""

from __future__ import annotations

import json
import threading
import time

import pytest
import sqlalchemy as sa

pytest.importorskip("fastapi", reason="the extra `server` is not installed")
pytest.importorskip("cronsim", reason="the extra `server` is not installed")
pytest.importorskip("pyarrow", reason="the extra `volumes` is not installed")

from served_home import Served

from trainmaster.cli.workflows import _last
from trainmaster.db import tables as t
from trainmaster.db import workflow_rows as rows
from trainmaster.service.notifications.webhooks import signature
from trainmaster.service.runs.lineage import lineage
from trainmaster.service.volumes import push
from trainmaster.service.workflows.triggers import LOOK_S, Triggers
from trainmaster.spec.errors import PublishError, StoreError
from trainmaster.spec.states import EndReason

RECIPE = "name: {name}\non: {on}\n{more}experiments:\n  main:\n    command: '{command}'\n"


@pytest.fixture
def served(tmp_path, monkeypatch):
    """What its owner runs there may be on the machine itself, as where there are no teams."""
    found = Served(tmp_path)
    monkeypatch.setattr(found.state.submissions, "is_shared", lambda caller: caller.team is not None)
    yield found
    found.service.close()


@pytest.fixture
def ask(served):
    def ask(method, path="", body=None, who="owner", **more):
        answer = served.ask(who, method, f"/api/v1{path}", json=body, **more)
        return answer.status_code, answer.json() if answer.content else None

    return ask


@pytest.fixture
def look(served):
    """Two servers look, one after the other, as often as it takes."""
    servers = [
        served.state.triggers,
        Triggers(served.service, served.state.submissions, served.state.environ),
    ]

    def look():
        for server in servers * 2:
            server.look()

    return look


@pytest.fixture
def pets(served, tmp_path):
    """A new version of a volume of the owner."""

    def make(name="pets", **more):
        folder = tmp_path / "files"
        folder.mkdir(exist_ok=True)
        (folder / "a.txt").write_text(str(time.time_ns()))
        return push(folder, f"{served.service.home.store_url}/volumes/{name}", cache=tmp_path / "c", **more)

    return make


def test_a_trigger_that_breaks_holds_up_no_others(served, ask, look, caplog):
    for name, zone in (("a", "UTC"), ("b", "Europe/Berlin")):
        on = f"{{schedule: '0 3 * * *', timezone: {zone}}}"
        assert ask("POST", "/workflows", recipe(on, name))[0] == 201
    gone = t.workflow_trigger.update().where(t.workflow_trigger.c.key.contains("UTC"))
    served.service.database.write(lambda connection, _: connection.execute(gone.values(data="{}x")))
    assert ask("POST", "/workflows/b/trigger")[0] == 202
    look()
    assert ask("GET", "/workflows/b")[1]["last"]["state"] == "STARTED"
    assert "schedule 0 3 * * * UTC of a cannot be looked at" in caplog.text


def test_the_time_of_a_schedule_is_not_waited_past(served, ask, monkeypatch):
    minute, triggers = 1_800_000_000 // 60 * 60, served.state.triggers
    clock = [minute + 30.0]
    monkeypatch.setattr(type(served.service.database), "clock_s", lambda _: clock[0])
    for name, on in (("a", "{schedule: '* * * * *'}"), ("b", "{schedule: '0 3 1 1 *'}")):
        assert ask("POST", "/workflows", recipe(on, name))[0] == 201
    triggers.look()
    assert triggers.pause_s() == LOOK_S
    clock[0] = minute + 59.75
    assert triggers.pause_s() == 0.25
    clock[0] = minute + 60.0
    assert triggers.pause_s() == 0
    triggers.look()
    assert ask("GET", "/workflows/a")[1]["last"]["state"] == "STARTED"
    assert triggers.pause_s() == LOOK_S


def recipe(on, name="nightly", more="", command="true"):
    return {"recipe": RECIPE.format(name=name, on=on, more=more, command=command)}


def end(served, run):
    """As its driver would."""
    from trainmaster.db import RunChange
    from trainmaster.spec.states import State

    database = served.service.database
    lease = database.acquire(run, time.time())
    database.commit(lease, [RunChange(State.WAITING, State.DONE, EndReason.SUCCEEDED)], time.time())
    database.release(lease, time.time())


def test_new_versions_of_a_volume_start_a_run_each_and_a_late_one_waits(served, ask, look, pets):
    pets()
    data = "    data: {pets: {volume: pets}}\n"
    body = recipe("{volume: pets}")
    body["recipe"] += data
    code, found = ask("POST", "/workflows", body)
    assert (code, found["new"], found["on"][0]["seen"]) == (201, True, 1.0)
    look()
    assert ask("GET", "/workflows/nightly")[1]["history"] == [], "what was there before starts nothing"
    pets()
    look()
    (start,) = ask("GET", "/workflows/nightly")[1]["history"]
    assert (start["state"], start["cause"], start["run_state"]) == ("STARTED", "pets@2", "WAITING")
    run = start["run"]
    stored = json.loads(served.service.database.run_row(run)["recipe"])
    assert stored["experiments"]["main"]["data"]["pets"]["volume"] == "pets@2"
    messages = [event["message"] for event in ask("GET", f"/runs/{run}/events")[1]["events"]]
    assert "started by workflow nightly: volume pets, pets@2" in messages
    pets()
    look()
    pets()
    look()
    second, first, _ = ask("GET", "/workflows/nightly")[1]["history"]
    assert (first["state"], first["message"]) == ("SKIPPED", "pets@4 came before it could start")
    assert second["state"] == "WAITING"
    end(served, run)
    look()
    last = ask("GET", "/workflows/nightly")[1]["last"]
    assert (last["state"], last["cause"]) == ("STARTED", "pets@4")
    assert last["run"] != run


def test_what_comes_while_no_server_looks_starts_one_run_of_the_newest(ask, look, pets):
    ask("POST", "/workflows", recipe("{volume: pets}"))
    for _ in range(3):
        pets()
    look()
    (start,) = ask("GET", "/workflows/nightly")[1]["history"]
    assert (start["cause"], start["state"]) == ("pets@3", "STARTED")
    assert start["message"] == "versions 1, 2 were skipped: 3 is newer"


def test_a_version_that_a_run_of_it_has_made_starts_nothing_and_says_why(served, ask, look, pets):
    ask("POST", "/workflows", recipe("{volume: pets}"))
    cleaning = recipe("{volume: raw}", "cleaning")
    pets("raw", made_by="unknown")
    cleaning["recipe"] += "    data: {raw: {volume: raw}}\n"
    ask("POST", "/workflows", cleaning)
    pets()
    look()
    run = ask("GET", "/workflows/nightly")[1]["last"]["run"]
    pets("raw", made_by=run)
    look()
    found = ask("GET", "/workflows/cleaning")[1]["last"]
    assert found["state"] == "STARTED"
    start = {"workflow": "cleaning", "trigger": "volume raw", "cause": "raw@2"}
    assert ask("GET", f"/runs/{found['run']}")[1]["workflow"] == start
    made = lineage(served.service, found["run"], "main", 0)
    assert (made["workflow"], made["data"][0]["made_by"]) == (start, run)
    assert "newest" not in made["data"][0]
    pets("raw", made_by="unknown")
    (newer,) = lineage(served.service, found["run"], "main", 0)["data"]
    assert (newer["source"], newer["made_by"], newer["newest"]) == ("raw@2", run, 3)
    assert "Started by workflow" in served.ask("owner", "GET", f"/runs/{found['run']}").text
    pets("pets", made_by=found["run"])
    look()
    last = ask("GET", "/workflows/nightly")[1]["last"]
    assert (last["state"], last["run"]) == ("REFUSED", None)
    assert last["message"].startswith("a loop: nightly -> cleaning -> nightly")


def test_a_loop_that_the_recipes_tell_of_is_refused_at_once(ask):
    pushes = "trainmaster volume push out pets"
    code, problem = ask("POST", "/workflows", recipe("{volume: pets}", command=pushes))
    assert (code, "a loop: nightly -> nightly" in problem["title"]) == (422, True)
    assert ask("POST", "/workflows", recipe("{volume: raw}", "cleaning", command=pushes))[0] == 201
    back = recipe("{volume: pets}", command="trainmaster volume push x raw")
    assert "nightly -> cleaning -> nightly" in ask("POST", "/workflows", back)[1]["title"]


def test_a_webhook_starts_a_run_once_for_each_id_if_it_is_signed(served, ask, look):
    code, found = ask("POST", "/workflows", recipe("[webhook, {schedule: '0 3 * * *'}]"))
    secret, hook = found["secret"], found["hook"].removeprefix("/api/v1")
    assert (code, len(found["on"][1]["next"])) == (201, 3)
    again = ask("POST", "/workflows", recipe("webhook"))
    assert (again[0], "secret" in again[1], again[1]["revision"]) == (200, False, 2)

    def send(name, key=secret, at=None, body=b"{}", **more):
        at = int(served.service.database.clock_s() if at is None else at)
        headers = {"webhook-id": name, "webhook-timestamp": str(at)}
        headers["webhook-signature"] = f"v1,AAAA {signature(key, name, at, b'{}')}"
        answer = served.ask(None, "POST", f"/api/v1{hook}", content=body, headers=headers | more)
        return answer.status_code, answer.json()

    assert send("m-1") == (202, {"workflow": "nightly", "id": "m-1", "starts": True})
    assert send("m-1")[1]["starts"] is False
    look()
    assert [each["cause"] for each in ask("GET", "/workflows/nightly")[1]["history"]] == ["m-1"]
    assert send("m-2", body=b"{ }")[0] == 401, "another body was signed"
    assert send("m-2", at=5)[0] == 401, "it is old"
    assert send("m-2", "whsec_" + "A" * 43 + "=")[0] == 401
    assert served.ask(None, "POST", "/api/v1/hooks/wf-0").status_code == 401
    bearer = {"authorization": f"Bearer {secret}"}
    assert served.ask(None, "POST", f"/api/v1{hook}", headers=bearer).json()["starts"]
    new = ask("POST", "/workflows/nightly/secret")[1]["secret"]
    assert (send("m-3")[0], send("m-3", new)[0]) == (401, 202)
    ask("POST", "/workflows/nightly/pause")
    assert send("m-4", new)[1]["starts"] is False
    audit = served.ask("admin", "GET", "/api/v1/audit").json()
    assert any(each["name"] == "webhook of nightly" for each in audit["audit"])


def test_it_is_paused_resumed_started_by_hand_and_removed(ask, look, pets):
    ask("POST", "/workflows", recipe("{volume: pets}"))
    assert ask("POST", "/workflows/nightly/pause")[1]["state"] == "PAUSED"
    pets()
    look()
    assert ask("POST", "/workflows/nightly/resume")[1]["history"] == []
    look()
    assert ask("GET", "/workflows/nightly")[1]["history"] == [], "what came meanwhile is passed over"
    for _ in range(2):
        assert ask("POST", "/workflows/nightly/trigger", headers={"Idempotency-Key": "k"})[0] == 202
    look()
    (start,) = ask("GET", "/workflows/nightly")[1]["history"]
    assert (start["trigger"], start["state"]) == ("by hand", "STARTED")
    assert ask("DELETE", "/workflows/nightly")[0] == 204
    assert ask("GET", "/workflows/nightly")[0] == 404
    assert ask("GET", f"/runs/{start['run']}")[0] == 200


@pytest.mark.parametrize("end", ["was revoked", "has expired"])
def test_who_may_not_run_any_more_starts_nothing(served, ask, look, end):
    made = served.state.access.create_token("passing", ["read", "run"], lasts_s=3600.0)["token"]
    served.tokens["passing"] = made
    ask("POST", "/workflows", recipe("webhook"), "passing")
    if end == "was revoked":
        served.state.access.revoke_token("passing")
    else:
        over = t.token.update().where(t.token.c.name == "passing").values(expires_at=0.0)
        served.service.database.write(lambda connection, _: connection.execute(over))
    code, problem = ask("POST", "/workflows/nightly/trigger")
    assert (code, f"nightly may start nothing: the token passing {end}" in problem["title"]) == (422, True)
    look()
    last = ask("GET", "/workflows/nightly")[1]["last"]
    assert last["state"] == "REFUSED"
    assert f"{end}: take it over or register it again" in last["message"]


@pytest.mark.parametrize(("end", "state"), [("was revoked", "PAUSED"), ("has expired", "ENABLED")])
def test_a_token_of_an_account_that_ends_takes_its_workflows_along(
    served, ask, look, monkeypatch, end, state
):
    """Who revokes a token that was found by somebody else is rid of what that one has registered."""
    monkeypatch.setattr(served.state.submissions, "is_shared", lambda _: False)
    ask("PUT", "/teams", {"team": "red"}, "admin")
    access = served.state.access
    served.state.accounts.create_user("ann")
    served.state.accounts.set_member("red", "ann", "member")
    made = access.create_token("leaked", ["read", "run"], "red", 3600.0, account="ann")
    served.tokens["ann"] = made["token"]
    assert ask("POST", "/workflows", recipe("webhook"), "ann")[0] == 201
    if end == "was revoked":
        code, answer = ask("DELETE", "/tokens/leaked", who="admin")
        assert (code, answer) == (200, {"paused_workflows": ["nightly"]})
        assert access.revoke_token("leaked") == ["nightly"], "also when it is done again"
    else:
        over = t.token.update().where(t.token.c.name == "leaked").values(expires_at=0.0)
        served.service.database.write(lambda connection, _: connection.execute(over))
    (row,) = served.service.database.read(sa.select(t.workflow))
    assert (row["state"], row["account"], row["token"]) == (state, "ann", "leaked")
    look()
    found = ask("GET", "/workflows/nightly", who="red-user")[1]
    assert (found["state"], len(found["history"])) == ("PAUSED", 1)
    assert found["last"]["message"] == f"the token leaked {end}: take it over or register it again"


@pytest.mark.parametrize(
    ("end", "why"),
    [
        (lambda at: at.accounts.remove_member("red", "ann"), "ann is not in team red any more"),
        (lambda at: at.accounts.set_member("red", "ann", "viewer"), "ann may not send, approve or end runs"),
        (lambda at: at.accounts.change_user("ann", is_disabled=True), "ann may not use this server any more"),
    ],
)
def test_a_workflow_is_paused_with_its_registrants_right_and_goes_on_with_it(served, ask, look, end, why):
    served.state.access.make_team("red", 100.0)
    served.state.accounts.create_user("ann")
    served.state.accounts.set_member("red", "ann", "member")
    served.tokens["ann"] = served.state.access.create_token("anns", ["read", "run"], "red", account="ann")[
        "token"
    ]
    hook = {"target": "https://example.org/", "topics": ["workflow.refused"]}
    hook = ask("POST", "/webhooks", hook, "red-manage")[1]["id"]
    body = recipe("webhook", more="provider: lab\n") | {"max_usd": 5}
    assert ask("POST", "/workflows", body, "ann")[0] == 201
    look()
    assert ask("GET", "/workflows/nightly", who="red-user")[1]["state"] == "ENABLED"
    end(served.state)
    look()
    found = ask("GET", "/workflows/nightly", who="red-user")[1]
    assert (found["state"], found["last"]["state"]) == ("PAUSED", "REFUSED")
    again = f"{why}: take it over or register it again"
    assert (len(found["history"]), found["last"]["message"]) == (1, again)
    told = ask("GET", f"/webhooks/{hook}/deliveries", who="red-manage")[1]["deliveries"]
    assert [each["topic"] for each in told] == ["workflow.refused"]
    for verb in ("trigger", "resume"):
        code, problem = ask("POST", f"/workflows/nightly/{verb}", who="red-user")
        assert (code, f"nightly may start nothing: {why}" in problem["title"]) == (422, True)
    served.state.accounts.change_user("ann", is_disabled=False)
    served.state.accounts.set_member("red", "ann", "member")
    assert ask("POST", "/workflows/nightly/resume", who="red-user")[1]["state"] == "ENABLED"
    look()
    ask("POST", "/workflows/nightly/trigger", who="red-user")
    look()
    found = ask("GET", "/workflows/nightly", who="red-user")[1]
    assert (found["state"], "register it again" in found["last"]["message"]) == ("ENABLED", False)


def test_a_workflow_may_no_more_than_its_token(served, ask, look):
    """Whoever has no right to run anything registers nothing; a token for less binds what it has made."""
    from trainmaster.service.users.caller import Creator
    from trainmaster.service.workflows.triggers import registrants

    served.state.accounts.create_user("ann", is_admin=True)
    made = {"registered_by": "ann", "account": "ann", "token": None, "team": "red"}
    (who,) = registrants(served.service.database, [made])
    assert (who.name, who.team, who.scopes) == ("ann", "red", {"read", "run"})
    for scopes, allowed in ((["read"], None), (["run"], {"run"}), (["admin"], {"read", "run"})):
        name = "-".join(scopes)
        served.state.access.create_token(name, scopes, "red", account="ann")
        (who,) = registrants(served.service.database, [{**made, "token": name}])
        refused = "ann may not send, approve or end runs: take it over or register it again"
        assert (who == refused) is (allowed is None)
        assert allowed is None or who.scopes == allowed
    maker = Creator("ann", "ann", "no-such", "red")
    (error,) = served.state.access.left_by([maker]).values()
    assert "no-such is not known" in str(error)


def test_what_is_no_workflow_is_refused_with_what_to_do(served, ask):
    assert ask("POST", "/workflows", {"recipe": "name: x\nexperiments: {a: {command: x}}\n"})[0] == 422
    code, problem = ask("POST", "/workflows", recipe("{volume: pets}", command="python train.py"))
    assert (code, "no train.py as no code was sent" in json.dumps(problem)) == (422, True), (
        "not at each start"
    )
    code, problem = ask("POST", "/runs", recipe("webhook"))
    assert (code, "POST /api/v1/workflows" in problem["hint"]) == (422, True)
    body = recipe("webhook", more="provider: lab\n")
    code, problem = ask("POST", "/workflows", body, "red-user")
    assert (code, "was not agreed to" in problem["title"]) == (422, True)
    several = recipe("webhook", more="provider: [hosts, lab]\n")
    code, problem = ask("POST", "/workflows", several)
    assert (code, "machines of lab, which was not agreed to" in problem["title"]) == (422, True), problem
    assert ask("POST", "/workflows", body | {"max_usd": 5}, "red-user")[0] == 201
    assert ask("GET", "/workflows/nightly", who="blue-user")[0] == 404
    assert ask("GET", "/workflows", who="blue-user")[1] == {"workflows": []}
    assert len(ask("GET", "/workflows", who="red-read")[1]["workflows"]) == 1


def test_a_start_that_the_budget_refuses_is_told_and_the_next_one_tries_again(served, ask, look):
    hook = {"target": "https://example.org/", "topics": ["workflow.refused"]}
    made = ask("POST", "/webhooks", hook, "red-manage")[1]["id"]
    served.state.access.make_team("red", 1.0)
    body = recipe("webhook", more="provider: lab\n") | {"max_usd": 5}
    assert ask("POST", "/workflows", body, "red-user")[0] == 201
    for _ in range(2):
        ask("POST", "/workflows/nightly/trigger", who="red-user")
        look()
    history = ask("GET", "/workflows/nightly", who="red-user")[1]["history"]
    assert [each["state"] for each in history] == ["REFUSED", "REFUSED"]
    told = ask("GET", f"/webhooks/{made}/deliveries", who="red-manage")[1]["deliveries"]
    assert [each["topic"] for each in told] == ["workflow.refused"] * 2


@pytest.mark.parametrize("concurrency", ["skip", "cancel"])
def test_a_start_while_a_run_is_under_way(served, ask, look, concurrency):
    ask("POST", "/workflows", recipe("webhook", more=f"concurrency: {concurrency}\n"))
    ask("POST", "/workflows/nightly/trigger")
    look()
    run = ask("GET", "/workflows/nightly")[1]["under_way"][0]
    ask("POST", "/workflows/nightly/trigger")
    look()
    last = ask("GET", "/workflows/nightly")[1]["last"]
    if concurrency == "skip":
        assert (last["state"], last["message"]) == ("SKIPPED", f"{run} was under way")
        return
    assert (last["state"], last["message"]) == ("WAITING", f"waits for the end of {run}")
    assert served.service.database.stop_wanted(run) is EndReason.CANCELLED
    end(served, run)
    look()
    assert ask("GET", "/workflows/nightly")[1]["last"]["state"] == "STARTED"


@pytest.mark.parametrize(
    ("can_move", "says"),
    [(False, "only the server of {home} goes on with it or ends it (it runs on local, which only that "),
     (True, "the next server goes on with it within a minute")],
)  # fmt: skip
def test_a_start_that_waits_for_a_run_whose_server_was_killed_says_so(served, ask, look, can_move, says):
    ask("POST", "/workflows", recipe("webhook"))
    ask("POST", "/workflows/nightly/trigger")
    look()
    run, database = ask("GET", "/workflows/nightly")[1]["under_way"][0], served.service.database
    gone = {
        "lease_owner": "another/1:2:3",
        "lease_expires_at": 1.0,
        "can_move": can_move,
        "home": "/its/home",
    }
    left = t.run.update().where(t.run.c.id == run).values(**gone)
    database.write(lambda connection, _: connection.execute(left))
    ask("POST", "/workflows/nightly/trigger")
    look()
    shown, (listed,) = ask("GET", "/workflows/nightly")[1], ask("GET", "/workflows")[1]["workflows"]
    words = f"waits for the end of {run}, which no process drives: {says.format(home='/its/home')}"
    for start in (shown["last"], shown["history"][0], listed["last"]):
        assert start["state"] == "WAITING"
        assert start["message"].startswith(words)
        assert f"by hand: waiting ({words}" in _last(start), "the command line's line"
    assert words in served.ask("owner", "GET", "/workflows/nightly").text
    assert words in served.ask("owner", "GET", "/workflows").text


def test_a_server_with_another_key_tells_nobody_why_it_cannot_check(served, ask):
    found = ask("POST", "/workflows", recipe("webhook"))[1]
    (served.service.home.root / "server.key").unlink()
    answer = served.ask(None, "POST", found["hook"], headers={"authorization": f"Bearer {found['secret']}"})
    assert (answer.status_code, "key" in answer.text) == (503, False)


def test_what_passes_by_itself_is_tried_again(served, ask, look, monkeypatch):
    from trainmaster.spec.errors import ProviderError

    def away(*_, **__):
        raise ProviderError("the provider is away", "wait")

    ask("POST", "/workflows", recipe("webhook"))
    ask("POST", "/workflows/nightly/trigger")
    with monkeypatch.context() as patch:
        patch.setattr(served.state.submissions, "submit", away)
        look()
    last = ask("GET", "/workflows/nightly")[1]["last"]
    assert (last["state"], last["message"]) == ("WAITING", "tried again: the provider is away. wait")
    now = served.service.database.clock_s()
    monkeypatch.setattr(served.service.database, "clock_s", lambda *_: now + 6.0)
    look()
    last = ask("GET", "/workflows/nightly")[1]["last"]
    assert last["state"] == "STARTED"


def test_a_mistake_of_ours_ends_a_start_and_is_told(served, ask, look, monkeypatch, caplog):
    def broken(*_, **__):
        raise KeyError("no such thing")

    ask("POST", "/workflows", recipe("webhook"))
    ask("POST", "/workflows/nightly/trigger")
    monkeypatch.setattr(served.state.submissions, "submit", broken)
    look()
    (start,) = ask("GET", "/workflows/nightly")[1]["history"]
    assert (start["state"], start["message"]) == ("REFUSED", "internal error: KeyError: 'no such thing'")
    assert "nightly could not be started" in caplog.text


def test_a_store_that_is_away_holds_up_no_other_workflow_and_is_told(served, ask, look, monkeypatch, caplog):
    def away(*_):
        raise PublishError("the store is away", "wait")

    caplog.set_level("INFO", "trainmaster")
    ask("POST", "/workflows", recipe("{volume: pets}", "a"))
    ask("POST", "/workflows", recipe("webhook", "b"))
    ask("POST", "/workflows/b/trigger")
    monkeypatch.setattr("trainmaster.service.workflows.triggers.head_numbers", away)
    look()
    assert ask("GET", "/workflows/b")[1]["last"]["state"] == "STARTED"
    told = [each.message for each in caplog.records if each.name == "trainmaster.service.workflows.triggers"]
    assert set(told) == {"volume pets of a: the store is away. wait"}


def test_a_database_that_is_away_ends_a_look_with_all_that_was_left(served, ask, monkeypatch):
    asked = []

    def away(*_):
        asked.append("fire")
        raise StoreError("the database is away", "wait")

    for name in ("a", "b"):
        ask("POST", "/workflows", recipe("{schedule: '0 3 * * *'}", name))
    now = served.service.database.clock_s()
    monkeypatch.setattr(served.service.database, "clock_s", lambda *_: now + 86400.0)
    monkeypatch.setattr("trainmaster.db.workflow_rows.fire", away)
    with pytest.raises(StoreError):
        served.state.triggers.look()
    assert asked == ["fire"], "nothing else is asked of it, and nothing is logged as a mistake"


def test_after_it_was_stopped_no_look_goes_on(served, monkeypatch):
    triggers, steps, looks = Triggers(served.service, served.state.submissions, {}), [], threading.Event()

    def look():
        looks.set()
        triggers._over.wait(60)
        steps.append(rows.enabled(served.service.database))

    monkeypatch.setattr(triggers, "look", look)
    triggers.start()
    assert looks.wait(60)
    assert triggers._thread.daemon, "a server that is killed waits for none"
    triggers.stop()
    assert steps == [[]]
    with pytest.raises(RuntimeError, match="after shutdown"):
        triggers._pool.submit(look)
    Triggers(served.service, served.state.submissions, {}).stop()  # one that never began has nothing to stop


def test_what_was_missed_and_is_not_made_up_for_is_looked_at_once(served, ask, monkeypatch):
    day, triggers = 1_800_000_000 // 86400 * 86400, served.state.triggers
    clock = [float(day)]
    monkeypatch.setattr(type(served.service.database), "clock_s", lambda _: clock[0])
    assert ask("POST", "/workflows", recipe("{schedule: '0 3 * * *', catch_up: false}"))[0] == 201
    clock[0] += 4 * 3600
    triggers.look()
    found = ask("GET", "/workflows/nightly")[1]
    assert (found["history"], found["on"][0]["seen"]) == ([], day + 3 * 3600.0)


def test_a_schedule_goes_on_after_a_clock_was_ahead(served, ask, monkeypatch):
    day, triggers = 1_800_000_000 // 86400 * 86400, served.state.triggers
    clock = [float(day)]
    monkeypatch.setattr(type(served.service.database), "clock_s", lambda _: clock[0])
    assert ask("POST", "/workflows", recipe("{schedule: '0 * * * *'}"))[0] == 201
    for clock[0] in (day + 86460.0, day + 1800.0, day + 3600.0):
        triggers.look()
    found = ask("GET", "/workflows/nightly")[1]
    assert {each["at"] for each in found["history"]} == {day + 86460.0, day + 3600.0}
    assert found["on"][0]["next"][0] == day + 7200.0


def test_what_was_skipped_is_told_once_however_often_it_is_tried(served, ask, look, pets, monkeypatch):
    from trainmaster.spec.errors import ProviderError

    def away(*_, **__):
        raise ProviderError("the provider is away", "wait")

    ask("POST", "/workflows", recipe("{volume: pets}"))
    pets()
    pets()
    now = [served.service.database.clock_s()]
    monkeypatch.setattr(served.service.database, "clock_s", lambda *_: now[0])
    monkeypatch.setattr(served.state.submissions, "submit", away)
    message = "version 1 was skipped: 2 is newer tried again: the provider is away. wait"
    for tries in range(1, 9):
        look()
        (row,) = served.service.database.read(sa.select(t.workflow_firing))
        assert (row["message"], row["tries"]) == (message, tries)
        assert row["due_at"] - now[0] == min(5.0 * 2 ** (tries - 1), 600.0)
        now[0] = row["due_at"]


def test_it_looks_until_it_is_over_and_when_it_is_woken(served, monkeypatch):
    """Each look is after what has woken it was taken back: what comes meanwhile wakes it again."""
    triggers, steps = Triggers(served.service, served.state.submissions, {}), []

    class Wake:
        def clear(self):
            steps.append("clear")

        def wait(self, pause_s):
            steps.append(pause_s)
            if len(steps) > 5:
                triggers._over.set()

    def look():
        steps.append("look")
        if len(steps) > 3:
            raise RuntimeError("a mistake of ours")

    monkeypatch.setattr(triggers, "_wake", Wake())
    monkeypatch.setattr(triggers, "look", look)
    triggers._watch()
    assert steps == ["clear", "look", LOOK_S] * 2
