"""Which volume a name in a team's recipe means: the team's own or a built-in set, never the owner's."""

import pytest

from trainmaster.control.attempt.data_sources import pinned_volume, provide_volume, require_volume, volume_url
from trainmaster.control.task.layout import Home
from trainmaster.service.teams.team_volumes import with_team_volumes
from trainmaster.spec import Recipe
from trainmaster.spec.errors import UsageError
from trainmaster.spec.facts import RunFacts
from trainmaster.volumes.packed.pushing import push

RECIPE = """\
name: job
experiments:
  main:
    command: 'true'
    data: {set: {volume: NAME}}
"""


@pytest.fixture
def home(tmp_path):
    found = Home(tmp_path / "home", tmp_path / "cache", f"file://{tmp_path}/store", "sqlite://")
    files = tmp_path / "files"
    files.mkdir()
    (files / "secret.csv").write_text("of the owner\n")
    push(files, f"{found.store_url}/volumes/digits")
    push(files, f"{found.store_url}/volumes/pets")
    return found


def meant(home, name, team="red"):
    recipe = Recipe.from_text(RECIPE.replace("NAME", name), directory=home.root)
    volume = with_team_volumes(recipe, home, team).experiments["main"].data["set"].volume
    return volume, volume_url(volume, home.store_url)


def test_a_built_in_set_is_meant_whatever_volumes_the_owner_has(home, tmp_path):
    pytest.importorskip("sklearn", reason="it has the set")
    name, address = meant(home, "digits")
    require_volume(name, address)
    assert pinned_volume(name, address, RunFacts()) is None
    provide_volume(name, address, tmp_path / "there", RunFacts())
    assert [path.name for path in (tmp_path / "there").iterdir()] == ["digits.csv"]
    own = pinned_volume(*meant(home, "digits", team=None), RunFacts())
    assert own == f"{home.store_url}/volumes/digits@1", "short names mean the owner's for the owner"


def test_a_teams_own_volume_comes_before_a_built_in_set(home):
    push(
        home.store_url.removeprefix("file://") + "/volumes/pets", f"{home.store_url}/teams/red/volumes/digits"
    )
    assert meant(home, "digits")[0] == f"{home.store_url}/teams/red/volumes/digits@1"
    with pytest.raises(UsageError, match="team red has no volume pets"):
        meant(home, "pets")
