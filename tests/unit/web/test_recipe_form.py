"""What is filled in becomes a recipe that means just that."""

from __future__ import annotations

import html
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML
from test_new_run_pages import RENTED, answer, browser, state  # noqa: F401 - fixtures

from trainmaster.db import quote_requests as rows
from trainmaster.service.driving.submissions import Submissions
from trainmaster.service.quotes.quote_requests import QUOTE
from trainmaster.service.teams.team_budget import set_budget
from trainmaster.service.users.caller import caller
from trainmaster.spec import Recipe
from trainmaster.spec.errors import RecipeError, UsageError
from trainmaster.web.recipe_form import RecipeForm, with_cluster, wrong_fields


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
            "pruner": "asha",
        },
        {"objective": "cheapest", "strategy": "allreduce", "workers": "4", "epochs": "3", "examples": "60"},
    ],
)
def test_a_recipe_that_was_filled_in_fills_the_form_again(filled):
    text = RecipeForm(**filled).text()
    assert RecipeForm.of(text).text() == text
    assert RecipeForm.of(f"{text}seed: 1\n") == RecipeForm.of(text), "that has no field"


@pytest.mark.parametrize(
    ("command", "main"),
    [
        ("ls -l", ""),
        ("[1]", ""),
        ("python a.py --lr {{lr}} -v", "a.py"),
        ("python a.py lr={{lr}}", "a.py"),
        ("python a.py", ""),
        ("python  a.py --lr {{lr}}", ""),
    ],
)
def test_what_no_field_says_leaves_it_empty(command, main):
    found = RecipeForm.of(f"experiments:\n  a:\n    command: {command}\n    parameters: {{lr: [1, 2]}}\n")
    assert (found.main, found.parameters) == (main, "lr: 1, 2")


COMMENTS = st.sampled_from(["", '  # why: it\'s "so"', " # {name: no}"])
KEYS = st.sampled_from(["seed", "labels", "notify", "x-mine", "retries", "ünknown"])
VALUES = st.sampled_from(
    [
        *("3", "[1, 2.50]", "{a: 1e-4, b: [x]}", "'it''s'", "null", "\n    - one\n    - two: 3"),
        "|\n    a\n\n     b",
        "\n    # inner\n    deep: {x: 0x10}\n    list:\n    - 1",
        ">-\n    folded\n    text",
    ]
)
RUNS = st.sampled_from(
    ["python train.py --lr {{lr}}", "torchrun --nproc 2 a.py", "make '*'", "bash -c 'a; b'"]
)


@st.composite
def recipes(draw):
    """Recipes as people write them: comments, keys that no field has, flow and block, in any order."""
    parts = [f"name: NAME{draw(COMMENTS)}\n", f"provider: aws{draw(COMMENTS)}\n"]
    parts.append(f"budget:{draw(st.sampled_from([' {total: $5, saving: 10%}', chr(10) + '  total: $5']))}\n")
    names = draw(st.lists(st.sampled_from(["main", "train", "b c"]), min_size=1, max_size=3, unique=True))
    body = "".join(
        f'  {name}:{draw(COMMENTS)}\n    command: "{draw(RUNS)}"\n    parameters: {{lr: [0.10, 1e-3]}}\n'
        f"    {draw(KEYS)}: {draw(VALUES).replace(chr(10), chr(10) + '  ')}\n"
        for name in names
    )
    parts.append(f"experiments:{draw(COMMENTS)}\n{body}")
    parts += [f"{key}: {draw(VALUES)}\n" for key in draw(st.sets(KEYS, max_size=4))]
    between = draw(st.sampled_from(["", "\n", "# of the next\n", "\n  # askew\n\n"]))
    return between.join(draw(st.permutations(parts)))


def changed(text, **fields):
    """The recipe when fields were filled in on the page that shows it."""
    was = RecipeForm.of(text)
    return was.model_copy(update=fields).written(text, was)


@settings(max_examples=100, deadline=None)
@given(recipes(), st.sampled_from(["renamed", "a: b", "3", "Größe #1"]))
def test_a_changed_name_leaves_every_other_byte_as_it_was(text, name):
    quoted = name if name in ("renamed", "3") else json.dumps(name, ensure_ascii=False)
    assert changed(text, name=name) == text.replace("NAME", quoted)


@settings(max_examples=30, deadline=None)
@given(recipes(), st.data())
def test_a_field_changes_one_key_and_can_be_taken_back(text, data):
    fields = {
        "deadline": ("9h", ("budget", "deadline")),
        "steps": ("40", ("experiments", "", "steps")),
        "batch": ("128", ("experiments", "", "batch", "global")),
        "instance": ("g5.*", ("experiments", "", "hardware", "instance")),
        "setup": ("a\nb", ("experiments", "", "setup")),
    }
    field = data.draw(st.sampled_from(sorted(fields)))
    value, path = fields[field]
    more = changed(text, **{field: value})
    before, after = (YAML(typ="safe", pure=True).load(each) for each in (text, more))
    at = after
    for key in (path := [key or next(iter(after["experiments"])) for key in path])[:-1]:
        at = at[key]
    assert str(at.pop(path[-1])).strip() == value
    if not at:
        del after["experiments"][path[1]][path[2]]
    assert repr(after) == repr(before)
    kept = [line for line in text.split("\n") if line not in more.split("\n")]
    assert len(kept) <= 1, "a mapping in one line is longer, no other line has changed"
    assert changed(more, **{field: ""}) == text


def test_a_built_in_set_is_meant_also_where_a_volume_has_its_name():
    """The plain name would be the volume."""
    form = RecipeForm(data="built-in", source="digits")
    assert 'volume: "built-in:digits"' in form.text() or "volume: built-in:digits" in form.text()
    found = RecipeForm.of(form.text())
    assert (found.data, found.source) == ("built-in", "digits")
    assert RecipeForm.of(RecipeForm(data="volume", source="digits").text()).data == "volume"


def test_the_recipe_that_hyper_has_printed_is_in_the_fields(tmp_path):
    printed = """\
experiments:
  mnist:           # Name the experiment
    framework: pytorch
    parameters:
      lr:
        range: 0.1-0.3
        sampling: uniform
      samples: 1000 # Number of samples to draw
    workers: 100
    hardware:
      gpu: k80
    command:
      - python train.py --lr {{lr}}
"""
    form = RecipeForm.of(printed)
    assert [form.main, form.arguments, form.parameters] == ["train.py", "", "lr: 0.1-0.3"]
    assert form.samples == "1000"
    assert form.written(printed, form) == printed
    changed = form.model_copy(update={"samples": "50", "parameters": "lr: 0.1-0.5"}).written(printed, form)
    (experiment,) = Recipe.from_text(changed, directory=tmp_path).experiments.values()
    assert (experiment.samples, "0.1-0.5" in changed, "# Name" in changed) == (50, True, True)
    emptied = form.model_copy(update={"samples": "", "parameters": "lr: 0.1, 0.2"}).written(printed, form)
    (experiment,) = Recipe.from_text(emptied, directory=tmp_path).experiments.values()
    assert experiment.samples is None


def test_comments_and_what_no_field_knows_stay_when_a_field_is_emptied():
    text = "name: a\nexperiments:\n  one:  # first\n    command: ls\n    search: {metric: loss, goal: min}\n"
    text += "    data:\n      photos: {volume: photos@3, mount: true}\n    hardware: {gpus: 4, spot: true}\n"
    assert "photos: {volume: birds, mount: true}" in changed(text, source="birds")
    assert "data" not in changed(text, data="", source="")
    assert "hardware: {gpus: 4}" in changed(text, spot="")
    assert "search" not in changed(text, metric="")
    assert changed(text, name="", main="") == text, "what has to be there stays"
    assert "command: python b.py" in changed(text, main="b.py")


def test_aliases_are_values_of_their_own_and_what_cannot_be_read_is_not_lost():
    text = "name: a\nexperiments:\n  a: {command: ls, hardware: &h {gpus: 1}}\n"
    text += "  b: {command: ls, hardware: *h}\n"
    cluster = {"worker": {"instance": "m4.large", "spot": True, "processes": 3, "usd_per_hour": 0.1}}
    found = YAML(typ="safe").load(with_cluster(text, "b", cluster))["experiments"]
    assert found["b"]["hardware"] == {"gpus": 1, "instance": "m4.large", "spot": True}
    assert found["a"]["hardware"] == {"gpus": 1}
    for broken in ("name: [", "- a", "3"):
        with pytest.raises(UsageError):
            RecipeForm(name="x").written(broken, RecipeForm())


def test_a_mistake_is_told_at_its_field_without_a_line():
    text = "name: x\nbudget: {total: $abc}\nexperiments: {t: {command: ls, batch: {global: q}, odd: 1}}\n"
    with pytest.raises(RecipeError) as error:
        Recipe.from_text(text)
    found = wrong_fields(error.value)
    assert found.keys() == {"budget", "batch"}
    assert found["batch"] == ["the text 'q'; write a whole number of at least 1"]


def test_what_was_chosen_of_a_search_stays_and_what_it_lacks_is_told(tmp_path):
    form = RecipeForm(parameters="lr: 1e-3-1 log", samples="8", sampler="tpe", pruner="asha")
    with pytest.raises(RecipeError, match="no `metric`; name the metric to look at") as error:
        read(form, tmp_path)
    assert wrong_fields(error.value)["metric"] == ["no `metric`; name the metric to look at"]
    found = RecipeForm.of(form.text())
    assert (found.sampler, found.pruner, found.metric) == ("tpe", "asha", "")


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
            "sampler": "pbt",
            "samples": "8",
            "population": "4",
            "generations": "2",
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
    search = train.search
    assert (search.metric, search.sampler) == ("loss", "pbt")
    assert (search.population, search.generations) == (4, 2)
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


def test_all_that_is_wrong_with_a_field_is_told():
    with pytest.raises(RecipeError) as error:
        Recipe.from_text("name: x\nexperiments: {t: {command: 'python a.py {{one}} {{two}}'}}\n")
    (told,) = wrong_fields(error.value).values()
    assert len(told) == 2, told


def test_machines_are_kept_warm_as_the_command_line_does_and_a_quote_knows_it(state, browser, monkeypatch):  # noqa: F811
    asked = []
    monkeypatch.setattr(Submissions, "submit", lambda _, who, request, key: asked.append(request) or refuse())
    words = "Keep rented machines warm for the next run"
    assert words in browser.get("/new").text

    def refuse():
        raise UsageError("not now", "")

    filled = {"recipe": RENTED, "keep": "30m", "budget": "5"}
    assert "not now" in browser.post("/new", data=filled).text
    assert asked[0].keep_s == 1800.0
    place = browser.post("/new/quote", data=filled).headers["location"]
    name = place.rpartition("/")[2]
    assert state.quotes.ask_of(caller("owner", None, ["read"]), QUOTE, name).keep_s == 1800.0
    rows.end(state.service.database, rows.named(name), 1e12, answer=json.dumps(answer()), error=None)
    assert 'name="keep" value="1800s"' in browser.get(f"{place}/change").text
    for wrong, said in (("soon", "is no duration"), ("2d", "is longer than a day")):
        refused = browser.post("/new", data=filled | {"keep": wrong})
        assert refused.status_code == 422
        assert said in html.unescape(refused.text)
        assert f'value="{wrong}"' in refused.text, "it comes back as it was"
    set_budget(state.service.database, None, {"monthly_usd": 9.0}, 1e9)
    assert words not in browser.get("/new").text, "what is kept is in no budget"
