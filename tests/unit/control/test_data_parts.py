"""What data need on the machine that drives a run, and which only this machine can bring: for all kinds."""

from __future__ import annotations

import importlib.util
import re
from importlib.metadata import EntryPoint
from types import SimpleNamespace

import pytest

from trainmaster.cluster.bootstrap.runtime_package import closure
from trainmaster.control.attempt import data_sources
from trainmaster.control.attempt.data_sources import BUILT_IN, BUILT_IN_PREFIX, parts_of
from trainmaster.control.checks.preflight import check_data_parts, why_bound_by_data
from trainmaster.objects import plugins
from trainmaster.service.on_cluster.hand_over import packages_for
from trainmaster.spec import Recipe
from trainmaster.spec.data_source import _KINDS
from trainmaster.spec.errors import MissingPartError
from trainmaster.spec.plugins import PluginRegistry

VOLUMES, DIGITS, PLUG_IN = "trainmaster[volumes]", "scikit-learn", "swift-for-trainmaster"
#: Each source: what it needs beside what each driver has, and what binds it to this machine, if anything.
SOURCES = [
    ({"volume": "pets"}, [VOLUMES], ""),
    ({"volume": "team/pets@3"}, [VOLUMES], ""),
    ({"volume": "s3://b/volumes/pets@3"}, [VOLUMES], ""),
    ({"volume": "swift://b/pets"}, [VOLUMES, PLUG_IN], ""),
    ({"volume": "file:///data/pets"}, [VOLUMES], "volume: file:///data/pets is on this machine only"),
    ({"volume": "/data/pets"}, [VOLUMES], "volume: /data/pets is on this machine only"),
    ({"volume": "./pets"}, [VOLUMES], "volume: ./pets is on this machine only"),
    ({"volume": "digits"}, [DIGITS, VOLUMES], ""),  # it may be a volume
    ({"volume": "built-in:digits"}, [DIGITS], ""),
    ({"volume": "built-in:cifar10"}, [], ""),
    ({"volume": "built-in:mnist"}, [], ""),
    ({"volume": "built-in:fashion-mnist"}, [], ""),
    ({"volume": "mnist"}, [VOLUMES], ""),
    ({"url": "https://example.org/x.tar.gz"}, [], ""),
    ({"url": "http://example.org:8000/x"}, [], ""),
    ({"url": "http://localhost:8000/x"}, [], "url: http://localhost:8000/x is on this machine only"),
    ({"url": "https://${ME}@127.0.0.1/x"}, [], "is on this machine only"),
    ({"url": "http://[::1]:80/x"}, [], "is on this machine only"),
    ({"url": "http://127.example.org/x"}, [], ""),
    ({"url": "file:///data/x.csv"}, [], "url: file:///data/x.csv is on this machine only"),
    ({"url": "memory://x"}, [], "url: memory://x is on this machine only"),
    ({"url": "s3://b/x"}, [], ""),
    ({"url": "s3a://b/x"}, [], ""),
    ({"url": "gs://b/x"}, [], ""),
    ({"url": "az://b/x"}, [], ""),
    ({"url": "hdfs://namenode/x"}, [], ""),
    ({"url": "swift://b/x"}, [PLUG_IN], ""),
    ({"url": "s3://b/x", "stage": "hdfs"}, [], ""),
    ({"dir": "images"}, [], ""),
    ({"dir": "./a/../images"}, [], ""),
    ({"dir": "not-there"}, [], "dir: not-there is on this machine only, as it is no part of the code"),
    ({"dir": "ignored/../../images"}, [], "is no part of the code"),
    ({"dir": "out"}, [], "is no part of the code"),  # a link that leads out of it
    ({"dir": "/data/images"}, [], "dir: /data/images is on this machine only"),
    ({"dir": "~/images"}, [], "dir: ~/images is on this machine only"),
    ({"from": "first"}, [], ""),
    ({"from": "first", "best": "loss"}, [], ""),
    ({"model": "digits@3"}, [], ""),
]  # fmt: skip


def recipe_of(source, **more):
    main = {"command": "true", "data": {"d": source}}
    return Recipe.from_dict(
        {"name": "r", "experiments": {"first": {"command": "true"}, "main": main}, **more}
    )


@pytest.fixture(autouse=True)
def _a_plug_in_for_a_store(monkeypatch):
    point = EntryPoint("swift", "swift_for_trainmaster:Backend", plugins.GROUP)
    named = SimpleNamespace(name=point.name, dist=SimpleNamespace(name=PLUG_IN))
    monkeypatch.setattr(PluginRegistry, "plug_ins", lambda self: {"swift": named} if self.group else {})


@pytest.fixture
def snapshot(tmp_path):
    code = tmp_path / "code"
    (code / "images").mkdir(parents=True)
    (tmp_path / "images").mkdir()
    (code / "out").symlink_to(tmp_path / "images")
    return code


@pytest.mark.parametrize(("source", "needs", "bound"), SOURCES, ids=lambda each: str(each))
def test_what_each_source_needs_and_where_it_is(source, needs, bound, snapshot):
    pytest.importorskip("sklearn", reason="it has the set")
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    recipe = recipe_of(source)
    found = [part.package for part in parts_of(recipe.experiments["main"].data["d"])]
    assert found == needs
    why = why_bound_by_data(recipe, snapshot)
    assert why.startswith("experiments.main.data.d.") if bound else why == ""
    assert bound in why
    sent = packages_for(recipe, ["ssh"], "s3://b/store")
    assert set(needs) <= set(sent)
    assert {VOLUMES, DIGITS, PLUG_IN} & set(sent) == set(needs), "nothing large is sent in vain"


def test_the_table_has_every_source_that_a_recipe_may_name():
    named = [source for source, _, _ in SOURCES]
    assert set(_KINDS) == {kind for source in named for kind in source if kind in _KINDS}
    schemes = {source["url"].partition("://")[0] for source in named if "url" in source}
    assert schemes >= {*plugins.BUILT_IN, *plugins._SAME, "http", "https"}
    assert {f"{BUILT_IN_PREFIX}{name}" for name in BUILT_IN} <= {source.get("volume") for source in named}
    assert any("stage" in source for source in named)


def test_the_needs_of_all_experiments_are_sent_once_and_so_is_what_the_store_is_of():
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    pytest.importorskip("ray", reason="ray is not installed")
    pytest.importorskip("asyncssh", reason="asyncssh is not installed")
    data = {"a": {"volume": "pets"}, "b": {"volume": "cats"}}
    experiments = {
        "first": {"command": "true"},
        "later": {"command": "true", "after": ["first"], "data": data},
    }
    recipe = Recipe.from_dict({"name": "r", "experiments": experiments})
    sent = packages_for(recipe, ["ray", "ssh"], "swift://b/store")
    assert (sent.count(VOLUMES), sent.count(PLUG_IN)) == (1, 1)
    names = {found.name.lower() for found in closure([each for each in sent if each != PLUG_IN])}
    assert {"pyarrow", "blake3", "ray", "asyncssh", "sqlalchemy"} <= names
    without = packages_for(
        Recipe.from_dict({"name": "r", "experiments": {"a": {"command": "true"}}}), ["ssh"], "s3://b"
    )
    assert "pyarrow" not in {found.name.lower() for found in closure(without)}


@pytest.mark.parametrize(
    ("source", "lacking", "line"),
    [
        ({"volume": "pets"}, "pyarrow", "experiments.main.data.d: it needs pyarrow, not installed"),
        ({"volume": "pets"}, "blake3", r"needs blake3, .*pip install 'trainmaster\[volumes\]'"),
        ({"volume": "built-in:digits"}, "sklearn", r"needs sklearn, .*pip install 'scikit-learn'"),
        ({"volume": "digits"}, "sklearn", ""),  # a volume may be called so: `require_volume` asks
        ({"url": "s3://b/x"}, "pyarrow", ""),
    ],
)  # fmt: skip
def test_what_is_not_installed_here_is_told_before_anything_starts(monkeypatch, source, lacking, line):
    found = importlib.util.find_spec
    look = lambda name: None if name == lacking else found(name)  # noqa: E731
    monkeypatch.setattr(data_sources.importlib.util, "find_spec", look)
    if not line:
        check_data_parts(recipe_of(source))
        return
    with pytest.raises(MissingPartError) as error:
        check_data_parts(recipe_of(source))
    assert re.search(line, str(error.value), re.DOTALL)


def test_a_name_that_is_neither_a_volume_nor_a_set_that_is_here_is_refused(monkeypatch, tmp_path):
    monkeypatch.setattr(data_sources.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(MissingPartError, match="the built-in set digits is part of scikit-learn"):
        data_sources.require_volume("digits", f"file://{tmp_path}/store/volumes/digits")
