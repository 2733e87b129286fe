import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from trainmaster.service.runs.comparison import compare
from trainmaster.service.runs.curves import goal_of
from trainmaster.spec import Recipe

TEXT = "name: line\n# how fast\nexperiments:\n  train: {command: python train.py --lr LR}\n"


@pytest.fixture
def runs(tmp_path):
    """Each with its code; the recipes lie in it, and were named by their whole paths."""
    rows = {}
    for run, rate, script, more in (
        ("a", "1", "one", {}),
        ("b", "2", "one", {}),
        ("c", "1", "two", {}),
        ("d", "1", "one", {"seed": 7}),
    ):
        code = tmp_path / f"code-{rate}-{script}"
        code.mkdir(exist_ok=True)
        (code / "train.py").write_text(script)
        (code / "recipe.yaml").write_text(TEXT.replace("LR", rate))
        recipe = Recipe.read(code / "recipe.yaml", overrides=more).model_dump_json()
        rows[run] = {"id": run, "code_path": str(code), "recipe": recipe}
    rows["e"] = {**rows["a"], "id": "e", "code_path": "/of/another/server/code-1-five"}
    status = dict.fromkeys(("state", "reason", "seconds", "cost_usd"))

    rows["f"] = {**rows["c"], "id": "f", "code_path": "/of/another/server/code-1-two"}

    def code(run):
        """That of f is on the object store, that of e is gone."""
        path = tmp_path / "code-1-two" if run == "f" else Path(rows[run]["code_path"])
        return path if path.is_dir() else None

    return SimpleNamespace(
        code=code,
        row=rows.__getitem__,
        brief=lambda run: {"owner": "ann"} if run == "a" else {},
        status=lambda run: {"run": run, **status},
        metrics=lambda *_, **__: [],
        details=lambda _: SimpleNamespace(inputs=dict),
    )


@pytest.mark.parametrize(
    ("other", "recipe", "code"),
    [
        (
            "b",
            ["-  train: {command: python train.py --lr 1}", "+  train: {command: python train.py --lr 2}"],
            [],
        ),
        ("c", [], ["train.py"]),
        ("d", ["+seed: 7"], []),
        ("e", [], None),
        ("f", [], ["train.py"]),
    ],
)
def test_what_differs_is_told_once(runs, other, recipe, code):
    """Of a recipe that is part of the code among the recipes; with `--set` the keys alone."""
    (diff,) = compare(runs, ["a", other])["diffs"]
    lines = [line for line in diff["lines"] if line[0] in "+-" and line[:3] not in ("+++", "---")]
    assert lines == recipe
    assert (diff["code"] and [each["path"] for each in diff["code"]]) == code


def test_whose_a_run_is_is_told_where_that_is_known(runs):
    assert [each.get("owner") for each in compare(runs, ["a", "b"])["runs"]] == ["ann", None]


def test_what_a_recipe_looks_at_comes_first_as_it_is_best_there(runs):
    """Whatever its name sounds like: the task of the first metric is the one that is named."""
    [name] = Recipe.from_text(TEXT).experiments
    recipe = {"experiments": {name: {"target": {"metric": "gap", "at_most": 0.1}, "until": None}}}
    runs.row = lambda run: {"id": run, "code_path": "", "recipe": json.dumps({**recipe, "source_text": ""})}
    goal = goal_of("gap", recipe["experiments"][name])
    points = {"experiment": name, "task": 0, "parameters": {}, "best": 0.2}
    keys = {"loss": "min", "accuracy": "max", "gap": goal}
    runs.metrics = lambda *_, **__: [{**points, "key": key, "goal": goal} for key, goal in keys.items()]
    assert list(compare(runs, ["a"])["metrics"].items()) == [
        ("gap", "min"),
        ("loss", "min"),
        ("accuracy", "max"),
    ]


def test_another_way_to_write_the_same_is_no_difference(runs):
    """As a run from a capsule has it: its recipe is written anew, with what was changed."""
    a = runs.row("a")
    text = Recipe.from_text("name: line\nexperiments: {train: {command: python train.py --lr 1}}").as_yaml()
    text = f"{text.rstrip()}\nseed: 7\ncode: .\n"  # where its code lies is no difference, either
    told = {**json.loads(a["recipe"]), "source_text": text, "seed": 7}
    rows = {"a": a, "z": {**a, "id": "z", "recipe": json.dumps(told)}}
    runs.row = rows.__getitem__
    (diff,) = compare(runs, ["a", "z"])["diffs"]
    assert [line for line in diff["lines"] if line[0] in "+-" and line[:3] not in ("+++", "---")] == [
        "+seed: 7"
    ]
