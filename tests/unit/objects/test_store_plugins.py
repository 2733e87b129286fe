"""Object stores of plug-ins: found by their scheme, loaded when they are used."""

from importlib import metadata
from types import SimpleNamespace

import pytest

from trainmaster.objects import ObjectStore, plugins
from trainmaster.objects.local import LocalBackend
from trainmaster.objects.plugins import split_url
from trainmaster.spec.errors import MissingPartError, UsageError


@pytest.fixture
def plugin(monkeypatch, tmp_path):
    """What `mem://` and `broken://` are to this process."""

    def broken():
        raise ImportError("no module named 'mem'")

    def unconfigured():
        raise UsageError("mem has no MEM_TOKEN", "Set MEM_TOKEN.")

    def load():
        return lambda rest: LocalBackend(f"{tmp_path}/{rest}")

    points = [
        SimpleNamespace(name="mem", value="x:Mem", load=load, dist=None),
        SimpleNamespace(name="broken", value="x:Broken", load=broken, dist=None),
        SimpleNamespace(name="unconfigured", value="x:Un", load=unconfigured, dist=None),
    ]
    monkeypatch.setattr(metadata, "entry_points", lambda group: points if group == plugins.GROUP else [])
    monkeypatch.setattr(plugins, "factories", {})


def test_a_plugin_is_a_store_by_its_scheme(plugin, tmp_path):
    store = ObjectStore("MEM://place/x/")
    store.put("a/b", b"1")
    assert store.url == "mem://place/x"
    assert (tmp_path / "place/x/a/b").read_bytes() == b"1"


def test_one_that_cannot_be_loaded_says_so(plugin):
    assert split_url("broken://x/y") == ("broken", "x/y")
    with pytest.raises(MissingPartError, match=r"(?s)'broken' \(x:Broken\).*no module.*Install what"):
        ObjectStore("broken://x/y")


def test_what_a_plugin_says_itself_is_what_the_user_is_told(plugin):
    with pytest.raises(UsageError, match="mem has no MEM_TOKEN") as caught:
        ObjectStore("unconfigured://x/y")
    assert caught.value.hint == "Set MEM_TOKEN."


def test_what_nobody_knows_names_those_that_are_known(plugin):
    with pytest.raises(
        UsageError, match=r"(?s)ftp:// is no object store.*hdfs://namenode/path.*mem://\.\.\."
    ):
        ObjectStore("ftp://x/y")


def test_those_of_our_own_are_loaded_alone(plugin):
    ObjectStore("/tmp/x")
    assert list(plugins.factories) == ["file"]
