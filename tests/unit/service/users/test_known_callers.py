"""Who reads is known for two seconds; what this process ends, it forgets at once."""

import re
from pathlib import Path

import pytest

import trainmaster.db
from trainmaster.db import Database
from trainmaster.service.users.access import Access, digest_of
from trainmaster.service.users.accounts import Accounts
from trainmaster.service.users.caller import KEPT_S, Credential, KnownCallers, UnknownCallerError, caller


@pytest.fixture
def database(tmp_path):
    found = Database(f"sqlite:///{tmp_path / 'x.db'}")
    yield found
    found.close()


class Asked:
    """A server that one token asks."""

    def __init__(self, database):
        self.now, self.looks = 100.0, 0
        self.access, self.accounts = Access(database), Accounts(database)
        self.known = KnownCallers(database, lambda: self.now)
        self.access.make_team("red")
        self.accounts.create_user("ann")
        self.accounts.set_member("red", "ann", "member")
        self.secret = self.access.create_token("t", ["read", "run"], account="ann")["token"]
        self.credential = Credential(digest_of(self.secret), False, None)

    def scopes(self):
        def ask():
            self.looks += 1
            return self.access.by_token(self.secret)

        return sorted(self.known.of(self.credential, ask).scopes)


def test_a_token_is_looked_up_once_in_two_seconds(database):
    asked = Asked(database)
    for _ in range(5):
        assert asked.scopes() == ["read", "run"]
    assert asked.looks == 1
    asked.now += KEPT_S - 0.01
    asked.scopes()
    assert asked.looks == 1
    asked.now += 0.01
    asked.scopes()
    assert asked.looks == 2


@pytest.mark.parametrize("end", ["revoke", "disable", "role", "member"])
def test_what_this_process_ends_is_over_at_once(database, end):
    asked = Asked(database)
    asked.scopes()
    if end == "revoke":
        asked.access.revoke_token("t")
    elif end == "disable":
        asked.accounts.change_user("ann", is_disabled=True)
    elif end == "role":
        asked.accounts.set_member("red", "ann", "viewer")
    else:
        asked.accounts.remove_member("red", "ann")
    if end in ("revoke", "disable"):
        with pytest.raises(UnknownCallerError):
            asked.scopes()
    else:
        assert asked.scopes() == (["read"] if end == "role" else [])


def test_what_another_process_ends_is_over_within_two_seconds(database):
    asked = Asked(database)
    asked.scopes()
    other = Database(database.engine.url.render_as_string())
    Access(other).revoke_token("t")
    other.close()
    asked.scopes()
    asked.now += KEPT_S
    with pytest.raises(UnknownCallerError):
        asked.scopes()


def test_what_was_read_before_a_change_is_not_kept(database):
    asked = Asked(database)

    def ask():
        found = asked.access.by_token(asked.secret)
        asked.access.revoke_token("t")  # by another request, after this one has looked
        return found

    asked.known.of(asked.credential, ask)
    with pytest.raises(UnknownCallerError):
        asked.scopes()


def test_nobody_is_known_beyond_his_end(database):
    known = KnownCallers(database)
    who = Credential("x", False, None)
    looks = []

    def ask():
        looks.append(1)
        found = caller("x", None, ["read"])
        return type(found)(found.name, None, found.scopes, expires_at=database.clock_s() - 1)

    known.of(who, ask)
    known.of(who, ask)
    assert len(looks) == 2


def test_whatever_takes_rights_away_says_so():
    """Each write of these tables is by `change_rights`, but for what only adds, or notes a use."""
    adds = {"add_team", "add_account", "add_token", "add_session", "note_use"}
    wrong = []
    for file in Path(trainmaster.db.__file__).parent.glob("*.py"):
        for body in re.split(r"\n(?=def |class )", file.read_text()):
            tables = "t.(token|web_session|account|member|team)"
            changes = re.search(
                rf"{tables}\.(insert|update|delete)\(|(add_lasting\(|put_row\(connection, ){tables},", body
            )
            name = re.match(r"def (\w+)", body)
            if changes and name and not name[1].startswith("_") and "change_rights(" not in body:
                wrong.append(name[1])
    assert set(wrong) == adds
