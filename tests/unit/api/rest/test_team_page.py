"""The page Team as a browser meets it: joining, choosing, making and ending what lets people in."""

from __future__ import annotations

import html
import re
import time

import pytest
import sqlalchemy as sa

pytest.importorskip("fastapi", reason="the extra `server` is not installed")
from test_roles import Office

from trainmaster.db import AcceptedRun
from trainmaster.db import tables as t
from trainmaster.service.teams.team_budget import set_budget
from trainmaster.service.users.caller import UnknownCallerError


class Browser:
    """One that keeps its cookie."""

    def __init__(self, office, name=None):
        self.office, self.cookie = office, ""
        if name is not None:
            self.keep(office.ask(None, "POST", "/login", data={"token": office.tokens[name]}))

    def keep(self, answer):
        self.cookie = answer.cookies.get(self.office.state.cookie, self.cookie)
        return answer

    def ask(self, method, path, **data):
        headers = {"sec-fetch-site": "same-origin"}
        if self.cookie:
            headers["cookie"] = f"{self.office.state.cookie}={self.cookie}"
        return self.keep(self.office.ask(None, method, path, headers=headers, data=data or None))

    def text(self, path="/team"):
        answer = self.ask("GET", path)
        assert answer.status_code == 200, answer.text
        return answer.text

    def does(self, path, **data):
        answer = self.ask("POST", path, **data)
        assert (answer.status_code, answer.headers.get("location")) == (303, "/team"), answer.text


def secret_of(answer):
    assert (answer.status_code, answer.headers["cache-control"]) == (200, "no-store"), answer.text
    return html.unescape(re.search(r"<pre[^>]*>(.*?)</pre>", answer.text)[1])


@pytest.fixture
def office(tmp_path):
    found = Office(tmp_path)
    yield found
    found.service.close()


def test_who_is_invited_joins_once_and_logs_in_again(office):
    manager = Browser(office, "manager")
    link = secret_of(manager.ask("POST", "/team/invites", role="member"))
    path = link.removeprefix("http://testserver")
    assert "a member" in manager.text()
    guest = Browser(office)
    assert "Join team red" in guest.text(path)
    code = path.partition("code=")[2]
    answer = guest.ask("POST", "/join", code=code, name="manager")
    assert (answer.status_code, "already" in answer.text) == (422, True)
    answer = guest.ask("POST", "/join", code=code, name="<b>x")
    assert (answer.status_code, "<b>x" in answer.text) == (422, False)
    token = secret_of(guest.ask("POST", "/join", code=code, name="guest"))
    assert "guest" in guest.text()
    assert "Make an invite" not in guest.text()
    office.tokens["guest"] = token
    assert "Log out" in Browser(office, "guest").text("/runs")
    assert guest.ask("POST", "/join", code=code).status_code == 422
    assert Browser(office).ask("GET", path).status_code == 422, "it is used up"


def test_who_is_a_user_joins_another_team_and_chooses(office):
    code = office.state.accounts.invite("blue", "viewer")["code"]
    member = Browser(office, "manager")
    member.does("/team/tokens/manager-all/revoke")
    assert member.ask("GET", "/team").status_code == 303, "the session was opened with that token"
    office.tokens["manager"] = office.state.access.create_token("again", ["read"], account="manager")["token"]
    member = Browser(office, "manager")
    assert "Join as manager" in member.text(f"/join?code={code}")
    member.does("/join", code=code)
    assert "job-blue" in member.text("/runs")
    assert "job-red" not in member.text("/runs")
    member.does("/team/choose", team="red")
    assert "job-red" in member.text("/runs")
    assert "job-blue" not in member.text("/runs")
    assert member.ask("POST", "/team/choose", team="green").status_code == 404


def test_who_is_in_two_teams_changes_a_workflow_of_the_other_one_for_that_team(office):
    """*New run* is sent for the team in use: the workflow became one of that team."""
    text = "name: nightly\nprovider: lab\non: webhook\nexperiments: {main: {command: 'true'}}\n"
    office.ask("manager", "POST", "/api/v1/workflows", json={"recipe": text, "max_usd": 5})
    office.state.accounts.set_member("blue", "manager", "member")
    made = office.state.access.create_token("both", ["read", "run"], account="manager")
    office.tokens["both"] = made["token"]
    member = Browser(office, "both")
    member.does("/team/choose", team="blue")
    address = "/workflows/nightly?team=red"
    led = member.ask("GET", "/new?workflow=nightly&team=red")
    assert (led.status_code, led.headers["location"]) == (303, address)
    shown = member.text(address)
    assert 'formaction="/team/choose">Change to team red, and change it</button>' in shown
    led = member.ask("POST", "/team/choose", team="red", workflow="nightly")
    assert (led.status_code, led.headers["location"]) == (303, "/new?workflow=nightly")
    assert "on: webhook" in html.unescape(member.text("/new?workflow=nightly"))


def test_who_sees_several_budgets_begins_with_the_own_one(office):
    def first():
        return re.findall(r"<h2>(.*?)</h2>", Browser(office, "chief").text())[0]

    assert first() == "The owner of the home"
    office.state.accounts.set_member("red", "chief", "manager")
    made = office.state.access.create_token("chief-red", ["read", "admin"], "red", account="chief")
    office.tokens["chief"] = made["token"]
    assert first() == "Budget", "of team red"


def test_a_manager_without_all_scopes_is_told_why_he_gives_fewer_roles(office):
    assert "never exceeded" not in Browser(office, "manager").text()
    less = office.state.access.create_token("less", ["read", "run", "manage"], "red", account="manager")
    office.tokens["less"] = less["token"]
    said = "this log-in is without infer: it gives the role viewer only."
    assert said in Browser(office, "less").text()


def test_who_is_logged_out_comes_back_to_where_he_was(office):
    def next_of(method, path, **headers):
        return office.ask(None, method, path, headers=headers).headers["location"]

    assert next_of("GET", "/runs?state=DONE") == "/login?next=%2Fruns%3Fstate%3DDONE"
    again = "/runs/job-red/again"
    sent = {"sec-fetch-site": "same-origin", "referer": f"http://testserver{again}"}
    assert next_of("POST", again, **sent) == "/login?next=%2Fruns%2Fjob-red%2Fagain"
    for other in ("http://evil.example/x", "http://[", "//x", ""):
        assert next_of("POST", again, **{**sent, "referer": other}) == "/login?next=%2F"


def test_a_manager_changes_roles_and_takes_people_out(office):
    manager, viewer = Browser(office, "manager"), Browser(office, "viewer")
    asks = "workflows that member registered start nothing until somebody registers them again; runs go on."
    assert asks in manager.text(), "who takes him out is told what ends with that"
    made = manager.ask("POST", "/team/tokens", name="ci", scope="read")
    assert "good for 90 days" in made.text, "the session ends in 12 hours, the token of its log-in does not"
    viewer.text("/runs")
    assert viewer.ask("POST", "/team/members/member", role="viewer").status_code == 403
    manager.does("/team/members/viewer", role="member")
    assert viewer.ask("GET", "/new").status_code == 200
    manager.does("/team/members/viewer")
    assert viewer.ask("GET", "/runs").status_code == 403
    assert "is in no team" in viewer.text("/team")
    assert manager.ask("POST", "/team/members/chief", role="viewer").status_code == 404


def test_no_row_offers_to_change_a_role_into_another_one_that_it_shows_as_chosen(office):
    made = office.state.access.create_token("less", ["read", "run", "manage"], "red", account="manager")
    office.tokens["less"] = made["token"]
    assert "Role of manager" in Browser(office, "manager").text()
    page = Browser(office, "less").text()
    assert "Role of viewer" in page
    assert "Role of manager" not in page, "his token may make viewers only"


def test_who_revokes_a_token_on_the_page_is_told_which_workflows_are_paused(office):
    made = office.state.access.create_token("leaked", ["read", "run"], "red", account="member")
    office.tokens["leaked"] = made["token"]
    recipe = "name: <b>\nprovider: lab\non: webhook\nexperiments:\n  main: {command: 'true'}\n"
    for name in ("nightly", "weekly"):
        body = {"recipe": recipe.replace("<b>", name), "max_usd": 1}
        assert office.ask("leaked", "POST", "/api/v1/workflows", json=body).status_code == 201
    told = Browser(office, "manager").ask("POST", "/team/tokens/leaked/revoke")
    assert (told.status_code, "leaked is revoked. Paused, as they were registered" in told.text) == (
        200,
        True,
    )
    assert '<a href="/workflows/nightly">nightly</a>, <a href="/workflows/weekly">' in told.text


def test_tokens_service_accounts_and_sessions_are_made_and_ended(office):
    manager = Browser(office, "manager")
    manager.does("/team/service-accounts", name="ci", role="member")
    made = secret_of(manager.ask("POST", "/team/tokens", name="ci-1", scope=["read", "run"], account="ci"))
    assert office.state.access.by_token(made).account == "ci"
    mine = secret_of(manager.ask("POST", "/team/tokens", name="mine", scope=["read"]))
    assert office.state.access.by_token(mine).account == "manager"
    for data in ({"name": "n"}, {"name": "n", "scope": ["root"]}, {"name": "a b", "scope": ["read"]}):
        assert manager.ask("POST", "/team/tokens", **data).status_code == 422
    assert manager.ask("POST", "/team/tokens", name="n", scope=["admin"]).status_code == 403
    assert manager.ask("POST", "/team/tokens", name="n", scope=["read"], account="member").status_code == 404
    for path in ("/team/tokens/mine/revoke", "/team/service-accounts/ci/disable"):
        manager.does(path)
    for token in (made, mine):
        with pytest.raises(UnknownCallerError):
            office.state.access.by_token(token)
    found = re.findall(r"/team/sessions/(\w+)/end", manager.text())
    assert len(found) == 1
    manager.does(f"/team/sessions/{found[0]}/end")
    assert manager.ask("GET", "/team").status_code == 303


def test_a_token_says_with_which_one_it_ends(office):
    """Who made one to change his own lost both with the old one, without a word before."""
    manager = Browser(office, "manager")
    shown = manager.ask("POST", "/team/tokens", name="second", scope="read").text
    assert "It ends when the token manager-all does, with which you are logged in." in shown
    assert ", or with manager-all" in manager.text()
    told = office.ask("manager", "POST", "/api/v1/tokens", json={"name": "third", "scopes": ["read"]})
    assert told.json()["made_with"] == "manager-all"
    (row,) = [each for each in office.ask("manager", "GET", "/api/v1/tokens").json()["tokens"]
              if each["name"] == "third"]  # fmt: skip
    assert row["made_with"] == "manager-all"


def test_a_secret_is_kept_and_forgotten_and_not_shown(office):
    manager = Browser(office, "manager")
    manager.does("/team/secrets", name="KEY", value="s3cret-value")
    text = manager.text()
    assert "/team/secrets/KEY/remove" in text
    assert "s3cret-value" not in text
    manager.does("/team/secrets/KEY/remove")
    assert Browser(office, "member").ask("POST", "/team/secrets", name="K", value="v").status_code == 403


def test_a_place_that_the_server_is_not_set_up_for_leads_to_own_logins(office):
    recipe = "name: a\nprovider: slurm\nexperiments: {main: {command: 'true', distributed: {workers: 1}}}\n"
    for path in ("/new/estimate", "/new/dry-run"):
        said = Browser(office, "member").ask("POST", path, recipe=recipe).text
        assert "no settings for slurm" in said, said
        assert '<a href="/team#logins">' in said, said


def test_an_own_login_is_listed_and_forgotten(office):
    manager, path = Browser(office, "manager"), "/api/v1/team-logins/slurm"
    machines = "machines: {n: {cpus: 1, memory: 1GB}}"
    settings = f"login: a@hpc.example.org\nkey: '{{TRAINMASTER_SLURM_KEY}}'\n{machines}\n"
    body = {"files": {"TRAINMASTER_SLURM": settings, "TRAINMASTER_SLURM_KEY": "s3cret-value"}}
    assert office.ask("manager", "PUT", path, json=body).status_code == 204
    text = manager.text()
    assert "/team/logins/slurm/remove" in text
    assert "hpc.example.org" not in text
    assert Browser(office, "member").ask("POST", "/team/logins/slurm/remove").status_code == 403
    manager.does("/team/logins/slurm/remove")
    assert "/team/logins/slurm/remove" not in manager.text()


def test_the_audit_says_who_did_what_for_whom_with_what_and_is_filtered(office):
    manager, member = Browser(office, "manager"), Browser(office, "member")
    manager.does("/team/members/viewer", role="member")
    assert member.ask("POST", "/team/members/viewer", role="viewer").status_code == 403
    office.ask("theirs", "POST", "/api/v1/tokens", json={"name": "n", "scopes": ["read"]})
    office.ask("manager", "DELETE", "/api/v1/tokens/<script>alert(1)<%2fscript>")
    text = manager.text("/audit")
    for what in ("/team/members/viewer", "with manager-all", "testclient", "403", "&lt;script&gt;"):
        assert what in text
    for what in ("theirs", "<script>"):
        assert what not in text
    assert '<td data-label="Who">manager' not in manager.text("/audit?denied=true")
    assert "/team/members" not in manager.text("/audit?name=member&action=%25%2Ftokens")
    assert member.ask("GET", "/audit").status_code == 403
    assert "theirs" in Browser(office, "chief").text("/audit")

    def ask(query, who="manager"):
        return office.ask(who, "GET", f"/api/v1/audit?{query}").json()

    entry = ask("denied=true")["audit"][0]
    assert (entry["name"], entry["team"], entry["token"], entry["status"]) == (
        "member",
        "red",
        "member-all",
        403,
    )
    assert {each["team"] for each in ask("team=blue", "chief")["audit"]} == {"blue"}
    pages, cursor = [], ""
    while cursor is not None:
        found = ask(f"limit=1{cursor}")
        pages += found["audit"]
        cursor = None if found["next"] is None else f"&cursor={found['next']}"
    assert pages == ask("limit=1000")["audit"]


def test_older_entries_are_a_link_away(office):
    for number in range(60):
        office.ask("manager", "DELETE", f"/api/v1/tokens/n-{number}")
    manager = Browser(office, "manager")
    more = html.unescape(re.search(r'href="(/audit\?[^"]*cursor[^"]*)"', manager.text("/audit?action=n-"))[1])
    text = manager.text(more)
    assert "n-9" in text
    assert "n-10<" not in text
    assert "Older" not in text


@pytest.mark.parametrize("who", ["viewer", "member", "manager", "chief", "red-read", "admin"])
def test_the_page_shows_what_one_may_and_is_small(office, who):
    text = Browser(office, who).text()
    assert len(text) < 30_000
    assert ("theirs" in text) == (who in ("chief", "admin"))
    assert not re.search("<script(?! src=)", text)
    for control in re.findall(r"<(?:input|select)[^>]*>", text):
        assert "hidden" in control or re.search(r"<label[^>]*>(?:(?!</label>).)*" + re.escape(control), text)


def test_what_is_shown_as_good_still_is_by_the_clock_of_the_database(office, monkeypatch):
    manager = Browser(office, "manager")
    path = secret_of(manager.ask("POST", "/team/invites", role="member"))
    clock = office.service.database.clock_s
    (invite,) = office.state.accounts.invites("red")
    assert f"/team/invites/{invite['id']}/remove" in manager.text(), path
    # Sessions last longer than invites do.
    monkeypatch.setattr(office.service.database, "clock_s", lambda *_: clock() + 8 * 86400.0)
    assert f"/team/invites/{invite['id']}/remove" not in Browser(office, "manager").text()
    last = office.service.database.read(sa.select(t.audit.c.at).order_by(t.audit.c.id.desc()))[0]
    assert last["at"] > clock() + 7 * 86400.0, "as that of the audit: several servers write there"


def test_a_budget_says_what_is_left_or_by_how_much_it_is_passed(office):
    database, now = office.service.database, time.time()
    set_budget(database, None, {"monthly_usd": 9.0}, now)
    owner = Browser(office, "owner")
    assert "$9.00 left of $9.00" in owner.text()
    new = AcceptedRun("r-1", "r", "{}", "r.yaml", "aws", "code", "file:///s", [("main", 1)])
    database.put_cost(database.create_run(new, now), 11.5, now)
    assert "$2.50 beyond $9.00" in owner.text()
    for monthly_usd, looks in ((11.5, "is-bad"), (14.3, "is-near"), (14.5, "done")):
        set_budget(database, None, {"monthly_usd": monthly_usd}, now)
        for page in ("/team", "/"):
            bar = re.search(r'% spent.*?"whole".*?<rect class="(.*?)"', owner.text(page))
            assert bar[1] == looks, (page, monthly_usd)
