"""Single sign-on against a provider over TCP: code flow, PKCE, nonce, state; groups become roles."""

from __future__ import annotations

import re
import time
import warnings
from dataclasses import replace
from urllib.parse import parse_qs, urlsplit

import pytest

pytest.importorskip("authlib", reason="the extra `server` is not installed")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    mock = pytest.importorskip("oidc_provider_mock", reason="it is for development only")
    import httpx2

from trainmaster.db import Database
from trainmaster.db import tables as t
from trainmaster.service.users.access import Access
from trainmaster.service.users.accounts import Accounts
from trainmaster.service.users.caller import NO_TEAM, ROLES, UnknownCallerError
from trainmaster.service.users.single_sign_on import Group, SignInError, SignOnSettings, SingleSignOn
from trainmaster.spec.errors import ProviderError, UsageError

#: The provider of the tests uses what its libraries will give up.
pytestmark = pytest.mark.filterwarnings("ignore")
ANSWER = "http://127.0.0.1:9/login/oidc/answer"
GROUPS = {
    "lab": Group("red"),
    "leads": Group("red", "manager"),
    "others": Group("blue", "member"),
    "operators": Group(is_admin=True),
    "gone": Group("green", "member"),
}


@pytest.fixture(scope="module")
def provider():
    with mock.run_server_in_thread() as server:
        yield f"http://localhost:{server.server_port}"


class Office:
    def __init__(self, root, provider):
        self.database = Database(f"sqlite:///{root / 'a.db'}")
        self.access, self.accounts, self.provider = Access(self.database), Accounts(self.database), provider
        for team in ("red", "blue"):
            self.access.make_team(team, None)
        self.settings = SignOnSettings(provider, "trainmaster", "s", GROUPS)
        self.sign_on = SingleSignOn(self.settings, self.database)

    def knows(self, subject, **claims):
        """The provider has a user with these claims."""
        answer = httpx2.put(f"{self.provider}/users/{subject}", json=claims)
        assert answer.status_code in (200, 204), answer.text

    def at_provider(self, url, subject):
        """What a user's browser is sent back with."""
        answer = httpx2.post(url, data={"sub": subject})
        assert answer.status_code == 302, answer.text
        return {key: value[0] for key, value in parse_qs(urlsplit(answer.headers["location"]).query).items()}

    def logs_in(self, subject):
        url, cookie = self.sign_on.begin(ANSWER, "/models")
        said = self.at_provider(url, subject)
        who, wanted = self.sign_on.finish(cookie, said["state"], said["code"], ANSWER)
        assert wanted == "/models"
        return self.access.by_session(self.access.open_session(who))


@pytest.fixture
def office(tmp_path, provider):
    found = Office(tmp_path, provider)
    yield found
    found.database.close()


def test_groups_say_what_a_user_is_here_at_each_login(office):
    office.knows("ann", preferred_username="ann", groups=["leads", "others", "unknown", "gone"])
    who = office.logs_in("ann")
    assert (who.account, who.roles) == ("ann", {"blue": "member", "red": "manager"})
    office.accounts.set_member("blue", "ann", "viewer")
    office.knows("ann", preferred_username="ann", groups=["lab"])
    assert office.logs_in("ann").roles == {"blue": "viewer", "red": "viewer"}, "what people gave stays"
    office.knows("ann", preferred_username="ann", groups=["operators"])
    assert office.logs_in("ann").sees_all
    office.knows("ann", preferred_username="ann", groups=[])
    who = office.logs_in("ann")
    assert (who.sees_all, who.roles) == (False, {"blue": "viewer"})
    office.accounts.change_user("ann", is_disabled=True)
    with pytest.raises(SignInError, match="may not use"):
        office.logs_in("ann")


def test_what_groups_gave_holds_for_some_time_without_another_login(office, monkeypatch):
    office.sign_on.settings = replace(office.settings, groups_hold_s=3600.0)
    office.knows("bob", preferred_username="bob", groups=["others", "operators"])
    office.logs_in("bob")
    token = office.access.create_token("laptop", ["read", "run"], account="bob")["token"]
    assert office.access.by_token(token).roles == {"blue": "member"}
    office.accounts.set_member("red", "bob", "viewer")
    now = time.time()
    for later_s, roles, is_admin in (
        (3000, {"blue": "member", "red": "viewer"}, True),
        (4000, {"red": "viewer"}, False),
    ):
        monkeypatch.setattr(time, "time", lambda later_s=later_s: now + later_s)
        assert office.access.by_token(token).roles == roles
        assert office.accounts.user("bob")["is_admin"] is is_admin
    assert office.logs_in("bob").roles == {"blue": "member", "red": "viewer"}


def test_no_session_outlasts_what_groups_gave(office, monkeypatch):
    office.sign_on.settings = replace(office.settings, groups_hold_s=3600.0)
    office.knows("cat", preferred_username="cat", groups=["others"])
    url, cookie = office.sign_on.begin(ANSWER, "/")
    said = office.at_provider(url, "cat")
    secret = office.access.open_session(office.sign_on.finish(cookie, said["state"], said["code"], ANSWER)[0])
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 3700)
    with pytest.raises(UnknownCallerError, match="session is over"):
        office.access.by_session(secret)


def test_who_is_in_no_known_group_gets_nothing(office):
    office.knows("eve", preferred_username="eve", groups=["unknown"], role="admin")
    who = office.logs_in("eve")
    assert (who.team, who.scopes) == (NO_TEAM, frozenset())


@pytest.mark.parametrize(
    ("claimed", "role"),
    [
        ("member", "member"),
        ("manager", "manager"),
        *((each, "viewer") for each in ("admin", "Manager", "root", None, ["manager"], {"manager": 1}, 3)),
    ],
)
def test_a_role_claim_that_is_not_known_gets_the_least(claimed, role):
    settings = SignOnSettings("https://x", "c", "s", GROUPS)
    assert settings.account_roles({"groups": ["lab"], "role": claimed}) == ({"red": role}, False)
    assert settings.account_roles({"groups": [], "role": claimed}) == ({}, False)


@pytest.mark.parametrize("groups", [None, "lab", 3, [3, None, {"lab": 1}], {"lab": True}, ["LAB"], ["lab "]])
def test_groups_that_are_no_list_of_known_names_give_nothing_more(groups):
    roles, is_admin = SignOnSettings("https://x", "c", "s", GROUPS).account_roles({"groups": groups})
    assert (roles in ({}, {"red": "viewer"}), is_admin) == (True, False)
    assert all(role in ROLES for role in roles.values())


def test_nobody_becomes_somebody_else_by_a_name(office):
    office.accounts.create_user("bob", is_admin=True)
    office.knows("other-bob", preferred_username="bob", email="bob@x.org", groups=["lab"])
    who = office.logs_in("other-bob")
    assert (who.account, who.sees_all) == ("bob-2", False)
    office.knows("strange", preferred_username="<b> ü/..", groups=["lab"])
    assert re.fullmatch(r"[A-Za-z0-9._@-]+", office.logs_in("strange").account)


def test_only_the_browser_that_began_ends_it_once_with_its_own_state_nonce_and_verifier(office):
    office.knows("ann", groups=["lab"])
    url, cookie = office.sign_on.begin(ANSWER, "/")
    query = {key: value[0] for key, value in parse_qs(urlsplit(url).query).items()}
    assert (query["code_challenge_method"], len(query["nonce"]), len(query["state"])) == ("S256", 32, 30)
    said = office.at_provider(url, "ann")
    for wrong in ("", "other"):
        with pytest.raises(SignInError, match="not begun"):
            office.sign_on.finish(wrong, said["state"], said["code"], ANSWER)
    _, mine = office.sign_on.begin(ANSWER, "/")
    with pytest.raises(SignInError, match="not begun"):
        office.sign_on.finish(mine, said["state"], said["code"], ANSWER)
    office.sign_on.finish(cookie, said["state"], said["code"], ANSWER)
    with pytest.raises(SignInError, match="not begun"):
        office.sign_on.finish(cookie, said["state"], said["code"], ANSWER)
    url, cookie = office.sign_on.begin(ANSWER, "/")
    state = parse_qs(urlsplit(url).query)["state"][0]
    with pytest.raises(SignInError, match="is not good"):
        office.sign_on.finish(cookie, state, "made-up", ANSWER)
    other_nonce = url.replace(query_of(url, "nonce"), "n" * 32)
    said = office.at_provider(other_nonce, "ann")
    with pytest.raises(SignInError, match="is not good"):
        office.sign_on.finish(cookie_of_new(office, said), said["state"], said["code"], ANSWER)


def query_of(url, key):
    return parse_qs(urlsplit(url).query)[key][0]


def cookie_of_new(office, said):
    """Another login with the state of this one, so that only the nonce (and the verifier) are wrong."""
    _, cookie = office.sign_on.begin(ANSWER, "/")

    office.database.write(
        lambda connection, _: connection.execute(t.sign_in.update().values(state=said["state"]))
    )
    return cookie


def test_a_token_for_somebody_else_is_refused(office):
    office.knows("ann", groups=["lab"])
    url, cookie = office.sign_on.begin(ANSWER, "/")
    said = office.at_provider(url, "ann")
    office.sign_on.settings = replace(office.settings, client_id="another-service")
    with pytest.raises(SignInError, match="is not good"):
        office.sign_on.finish(cookie, said["state"], said["code"], ANSWER)


def test_a_provider_that_is_away_or_another_one_is_said(office):
    away = SingleSignOn(replace(office.settings, issuer="http://localhost:9"), office.database)
    with pytest.raises(ProviderError, match="does not answer"):
        away.begin(ANSWER, "/")
    slash = SingleSignOn(replace(office.settings, issuer=office.provider + "/"), office.database)
    with pytest.raises(ProviderError, match="is about"):
        slash.begin(ANSWER, "/")


SETTINGS = """\
issuer = "https://login.example.org"
client_id = "trainmaster"
client_secret = "s"
[groups.lab]
team = "red"
[groups.leads]
team = "red"
role = "manager"
[groups.operators]
admin = true
"""


def test_settings_are_read_and_mistakes_named(tmp_path):
    file = tmp_path / "sso.toml"

    def read(text, mode=0o600):
        file.write_text(text)
        file.chmod(mode)
        return SignOnSettings.read(file)

    found = read(SETTINGS)
    assert found.groups == {
        "lab": Group("red"),
        "leads": Group("red", "manager"),
        "operators": Group(is_admin=True),
    }
    assert "client_secret" not in repr(found)
    for wrong in (
        SETTINGS.replace("https", "http"),
        SETTINGS.replace("manager", "admin"),
        SETTINGS.replace("admin = true", "colour = 1"),
        SETTINGS.replace("client_id", "client"),
        SETTINGS.replace("[groups.lab]", "[groups.lab"),
    ):
        with pytest.raises(UsageError):
            read(wrong)
    with pytest.raises(UsageError, match="others may read"):
        read(SETTINGS, 0o644)
    with pytest.raises(UsageError):
        SignOnSettings.read(tmp_path / "missing")
