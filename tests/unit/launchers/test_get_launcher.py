import importlib.metadata
import subprocess
import sys

import pytest

from trainmaster.launchers import Gang, Launcher, Member, PlainLauncher, TorchrunLauncher, get_launcher
from trainmaster.spec.errors import MissingPartError, UsageError


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


class Horovod(Launcher):
    name = "horovod"

    def environment(self, gang, member):
        return {}


def test_built_in():
    assert isinstance(get_launcher("plain"), PlainLauncher)
    assert isinstance(get_launcher("torchrun"), TorchrunLauncher)
    assert isinstance(get_launcher("pytorch"), TorchrunLauncher)


@pytest.mark.parametrize("name", ["tensorflow", "jax", "mxnet", "mpi", "spark"])
def test_later_ones_say_so(name, plugins):
    with pytest.raises(MissingPartError, match=f"no launcher for '{name}' yet") as caught:
        get_launcher(name)
    assert "plain" in caught.value.hint
    assert caught.value.exit_code == 2


def test_unknown_names_the_known_ones(plugins):
    with pytest.raises(UsageError, match="no launcher 'pytroch'") as caught:
        get_launcher("pytroch")
    assert "plain, pytorch, torchrun" in caught.value.hint


def test_a_plugin_is_found_but_never_replaces_a_built_in_one(plugins):
    plugins += [plugin("horovod", f"{__name__}:Horovod"), plugin("plain", f"{__name__}:Horovod")]
    assert get_launcher("horovod").name == "horovod"
    assert get_launcher("plain").name == "plain"


def test_a_plugin_may_bring_what_comes_later(plugins):
    plugins.append(plugin("jax", f"{__name__}:Horovod"))
    assert get_launcher("jax").name == "horovod"


def test_a_broken_plugin_says_what_is_missing(plugins):
    plugins.append(plugin("broken", "no_such_module:Launcher"))
    with pytest.raises(MissingPartError, match=r"'broken'.*No module named 'no_such_module'"):
        get_launcher("broken")


def test_plugins_inherit_harmless_defaults():
    launcher, gang = Horovod(), Gang((Member("worker", 0, "127.0.0.1"),))
    assert launcher.ports_per_member("worker") == 0
    assert launcher.is_essential("worker")
    assert not launcher.is_essential("ps")
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
