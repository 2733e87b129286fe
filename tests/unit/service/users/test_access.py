"""Tokens, sessions, teams: who may do what, and until when."""

from __future__ import annotations

import math
import time
from dataclasses import replace

import pytest

from trainmaster.db import Database
from trainmaster.service.users import access
from trainmaster.service.users.access import Access, digest_of
from trainmaster.service.users.accounts import Accounts
from trainmaster.service.users.caller import (
    NO_TEAM,
    SCOPES,
    Credential,
    ForbiddenError,
    TooOftenError,
    UnknownCallerError,
    caller,
)
from trainmaster.spec.errors import NotFoundError, UsageError


@pytest.fixture
def of_home(tmp_path):
    database = Database(f"sqlite:///{tmp_path / 'a.db'}")
    yield Access(database)
    database.close()


@pytest.fixture
def clock(monkeypatch):
    now = [1_000_000.0]
    monkeypatch.setattr(time, "time", lambda: now[0])
    return now


def test_a_token_says_who_asks_and_is_kept_nowhere(of_home, tmp_path):
    made = of_home.create_token("ci", ["run", "read"])
    who = of_home.by_token(made["token"])
    assert (who.name, who.team, who.scopes) == ("ci", None, {"read", "run"})
    of_home._database.close()
    assert all(made["token"].encode() not in path.read_bytes() for path in tmp_path.iterdir())


def test_tokens_of_a_team_are_shown_to_who_manages_it(of_home):
    of_home.make_team("red", None)
    for scope in ("read", "manage"):
        of_home.create_token(scope, [scope], "red")
    of_home.create_token("own", ["read"])
    reads, manages = (caller("x", "red", [scope]) for scope in ("read", "manage"))
    assert {each["name"] for each in of_home.tokens(manages)} == {"read", "manage"}
    with pytest.raises(ForbiddenError, match="'manage'"):
        of_home.tokens(reads)


def test_what_is_over_revoked_mistyped_or_unknown_is_nobodys(of_home, clock):
    token = of_home.create_token("ci", ["read"], lasts_s=60)["token"]
    for wrong in ("", "tm_", token[:-1] + "~", token.swapcase(), access.new_secret()):
        with pytest.raises(UnknownCallerError, match="is not known"):
            of_home.by_token(wrong)
    clock[0] += 61
    with pytest.raises(UnknownCallerError, match="has expired"):
        of_home.by_token(token)
    clock[0] -= 61
    of_home.revoke_token("ci")
    with pytest.raises(UnknownCallerError, match="was revoked"):
        of_home.by_token(token)


def test_what_is_made_in_a_browser_ends_with_the_token_of_its_log_in_and_not_with_the_session(of_home, clock):
    first = of_home.create_token("me", ["read", "manage"])
    who = of_home.by_session(of_home.open_session(of_home.by_token(first["token"])))
    assert who.expires_at < first["expires_at"]
    clock[0] += 60
    made = of_home.create_token("ci", ["read"], maker=who)
    assert made["expires_at"] == first["expires_at"]


def test_a_session_ends_with_its_token_its_time_or_its_user(of_home, clock):
    who = of_home.by_token(of_home.create_token("ci", ["read"])["token"])
    by_token, by_time, by_user = (of_home.open_session(who) for _ in range(3))
    of_home.end_session(by_user)
    with pytest.raises(UnknownCallerError):
        of_home.by_session(by_user)
    assert replace(of_home.by_session(by_time), expires_at=who.expires_at) == who
    clock[0] += access.SESSION_S + 1
    with pytest.raises(UnknownCallerError):
        of_home.by_session(by_time)
    clock[0] -= access.SESSION_S + 1
    of_home.revoke_token("ci")
    with pytest.raises(UnknownCallerError):
        of_home.by_session(by_token)


def test_what_is_made_while_a_token_is_revoked_is_over_with_it(of_home):
    """Who asks was looked up a moment before; and a login by a code waits up to ten minutes."""
    who = of_home.by_token(of_home.create_token("ci", ["read"])["token"])
    of_home.revoke_token("ci")
    session = of_home.open_session(who)
    with pytest.raises(UnknownCallerError, match="the token ci was revoked"):
        of_home.by_session(session)
    asks_with = Credential(digest_of(session), is_session=True, team=None)
    assert not of_home.callers([asks_with])
    with pytest.raises(UnknownCallerError, match="the token ci was revoked"):
        of_home.create_token("more", ["read"], maker=who)
    assert [each["name"] for each in of_home.tokens()] == ["ci"]


def test_names_are_used_once_and_scopes_are_known(of_home):
    of_home.create_token("ci", ["read"])
    of_home.revoke_token("ci")
    with pytest.raises(UsageError, match="already"):
        of_home.create_token("ci", ["read"])
    wrong = [("ok", ["read", "root"], "root; not a scope"), ("ok", [], "none; not a scope")]
    for name, scopes, why in (*wrong, ("../x", ["read"], "no name"), ("a b", ["read"], "no name")):
        with pytest.raises(UsageError, match=why):
            of_home.create_token(name, scopes)
    with pytest.raises(NotFoundError, match="no team"):
        of_home.create_token("ok", ["read"], team="nobody")


def test_what_is_shown_of_secrets_and_their_digests_is_too_little_to_use(of_home):
    made = of_home.create_token("ci", ["read"])
    session = of_home.open_session(of_home.by_token(made["token"]))
    of_home.make_team("red")
    invites = Accounts(of_home._database)
    code = invites.invite("red", "viewer")["code"]
    shown = [of_home.tokens(), of_home.sessions(caller("x", None, ["admin"])), invites.invites("red")]
    for secret, ((row,), key, length) in zip(
        (made["token"], session, code),
        zip(shown, ("beginning", "id", "id"), (9, 12, 12), strict=True),
        strict=True,
    ):
        assert len(row[key]) == length
        assert not {secret, access.digest_of(secret)} & {str(value) for value in row.values()}


def test_scopes_imply_no_more_than_they_say():
    reader, admin = caller("a", "t", ["read"]), caller("b", None, ["admin"])
    with pytest.raises(ForbiddenError, match="'run'"):
        reader.need("run")
    assert set(SCOPES) == admin.scopes
    assert (reader.sees("t"), reader.sees(None), reader.sees("u")) == (True, False, False)
    assert all(admin.sees(team) for team in ("t", "u", None))


def test_a_refusal_says_whether_the_role_or_the_token_has_too_little():
    person = replace(caller("ann", "red", ["read"]), account="ann", roles={"red": "viewer"})
    for who, has in (
        (person, "ann is viewer in team red."),
        (replace(person, token="ci"), "it has read."),
        (caller("ci", "red", ["read"]), "it has read."),
        (replace(person, team=NO_TEAM), "for the command line, `token create --team`."),
        (replace(person, team=NO_TEAM, roles={}), "Ask a manager of a team for an invite."),
        (replace(person, team=NO_TEAM, roles={}, left="red"), "or ask a manager of that team for an invite."),
    ):
        with pytest.raises(ForbiddenError) as refused:
            who.need("run")
        assert refused.value.hint.endswith(has)


def test_only_the_token_of_an_admin_is_for_another_team_than_its_own(of_home):
    for team in ("red", "blue"):
        of_home.make_team(team)
    admin, member = of_home.create_token("all", ["admin"]), of_home.create_token("one", ["run"], "red")
    assert [of_home.by_token(admin["token"], team).team for team in (None, "red", "blue")] == [
        None,
        "red",
        "blue",
    ]
    assert of_home.by_token(member["token"], "red").team == "red"
    for token, team in ((admin, "green"), (member, "blue")):
        with pytest.raises(NotFoundError, match="no team"):
            of_home.by_token(token["token"], team)


def test_a_team_knows_what_it_may_spend(of_home):
    assert of_home.make_team("open", None)["left_usd"] is None
    assert of_home.make_team("vision", 50)["monthly_usd"] == 50
    assert of_home.make_team("vision")["monthly_usd"] == 50, "what is not named stays"
    assert of_home.make_team("vision", math.inf, runs_at_once=2) == {
        "team": "vision", "monthly_usd": None, "spent_usd": 0.0, "reserved_usd": 0.0, "left_usd": None,
        "runs_at_once": 2, "usd_per_hour": None, "cpus_at_once": None,
    }  # fmt: skip
    with pytest.raises(UsageError):
        of_home.make_team("vision", -1)


@pytest.mark.parametrize("lasts_s", [0, -86400.0, math.nan, math.inf, 1e12 * 86400])
def test_a_token_or_invite_that_is_over_at_once_or_never_ends_is_not_made(of_home, lasts_s):
    of_home.make_team("red")
    with pytest.raises(UsageError, match="days: "):
        of_home.create_token("ci", ["read"], lasts_s=lasts_s)
    with pytest.raises(UsageError, match="days: "):
        Accounts(of_home._database).invite("red", "viewer", lasts_s=lasts_s)
    assert of_home.tokens() == []


def test_how_long_things_are_good(of_home, clock):
    """As docs/server/security.md says."""
    for _ in range(10):
        of_home.admit_attempt("10.0.0.1")
        of_home.note_wrong_attempt("10.0.0.1")
    clock[0] += 299
    with pytest.raises(TooOftenError) as closed:
        of_home.admit_attempt("10.0.0.1")
    assert (closed.value.retry_after_s, closed.value.hint) == (1, "Try again in 1 s.")
    of_home.admit_attempt("10.0.0.2")
    clock[0] += 1.5
    of_home.admit_attempt("10.0.0.1")
    made = of_home.create_token("ci", ["read"])
    assert made["expires_at"] - made["created_at"] == 90 * 86400
    who = of_home.by_token(made["token"])
    session = of_home.open_session(who)
    clock[0] += 12 * 3600 - 1
    assert of_home.by_session(session).name == "ci"
    clock[0] += 1
    with pytest.raises(UnknownCallerError, match="is over"):
        of_home.by_session(session)
