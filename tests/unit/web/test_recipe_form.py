"""What is filled in becomes a recipe that means just that."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from trainmaster.spec import Recipe
from trainmaster.spec.errors import UsageError
from trainmaster.web.recipe_form import RecipeForm, with_cluster


def read(form, tmp_path):
    return Recipe.from_text(form.text(), directory=tmp_path)


@pytest.mark.parametrize(
    "filled",
    [
        {},
        {
            "name": "a b",
            "code": "https://example.org/a@main",
            "arguments": "--epochs 3 -v",
            "parameters": "lr: 1e-4-1e-1 log\ndepth: 18, 34\nact: relu",
            "setup": "pip install x\npip install y",
            "data": "volume",
            "source": "pets",
            "provider": "aws",
            "policy": "scala-opt",
            "p": "0.8",
            "instance": "c4.xlarge, g5.*",
            "server": "m4.large",
            "workers": "1..8",
            "servers": "2",
            "spot": "on",
            "budget": "20",
            "per_hour": "2.5",
            "metric": "loss",
            "sampler": "tpe",
            "samples": "30",
        },
        {"objective": "cheapest", "strategy": "allreduce", "workers": "4", "epochs": "3", "examples": "60"},
    ],
)
def test_a_recipe_that_was_filled_in_fills_the_form_again(filled):
    text = RecipeForm(**filled).text()
    assert RecipeForm.of(text).text() == text
    assert RecipeForm.of(f"{text}seed: 1\n") is None, "that has no field"


@pytest.mark.parametrize("text", ["", "3", "a: [", "name: x", "experiments: {train: {command: ls}}"])
def test_what_no_form_says_fills_none(text):
    assert RecipeForm.of(text) is None


def test_an_empty_form_is_a_recipe(tmp_path):
    found = read(RecipeForm(), tmp_path)
    assert found.experiments["train"].command == "python main.py"
    assert found.provider == "local"


def test_everything_that_is_filled_in_is_in_the_recipe(tmp_path):
    form = RecipeForm.model_validate(
        {
            "name": "digits",
            "code": "https://example.com/a.git@main",
            "main": "train.py",
            "arguments": "--fast",
            "parameters": "lr: 1e-4-1e-1 log\ndepth: 18, 34\nact: relu\n",
            "setup": "pip install -r requirements.txt\n",
            "data": "url",
            "source": "https://example.com/data.zip?a=1&b={x}",
            "provider": "aws",
            "instance": "g5.*",
            "region": "eu-*",
            "spot": "on",
            "workers": "4",
            "servers": "2",
            "latency_ms": "2.5",
            "strategy": "ps-async",
            "framework": "tensorflow",
            "batch": "128",
            "epochs": "3",
            "examples": "1000",
            "deadline": "2h",
            "budget": "20",
            "objective": "fastest",
            "metric": "loss",
            "sampler": "qmc",
            "samples": "8",
            "unknown": "x",
        }
    )
    found = read(form, tmp_path)
    train = found.experiments["train"]
    line = "python train.py --fast --lr {{lr}} --depth {{depth}} --act {{act}}"
    assert (found.name, found.provider, train.command) == ("digits", "aws", line)
    assert (found.budget.total_usd, found.budget.deadline_s) == (20.0, 7200.0)
    assert train.distributed.workers == 4
    assert (train.distributed.parameter_servers, train.distributed.latency_ms) == (2, 2.5)
    assert train.hardware.spot
    assert train.hardware.instance == ("g5.*",)
    assert train.data["data"].url == "https://example.com/data.zip?a=1&b={x}"
    assert train.search.metric == "loss"
    assert set(train.parameters) == {"lr", "depth", "act"}


@given(st.text(st.characters(blacklist_categories=["Cs", "Cc"]), min_size=1, max_size=40))
def test_whatever_is_typed_arrives_as_it_was_typed(source):
    form = RecipeForm.model_validate({"data": "volume", "source": source, "instance": source})
    found = YAML(typ="safe").load(form.text())["experiments"]["train"]
    if source.strip():
        assert str(found["data"]["data"]["volume"]) in (source.strip(), str(_number(source.strip())))
    assert list(YAML(typ="safe").load(form.text())) == ["name", "experiments"]


def _number(text):
    try:
        return int(text)
    except ValueError:
        try:
            return float(text)
        except ValueError:
            return {"true": True, "false": False}.get(text)


def test_a_cluster_of_a_quote_is_taken_and_comments_stay(tmp_path):
    gang = "{strategy: allreduce, workers: auto}"
    text = f"name: x  # mine\nexperiments:\n  main:\n    command: 'true'\n    distributed: {gang}\n"
    cluster = {"worker": {"instance": "m4.large", "spot": True, "processes": 3, "usd_per_hour": 0.1}}
    changed = with_cluster(text, "main", cluster)
    assert "# mine" in changed
    main = Recipe.from_text(changed, directory=tmp_path).experiments["main"]
    assert (main.distributed.workers, main.hardware.instance, main.hardware.spot) == (3, ("m4.large",), True)
    with pytest.raises(UsageError):
        with_cluster(text, "other", cluster)


def test_the_server_that_is_filled_in_or_quoted_is_in_the_recipe(tmp_path):
    filled = {"policy": "scala-opt", "p": "0.8", "per_hour": "2", "server": "m4.large, m4.2xlarge"}
    form = RecipeForm.model_validate(
        {**filled, "batch": "60", "steps": "9", "instance": "c4.xlarge,m4.xlarge", "most_workers": "6"}
    )
    found = Recipe.from_text(form.text(), directory=tmp_path)
    train = found.experiments["train"]
    assert (found.objective.policy, found.objective.p, found.budget.usd_per_hour) == ("scala-opt", 0.8, 2.0)
    assert train.hardware.instance == ("c4.xlarge", "m4.xlarge")
    assert train.distributed.hardware["ps"].instance == ("m4.large", "m4.2xlarge")
    assert (train.distributed.strategy, train.distributed.workers) == ("ps-async", "1..6")

    def rented(instance, count):
        return {"instance": instance, "count": count, "spot": False, "processes": count, "usd_per_hour": 0.1}

    cluster = {"worker": rented("c4.xlarge", 6), "parameter_server": rented("m4.large", 2)}
    chosen = Recipe.from_text(with_cluster(form.text(), "train", cluster), directory=tmp_path)
    gang = chosen.experiments["train"].distributed
    assert (gang.workers, gang.parameter_servers, gang.hardware["ps"].instance) == (6, 2, ("m4.large",))
    assert chosen.objective.policy == ""
    alone = {"worker": rented("c4.xlarge", 1), "parameter_server": None}
    shared = Recipe.from_text(with_cluster(form.text(), "train", alone), directory=tmp_path)
    assert "ps" not in shared.experiments["train"].distributed.hardware
