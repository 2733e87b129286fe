"""What a server refuses to run for others."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from trainmaster.control.task.layout import Home
from trainmaster.db import AcceptedRun, Database, Submission
from trainmaster.service import Service, run_planning
from trainmaster.service.driving import local_runs
from trainmaster.service.driving.submissions import KeyUsedError, RunRequest, Submissions, refusals
from trainmaster.service.renting import provider_check
from trainmaster.service.teams.admission import Application
from trainmaster.service.users.access import Access
from trainmaster.service.users.caller import ForbiddenError, caller
from trainmaster.spec import Recipe
from trainmaster.spec.errors import NotFoundError, StoreError, UsageError


@pytest.fixture
def refused(tmp_path, monkeypatch):
    sent, home = tmp_path / "sent", tmp_path / "home"
    (sent / "data").mkdir(parents=True)
    (home / ".ssh").mkdir(parents=True)
    (sent / "link").symlink_to(home)
    monkeypatch.setenv("HOME", str(home))

    def lines(is_shared=True, is_local=False, team=None, **keys):
        top = {key: keys.pop(key) for key in ("provider", "code", "notify") if key in keys}
        content = {
            "name": "a",
            "provider": "aws",
            **top,
            "experiments": {"main": {"command": "true", **keys}},
        }
        return list(
            refusals(
                Recipe.from_dict(content, directory=sent), is_shared=is_shared, team=team, is_local=is_local
            )
        )

    return lines


def test_tasks_of_teams_run_here_only_if_they_are_kept_apart(refused):
    assert (
        "unless this server is started with `--local-runs`, and it is sent for a team"
        in refused(provider="local")[0]
    )
    assert refused(provider="local", is_local=True) == []
    assert refused(provider="hosts", is_local=True)
    assert "setup" in refused(provider="local", is_local=True, setup="pip install x")[0]
    data = {"d": {"url": "https://example.org/d"}}
    assert "push it as a volume" in refused(provider="local", is_local=True, data=data)[0]
    assert refused(provider="local", is_local=True, container="private-image")


@pytest.mark.parametrize(
    "keys",
    [
        {"provider": "local"},
        {"provider": "hosts"},
        {"code": "/etc"},
        {"code": "../home"},
        {"code": "~/.ssh"},
        {"code": "./~/.ssh"},
        {"code": "link"},
        {"code": "https://example.org/repository.git"},
        {"code": "ssh://git@host/repository.git"},
        {"code": "git@github.com:owner/private.git"},
        {"code": "file:///srv/repository.git"},
        {"notify": [{"to": "rm -rf /"}]},
        {"secrets": ["AWS_SECRET_ACCESS_KEY"]},
        {"container": "private-image"},
        {"metrics": {"pattern": "(?P<a>(x+x+)+y)"}},
        {"data": {"d": {"dir": "/etc"}}},
        {"data": {"d": {"dir": "data/../../home"}}},
        {"data": {"d": {"dir": "./~/.ssh"}}},
        {"data": {"d": {"dir": "link/.ssh"}}},
        {"data": {"d": {"volume": "../theirs"}}},
        {"data": {"d": {"volume": "~/theirs"}}},
        {"data": {"d": {"volume": "/home/owner/volume"}}},
        {"data": {"d": {"volume": "s3://any/volume"}}},
        {"data": {"d": {"url": "file:///etc/passwd"}}},
        {"data": {"d": {"url": "http://169.254.169.254/latest"}}},
        {"data": {"d": {"url": "s3://ours/store/models/other-run"}}},
        {"data": {"d": {"url": "https://${TOKEN}@host/x.zip"}}, "env": {"TOKEN": "x"}},
    ],
    ids=str,
)
def test_others_get_nothing_of_the_server(refused, keys):
    assert len(refused(**keys)) == 1
    assert refused(is_shared=False, **keys) == []


def test_a_team_names_images_that_its_machines_pull(refused):
    assert refused(team="red", container="pytorch/pytorch") == []
    (line,) = refused(team="red", provider="local", is_local=True, container="pytorch/pytorch")
    assert "this machine's own image" in line


def test_others_may_have_machines_public_data_and_their_own_code(refused):
    assert refused(code="data") == []
    data = {"d": {"url": "https://example.org/digits.zip"}, "e": {"dir": "data"}, "f": {"volume": "digits"}}
    assert refused(data=data, distributed={"strategy": "allreduce", "workers": 2}) == []


def test_a_request_is_the_same_if_all_of_it_is():
    one = RunRequest("a: 1", "0" * 64)
    assert one.digest() == RunRequest("a: 1", "0" * 64).digest()
    others = [
        RunRequest("a: 1"),
        RunRequest("a: 1", "0" * 64, "lab"),
        RunRequest("a: 1", "0" * 64, None, 5.0),
    ]
    assert len({one.digest(), *(other.digest() for other in others)}) == 4


@pytest.fixture
def at_server(tmp_path):
    """A server with two teams; what takes requests, and what makes a run of one."""
    home = Home(tmp_path, tmp_path / "cache", f"file://{tmp_path}/s", f"sqlite:///{tmp_path / 'd.db'}")
    service = Service(home)
    access = Access(service.database)
    for team in ("red", "blue"):
        access.make_team(team, None)

    def make(run, provider="aws", code="https://example.org/repository.git", key="", digest=""):
        content = {"name": "a", "code": code, "experiments": {"main": {"command": "true"}}}
        recipe = Recipe.from_dict(content, directory=tmp_path).model_dump_json()
        new = AcceptedRun(
            run, "a", recipe, "r.yaml", provider, "code", "file:///s", [("main", 1)],
            submission=Submission("ann", "red", key, digest),
        )  # fmt: skip
        service.database.create_run(new, 1.0)
        return run

    yield Submissions(service, access, {}, is_private=True), make
    service.close()


def test_the_code_of_a_run_is_for_those_who_see_it(at_server):
    submissions, make = at_server
    there, away, part = make("there"), make("away", code="."), make("part", code="src")
    red, blue = (caller("ann", team, ["run"]) for team in ("red", "blue"))
    assert submissions.code_of(red, there) is None, "a URL names it"
    for run, why in ((away, "is not on this server"), (part, "was only a part")):
        with pytest.raises(UsageError, match=why):
            submissions.code_of(red, run)
    for who, run in ((blue, there), (blue, away), (red, "no-such")):
        with pytest.raises(NotFoundError):
            submissions.code_of(who, run)


def test_what_is_sent_twice_is_one_run_also_at_the_same_time(at_server, monkeypatch):
    submissions, make = at_server
    red, other = caller("ann", "red", ["run"]), caller("bob", "blue", ["run"])
    request = RunRequest("name: a\nprovider: aws\nexperiments: {main: {command: 'true'}}\n")

    def start(recipe, path, submission, request, notes, wallet):
        make(f"r-{submission.key}", key=submission.key, digest=submission.digest)
        if submission.key == "late":  # its row is another server's
            raise StoreError("there is one with this key", "")
        return SimpleNamespace(run=f"r-{submission.key}", notes=[])

    def away(*_):
        raise StoreError("the database is away", "")

    monkeypatch.setattr(submissions, "_start", start)
    assert submissions.submit(red, request, "one") == ("r-one", True, [])
    assert submissions.submit(red, request, "late") == ("r-late", False, [])
    monkeypatch.setattr(submissions, "_start", away)
    assert submissions.submit(red, request, "one") == ("r-one", False, [])
    with pytest.raises(KeyUsedError, match="became r-one"):
        submissions.submit(red, replace(request, max_usd=5.0), "one")
    for who, key in ((red, "two"), (red, ""), (other, "one")):
        with pytest.raises(StoreError, match="away"):
            submissions.submit(who, request, key)


def test_a_key_and_a_task_may_be_as_large_as_is_said_and_no_larger(at_server, monkeypatch):
    submissions, make = at_server
    red = caller("ann", "red", ["run"])
    recipe = "name: a\nprovider: aws\nexperiments: {main: {command: 'true'}}\n"
    monkeypatch.setattr(submissions, "_start", lambda *_: SimpleNamespace(run=make("r"), notes=["it waits"]))
    accepted = []
    monkeypatch.setattr(submissions, "_accepted", lambda: accepted.append(1))
    assert submissions.submit(red, RunRequest(recipe), "k" * 255) == ("r", True, ["it waits"])
    assert accepted == [1], "a driver is told"
    with pytest.raises(UsageError, match="256 characters"):
        submissions.submit(red, RunRequest(recipe), "k" * 256)
    submissions._access.make_team("red", cpus_at_once=2)
    for cpus in (2, 3):
        task = {"command": "true", "hardware": {"cpus": cpus}}
        sent = Recipe.from_dict({"name": "a", "experiments": {"main": task}})
        submissions._check_cores(sent, "blue")
        if cpus == 2:
            submissions._check_cores(sent, "red")
            continue
        with pytest.raises(UsageError, match="takes 3 cores, and all tasks of red together may take 2"):
            submissions._check_cores(sent, "red")


def test_what_somebody_asks_now_is_read_one_at_a_time_and_what_goes_on_without_him_is_not(
    at_server, monkeypatch
):
    submissions, _ = at_server
    users, read = [], submissions._readers.read
    monkeypatch.setattr(submissions._readers, "read", lambda *of: users.append(of[-1]) or read(*of))
    request = RunRequest("name: a\nprovider: aws\nexperiments: {main: {command: 'true'}}\n")
    for is_asked in (True, False):
        submissions.read(caller("ann", "red", ["run"]), request, is_asked=is_asked)
    assert users == ["ann", None]


def test_machines_of_a_run_are_open_to_those_who_may_run_in_its_team(at_server):
    submissions, make = at_server
    rented, own = make("rented"), make("own", "hosts")
    red, blue = (caller("ann", team, ["run"]) for team in ("red", "blue"))
    submissions.need_entry(red, rented)
    with pytest.raises(NotFoundError):
        submissions.need_entry(blue, rented)
    with pytest.raises(ForbiddenError, match="'run'"):
        submissions.need_entry(caller("ann", "red", ["read"]), rented)
    with pytest.raises(ForbiddenError, match="closed to others"):
        submissions.need_entry(red, own)


def test_a_machine_that_others_use_obeys_its_admin_only(at_server, tmp_path):
    submissions, _ = at_server
    owner, red = (caller("a", team, ["run"]) for team in (None, "red"))
    submissions.need_machine(caller("root", None, ["admin", "run"]))
    for who in (owner, red):
        with pytest.raises(ForbiddenError, match="all that the server may"):
            submissions.need_machine(who)
    alone = Submissions(
        submissions._service, Access(Database(f"sqlite:///{tmp_path / 'alone.db'}")), {}, is_private=True
    )
    alone.need_machine(owner)
    with pytest.raises(ForbiddenError, match="'run'"):
        alone.need_machine(caller("a", None, ["read"]))


@pytest.mark.parametrize("has_local", [False, True])
def test_on_what_a_caller_may_run(tmp_path, has_local):
    home = Home(tmp_path, tmp_path / "cache", f"file://{tmp_path}/s", f"sqlite:///{tmp_path / 'd.db'}")
    service = Service(home)
    access = Access(service.database)
    submissions = Submissions(service, access, {}, is_private=True)
    red, owner, admin = (caller("a", team, ["run"]) for team in ("red", None, ""))
    assert all(submissions.may_run_on(owner, name) for name in ("local", "hosts", "aws")), "he is alone"
    if has_local:
        local_runs.keep(home, "container")
    access.make_team("red", None)
    found = [
        [name for name in ("local", "hosts", "aws") if submissions.may_run_on(who, name)]
        for who in (red, owner, admin)
    ]
    assert found == [["local", "aws"] if has_local else ["aws"], ["aws"], ["aws"]]
    service.close()


@pytest.mark.parametrize(
    ("agrees", "why"),
    [
        ({}, "was not agreed to:\n2 x p3.2xlarge"),
        ({"max_usd": 5.0}, ""),
        ({"agreed_usd_per_hour": 2.0}, ""),
        ({"agreed_usd_per_hour": 1.99}, r"at most \$2 per hour now, and \$1.99 was agreed to"),
        ({"max_usd": 5.0, "keep_s": 60.0}, r"by REST `keep_s`\): team red has limits"),
    ],
)
def test_only_what_was_agreed_to_is_rented(at_server, monkeypatch, agrees, why):
    submissions, _ = at_server
    submissions._access.make_team("red", 50.0)
    offer = SimpleNamespace(costs=True, lines=["2 x p3.2xlarge"], most_usd_per_hour=2.0, plans=[])
    planned, started = SimpleNamespace(offer=offer, recipe=None), []
    planner = SimpleNamespace(plan=lambda *_, **__: planned)
    monkeypatch.setattr(run_planning, "RunPlanner", lambda *_, **__: planner)
    monkeypatch.setattr(run_planning, "capped_by_month", lambda *_: None)
    monkeypatch.setattr(provider_check, "check_with_provider", lambda *_: ["asked"])
    session = SimpleNamespace(run="r", notes=["queued"])
    monkeypatch.setattr(Service, "start", lambda *_, **more: started.append(more["application"]) or session)
    recipe = "name: a\nprovider: aws\nexperiments: {main: {command: 'true'}}\n"
    request, red = RunRequest(recipe, **agrees), caller("ann", "red", ["run"])
    if why:
        with pytest.raises(UsageError, match=why):
            submissions.submit(red, request)
        assert started == []
        return
    assert submissions.submit(red, request) == ("r", True, ["asked", "queued"])
    assert started == [Application(priority=0, usd_per_hour=2.0, waits=False)]


def test_what_a_request_says_if_nobody_says_it():
    plain = RunRequest("a: 1")
    assert (plain.max_usd, plain.agreed_usd_per_hour, plain.allow_stale) == (None, None, False)
