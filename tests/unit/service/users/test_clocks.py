"""A server whose clock is wrong: what one server has written, another one takes for what it is."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from trainmaster.db import Database, accounts, apps
from trainmaster.service.apps.app_access import AppAccess, AppWay
from trainmaster.service.apps.apps import TICKET_S, Apps
from trainmaster.service.notifications import webhooks
from trainmaster.service.users.access import SESSION_S, Access
from trainmaster.service.users.accounts import Accounts
from trainmaster.service.users.caller import UnknownCallerError, caller
from trainmaster.service.users.device_login import EXPIRES_S, DeviceLogins
from trainmaster.spec.errors import NotFoundError, UsageError
from trainmaster.spec.states import State

NOW = 2e9


class Servers:
    """Two servers of a database; the clock of the first one is wrong."""

    def __init__(self, url, off_s, monkeypatch):
        self.database = Database(url)
        self.now, self.off_s = NOW, off_s
        monkeypatch.setattr(self.database, "clock_s", lambda *_: self.now)
        monkeypatch.setattr(time, "time", lambda: self.now + self.off_s)
        self.access, self.accounts = Access(self.database), Accounts(self.database)
        self.logins = DeviceLogins(self.database, self.access)

    def second(self, later_s=0.0):
        """The one whose clock is right, some time later."""
        self.now, self.off_s = self.now + later_s, 0.0
        return self


@pytest.fixture(params=[5.0, -5.0, 60.0, -60.0])
def servers(request, tmp_path, monkeypatch):
    found = Servers(f"sqlite:///{tmp_path / 'a.db'}", request.param, monkeypatch)
    found.access.make_team("red", None)
    yield found
    found.database.close()


def test_tokens_are_good_as_long_as_was_said(servers):
    secret = servers.access.create_token("ci", ["read"], lasts_s=30.0)["token"]
    assert servers.access.by_token(secret).name == "ci"
    servers.second(29.0).access.by_token(secret)
    with pytest.raises(UnknownCallerError, match="has expired"):
        servers.second(2.0).access.by_token(secret)


def test_sessions_invites_and_logins_too(servers):
    ann = caller("ann", "red", ["read", "run"])
    cookie = servers.access.open_session(ann)
    code = servers.accounts.invite("red", "viewer", lasts_s=20.0)["code"]
    asked = servers.logins.begin("laptop")
    assert servers.access.by_session(cookie).name == "ann"
    assert servers.logins.client_of(asked["user_code"]) == "laptop"
    servers.accounts.open_invite(code)
    servers.second(21.0)
    with pytest.raises(UsageError, match="has expired"):
        servers.accounts.open_invite(code)
    servers.logins.confirm(ann, asked["user_code"])
    servers.second(EXPIRES_S - 20)
    with pytest.raises(NotFoundError):
        servers.logins.token(asked["device_code"])
    with pytest.raises(UnknownCallerError):
        servers.second(SESSION_S).access.by_session(cookie)


def test_what_groups_gave_too(servers):
    servers.accounts.create_user("gus")
    until = servers.database.clock_s() + 30.0
    accounts.set_groups(servers.database, "gus", {"red": "member"}, is_admin=True, until=until)
    for _ in range(2):
        row, roles = accounts.account_roles(servers.database, "gus")
        assert (row["admin_by"], roles) == ("groups", {"red": "member"})
        servers.second(29.0)
    row, roles = accounts.account_roles(servers.database, "gus")
    assert (row["admin_by"], roles) == (None, {})


def test_tickets_and_cookies_of_apps_too(servers, tmp_path):
    home = SimpleNamespace(root=tmp_path, identity=lambda: "h")
    service = SimpleNamespace(database=servers.database, home=home)
    row = {
        "id": "te-1", "kind": "tensorboard", "team": "red", "opened_by": "ann", "runs": "[]", "home_id": "h",
        "place": "p", "state": State.RUNNING, "port": 1234, "created_at": NOW, "used_at": NOW,
    }  # fmt: skip
    apps.add(servers.database, row, 1)
    (tmp_path / "apps" / "te-1").mkdir(parents=True)
    (tmp_path / "apps" / "te-1" / "token").write_text("own")
    gate, opened = AppAccess(service, servers.access, None), Apps(service, caller("ann", "red", ["read"]))
    _, cookie, _ = gate.enter(opened.ticket("te-1", None))
    ticket, late = opened.ticket("te-1", None), opened.ticket("te-1", None)
    servers.second(TICKET_S - 1)
    gate.enter(ticket)
    assert gate.admit("te-1", [cookie], "") == AppWay(1234, "own")
    servers.second(2)
    with pytest.raises(UnknownCallerError):
        gate.enter(late)
    servers.second(SESSION_S - TICKET_S - 2)
    assert gate.admit("te-1", [cookie], "") == AppWay(1234, "own")
    servers.second(2)
    with pytest.raises(UnknownCallerError):
        gate.admit("te-1", [cookie], "")


def test_what_is_due_is_asked_of_the_clock_of_the_database():
    assert not hasattr(webhooks, "time")
