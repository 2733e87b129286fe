"""Apps as rows: who sees, enters and ends which; what a TensorBoard is shown."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from types import SimpleNamespace

import pytest

from trainmaster.api.local_apps import LocalApps
from trainmaster.control.task.layout import Home
from trainmaster.db import AcceptedRun, Submission, TaskChange, apps
from trainmaster.db.leases import this_process
from trainmaster.service import Service
from trainmaster.service.apps.app_access import AppAccess, AppWay
from trainmaster.service.apps.app_host import AppHost, AppKind, app_directory
from trainmaster.service.apps.app_hosts import AppHosts
from trainmaster.service.apps.apps import MOST_OPEN, Apps
from trainmaster.service.apps.tensorboard import EventMirror
from trainmaster.service.users.access import Access, digest_of
from trainmaster.service.users.caller import SCOPES, Credential, ForbiddenError, UnknownCallerError, caller
from trainmaster.spec import Recipe
from trainmaster.spec.errors import NotFoundError, PublishError, UsageError
from trainmaster.spec.states import State
from trainmaster.testing.waits import until

RECIPE = "name: job\nexperiments:\n  main: {command: 'true'}\n"
ANN = caller("ann", "red", ["read", "run"])


class Place:
    def __init__(self, root):
        home = Home(root, root / "cache", f"file://{root}/store", f"sqlite:///{root / 'trainmaster.db'}")
        self.service = Service(home)
        self.access = Access(self.service.database)
        self.access.make_team("red", None)
        self.access.make_team("blue", None)
        for run in ("job-a", "job-b"):
            self.run(run)
        self.gate = AppAccess(self.service, self.access, self)

    def run(self, run, team="red"):
        recipe = Recipe.from_text(RECIPE, directory=self.service.home.root).model_dump_json()
        new = AcceptedRun(
            run, "job", recipe, "r.yaml", "local", "code", "file:///s", [("main", 1)],
            home=str(self.service.home.root), home_id=self.service.home.identity(),
            submission=Submission("x", team),
        )  # fmt: skip
        lease = self.service.database.create_run(new, 1.0)
        begins = TaskChange("main", 0, 1, State.WAITING, State.RUNNING, creates=True, opens=True)
        self.service.database.commit(lease, [begins], 2.0)

    def opened(self, who=ANN, runs=("job-a",)):
        return Apps(self.service, who).tensorboard(list(runs))["app"]

    def ready(self, app):
        database = self.service.database
        apps.claim(database, app, this_process(), time.time() + 60)
        apps.change(database, app, state=State.RUNNING, port=1234)
        app_directory(self.service.home.root, app).mkdir(parents=True)
        (app_directory(self.service.home.root, app) / "token").write_text("own")

    def token(self, name, scopes, team):
        secret = self.access.create_token(name, scopes, team)["token"]
        return secret, Credential(digest_of(secret), False, None)


@pytest.fixture
def place(tmp_path):
    found = Place(tmp_path)
    yield found
    found.service.close()


def test_the_same_runs_have_one_app_for_a_team(place):
    first = place.opened(runs=["job-a", "job-b"])
    assert place.opened(runs=["job-b", "job-a", "job-a"]) == first
    assert place.opened() != first
    assert place.opened(caller("root", None, ["admin"]), ["job-a"]) not in (first, place.opened())
    Apps(place.service, ANN).end(first)
    assert Apps(place.service, ANN).show(first)["reason"] == "ended by hand"
    assert place.opened(runs=["job-a", "job-b"]) != first


def test_apps_of_others_are_not_there(place):
    app = place.opened()
    other = Apps(place.service, caller("bob", "blue", ["read", "run"]))
    for call in (other.show, other.end, lambda name: other.ticket(name, None)):
        with pytest.raises(NotFoundError):
            call(app)
    assert other.listed() == []
    with pytest.raises(NotFoundError):
        other.tensorboard(["job-a"])
    viewer = Apps(place.service, caller("eve", "red", ["read"]))
    assert [each["app"] for each in viewer.listed()] == [app]
    for call in (lambda: viewer.tensorboard(["job-a"]), lambda: viewer.end(app)):
        with pytest.raises(ForbiddenError):
            call()


def test_an_app_that_an_admin_opens_is_seen_by_the_team_of_its_runs_only(place):
    place.run("job-blue", "blue")
    admin = caller("root", "red", ["admin", "read", "run"])
    app = place.opened(admin, ["job-blue"])
    place.ready(app)
    assert Apps(place.service, caller("bob", "blue", ["read"])).show(app)["team"] == "blue"
    with pytest.raises(NotFoundError):
        Apps(place.service, ANN).show(app)
    with pytest.raises(NotFoundError):
        place.gate.admit(app, [], place.token("r", ["read"], "red")[0])
    with pytest.raises(UsageError, match="2 teams"):
        place.opened(admin, ["job-blue", "job-a"])


def test_a_team_has_so_many_apps_at_once(place):
    for number in range(MOST_OPEN):
        place.run(f"more-{number}")
        place.opened(runs=[f"more-{number}"])
    with pytest.raises(UsageError, match="open already"):
        place.opened()
    place.opened(runs=["more-0"])


def test_a_ticket_is_good_once_and_for_one_app(place):
    secret, credential = place.token("t", ["read"], "red")
    app, other = place.opened(), place.opened(runs=["job-b"])
    with pytest.raises(UsageError, match="not answer yet"):
        Apps(place.service, ANN).ticket(app, credential)
    place.ready(app)
    place.ready(other)
    ticket = Apps(place.service, ANN).ticket(app, credential)
    found, cookie, _ = place.gate.enter(ticket)
    assert found == app
    with pytest.raises(UnknownCallerError):
        place.gate.enter(ticket)
    assert place.gate.admit(app, ["wrong", cookie], "") == AppWay(1234, "own")
    assert place.gate.admit(app, [], secret) == AppWay(1234, "own")
    for wrong in ([], [ticket], ["x"]):
        with pytest.raises(UnknownCallerError):
            place.gate.admit(app, wrong, "")
    with pytest.raises(UnknownCallerError):
        place.gate.admit(other, [cookie], "")


def test_a_revoked_token_lets_nobody_in(place):
    _, credential = place.token("t", ["read"], "red")
    app = place.opened()
    place.ready(app)
    _, cookie, _ = place.gate.enter(Apps(place.service, ANN).ticket(app, credential))
    place.gate.admit(app, [cookie], "")
    place.access.revoke_token("t")
    with pytest.raises(UnknownCallerError):
        place.gate.admit(app, [cookie], "")


def test_another_teams_token_and_too_little_scope_do_not_get_in(place):
    app = place.opened()
    place.ready(app)
    with pytest.raises(NotFoundError):
        place.gate.admit(app, [], place.token("b", ["read"], "blue")[0])
    with pytest.raises(ForbiddenError):
        place.gate.admit(app, [], place.token("i", ["infer"], "red")[0])
    with pytest.raises(NotFoundError):
        place.gate.admit("te-none", [], place.token("r", ["read"], "red")[0])
    apps.end(place.service.database, app, "over", 1.0)
    with pytest.raises(NotFoundError):
        place.gate.admit(app, [], place.token("s", ["read"], "red")[0])


def test_who_has_the_machine_needs_no_token(place):
    app = place.opened()
    place.ready(app)
    _, cookie, _ = place.gate.enter(Apps(place.service, ANN).ticket(app, None))
    assert place.gate.admit(app, [cookie], "") == AppWay(1234, "own")


def test_an_app_whose_process_was_killed_is_over(place):
    app = place.opened()
    place.ready(app)
    apps.change(place.service.database, app, owner="elsewhere:1:1", expires_at=1.0)
    assert Apps(place.service, ANN).show(app)["reason"] == "its machine is away"
    going = place.opened(runs=["job-b"])
    place.ready(going)
    hosts = AppHosts(place.service, {})
    hosts.look()
    assert Apps(place.service, ANN).show(app)["reason"].startswith("its process was killed")
    hosts.look()
    home = place.service.home.root
    assert not app_directory(home, app).exists(), "what it has left is removed"
    assert app_directory(home, going).is_dir()


def test_event_files_of_tasks_are_shown_and_nothing_else(place):
    home = place.service.home
    attempt = home.attempt("job-a", "main", 0, 1)
    attempt.make_directories(["worker-0"])
    (attempt.directory / "output/events.out.tfevents.1").write_bytes(b"events")
    (attempt.directory / "output/projector_config.pbtxt").write_text("tensor_path: '/etc/passwd'")
    (attempt.directory / "output/link.tfevents").symlink_to("/etc/passwd")
    (home.code_directory("job-a") / "logs").mkdir(parents=True)
    (home.code_directory("job-a") / "logs/x.tfevents").write_bytes(b"more")
    target = home.root / "events"
    mirror = EventMirror(place.service, ["job-a", "job-b"], target)
    assert mirror.look() == 2
    assert mirror.look() == 0
    found = sorted(str(path.relative_to(target)) for path in target.rglob("*") if path.is_file())
    assert found == ["job-a/logs/x.tfevents", "job-a/main/0/output/events.out.tfevents.1"]


@pytest.fixture
def published(place, monkeypatch):
    """Tasks of job-a that have published models, the mirror of them by a clock that stands."""
    from trainmaster.db import tables
    from trainmaster.service.apps import tensorboard

    now, away, read = [0.0], set(), []

    class Files:
        def __init__(self, uri, manifest):
            self.uri = uri
            self.files = [SimpleNamespace(path=f"{name}.tfevents") for name in ("a", "b")]

        def read(self, entry):
            read.append((self.uri, entry.path))
            yield b"x" * 30
            if (self.uri, entry.path) in away:
                raise PublishError("the store is away", "")
            yield b"x" * 30

    monkeypatch.setattr("trainmaster.artifacts.read_manifest", lambda uri: uri)
    monkeypatch.setattr("trainmaster.service.models.model_files.ModelFiles", Files)
    monkeypatch.setattr(tensorboard, "boot_s", lambda: now[0])
    with place.service.database.engine.begin() as connection:
        connection.execute(
            tables.task.update().values(state="DONE", reason="SUCCEEDED", model_uri="file:///m")
        )
    return SimpleNamespace(now=now, away=away, read=read)


def test_event_files_of_models_are_brought_up_to_a_limit(place, published, caplog):
    mirror = EventMirror(place.service, ["job-a"], place.service.home.root / "events", most_bytes=100)
    assert mirror.look() == 1
    assert mirror.look() == 0
    (found,) = (place.service.home.root / "events").rglob("*.*")
    assert (found.name, found.stat().st_size) == ("a.tfevents", 60)
    assert "b.tfevents of file:///m is left out" in caplog.text
    assert len(published.read) == 2


def test_a_model_that_cannot_be_read_is_not_read_at_every_look(place, published):
    mirror = EventMirror(place.service, ["job-a"], place.service.home.root / "events")
    published.away.add(("file:///m", "b.tfevents"))
    assert [mirror.look(), mirror.look(), len(published.read)] == [0, 0, 2]
    assert [path.name for path in (place.service.home.root / "events").rglob("*.*")] == ["a.tfevents"]
    published.away.clear()
    published.now[0] += 301.0
    assert [mirror.look(), mirror.look(), len(published.read)] == [1, 0, 3]


class Small(AppKind):
    """Python's own server of files."""

    def command(self, port, token):
        return [sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1"], dict(os.environ)


class Dies(AppKind):
    """Ends at once."""

    def command(self, port, token):
        return [sys.executable, "-c", "raise SystemExit('no memory')"], dict(os.environ)


@pytest.fixture
def keeps_signals():
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def test_an_app_has_a_process_until_somebody_ends_it(place, keeps_signals):
    app = place.opened()
    seen = []

    def play():
        until(lambda: Apps(place.service, ANN).show(app)["state"] == "RUNNING", "it answers")
        seen.append(place.gate.admit(app, [], place.token("t", ["read"], "red")[0]))
        Apps(place.service, ANN).end(app)

    thread = threading.Thread(target=play)
    thread.start()
    AppHost(place.service, app, {"tensorboard": Small}).work()
    thread.join()
    assert Apps(place.service, ANN).show(app)["reason"] == "ended by hand"
    ((port, token, *_),) = seen
    assert port
    assert len(token) == 48
    assert not app_directory(place.service.home.root, app).exists()
    AppHost(place.service, app, {"tensorboard": Small}).work()  # it is over: nothing happens


def test_an_app_that_ends_by_itself_says_why(place, keeps_signals):
    app = place.opened()
    AppHost(place.service, app, {"tensorboard": Dies}).work()
    assert Apps(place.service, ANN).show(app)["reason"] == "it has ended by itself: no memory"


def test_an_app_ends_when_who_opened_it_leaves_the_team(place, keeps_signals):
    from trainmaster.service.users.accounts import Accounts

    accounts = Accounts(place.service.database)
    accounts.create_user("kim")
    accounts.set_member("red", "kim", "member")
    secret = place.access.create_token("kim-t", ["read", "run"], "red", account="kim")["token"]
    app = place.opened(place.access.by_token(secret))
    assert json.loads(apps.find(place.service.database, app)["runs"]) == ["job-a"]
    accounts.remove_member("red", "kim")
    AppHost(place.service, app, {"tensorboard": Small}).work()
    assert "kim may not run" in Apps(place.service, ANN).show(app)["reason"]


def test_a_port_of_a_member_is_an_app_until_its_run_is_over_or_nobody_uses_it(place):
    mine = Apps(place.service, ANN)
    found = mine.port("job-a", "worker-0", 8265)
    assert (found["state"], found["run"], found["member"], found["port"]) == (
        "RUNNING", "job-a", "worker-0", 8265
    )  # fmt: skip
    assert mine.port("job-a", "worker-0", 8265)["app"] == found["app"]
    assert mine.port("job-a", None, 8265)["app"] != found["app"]
    token = place.token("t", ["read", "run"], "red")[0]
    place.open = lambda *asked: asked
    way = place.gate.admit(found["app"], [], token)
    assert (way.is_bare, way.open()) == (True, ("job-a", "worker-0", 8265))
    with pytest.raises(ForbiddenError):
        place.gate.admit(found["app"], [], place.token("v", ["read"], "red")[0])
    hosts = AppHosts(place.service, {})
    hosts.look()
    assert mine.show(found["app"])["state"] == "RUNNING"
    apps.change(place.service.database, found["app"], used_at=1.0)
    hosts.look()
    assert mine.show(found["app"])["reason"] == "nobody used it any more"


def test_ports_that_there_cannot_be_are_refused(place):
    mine = Apps(place.service, ANN)
    with pytest.raises(UsageError, match="no port"):
        mine.port("job-a", None, 0)
    with pytest.raises(NotFoundError, match="no member"):
        mine.port("job-a", "worker-7", 80)
    with pytest.raises(NotFoundError):
        Apps(place.service, caller("bob", "blue", ["read", "run"])).port("job-a", None, 80)
    with pytest.raises(ForbiddenError):
        Apps(place.service, caller("eve", "red", ["read"])).port("job-a", None, 80)


def test_what_a_page_has_opened_does_not_end_with_a_terminal(place):
    owner = Apps(place.service, caller("owner", None, SCOPES))
    app = owner.port("job-a", None, 8265)["app"]
    terminal = LocalApps(place.service, {})
    assert terminal.port("job-a", None, 8265)["app"] == app
    terminal.leave(app)
    assert owner.show(app)["state"] == State.RUNNING
    own = terminal.port("job-b", None, 8265)["app"]
    terminal.leave(own)
    assert owner.show(own)["state"] == State.DONE
    assert terminal.port("job-b", None, 8265)["app"] != own
