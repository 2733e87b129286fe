from types import SimpleNamespace

import pytest

from trainmaster.cli.live import LiveWatcher
from trainmaster.cli.standings import Standings
from trainmaster.cli.watching import Echo, PlainWatcher
from trainmaster.control.layout import Home
from trainmaster.service import search_results
from trainmaster.testing.watcher_contract import RECIPE, RUN, WatcherContract


@pytest.fixture
def shown(tmp_path, monkeypatch):
    """What watchers of the run ask."""
    monkeypatch.setattr(search_results, "best_tasks", lambda *_: [])
    home = Home.from_environment({"TRAINMASTER_HOME": str(tmp_path)})
    service = SimpleNamespace(home_of=lambda run: home, database=None)
    session = SimpleNamespace(run=RUN, recipe=RECIPE, lease=SimpleNamespace(token=1))
    return Echo(service, session), Standings(service, session)


class TestPlain(WatcherContract):
    @pytest.fixture
    def watcher(self, shown):
        return PlainWatcher(*shown, every_s=0.0)


class TestLive(WatcherContract):
    @pytest.fixture
    def watcher(self, shown):
        with LiveWatcher(*shown) as watcher:
            yield watcher
