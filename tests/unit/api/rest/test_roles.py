"""All routes by all roles, with one's own and with another team's objects; what ends when a role does."""

from __future__ import annotations

import asyncio
import re

import pytest

pytest.importorskip("fastapi", reason="the extra `server` is not installed")
pytest.importorskip("pyarrow", reason="the extra `volumes` is not installed")
from served_office import Office
from test_routes import asked, routes

from trainmaster.api.rest.limits import CHECK_EVERY_S, OpenStream, Streams, Waits
from trainmaster.service.users.access import ATTEMPTS, digest_of
from trainmaster.service.users.caller import (
    ROLES,
    SCOPES,
    Credential,
    ForbiddenError,
    TooOftenError,
    caller,
)
from trainmaster.service.users.rates import BURST, Rates
from trainmaster.spec.errors import StoreError

#: Of these everybody has his own, so a viewer may ask; a token that is nobody's needs `manage`.
OWN = {path for _, path in routes() if path.startswith("/api/v1/tokens")}
#: Of a run on the server's own machine it is closed to all of its teams.
CLOSED = "/api/v1/runs/{run}/logs/system"
#: Parts of paths that name nothing that belongs to a team, or that lie in a run.
NO_OBJECTS = {"experiment", "task", "path", "digest", "view", "provider"}
#: What makes an object of one's own under any name.
MAKES = {("PUT", "/api/v1/secrets/{secret}")}
ALLOWED = {**ROLES, "admin": frozenset(SCOPES)}


@pytest.fixture(scope="module")
def office(tmp_path_factory):
    found = Office(tmp_path_factory.mktemp("office"))
    yield found
    found.service.close()


@pytest.mark.parametrize(("method", "path"), routes(), ids=lambda part: part)
def test_a_role_opens_what_it_should_and_nothing_else(office, method, path):
    scope = "read" if path in OWN else routes()[method, path]
    for role, allowed in ALLOWED.items():
        who = "chief" if role == "admin" else role
        if (scope not in allowed and scope != "known") or path == CLOSED:
            assert asked(office, who, method, path).status_code == 403, role
        elif not path.endswith("/stream"):  # these go on for ever
            assert asked(office, who, method, path).status_code not in (401, 403, 500), role


@pytest.mark.parametrize(
    ("method", "path"),
    [each for each in routes() if set(re.findall(r"{(\w+)}", each[1])) - NO_OBJECTS and each not in MAKES],
    ids=lambda part: part,
)
def test_another_teams_object_is_not_there_for_anybody_but_admins(office, method, path):
    theirs = {**office.blue, "session": session_of(office, "theirs")} if "{session}" in path else office.blue
    for role, scopes in ROLES.items():
        scope = "read" if path in OWN else routes()[method, path]
        answer = asked(office, role, method, path, "job-blue", **theirs)
        expected = 404 if scope in scopes or "{team}" in path else 403
        assert answer.status_code == expected, (role, answer.text)
    assert office.state.access.by_token(office.tokens["theirs"]).scopes == ROLES["manager"]
    if method in ("GET", "HEAD") and not path.endswith("/stream"):
        answer = asked(office, "theirs", method, path, "job-blue", **theirs)
        assert answer.status_code != 404, "else it is no wonder that others get a 404"


def session_of(office, name):
    office.state.access.open_session(office.state.access.by_token(office.tokens[name]))
    chief = office.state.access.by_token(office.tokens["chief"])
    return next(each["id"] for each in office.state.access.sessions(chief) if each["name"] == name)


def test_everybody_learns_who_he_is_and_what_he_may(office):
    found = office.ask("member", "GET", "/api/v1/me").json()
    assert found == {
        "name": "member", "account": "member", "token": "member-all", "team": "red", "role": "member",
        "teams": {"red": "member"}, "scopes": ["infer", "read", "run"],
    }  # fmt: skip
    assert office.ask("red-infer", "GET", "/api/v1/me").json()["account"] is None
    assert office.ask("member", "GET", "/api/v1/runs?team=blue").status_code == 404
    headers = {"trainmaster-team": "blue"}
    assert office.ask("member", "GET", "/api/v1/runs", headers=headers).status_code == 404
    assert office.ask("chief", "GET", "/api/v1/me", headers=headers).json()["team"] == "blue"


def test_a_manager_runs_a_team(office):
    def ask(method, path, body=None, who="manager"):
        answer = office.ask(who, method, f"/api/v1{path}", json=body)
        return answer.status_code, answer.json() if answer.content else None

    code, invited = ask("POST", "/invites", {"role": "member", "days": 2})
    assert (code, invited["team"]) == (201, "red")
    office.state.accounts.join(invited["code"], "guest")
    assert "code" not in ask("GET", "/invites")[1]["invites"][0]
    code, found = ask("PUT", "/teams/red/members/guest", {"role": "viewer"})
    roles = {each["name"]: each["role"] for each in found["members"]}
    assert (code, roles["guest"]) == (200, "viewer")
    assert ask("PUT", "/teams/red/members/chief", {"role": "viewer"})[0] == 404
    assert ask("PUT", "/teams/red/members/guest", {"role": "root"})[0] == 422
    assert ask("DELETE", "/teams/red/members/guest")[0] == 204
    code, found = ask("DELETE", "/teams/red/members/guest")
    assert (code, found["hint"]) == (404, "`trainmaster team members red` shows them.")
    assert ask("POST", "/service-accounts", {"name": "ci-bot", "role": "member"})[0] == 201
    body = {"name": "ci-bot-1", "scopes": ["read", "run"], "account": "ci-bot"}
    code, made = ask("POST", "/tokens", body)
    assert (code, made["account"]) == (201, "ci-bot")
    office.tokens["ci-bot"] = made["token"]
    assert ask("GET", "/me", who="ci-bot")[1]["scopes"] == ["read", "run"]
    answer = office.ask(None, "POST", "/login", data={"token": made["token"]})
    assert (answer.status_code, "service account" in answer.text) == (403, True)
    assert ask("DELETE", "/service-accounts/ci-bot")[0] == 204
    assert ask("GET", "/me", who="ci-bot")[0] == 401
    for name in ("member", "chief", "blue-bot", "nobody"):
        assert ask("POST", "/tokens", {**body, "name": "n", "account": name})[0] == 404
    assert ask("POST", "/tokens", {**body, "name": "m", "account": "blue-bot"}, "member")[0] == 404


def test_secrets_are_written_listed_by_name_and_never_shown(office):
    path = "/api/v1/secrets"
    for name, value, status in (
        ("KEY", "s3cret-value", 204),
        ("a-b", "x", 422),
        ("KEY2", "", 422),
        ("K", 3, 422),
    ):
        answer = office.ask("manager", "PUT", f"{path}/{name}", json={"value": value})
        assert answer.status_code == status, answer.text
        assert "s3cret-value" not in answer.text
    assert office.ask("member", "PUT", f"{path}/KEY", json={"value": "x"}).status_code == 403
    (found,) = office.ask("member", "GET", path).json()["secrets"]
    assert (found["name"], found["changed_by"], set(found)) == (
        "KEY", "manager", {"name", "changed_at", "changed_by"}
    )  # fmt: skip
    assert office.ask("manager", "DELETE", f"{path}/KEY").status_code == 204
    assert office.ask("manager", "DELETE", f"{path}/KEY").status_code == 404
    assert office.state.secrets.values("blue", ["THEIRS"]) == {"THEIRS": "blue-value"}


def test_own_logins_of_a_team_are_put_there_listed_and_never_shown(office):
    path = "/api/v1/team-logins"
    settings = "login: a@hpc\nkey: '{TRAINMASTER_SLURM_KEY}'\nmachines: {n: {cpus: 1, memory: 1GB}}\n"
    files = {"TRAINMASTER_SLURM": settings, "TRAINMASTER_SLURM_KEY": "s3cret-value"}
    for provider, body, status in (
        ("slurm", {"files": files}, 204),
        ("slurm", {"files": {"TRAINMASTER_SLURM": settings.replace("key", "python")}}, 422),
        ("slurm", {"files": {**files, "LD_PRELOAD": "x"}}, 422),
        ("slurm", {"files": 3, "value": "s3cret-value"}, 422),
        ("moon", {"files": files}, 422),
    ):
        answer = office.ask("manager", "PUT", f"{path}/{provider}", json=body)
        assert answer.status_code == status, answer.text
        assert "s3cret-value" not in answer.text
    assert office.ask("member", "PUT", f"{path}/slurm", json={"files": files}).status_code == 403
    (found,) = office.ask("member", "GET", path).json()["logins"]
    assert (found["provider"], found["changed_by"], set(found)) == (
        "slurm", "manager", {"provider", "changed_at", "changed_by"}
    )  # fmt: skip
    assert office.ask("member", "GET", "/api/v1/secrets").json()["secrets"] == []
    assert office.ask("manager", "DELETE", f"{path}/slurm").status_code == 204
    assert office.ask("manager", "DELETE", f"{path}/slurm").status_code == 404


def test_an_admin_makes_users_and_shuts_them_out(office):
    assert office.ask("chief", "POST", "/api/v1/users", json={"name": "newbie"}).status_code == 201
    body = {"role": "viewer"}
    assert office.ask("chief", "PUT", "/api/v1/teams/red/members/newbie", json=body).status_code == 200
    office.tokens["newbie"] = office.token("newbie", "red")
    assert office.ask("newbie", "GET", "/api/v1/runs").status_code == 200
    found = office.ask("chief", "PATCH", "/api/v1/users/newbie", json={"is_disabled": True}).json()
    assert found["disabled_at"] is not None
    assert office.ask("newbie", "GET", "/api/v1/runs").status_code == 401
    assert "newbie" in {each["name"] for each in office.ask("chief", "GET", "/api/v1/users").json()["users"]}


def test_wrong_attempts_to_log_in_are_limited_for_an_address(office):
    answers = [office.ask(None, "POST", "/login", data={"token": "tm_wrong"}) for _ in range(ATTEMPTS)]
    assert answers[0].status_code == 401
    answer = office.ask(None, "POST", "/login", data={"token": office.tokens["member"]})
    assert (answer.status_code, int(answer.headers["retry-after"]) > 0) == (429, True)


# --- limits ---------------------------------------------------------------------------------------------


def test_a_bucket_fills_again():
    now = [0.0]
    rates = Rates(per_s=2, burst=3, clock=lambda: now[0])
    for _ in range(3):
        rates.take("a")
    with pytest.raises(TooOftenError) as error:
        rates.take("a")
    assert error.value.retry_after_s == 0.5
    rates.take("b")
    now[0] += 0.5
    rates.take("a")


def test_too_many_requests_are_told_when_to_come_again(office, monkeypatch):
    monkeypatch.setattr(office.state.rates, "_clock", lambda: 0.0)
    for _ in range(int(BURST)):
        office.state.rates.take("blue-infer blue-infer")
    answer = office.ask("blue-infer", "GET", "/api/v1/me")
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")


async def pieces(until=10):
    for number in range(until):
        yield number


def credential(who):
    return Credential(who.name, is_session=False, team=None)


async def looked_at(streams, until=10):
    """Pieces, with a look at the rights of all before each."""
    for number in range(until):
        await streams.look()
        yield number


def follows(*answers):
    """What somebody is told while each look at the rights of all gives the next answer; and the streams."""
    who, left = caller("ann", "red", ["read", "run"]), list(answers)

    def ask(wanted):
        assert wanted == {credential(who)}
        answer = left.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return {credential(who): answer} if answer else {}

    streams = Streams(ask)

    async def read():
        return [piece async for piece in OpenStream(streams, who, credential(who)).of(looked_at(streams))]

    return asyncio.run(read()), streams


def test_a_stream_ends_when_its_caller_may_less_or_is_not_known_any_more():
    before, after = caller("ann", "red", ["read", "run"]), caller("ann", "red", ["read"])
    assert follows(before, before, after)[0] == [0, 1]
    assert follows(before, None)[0] == [0]
    away = StoreError("the database cannot be read", "")
    assert follows(before, away, None)[0] == [0, 1], "nothing new comes from there either"
    told, streams = follows(*[before] * 10)
    assert told == list(range(10))
    assert not streams._open


def test_what_has_an_end_says_that_it_was_cut_off():
    """Half a file must not look whole, and who sends one is told."""
    ann = caller("ann", "red", ["run"])
    streams = Streams(lambda _: {}, most=1)

    def transfer():
        return OpenStream(streams, ann, credential(ann))

    async def everything():
        sent = transfer()
        got = sent.sent(iter([b"a", b"b"]))
        assert await anext(got) == b"a"
        await streams.look()
        with pytest.raises(ForbiddenError, match="has changed"):
            await anext(got)
        with pytest.raises(ForbiddenError, match="has changed"):
            async for _ in transfer().body(looked_at(streams)):
                pass
        with pytest.raises(ForbiddenError, match="has changed"):
            await transfer().answer(streams.look())
        assert [piece async for piece in transfer().sent(iter([b"a", b"b"]))] == [b"a", b"b"]

    asyncio.run(everything())
    assert not streams._open


def test_the_rights_of_all_who_listen_are_one_question_and_silent_streams_end():
    asked = []
    people = [caller(f"user-{number}", "red", ["read"]) for number in range(50)]

    def ask(wanted):
        asked.append(len(wanted))
        return {credential(who): who for who in people[10:]}

    async def silent():
        yield 0
        await asyncio.Event().wait()

    async def follow():
        turns = asyncio.Queue()
        streams = Streams(ask, check_every_s=7.0, pause=lambda seconds: turns.get() if seconds == 7 else None)
        following = [OpenStream(streams, who, credential(who)).of(silent()) for who in people]
        assert await asyncio.gather(*(anext(each) for each in following)) == [0] * 50
        rest = [asyncio.ensure_future(anext(each, None)) for each in following]
        turns.put_nowait(None)
        assert await asyncio.gather(*rest[:10]) == [None] * 10
        assert not any(each.done() for each in rest[10:])

    asyncio.run(follow())
    assert asked == [50]
    assert CHECK_EVERY_S <= 1.0, "nothing is given for longer than 2 s"


def test_a_user_follows_so_many_streams_and_no_more():
    ann, bob = caller("ann", "red", ["read"]), caller("bob", "red", ["read"])
    streams = Streams(lambda _: {credential(who): who for who in (ann, bob)}, most=2)

    def open_for(who):
        return OpenStream(streams, who, credential(who)).of(pieces())

    async def follow():
        first, second = open_for(ann), open_for(ann)
        assert await anext(first) == 0
        with pytest.raises(TooOftenError, match="2 streams"):
            open_for(ann)
        open_for(bob)
        await first.aclose()
        third = open_for(ann)
        assert [piece async for piece in third] == list(range(10))
        del second  # its reader went before it began
        again = [open_for(ann), open_for(ann)]
        assert len(again) == 2

    asyncio.run(follow())


def test_a_user_waits_for_so_many_answers_and_gets_the_next_ones_at_once():
    ann, bob = caller("ann", "red", ["read"]), caller("bob", "red", ["read"])
    waits = Waits(most=1)
    with waits.waiting(ann) as first, waits.waiting(ann) as second, waits.waiting(bob) as others:
        assert (first, second, others) == (True, False, True)
    with waits.waiting(ann) as again:
        assert again
    assert not waits._open


def test_a_demotion_closes_the_stream_of_a_run(office):
    office.add("brief", "red", "viewer")
    who = office.state.access.by_token(office.tokens["brief"])
    asks_with = Credential(digest_of(office.tokens["brief"]), is_session=False, team=None)
    streams, seen = Streams(office.state.access.callers), []

    async def follow():
        async for piece in OpenStream(streams, who, asks_with).of(looked_at(streams)):
            seen.append(piece)
            if piece == 3:
                office.state.accounts.remove_member("red", "brief")

    asyncio.run(follow())
    assert seen == [0, 1, 2, 3]
