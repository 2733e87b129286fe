"""`engine` in recipes: one that is built in, or that an installed package brings."""

from importlib.metadata import EntryPoint

import pytest

from trainmaster.executors.gangs.recorded_cluster import cluster_kind
from trainmaster.executors.ssh.cluster import SshCluster
from trainmaster.spec.errors import RecipeError
from trainmaster.spec.frameworks import ENGINES
from trainmaster.spec.recipe import read_recipe

RECIPE = "name: r\nengine: {}\nexperiments: {{a: {{command: 'true'}}}}\n"


def read(directory, engine):
    file = directory / "r.yaml"
    file.write_text(RECIPE.format(engine))
    return read_recipe(file)


def test_an_engine_of_a_package(monkeypatch, tmp_path):
    point = EntryPoint("mine", "trainmaster.executors.ssh.cluster:SshCluster", "trainmaster.engines")
    monkeypatch.setattr(type(ENGINES), "plug_ins", lambda _: {"mine": point})
    assert read(tmp_path, "mine").engine == "mine"
    assert cluster_kind("mine") is SshCluster


def test_others_are_refused_where_they_stand(tmp_path):
    with pytest.raises(RecipeError, match=r"2:9: engine: .*did you mean 'ray'"):
        read(tmp_path, "rya")
