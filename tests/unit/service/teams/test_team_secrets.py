"""Secrets of teams: sealed, only the team's, never the server's own."""

from __future__ import annotations

import pytest

from trainmaster.control.task.layout import Home
from trainmaster.db import AcceptedRun, Submission
from trainmaster.service import Service
from trainmaster.service.driving.encryption import SealedError
from trainmaster.service.teams.team_secrets import MAX_VALUE_BYTES, TeamSecrets
from trainmaster.service.users.access import Access
from trainmaster.spec import Recipe
from trainmaster.spec.errors import NotFoundError, UsageError

RECIPE = """\
name: job
experiments:
  main: {command: 'true', secrets: [KEY]}
"""


@pytest.fixture
def service(tmp_path):
    home = Home(tmp_path, tmp_path / "cache", f"file://{tmp_path}/store", f"sqlite:///{tmp_path / 't.db'}")
    found = Service(home)
    for team in ("red", "blue"):
        Access(found.database).make_team(team, None)
    yield found
    found.close()


@pytest.fixture
def secrets(service):
    return TeamSecrets(service.database, service.home.root, {})


@pytest.fixture
def recipe(tmp_path):
    return Recipe.from_text(RECIPE, directory=tmp_path)


def test_a_value_is_sealed_for_its_team_and_name(service, secrets, tmp_path):
    secrets.put("red", "KEY", "s3cret-value", "ann")
    secrets.put("red", "KEY", "another-value", "bob")
    assert [(each["name"], each["changed_by"]) for each in secrets.names("red")] == [("KEY", "bob")]
    assert secrets.values("red", ["KEY", "OTHER"]) == {"KEY": "another-value"}
    assert (secrets.values("blue", ["KEY"]), secrets.values("red", [])) == ({}, {})
    service.database.close()
    assert all(b"another-value" not in path.read_bytes() for path in tmp_path.iterdir() if path.is_file())
    other = tmp_path / "other.key"
    other.write_text("A" * 43 + "=")
    other.chmod(0o600)
    with pytest.raises(SealedError):
        TeamSecrets(service.database, tmp_path, {"TRAINMASTER_KEY_FILE": str(other)}).values("red", ["KEY"])


@pytest.mark.parametrize(("name", "value"), [("1A", "x"), ("A-B", "x"), ("A", ""), ("A", "a\0b"), ("", "x")])
def test_what_no_variable_can_be_is_refused(secrets, name, value):
    with pytest.raises(UsageError):
        secrets.put("red", name, value, "ann")
    with pytest.raises(UsageError):
        secrets.put("red", "A", "x" * (MAX_VALUE_BYTES + 1), "ann")
    with pytest.raises(NotFoundError):
        secrets.put("nobody", "A", "x", "ann")


def test_a_teams_run_gets_its_teams_values_and_never_the_servers(service, secrets, recipe):
    with pytest.raises(UsageError, match=r"export it, or add a line .*; with a server, on its machine"):
        service.secrets_of(recipe, {})
    service.home.secrets_file.write_text("KEY=of-the-home\n")
    service.home.secrets_file.chmod(0o600)
    environ = {"KEY": "of-the-server"}
    assert service.secrets_of(recipe, environ) == {"main": {"KEY": "of-the-server"}}
    red = service.of_team("red")
    with pytest.raises(UsageError, match="team red has no KEY"):
        red.secrets_of(recipe, environ)
    with pytest.raises(UsageError, match="team red has no KEY"):
        red.check(recipe, environ)
    secrets.put("blue", "KEY", "of-blue", "ann")
    with pytest.raises(UsageError):
        red.secrets_of(recipe, environ)
    secrets.put("red", "KEY", "of-red", "ann")
    assert red.secrets_of(recipe, environ) == {"main": {"KEY": "of-red"}}
    assert red.of_team(None).secrets_of(recipe, environ) == {"main": {"KEY": "of-the-server"}}


def test_a_run_that_is_taken_up_gets_what_its_team_has(service, secrets, recipe):
    new = AcceptedRun(
        "job-1", "job", recipe.model_dump_json(), "r.yaml", "local", "code", "file:///s", [("main", 1)],
        home=str(service.home.root),
        home_id=service.home.identity(),
        submission=Submission("ann", "red"),
    )  # fmt: skip
    for value, expected in (("of-red", {"KEY": "of-red"}), (None, {})):
        if value:
            secrets.put("red", "KEY", value, "ann")
            lease = service.database.create_run(new, 1.0)
        else:
            secrets.remove("red", "KEY")
        service.database.release(lease, 2.0)
        session = service.take("job-1", {"KEY": "of-the-server"})
        assert session.secrets == {"main": expected}, "what is gone keeps no run waiting"
        lease = session.lease
