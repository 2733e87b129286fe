"""Logins of teams: sealed, apart from the server's and each other's; what rents machines ends them."""

from __future__ import annotations

import base64
import gc
import threading
from pathlib import Path

import pytest
from sqlalchemy import text

from trainmaster.control.task.layout import Home
from trainmaster.db import AcceptedRun, Database, RetryPolicy, Submission, queries
from trainmaster.db.cluster_rows import ClusterRow
from trainmaster.db.sealed import has
from trainmaster.providers.plugins import get_provider
from trainmaster.service import Service
from trainmaster.service.driving.encryption import SealingKey
from trainmaster.service.driving.key_rotation import KeyRotation
from trainmaster.service.teams import team_logins
from trainmaster.service.teams.admission import Application, entrance
from trainmaster.service.teams.team_logins import TeamLogins
from trainmaster.service.teams.team_secrets import TeamSecrets
from trainmaster.service.users.access import Access
from trainmaster.spec import Recipe
from trainmaster.spec.errors import NotFoundError, UsageError

MACHINES = "machines: {node: {cpus: 1, memory: 1GB}}\n"
SETTINGS = f"login: USER@hpc\nkey: '{{TRAINMASTER_SLURM_KEY}}'\n{MACHINES}"
RECIPE = "name: job\nprovider: slurm\nexperiments: {main: {command: 'true', distributed: {workers: 1}}}\n"
OWN = f"login: server@hpc\n{MACHINES}"


def files_of(user):
    return {"TRAINMASTER_SLURM": SETTINGS.replace("USER", user), "TRAINMASTER_SLURM_KEY": f"key of {user}"}


@pytest.fixture
def service(tmp_path):
    home = Home(tmp_path, tmp_path / "cache", f"file://{tmp_path}/store", f"sqlite:///{tmp_path / 't.db'}")
    found = Service(home)
    for team in ("red", "blue", "none"):
        Access(found.database).make_team(team, None)
    (tmp_path / "slurm.yaml").write_text(OWN)
    yield found
    found.close()


@pytest.fixture
def logins(service):
    return TeamLogins(service.database, service.home.root, {})


def start(service, run, team, provider="slurm", state=""):
    """A run that is not over, or one that is, with a cluster in a state."""
    recipe = Recipe.from_text(RECIPE.replace("slurm", provider))
    cluster = ClusterRow(f"{run}.main", provider, service.home.identity(), state or "PLANNED", "{}")
    new = AcceptedRun(
        run, "job", recipe.model_dump_json(), "r.yaml", provider, "code", "file:///s", [("main", 1)],
        clusters=[cluster], submission=Submission("ann", team),
    )  # fmt: skip
    service.database.create_run(new, 1.0)
    if state:
        over(service, run)


def over(service, run):
    with service.database.engine.begin() as connection:
        connection.execute(text("UPDATE run SET state = 'DONE', ended_at = 2 WHERE id = :run"), {"run": run})


def test_each_sees_its_own_login_and_the_others_what_the_server_has(service, logins, tmp_path):
    logins.put("red", "slurm", files_of("red"), {}, "mia")
    logins.put("blue", "slurm", files_of("blue"), {}, "bob")
    environ = {"SLURM_CONF": "/server", "TRAINMASTER_KEY_FILE": ""}
    red, blue = (service.of_team(team).place("slurm", environ) for team in ("red", "blue"))
    assert (red.team, red.root, red.identity) == ("red", tmp_path / "logins" / "red", service.home.identity())
    assert "SLURM_CONF" not in red.environ
    for place, user in ((red, "red"), (blue, "blue")):
        assert Path(place.environ["TRAINMASTER_SLURM_KEY"]).read_text() == f"key of {user}"
    again = service.of_team("red").place("slurm", environ)
    assert again.environ == red.environ, "one file in memory, however often it is asked for"
    for team, provider in (("none", "slurm"), (None, "slurm"), ("red", "aws"), ("red", "local")):
        place = service.of_team(team).place(provider, environ)
        assert (place.root, place.environ, place.team) == (tmp_path, environ, "")
    assert service.of_team("blue").with_login("slurm", red) is red, "what is a team's stays so"


def test_it_is_sealed_and_no_secret_of_tasks(service, logins, tmp_path):
    logins.put("red", "slurm", files_of("red"), {}, "mia")
    secrets = TeamSecrets(service.database, tmp_path, {})
    assert secrets.names("red") == []
    assert secrets.values("red", ["login/slurm"]) == {}
    with pytest.raises(NotFoundError):
        secrets.remove("red", "login/slurm")
    (found,) = logins.names("red")
    assert (found["provider"], found["changed_by"]) == ("slurm", "mia")
    before = SealingKey.of(tmp_path, {}).name
    assert KeyRotation(service.database, tmp_path, {}).rotate().values == 1
    assert SealingKey.of(tmp_path, {}).name != before
    assert service.of_team("red").place("slurm", {}).team == "red"
    service.database.close()
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert files
    assert not any(b"key of red" in path.read_bytes() for path in files)


def test_it_is_changed_only_where_nothing_needs_it(service, logins):
    start(service, "job-1", "red")
    start(service, "job-2", "blue")
    start(service, "job-3", "red", "kubernetes")
    with pytest.raises(UsageError, match="team red has job-1 at slurm") as caught:
        logins.put("red", "slurm", files_of("red"), {}, "mia", is_same_account=True)
    assert "the server's own login" in caught.value.hint
    over(service, "job-1")
    logins.put("red", "slurm", files_of("red"), {}, "mia")
    start(service, "job-4", "red")
    start(service, "job-5", "red", state="KEPT")
    start(service, "job-6", "red", state="ENDED")
    with pytest.raises(UsageError, match=r"has job-4, job-5\.main at slurm, which this login"):
        logins.remove("red", "slurm")
    with pytest.raises(UsageError, match=r"team red has job-4, job-5\.main at slurm") as caught:
        logins.put("red", "slurm", files_of("other"), {}, "mia")
    assert "--same-account" in caught.value.hint
    logins.put("red", "slurm", files_of("new"), {}, "mia", is_same_account=True)
    place = service.of_team("red").place("slurm", {})
    assert Path(place.environ["TRAINMASTER_SLURM_KEY"]).read_text() == "key of new"
    over(service, "job-4")
    with service.database.engine.begin() as connection:
        connection.execute(text("UPDATE cluster SET kept_until = 3"))  # they have ended themselves since
    logins.remove("red", "slurm")
    assert service.of_team("red").place("slurm", {}).team == ""


def test_a_team_without_one_is_told_of_it_where_the_server_is_not_set_up(service, logins, tmp_path):
    (tmp_path / "slurm.yaml").unlink()
    with pytest.raises(UsageError, match="no settings for slurm, and team none no login") as caught:
        get_provider("slurm", service.of_team("none").place("slurm", {}))
    assert "`trainmaster team login none slurm`" in caught.value.hint
    with pytest.raises(UsageError, match="there are no settings"):
        get_provider("slurm", service.place("slurm", {}))


def content_of(place):
    return Path(place.environ["TRAINMASTER_SLURM_KEY"]).read_bytes()


def test_what_was_replaced_or_forgotten_leaves_memory_when_nothing_uses_it(service, logins):
    """Its file stays open: who still has its path never finds another team's key there."""
    red = service.of_team("red")
    logins.put("red", "slurm", files_of("one"), {}, "mia")
    first = red.place("slurm", {})
    path = Path(first.environ["TRAINMASTER_SLURM_KEY"])
    logins.put("red", "slurm", files_of("two"), {}, "mia", is_same_account=True)
    second = red.place("slurm", {})
    assert (content_of(first), content_of(second)) == (b"key of one", b"key of two")
    del first
    gc.collect()
    assert path.read_bytes() == b""
    logins.put("blue", "slurm", files_of("blue"), {}, "bob")
    assert service.of_team("blue").place("slurm", {}).environ["TRAINMASTER_SLURM_KEY"] != str(path)
    last = Path(second.environ["TRAINMASTER_SLURM_KEY"])
    del second
    with service.database.engine.begin() as connection:  # as another server does it
        connection.execute(text("DELETE FROM team_secret WHERE team = 'red'"))
    gc.collect()
    assert last.read_bytes() == b"key of two"
    logins.forget_earlier()
    gc.collect()
    assert last.read_bytes() == b""
    logins.put("red", "slurm", files_of("three"), {}, "mia")
    third = red.place("slurm", {})
    assert Path(third.environ["TRAINMASTER_SLURM_KEY"]) in (path, last), "not one more for each login"


def test_of_two_servers_each_uses_what_the_other_has_changed(postgres, tmp_path):
    """At once: they share a PostgreSQL and the key that seals, and nothing else."""
    (tmp_path / "key").write_bytes(base64.b64encode(bytes(32)))
    (tmp_path / "key").chmod(0o600)
    environ, url = {"TRAINMASTER_KEY_FILE": str(tmp_path / "key")}, postgres.new_url()
    homes = [Home(tmp_path / name, tmp_path / "cache", f"file://{tmp_path}/store", url) for name in "ab"]
    for home in homes:
        home.root.mkdir()
    a, b = (Service(home) for home in homes)
    Access(a.database).make_team("red", None)
    of_a, of_b = (TeamLogins(each.database, each.home.root, environ) for each in (a, b))
    of_a.put("red", "slurm", files_of("one"), {}, "mia")
    places = [each.of_team("red").place("slurm", environ) for each in (a, b)]
    assert [content_of(each) for each in places] == [b"key of one"] * 2
    of_b.put("red", "slurm", files_of("two"), {}, "mia", is_same_account=True)
    assert content_of(a.of_team("red").place("slurm", environ)) == b"key of two"
    assert content_of(places[0]) == b"key of one", "a run that goes on there has what it began with"
    of_a.remove("red", "slurm")
    assert b.of_team("red").place("slurm", environ).team == ""
    a.close()
    b.close()


@pytest.mark.parametrize("engine", ["sqlite", "postgresql"])
@pytest.mark.parametrize("first", ["login", "run"])
def test_a_run_that_begins_while_a_login_changes(service, request, monkeypatch, engine, first):
    """Two servers: either the run is seen, and the login refused, or the run begins with the new login."""
    if engine == "postgresql":
        url = request.getfixturevalue("postgres").new_url()
    else:
        url = service.home.database_url
    databases = [Database(url, RetryPolicy(30.0)) for _ in range(2)]
    Access(databases[0]).make_team("purple", None)
    logins = TeamLogins(databases[0], service.home.root, {})
    seen, refused = [], []

    def admit(connection):
        entrance("job-1", "purple", None, Application(0, 0.0, True), 1.0)(connection)
        seen.append(has(connection, "purple", "login/slurm"))
        if first == "run":
            begin(put)

    def begin(work):
        threads.append(threading.Thread(target=work))
        threads[-1].start()
        threads[-1].join(0.2)

    def create():
        recipe = Recipe.from_text(RECIPE)
        new = AcceptedRun(
            "job-1", "job", recipe.model_dump_json(), "r.yaml", "slurm", "code", "file:///s", [("main", 1)],
            submission=Submission("ann", "purple"),
        )  # fmt: skip
        databases[1].create_run(new, 1.0, admit=admit, waits=True)

    def put():
        try:
            logins.put("purple", "slurm", files_of("purple"), {}, "mia")
        except UsageError as error:
            refused.append(error)

    def at_place(*arguments):
        found = queries.at_place(*arguments)
        if first == "login":
            begin(create)
        return found

    threads = list[threading.Thread]()
    monkeypatch.setattr(team_logins, "at_place", at_place)
    (put if first == "login" else create)()
    for thread in threads:
        thread.join(30)
    assert databases[0].has_run("job-1")
    assert [bool(refused), seen] == ([False, [True]] if first == "login" else [True, [False]])
    for each in databases:
        each.close()


def test_what_is_wrong_is_not_kept(service, logins):
    with pytest.raises(UsageError, match="names no `login`"):
        logins.put("red", "slurm", {"TRAINMASTER_SLURM": OWN.replace("login: server@hpc\n", "")}, {}, "mia")
    with pytest.raises(UsageError, match="hosts: a team cannot"):
        logins.put("red", "hosts", {}, {}, "mia")
    with pytest.raises(UsageError, match="there is no provider 'moon'"):
        logins.put("red", "moon", {}, {}, "mia")
    with pytest.raises(NotFoundError, match="there is no team"):
        logins.put("nobody", "slurm", files_of("red"), {}, "mia")
    with pytest.raises(NotFoundError, match="no login of its own at slurm"):
        logins.remove("red", "slurm")
    assert logins.names("red") == []
