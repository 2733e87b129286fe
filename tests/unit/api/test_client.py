from __future__ import annotations

from pathlib import Path

import pytest

from trainmaster.api.client import _refuse_costs
from trainmaster.api.results import RunPlan
from trainmaster.service.run_planning import capped
from trainmaster.spec import Recipe
from trainmaster.spec.errors import RecipeError, UsageError

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
    with pytest.raises(UsageError, match="no amount"):
        capped(recipe, 0)


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
    assert made.model_dump(exclude={"source_text"}) == read.model_dump(exclude={"source_text"})
    (tmp_path / "again.yaml").write_text(made.source_text)
    again = Recipe.read(tmp_path / "again.yaml", overrides={"experiments.main.retries": 7, "env.A": None})
    assert again.experiments["main"].retries == 7
    assert "A" not in again.env


def test_what_no_yaml_can_have_is_refused():
    with pytest.raises(UsageError, match=r"env\.A: a set is no value"):
        Recipe.from_dict({**GOOD, "env": {"A": {1}}})
    with pytest.raises(RecipeError, match=r"<recipe>:\d+:\d+: experiments\.main\.comand"):
        Recipe.from_dict({"experiments": {"main": {"comand": "true"}}})
