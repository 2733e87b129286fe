import importlib.metadata
import subprocess
import sys

import pytest

from trainmaster.launchers import Gang, Launcher, Member, PlainLauncher, TorchrunLauncher, get_launcher
from trainmaster.spec.errors import MissingPartError, UsageError
from trainmaster.spec.frameworks import LAUNCHERS


@pytest.fixture
def plugins(monkeypatch):
    """What `importlib.metadata` would find installed: a list to fill."""
    points: list[importlib.metadata.EntryPoint] = []
    monkeypatch.setattr(
        importlib.metadata,
        "entry_points",
        lambda *, group: [point for point in points if point.group == group],
    )
    return points


def plugin(name: str, value: str) -> importlib.metadata.EntryPoint:
    return importlib.metadata.EntryPoint(name, value, "trainmaster.launchers")


class Byteps(Launcher):
    name = "byteps"

    def environment(self, gang, member):
        return {}


def test_built_in():
    assert isinstance(get_launcher("plain"), PlainLauncher)
    assert isinstance(get_launcher("torchrun"), TorchrunLauncher)
    assert isinstance(get_launcher("pytorch"), TorchrunLauncher)


@pytest.mark.parametrize("name", sorted({*LAUNCHERS, *LAUNCHERS.values()}))
def test_whatever_recipes_may_say_has_a_launcher(name):
    assert get_launcher(LAUNCHERS[name]).name == LAUNCHERS[name]
    assert get_launcher(name).name == LAUNCHERS[name]


def test_unknown_names_the_known_ones(plugins):
    with pytest.raises(UsageError, match="no launcher 'pytroch'") as caught:
        get_launcher("pytroch")
    assert "mxnet, plain, pytorch" in caught.value.hint


def test_a_plugin_is_found_but_never_replaces_a_built_in_one(plugins):
    plugins += [plugin("byteps", f"{__name__}:Byteps"), plugin("plain", f"{__name__}:Byteps")]
    assert get_launcher("byteps").name == "byteps"
    assert get_launcher("plain").name == "plain"


def test_a_broken_plugin_says_what_is_missing(plugins):
    plugins.append(plugin("broken", "no_such_module:Launcher"))
    with pytest.raises(MissingPartError, match=r"'broken'.*No module named 'no_such_module'"):
        get_launcher("broken")


def test_plugins_inherit_harmless_defaults():
    launcher, gang = Byteps(), Gang((Member("worker", 0, "127.0.0.1"),))
    assert launcher.ports_per_member("worker") == 0
    assert launcher.is_essential(gang, gang.chief)
    assert not launcher.is_essential(gang, Member("ps", 0, "127.0.0.1"))
    assert launcher.script(gang, gang.chief, "true") == "true"
    assert launcher.defaults(gang, gang.chief) == {}
    assert launcher.explain("Traceback") == ""


def test_built_in_launchers_import_nothing_heavy():
    code = (
        "import sys; from trainmaster.launchers import get_launcher; get_launcher('torchrun'); "
        "heavy = {'importlib.metadata', 'pydantic', 'torch', 'ruamel'}; "
        "print(sorted(heavy & set(sys.modules)))"
    )
    # -S: without it, site-packages' .pth files import what they like
    path = [entry for entry in sys.path if entry]
    done = subprocess.run(
        [sys.executable, "-S", "-c", f"import sys; sys.path[:0] = {path!r}; {code}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"
