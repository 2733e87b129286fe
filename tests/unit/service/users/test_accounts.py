"""Users, members, service accounts, invites: a role counts at the moment somebody asks."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Barrier

import pytest

from trainmaster.db import Database
from trainmaster.db import accounts as rows
from trainmaster.service.users import accounts as module
from trainmaster.service.users.access import Access, digest_of
from trainmaster.service.users.accounts import Accounts
from trainmaster.service.users.caller import NO_TEAM, ROLES, Credential, ForbiddenError, UnknownCallerError
from trainmaster.spec.errors import NotFoundError, UsageError


class Office:
    """Two teams, and who is in them."""

    def __init__(self, root):
        self.root = root
        self.database = Database(f"sqlite:///{root / 'a.db'}")
        self.access, self.accounts = Access(self.database), Accounts(self.database)
        for team in ("red", "blue"):
            self.access.make_team(team, None)
        for name, role in (("vic", "viewer"), ("mem", "member"), ("max", "manager")):
            self.accounts.create_user(name)
            self.accounts.set_member("red", name, role)
        self.accounts.create_user("root", is_admin=True)

    def token(self, account, team="red", scopes=("read", "run", "infer", "manage", "admin")):
        name = f"{account}-{len(self.access.tokens())}"
        return self.access.create_token(name, scopes, team, account=account)["token"]

    def who(self, account, team="red"):
        return self.access.by_token(self.token(account, team))


@pytest.fixture
def office(tmp_path):
    found = Office(tmp_path)
    yield found
    found.database.close()


@pytest.mark.parametrize(("account", "role"), [("vic", "viewer"), ("mem", "member"), ("max", "manager")])
def test_a_token_allows_what_its_owners_role_does(office, account, role):
    who = office.who(account)
    assert (who.name, who.team, who.scopes, who.account) == (account, "red", ROLES[role], account)
    small = office.access.by_token(office.token(account, scopes=["read"]))
    assert small.scopes == {"read"}


def test_a_demotion_or_removal_counts_at_once_for_tokens_and_sessions(office):
    token = office.token("max")
    session = office.access.open_session(office.access.by_token(token))
    invite = office.accounts.invite("red", "manager")
    alone = office.access.open_session(office.accounts.join(invite["code"], "new"))

    def everywhere():
        yield office.access.by_token(token)
        yield office.access.by_session(session)
        yield office.access.by_session(alone)

    assert all(who.scopes == ROLES["manager"] for who in everywhere())
    for name in ("max", "new"):
        office.accounts.set_member("red", name, "viewer")
    for who in everywhere():
        assert who.scopes == {"read"}
    for name in ("max", "new"):
        office.accounts.remove_member("red", name)
    for who in everywhere():
        assert (who.scopes, who.team) == (frozenset(), NO_TEAM)
        assert not who.sees(None)
        with pytest.raises(ForbiddenError, match=r"is in no team|is for team red, and \w+ is not in it"):
            who.need("read")
    assert "max is not in team red" in {each["useless"] for each in office.access.tokens()}
    office.accounts.change_user("max", is_disabled=True)
    for ask, secret in ((office.access.by_token, token), (office.access.by_session, session)):
        with pytest.raises(UnknownCallerError):
            ask(secret)


def test_the_last_manager_does_not_leave_his_team_without_one(office):
    max_ = office.who("max")
    with pytest.raises(ForbiddenError, match="max is the last manager of team red"):
        office.accounts.remove_member("red", "max", max_)
    office.accounts.set_member("red", "mem", "manager")
    office.accounts.remove_member("red", "max", max_)


def test_of_two_managers_who_leave_at_the_same_time_one_stays(office):
    def leave(name):
        both.wait()
        with suppress(ForbiddenError):
            office.accounts.remove_member("red", name, callers[name])

    office.accounts.set_member("red", "mem", "manager")
    callers = {name: office.who(name) for name in ("max", "mem")}
    for _ in range(20):
        both = Barrier(2)
        with ThreadPoolExecutor(2) as threads:
            list(threads.map(leave, callers))
        managers = [each["name"] for each in office.accounts.members("red") if each["role"] == "manager"]
        assert len(managers) == 1
        for name in callers:
            office.accounts.set_member("red", name, "manager")


def test_a_refused_role_says_which_scope_the_token_lacks(office):
    max_ = office.access.by_token(office.token("max", scopes=["read", "run", "manage"]))
    with pytest.raises(ForbiddenError, match="may not make a member: that may infer, too") as refused:
        office.accounts.set_member("red", "vic", "member", max_)
    assert refused.value.hint == "Give what you have yourself: manage, read, run."
    with pytest.raises(NotFoundError) as absent:
        office.accounts.invite("green", "viewer", max_)
    assert absent.value.hint == "Yours: red."


def test_who_is_in_several_teams_chooses_and_reaches_no_other(office):
    office.access.make_team("green", None)
    office.accounts.set_member("blue", "mem", "viewer")
    token = office.token("mem", team=None)
    with pytest.raises(ForbiddenError, match="in the teams blue, red"):
        office.access.by_token(token).need("read")
    assert office.access.by_token(token, "red").scopes == ROLES["member"]
    assert office.access.by_token(token, "blue").scopes == ROLES["viewer"]
    for team in ("green", "nothing"):
        with pytest.raises(NotFoundError, match="there is no team"):
            office.access.by_token(token, team)
    session = office.access.open_session(office.access.by_token(token))
    assert office.access.by_session(session).team == "blue"
    office.access.choose_team(session, "red")
    assert office.access.by_session(session).scopes == ROLES["member"]
    with pytest.raises(NotFoundError):
        office.access.choose_team(session, "green")
    bound = office.token("mem", team="blue")
    with pytest.raises(NotFoundError):
        office.access.by_token(bound, "red")


def test_what_many_may_is_one_question_with_the_same_answers(office):
    """As of streams: each as if it had asked by itself, and who may nothing is not there."""
    office.accounts.set_member("blue", "mem", "viewer")
    office.accounts.create_user("new")
    tokens = [office.token(name, team) for name in ("max", "mem", "root") for team in ("red", None)]
    tokens.append(office.access.create_token("nobody", ["read"], "red")["token"])
    sessions = [office.access.open_session(office.access.by_token(token)) for token in tokens]
    gone = office.token("new", None)
    ended = office.access.open_session(office.access.by_token(gone))
    office.accounts.change_user("new", is_disabled=True)
    office.accounts.set_member("red", "max", "viewer")
    asked, expected = [], {}
    for is_session, secrets in ((False, [*tokens, gone]), (True, [*sessions, ended])):
        ask = office.access.by_session if is_session else office.access.by_token
        for secret, team in itertools.product(secrets, (None, "red", "blue", "nothing")):
            asked.append(Credential(digest_of(secret), is_session, team))
            with suppress(UnknownCallerError, NotFoundError):
                expected[asked[-1]] = ask(secret, team)
    assert office.access.callers(asked) == expected
    assert 0 < len(expected) < len(asked)


def test_an_admin_is_one_only_as_long_and_as_far_as_said(office):
    whole, reading = office.token("root", None), office.token("root", None, ["read"])
    assert office.access.by_token(whole).sees_all
    assert office.access.by_token(whole, "blue").team == "blue"
    assert office.access.by_token(reading).scopes == {"read"}
    with pytest.raises(NotFoundError):
        office.access.by_token(reading, "blue")
    office.accounts.change_user("root", is_admin=False)
    assert office.access.by_token(whole).scopes == frozenset()


def test_a_token_of_an_admin_for_one_team_is_for_no_other_of_his(office):
    for team in ("red", "blue"):
        office.accounts.set_member(team, "root", "manager")
    bound = office.token("root", "red", ["read"])
    who = office.access.by_token(bound)
    assert (who.team, who.roles, who.scopes) == ("red", {"red": "manager"}, {"read"})
    session = office.access.open_session(who)
    for ask, secret in ((office.access.by_token, bound), (office.access.by_session, session)):
        with pytest.raises(NotFoundError):
            ask(secret, "blue")
    assert office.access.by_token(office.token("root", "red"), "blue").sees_all, "with the scope he chooses"


def test_what_a_token_made_ends_with_it(office):
    first = office.access.by_token(office.token("mem"))
    made = office.access.create_token("second", ["read"], "red", 3e8, account="mem", maker=first)
    assert made["expires_at"] == first.expires_at
    second = office.access.by_token(made["token"])
    third = office.access.create_token("third", ["read"], "red", account="mem", maker=second)
    session = office.access.open_session(office.access.by_token(third["token"]))
    office.access.revoke_token(first.token)
    for ask, secret in ((office.access.by_token, third["token"]), (office.access.by_session, session)):
        with pytest.raises(UnknownCallerError):
            ask(secret)


def test_managers_see_and_revoke_tokens_of_their_team_members_only_their_own(office):
    office.token("vic"), office.token("mem")
    office.access.create_token("theirs", ["read"], "blue")
    names = {
        who: {each["account"] for each in office.access.tokens(office.who(who))} for who in ("vic", "max")
    }
    assert names == {"vic": {"vic"}, "max": {"vic", "mem", "max"}}
    for who, token in (("vic", "mem-1"), ("max", "theirs")):
        with pytest.raises(NotFoundError):
            office.access.revoke_token(token, office.who(who))
    office.access.revoke_token("mem-1", office.who("max"))


def test_nobody_gives_more_than_he_has_or_takes_over_others(office):
    manager, member = office.who("max"), office.who("mem")
    only = office.access.by_token(office.token("max", scopes=["manage"]))
    for act in (
        lambda: office.accounts.set_member("red", "vic", "member", member),
        lambda: office.accounts.invite("red", "viewer", member),
        lambda: office.accounts.create_service_account("red", "bot", "viewer", member),
        lambda: office.accounts.invite("red", "member", only),
        lambda: office.accounts.set_member("red", "vic", "manager", only),
    ):
        with pytest.raises(ForbiddenError):
            act()
    with pytest.raises(NotFoundError, match="invite who"):
        office.accounts.set_member("red", "root", "viewer", manager)
    with pytest.raises(NotFoundError):
        office.accounts.need_own("mem", manager)
    with pytest.raises(NotFoundError):
        office.accounts.need_own("root", manager)
    office.accounts.need_own("max", manager)


def test_a_manager_by_groups_does_not_make_himself_one_for_good(office):
    office.accounts.create_user("gus")
    rows.set_groups(office.database, "gus", {"red": "manager"}, is_admin=False)
    gus = office.who("gus")
    with pytest.raises(ForbiddenError, match="his own role"):
        office.accounts.set_member("red", "gus", "manager", gus)
    office.accounts.join(office.accounts.invite("red", "manager", gus)["code"], "", gus)
    rows.set_groups(office.database, "gus", {}, is_admin=False)
    assert office.accounts.user("gus")["teams"] == {}
    rows.set_groups(office.database, "gus", {"red": "viewer"}, is_admin=False)
    office.accounts.join(office.accounts.invite("red", "member", office.who("max"))["code"], "", gus)
    rows.set_groups(office.database, "gus", {}, is_admin=False)
    assert office.accounts.user("gus")["teams"] == {"red": "member"}, "what others give stays"


def test_a_service_account_is_its_teams_and_has_no_pages(office):
    manager = office.who("max")
    office.accounts.create_service_account("red", "bot", "member", manager)
    office.accounts.create_service_account("blue", "theirs", "viewer")
    office.accounts.need_own("bot", manager)
    with pytest.raises(NotFoundError):
        office.accounts.need_own("theirs", manager)
    bot = office.who("bot")
    assert bot.scopes == ROLES["member"]
    with pytest.raises(ForbiddenError, match="service account"):
        office.access.open_session(bot)
    with pytest.raises(UsageError, match="of team red"):
        office.accounts.set_member("blue", "bot", "viewer")
    with pytest.raises(NotFoundError):
        office.accounts.disable_service_account("mem", manager)
    office.accounts.disable_service_account("bot", manager)
    with pytest.raises(NotFoundError):
        office.token("bot")


@pytest.mark.parametrize("end", ["was revoked", "has expired"])
def test_an_invite_ends_with_the_token_that_it_was_made_with(office, end, monkeypatch):
    """Also with the token that made that one: whose it is, nobody, or who has the role still."""
    for number, account in enumerate(("max", None)):
        first, second = f"first-{number}", f"second-{number}"
        made = office.access.create_token(first, ["read", "manage"], "red", 50.0, account=account)
        maker = office.access.by_token(made["token"])
        token = office.accounts.make_token(maker, second, ["read", "manage"], 1000.0)["token"]
        code = office.accounts.invite("red", "viewer", office.access.by_token(token))["code"]
        assert office.accounts.open_invite(code)["role"] == "viewer"
        assert office.accounts.open_invite(code)["expires_at"] == made["expires_at"]
        with monkeypatch.context() as patch:
            if end == "was revoked":
                office.access.revoke_token(first)
            else:
                now = office.database.clock_s()
                patch.setattr(office.database, "clock_s", lambda *_, now=now: now + 51)
            with pytest.raises(UsageError, match=f"token {second} {end}|invite {end}"):
                office.accounts.join(code, "eve")


def test_an_invite_gives_no_more_than_its_token_may(office):
    token = office.access.create_token("small", ["manage"], "red", account="max")["token"]
    small = office.access.by_token(token)
    with pytest.raises(ForbiddenError):
        office.accounts.invite("red", "member", small)
    code = office.accounts.invite("red", "viewer", small)["code"]
    office.accounts.set_member("red", "max", "member")
    with pytest.raises(UsageError, match="may not invite any more"):
        office.accounts.join(code, "eve")


def test_an_invite_lets_one_in_once_and_only_while_its_maker_might(office, monkeypatch):
    manager = office.who("max")
    code = office.accounts.invite("red", "member", manager)["code"]
    assert all(code.encode() not in path.read_bytes() for path in office.root.iterdir())
    with pytest.raises(UsageError, match="already"):
        office.accounts.join(code, "mem")
    with pytest.raises(UsageError, match="no name"):
        office.accounts.join(code, "<b>")
    who = office.accounts.join(code, "ann")
    assert office.access.by_session(office.access.open_session(who)).scopes == ROLES["member"]
    with pytest.raises(UsageError, match="was used"):
        office.accounts.join(code, "eve")
    mine = office.accounts.invite("blue", "viewer")["code"]
    office.accounts.join(mine, "ignored", who)
    assert office.accounts.user("ann")["teams"] == {"blue": "viewer", "red": "member"}
    again = office.accounts.invite("red", "viewer", manager)["code"]
    office.accounts.join(again, "", who)
    assert office.accounts.user("ann")["teams"]["red"] == "member", "nobody loses by an invite"
    late = office.accounts.invite("red", "viewer", manager)["code"]
    office.accounts.set_member("red", "max", "member")
    with pytest.raises(UsageError, match="may not invite any more"):
        office.accounts.join(late, "eve")
    old = office.accounts.invite("red", "viewer", lasts_s=5)
    office.accounts.remove_invite("red", office.accounts.invite("red", "viewer")["id"])
    with pytest.raises(NotFoundError):
        office.accounts.remove_invite("blue", old["id"])
    now = module.time.time()
    monkeypatch.setattr(module.time, "time", lambda: now + 6)
    with pytest.raises(UsageError, match="has expired"):
        office.accounts.join(old["code"], "eve")


def test_sessions_are_seen_and_ended_by_whose_they_are(office):
    mine, theirs = (office.access.open_session(office.who(name), "1.2.3.4") for name in ("mem", "vic"))
    mem, root = office.access.by_session(mine), office.who("root", None)
    (listed,) = office.access.sessions(mem)
    assert (listed["name"], listed["address"]) == ("mem", "1.2.3.4")
    everybodys = office.access.sessions(root)
    assert {each["name"] for each in everybodys} == {"mem", "vic"}
    with pytest.raises(NotFoundError):
        office.access.end_session_of(mem, next(each["id"] for each in everybodys if each["name"] == "vic"))
    office.access.end_session_of(mem, listed["id"])
    with pytest.raises(UnknownCallerError):
        office.access.by_session(mine)
    assert office.access.by_session(theirs).name == "vic"


def test_names_of_users_are_used_once(office):
    for name in ("mem", "../x", "a b", ""):
        with pytest.raises(UsageError):
            office.accounts.create_user(name)
    for role in ("admin", "owner", ""):
        with pytest.raises(UsageError, match="is no role"):
            office.accounts.set_member("red", "mem", role)
    for team, name in (("nothing", "mem"), ("red", "nobody")):
        with pytest.raises(NotFoundError):
            office.accounts.set_member(team, name, "viewer")


def test_a_token_of_nobodys_account_makes_others_only_if_it_may_manage(office):
    """What it makes is nobody's either: it would outlive whoever holds it now."""
    for scopes, may in ((("read", "run"), False), (("read", "run", "manage"), True)):
        name = "-".join(scopes)
        who = office.access.by_token(office.access.create_token(name, scopes, "red")["token"])
        if may:
            assert office.accounts.make_token(who, "made", ["read"])["token"]
        else:
            with pytest.raises(ForbiddenError):
                office.accounts.make_token(who, "made", ["read"])
