"""Accounts, invites and secrets on both engines, and by several servers at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from trainmaster.db import access, accounts, audit, sealed
from trainmaster.db.retry_policy import Try

ROW = {"kind": "user", "created_at": 1.0}


def at_once(count, act):
    barrier = Barrier(count)

    def one(number):
        barrier.wait()
        return act(number)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(one, range(count)))


def test_of_many_who_take_one_invite_one_joins(database):
    access.add_team(database, "red", None, 1.0)
    invite = {
        "digest": "d", "team": "red", "role": "member", "invited_by": None,
        "created_at": 1.0, "expires_at": 9.0, "used_by": None,
    }  # fmt: skip
    accounts.add_invite(database, invite)
    became = at_once(4, lambda n: accounts.accept_invite(database, "d", {**ROW, "name": f"u{n}"}, f"u{n}"))
    assert sorted(became) == ["joined", "used", "used", "used"]
    (row,) = accounts.members(database, "red")
    assert (row["account"], row["role"]) == (f"u{became.index('joined')}", "member")
    assert len(accounts.accounts(database, "user")) == 1


def test_what_one_browser_began_is_ended_once(database):
    row = {"digest": "d", "state": "s", "nonce": "n", "verifier": "v", "wanted": "/", "expires_at": 9.0}
    accounts.begin_sign_in(database, row, 1.0)
    found = at_once(4, lambda _: accounts.take_sign_in(database, "d"))
    assert [each["nonce"] for each in found if each is not None] == ["n"]


@pytest.mark.parametrize("is_committed", [True, False])
def test_what_a_lost_try_had_to_keep_is_kept_once(database, monkeypatch, is_committed):
    write = database.write

    def tried(work, **how):
        if is_committed:
            write(work, **how)
        return write(lambda connection, _: work(connection, Try(again=True)), **how)

    monkeypatch.setattr(database, "write", tried)
    session = {"digest": "d", "name": "ann", "scopes": "read", "expires_at": 9.0}
    access.add_session(database, session, 1.0)
    assert list(access.sessions_by_digest(database, ["d"])) == ["d"]
    accounts.note_attempt(database, "192.0.2.1", 2.0, 0.0)
    assert accounts.attempts(database, "192.0.2.1", 1.0) == [2.0]


def test_groups_replace_what_groups_gave_and_nothing_else(database):
    for team in ("red", "blue", "green"):
        access.add_team(database, team, None, 1.0)
    accounts.add_account(database, {**ROW, "name": "ann"})
    accounts.set_member(database, "red", "ann", "viewer")
    accounts.set_groups(database, "ann", {"red": "manager", "blue": "member"}, is_admin=True)
    row, roles = accounts.account_roles(database, "ann")
    assert (row["admin_by"], roles) == ("groups", {"blue": "member", "red": "viewer"})
    accounts.set_groups(database, "ann", {"green": "viewer"}, is_admin=False)
    row, roles = accounts.account_roles(database, "ann")
    assert (row["admin_by"], roles) == (None, {"green": "viewer", "red": "viewer"})
    accounts.change_account(database, "ann", admin_by="server")
    accounts.set_groups(database, "ann", {}, is_admin=False)
    assert accounts.account_roles(database, "ann")[0]["admin_by"] == "server"


def test_a_sealed_value_replaces_the_one_before(database):
    assert not sealed.put_secret(database, "red", "KEY", b"x", "ann", 1.0)
    access.add_team(database, "red", None, 1.0)
    for value in (b"x", b"\0y"):
        assert sealed.put_secret(database, "red", "KEY", value, "ann", 1.0)
    assert [bytes(row["sealed"]) for row in sealed.of_team(database, "red")] == [b"\0y"]
    assert sealed.remove(database, "red", "KEY")
    assert not sealed.remove(database, "red", "KEY")


def test_the_audit_is_filtered_as_text(database):
    for number, action in enumerate(("POST /a_b", "POST /axb", "POST /a%b")):
        row = {"at": 1.0, "name": "ann", "team": "red", "address": "", "action": action, "token": None}
        audit.note(database, {**row, "status": (200, 403, 401)[number]})

    def found(**which):
        return [row["action"] for row in audit.entries(database, None, None, 10, **which)]

    assert (found(action="a_b"), found(action="%")) == (["POST /a_b"], ["POST /a%b"])
    assert found(is_denied=True) == ["POST /a%b", "POST /axb"]
