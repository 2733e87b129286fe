"""Logins of teams: sealed, apart from the server's and each other's; what rents machines ends them."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import text

from trainmaster.control.task.layout import Home
from trainmaster.db import AcceptedRun, Submission
from trainmaster.db.cluster_rows import ClusterRow
from trainmaster.service import Service
from trainmaster.service.driving.encryption import SealingKey
from trainmaster.service.driving.key_rotation import KeyRotation
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
