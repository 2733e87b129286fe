from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy
import pytest

from client_contract_home import record_run
from trainmaster.api.client import Client, _refuse_costs
from trainmaster.api.results import RunPlan
from trainmaster.service import Home, Service
from trainmaster.service.run_planning import capped
from trainmaster.spec import Recipe
from trainmaster.spec.errors import NotFoundError, RecipeError, UsageError

GOOD = {"experiments": {"main": {"command": "true"}}}


def test_what_costs_is_refused_with_its_price():
    with pytest.raises(UsageError, match=r"at most \$0\.41 per hour(.|\n)*m5\.large(.|\n)*yes=True"):
        _refuse_costs(RunPlan("1", "aws", 0.401, ("main: 1 x m5.large",)))
    _refuse_costs(RunPlan("1", "hosts"))


def test_max_usd_caps_the_whole_run():
    recipe = Recipe.from_dict({**GOOD, "budget": {"total": "$5", "deadline": "2h"}})
    assert capped(recipe, 20).budget == recipe.budget
    assert capped(recipe, 3).budget.total_usd == 3
    assert capped(recipe, 3).budget.deadline_s == 7200
    assert capped(Recipe.from_dict(GOOD), 3).budget.total_usd == 3
    for wrong in (0, "ten"):
        with pytest.raises(UsageError, match="no amount"):
            capped(recipe, wrong)


def test_a_dictionary_is_read_as_its_yaml(tmp_path: Path):
    text = """
name: job
env: {A: "1e3", B: "on", C: "null", D: "ü # x"}
experiments:
  main:
    command: |
      echo one
      echo two
    retries: 2
    parameters: {lr: [1e-05, 0.1], flag: [true, false]}
"""
    file = tmp_path / "job.yaml"
    file.write_text(text)
    content = {
        "name": "job",
        "env": {"A": "1e3", "B": "on", "C": "null", "D": "ü # x"},
        "experiments": {
            "main": {
                "command": "echo one\necho two\n",
                "retries": 2,
                "parameters": {"lr": (1e-5, 0.1), "flag": [True, False]},
            }
        },
    }
    read = Recipe.read(file)
    made = Recipe.from_dict(content, directory=tmp_path)
    but = {"source_text", "file"}
    assert made.model_dump(exclude=but) == read.model_dump(exclude=but)
    (tmp_path / "again.yaml").write_text(made.source_text)
    again = Recipe.read(tmp_path / "again.yaml", overrides={"experiments.main.retries": 7, "env.A": None})
    assert again.experiments["main"].retries == 7
    assert "A" not in again.env


def test_numbers_of_numpy_are_those_of_python():
    parameters = {"lr": numpy.logspace(-2, -1, 2), "batch": [numpy.int64(8), numpy.float64(0.5)]}
    content = {"experiments": {"main": {"command": "echo {{lr}} {{batch}}", "parameters": parameters}}}
    source = json.loads(Recipe.from_dict(content).source_text)
    assert source["experiments"]["main"]["parameters"] == {"lr": [0.01, 0.1], "batch": [8, 0.5]}


def test_what_no_yaml_can_have_is_refused():
    with pytest.raises(UsageError, match=r"env\.A: a set is no value"):
        Recipe.from_dict({**GOOD, "env": {"A": {1}}})
    with pytest.raises(RecipeError, match=r"<recipe>:\d+:\d+: experiments\.main\.comand"):
        Recipe.from_dict({"experiments": {"main": {"comand": "true"}}})


def test_models_are_registered_moved_and_downloaded_by_name(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("TRAINMASTER_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("TRAINMASTER_STORE", raising=False)
    client = Client()
    service = Service(Home.from_environment())
    for number in (1, 2):
        record_run(service, f"job-{number}", float(number))
        client.registry.register(f"job-{number}/main/0", "digits", "production" if number == 1 else None)
    assert client.registry.promote("digits@2", "production", 1)["moved"]
    assert client.registry.rollback("digits@production")["version"] == 1
    assert client.download("digits@production", tmp_path / "one").files == 1
    assert client.download("job-2", tmp_path / "two").files == 1
    with pytest.raises(NotFoundError):
        client.download("digits@3", tmp_path / "three")
    service.close()
    client.close()


def test_a_home_is_set_up_and_looked_after(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("TRAINMASTER_HOME", str(tmp_path / "home"))
    client = Client()
    assert client.administration.set_budget(None, {"monthly_usd": 200.0})["left_usd"] == 200.0
    assert client.administration.budget(None)["monthly_usd"] == 200.0
    assert client.convert("torchrun --nproc_per_node 2 train.py")["tool"] == "a command line"
    (tmp_path / "train.py").write_text("print('loss 1')\n")
    made = client.first_recipe(tmp_path)["recipe"]
    assert client.check(Recipe.from_text(made, directory=tmp_path)) == []
    assert client.dry_run(GOOD)["processes"]
    client.close()


def test_runs_come_in_another_order(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("TRAINMASTER_HOME", str(tmp_path / "home"))
    for name, at in (("job-b", 1.0), ("job-a", 2.0), ("job-c", 3.0)):
        record_run(Service(Home.from_environment()), name, at)
    client = Client()
    assert [each.id for each in client.runs(sort="run", limit=2)] == ["job-a", "job-b"]
    assert [each.id for each in client.runs(sort="-created")] == ["job-c", "job-a", "job-b"]
    with pytest.raises(UsageError, match="after, and sort"):
        client.runs(sort="run", after="job-a")


def test_another_process_gets_a_run_and_its_client(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("TRAINMASTER_HOME", str(tmp_path / "home"))
    record_run(Service(Home.from_environment()), "job-1", 1.0)
    client = Client()
    monkeypatch.setenv("TRAINMASTER_HOME", str(tmp_path / "another"))
    (run,) = pickle.loads(pickle.dumps(client.runs()))
    assert (run.id, run.succeeded) == ("job-1", True)
    assert [each.id for each in pickle.loads(pickle.dumps(client)).runs()] == ["job-1"]


def test_a_server_is_asked_by_another_process_with_a_token_that_it_finds_itself(monkeypatch):
    written = pickle.dumps(Client("http://127.0.0.1:9", "tm_secret"))
    assert b"tm_secret" not in written
    monkeypatch.delenv("TRAINMASTER_TOKEN", raising=False)
    with pytest.raises(UsageError, match=r"http://127.0.0.1:9: no token"):
        pickle.loads(written)
    monkeypatch.setenv("TRAINMASTER_TOKEN", "tm_other")
    assert isinstance(pickle.loads(written), Client)


@pytest.mark.parametrize("overrides", [["experiments.main.retries=2"], "experiments.main.retries=2", 5])
def test_overrides_that_are_no_dictionary_are_refused(overrides):
    with pytest.raises(UsageError, match=r"overrides: .* is no dictionary"):
        Recipe.from_dict(GOOD, overrides=overrides)


def test_what_a_run_does_not_have_is_refused_by_its_metrics_as_by_its_logs(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("TRAINMASTER_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("TRAINMASTER_STORE", raising=False)
    record_run(Service(Home.from_environment()), "job-1", 1.0)
    run = Client().run("job-1")
    for asked in (run.metrics, lambda **what: list(run.logs(**what))):
        with pytest.raises(NotFoundError, match="has no experiment 'mian'"):
            asked(experiment="mian")
        with pytest.raises(NotFoundError, match="has no task 9"):
            asked(task=9)
    with pytest.raises(UsageError, match="--tail -2"):
        list(run.logs(tail=-2))
