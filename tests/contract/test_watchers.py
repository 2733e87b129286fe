from types import SimpleNamespace

import pytest

from trainmaster.cli.live import LiveDisplay
from trainmaster.cli.watching import PlainDisplay
from trainmaster.control.task.layout import Home
from trainmaster.service.driving.run_watcher import RunWatcher
from trainmaster.testing.watcher_contract import RECIPE, RUN, WatcherContract


@pytest.fixture
def watch(tmp_path, monkeypatch):
    """Makes a watcher of the run that has a display."""
    monkeypatch.setattr("trainmaster.service.runs.search_results.best_tasks", lambda *_: [])
    home = Home.from_environment({"TRAINMASTER_HOME": str(tmp_path)})
    service = SimpleNamespace(home_of=lambda run: home, database=None)
    session = SimpleNamespace(run=RUN, recipe=RECIPE, lease=SimpleNamespace(token=1))
    return lambda display: RunWatcher(service, session, display.say, display.show, view_every_s=0.0)


class TestPlain(WatcherContract):
    @pytest.fixture
    def watcher(self, watch):
        return watch(PlainDisplay(rents=False))


class TestLive(WatcherContract):
    @pytest.fixture
    def watcher(self, watch):
        with LiveDisplay(rents=False) as display:
            yield watch(display)
