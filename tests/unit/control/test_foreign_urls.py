"""What others have sent has its URLs fetched by nodes, and never by the machine that drives it."""

from __future__ import annotations

import pytest

from trainmaster.control.attempt import data_urls, staging
from trainmaster.control.attempt.local_site import LocalSite
from trainmaster.control.loop.attempt_actions import AttemptActions
from trainmaster.control.loop.run_state import Task
from trainmaster.control.task.job_context import RelayError
from trainmaster.control.task.layout import Home
from trainmaster.service import Service
from trainmaster.spec import Recipe

URL = "https://intranet.example/secret.csv"


class Site(LocalSite):
    """Nodes that do not get through to the URL."""

    stays = False

    def provide(self, *_):
        raise RelayError("nobody answers there")

    def bring(self, *_):
        pass


@pytest.mark.parametrize("is_foreign", [True, False])
def test_only_ones_own_urls_are_fetched_here(tmp_path, monkeypatch, is_foreign):
    fetched = []
    monkeypatch.setattr(data_urls, "fetch_url", lambda url, target, **_: fetched.append(url))
    experiment = {"command": "true", "data": {"d": {"url": URL}}}
    recipe = Recipe.from_dict({"name": "a", "experiments": {"main": experiment}}, directory=tmp_path)
    home = Home.from_environment({"TRAINMASTER_HOME": str(tmp_path / "home")})
    actions = AttemptActions(
        home=home, run="a-1", recipe=recipe, secrets={}, find_models=lambda *_: [],
        site=Site(), is_foreign=is_foreign,
    )  # fmt: skip
    job = staging.stage(actions.context(Task(experiment="main", number=0, attempt=1)), {})
    if is_foreign:
        assert (fetched, job.users_fault, "nobody answers there" in job.error) == ([], True, True)
    else:
        assert (fetched, job.error) == ([URL], "")


@pytest.mark.parametrize("team", ["red", None])
def test_only_ones_own_urls_are_asked_for_before_a_run(tmp_path, monkeypatch, team):
    asked = []

    def open_web(url, *_):
        asked.append(url)
        raise OSError("nobody answers")

    monkeypatch.setattr(data_urls, "open_web", open_web)
    content = {
        "name": "a",
        "provider": "aws",
        "experiments": {"main": {"command": "true", "data": {"d": {"url": URL}}}},
    }
    service = Service.from_environment({"TRAINMASTER_HOME": str(tmp_path / "home")}).of_team(team)
    notes = service.check_inputs(Recipe.from_dict(content, directory=tmp_path), {})
    service.close()
    assert (asked, len(notes)) == (([], 0) if team else ([URL], 1))
