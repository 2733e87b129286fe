"""What `check` says of what scripts in the code seem to do."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from trainmaster.control.checks.inputs import (
    _overwriting_notes,
    _unused_parameters,
    missing_script_notes,
    missing_scripts,
    not_sent_of,
)
from trainmaster.control.checks.inputs import _script_notes as script_notes
from trainmaster.control.checks.preflight import check_sent
from trainmaster.control.task.layout import Home
from trainmaster.service import Service
from trainmaster.spec import Recipe
from trainmaster.spec.errors import UsageError
from trainmaster.web.recipe_form import wrong_fields

RECIPE = "provider: aws\nexperiments: {{train: {{command: python train.py, {keys}}}}}\n"
ESTIMATOR = "import tensorflow as tf\ntf.estimator.Estimator(model_fn, 'out')\n"
EXAMPLE = Path(__file__).parents[3] / "examples/estimator"
STAGED = "data: {images: {url: 's3://b/images', stage: hdfs}}"


def notes(directory: Path, script: str, keys: str) -> list[str]:
    (directory / "train.py").write_text(script)
    return list(script_notes(Recipe.from_text(RECIPE.format(keys=keys), directory=directory)))


@pytest.mark.parametrize(
    ("command", "script", "is_told"),
    [
        ("python train.py {{x}}", "torch.save(model, 'model.pt')", True),
        ("python train.py {{x}}", 'df.to_csv("out.csv")', True),
        ("python train.py", "torch.save(model, 'model.pt')", False),
        ("python train.py {{x}}", "torch.save(model, f'model-{x}.pt')", False),
        ("python train.py {{x}}", "torch.save(m, os.environ['TRAINMASTER_OUTPUT_DIR'] + '/model.pt')", False),
        ('code=$PWD; cd "$TRAINMASTER_OUTPUT_DIR"; python "$code/train.py" {{x}}', "f.save('m.pt')", False),
    ],
)
def test_tasks_that_save_under_one_name_in_one_directory_are_told(tmp_path, command, script, is_told):
    (tmp_path / "train.py").write_text(script)
    train = {"command": command} | ({"parameters": {"x": [1, 2]}} if "{{x}}" in command else {})
    recipe = Recipe.from_dict({"experiments": {"train": train}}, directory=tmp_path)
    told = list(_overwriting_notes(recipe))
    assert ["experiments.train: its tasks share one working directory" in each for each in told] == [
        True
    ] * is_told


@pytest.mark.parametrize(
    ("command", "script", "is_told"),
    [
        ("python train.py {{lr}}", "", True),
        ("python train.py {{lr}} {{lrr}}", "", False),
        ("python train.py", "", False),
        ("python train.py {{lr}}", "os.environ['TRAINMASTER_PARAM_LRR']", False),
        ("python train.py {{lr}} $TRAINMASTER_PARAM_LRR", "", False),
    ],
)
def test_a_parameter_that_nothing_takes_is_told(tmp_path, command, script, is_told):
    (tmp_path / "train.py").write_text(script)
    train = {"command": command, "parameters": {"lr": [1, 2], "lrr": [3]}}
    recipe = Recipe.from_dict({"experiments": {"train": train}}, directory=tmp_path)
    told = list(_unused_parameters(recipe))
    assert ["no {{lrr}} is in its command: only TRAINMASTER_PARAM_LRR" in each for each in told] == [
        True
    ] * is_told


@pytest.mark.parametrize(
    ("keys", "is_told"),
    [
        ("framework: tensorflow", True),
        ("framework: tensorflow, container: 'tensorflow/tensorflow:2.16.1-gpu'", True),
        ("framework: tensorflow, container: 'tensorflow/tensorflow:1.15.5-gpu'", False),
        ("framework: tensorflow, container: 'lab/own-image'", False),
        ("framework: tensorflow, setup: pip install tensorflow==2.15", False),
        ("framework: pytorch", False),
    ],
)
def test_an_estimator_needs_an_old_tensorflow(tmp_path: Path, keys: str, is_told: bool) -> None:
    assert bool(notes(tmp_path, ESTIMATOR, keys)) is is_told
    assert not notes(tmp_path, "import tensorflow as tf\n", keys)


def test_the_example_of_an_estimator_is_for_its_image_and_the_python_there():
    recipe = Recipe.read(EXAMPLE / "recipe.yaml")
    assert not list(script_notes(recipe))
    for image in (None, "docker.io/tensorflow/tensorflow:2.16.1"):
        other = Recipe.read(EXAMPLE / "recipe.yaml", overrides={"experiments.train.container": image})
        (told,) = script_notes(other)
        assert "tf.estimator, which TensorFlow has no more from 2.16 on" in told
        assert "docker.io/tensorflow/tensorflow:1.15.5-py3" in told
    ast.parse((EXAMPLE / "train.py").read_text(), feature_version=(3, 6))


def test_what_a_script_writes_into_hdfs_is_lost(tmp_path: Path) -> None:
    (told,) = notes(tmp_path, "save('hdfs://default/model')\n", STAGED)
    assert "lost with the cluster" in told
    assert not notes(tmp_path, "save('model')\n", STAGED)
    kept = "# hdfs://\nsave(os.environ['TRAINMASTER_OUTPUT_HDFS'])\n"
    assert not notes(tmp_path, kept, STAGED)


def test_a_metric_that_nothing_names_is_told(tmp_path: Path) -> None:
    (told,) = notes(tmp_path, "report(accuracy=1)\n", "until: acuracy > 0.9")
    assert told.startswith("experiments.train.until: neither the command nor the code names acuracy")
    assert not notes(tmp_path, "report(accuracy=1)\n", "until: accuracy > 0.9")


@pytest.mark.parametrize(("keys", "are_read"), [("retries: 1", False), ("until: accuracy > 0.9", True)])
def test_scripts_are_read_where_a_note_could_come_of_it(tmp_path: Path, keys, are_read, monkeypatch):
    read = []
    monkeypatch.setattr(Path, "rglob", lambda *asked: read.append(asked) or [])
    notes(tmp_path, "accuracy", keys)
    assert bool(read) is are_read


@pytest.mark.parametrize(
    ("keys", "is_sure"),
    [
        ({"command": "python nosuch.py --lr 0.1"}, True),
        ({"command": "set -e\nexport A=1\nB=2 exec python3 -u lib/nosuch.py"}, True),
        ({"command": "# for: python train.py; it is\nexport A='1 2'\npython nosuch.py"}, True),
        ({"command": "python nosuch.py", "setup": "pip list"}, False),
        ({"command": "python nosuch.py", "container": "python:3.12"}, False),
        ({"command": "python nosuch.py || true"}, False),
        ({"command": "python nosuch.py", "data": {"d": {"url": "https://a.example/a", "at": "x"}}}, False),
        *(
            ({"command": command}, None)
            for command in (
                "python train.py", "python -m nosuch", "python -c 'import a'", "python - < x",
                "python $SCRIPT", "python ${A}.py", "python *.py", "python /opt/nosuch.py",
                "python ../nosuch.py", "python '{s}.py'", "cd src && python nosuch.py",
                "git clone x\npython x/nosuch.py", "cat > nosuch.py <<E\nE\npython nosuch.py",
                "# was: cd x && python nosuch.py\npython train.py", "A=$(./make)\npython nosuch.py",
                "export A=`./make`; python nosuch.py", "echo 'now; python nosuch.py runs'; python train.py",
                "python -W ignore nosuch.py", "torchrun nosuch.py", "if test -f a; then python nosuch.py; fi",
            )
        ),
    ],
)  # fmt: skip
def test_a_script_that_is_not_in_the_code_is_found_and_no_other(tmp_path, keys, is_sure):
    (tmp_path / "train.py").touch()
    recipe = Recipe.from_dict({"experiments": {"main": keys}}, directory=tmp_path)
    found = [(name, sure) for name, _, sure in missing_scripts(recipe)]
    assert found == ([] if is_sure is None else [("main", is_sure)])


def test_each_script_is_named_but_for_one_that_an_earlier_experiment_may_make(tmp_path):
    experiments = {
        "a": {"command": "python a.py"},
        "b": {"command": "python b.py", "after": ["a"]},
        "c": {"command": "python c.py"},
    }
    told = []
    with pytest.raises(UsageError) as refused:
        told.extend(missing_script_notes(Recipe.from_dict({"experiments": experiments}, directory=tmp_path)))
    assert ["there is no a.py" in str(refused.value), "there is no c.py" in str(refused.value)] == [
        True,
        True,
    ]
    assert "b.py" not in str(refused.value), "on one machine both work in the same directory"


def test_data_beside_the_code_are_not_sent_and_named_as_the_user_wrote_them(tmp_path):
    code, snapshot = tmp_path / "code", tmp_path / "snapshot"
    for place in (tmp_path / "beside", code / "sent", code / "ignored", snapshot / "sent"):
        place.mkdir(parents=True)
    told = {}
    for path in ("sent", "./sent/", "/srv/data", "../beside", "ignored", "nosuch"):
        data = {"main": {"command": "x", "data": {"d": {"dir": path}}}}
        try:
            check_sent(Recipe.from_dict({"experiments": data}, directory=code), snapshot)
        except UsageError as error:
            told[path] = str(error)
    assert list(told) == ["../beside", "ignored", "nosuch"]
    assert (
        "data.d.dir: ../beside is outside the code, and is not sent; push it as a volume" in told["../beside"]
    )
    assert "ignored is left out of the code, and is not sent" in told["ignored"]
    assert "there is no nosuch" in told["nosuch"]
    assert str(tmp_path) not in "".join(told.values())


@pytest.mark.parametrize(
    ("at", "is_taken"),
    [("data", True), ("./data/a.txt", True), ("data/b", False), ("logs", False), ("../data", False)],
)
def test_data_are_not_shown_where_the_code_has_something(tmp_path: Path, at: str, is_taken: bool) -> None:
    code = tmp_path / "code"
    for place in ("data/a.txt", "logs/x.txt"):
        (code / place).parent.mkdir(parents=True)
        (code / place).touch()
    (code / ".gitignore").write_text("/logs/\n")
    recipe = Recipe.from_text(RECIPE.format(keys=f"data: {{x: {{dir: ., at: {at}}}}}"), directory=code)
    home = Home.from_environment({"TRAINMASTER_HOME": str(tmp_path / "home")}, makes=False)
    if not is_taken:
        not_sent_of(recipe, home)
        return
    with pytest.raises(UsageError, match=r"data\.x\.at: .* is in the code already; choose another path"):
        not_sent_of(recipe, home)


@pytest.mark.parametrize("provider", ["local", "aws"])
def test_a_run_whose_script_nothing_can_bring_is_refused_like_by_check(tmp_path, provider):
    service = Service.from_environment({"TRAINMASTER_HOME": str(tmp_path / "home")})
    code = tmp_path / "code"
    code.mkdir()
    text = f"name: a\nprovider: {provider}\nexperiments: {{t: {{command: python nosuch.py}}}}\n"
    recipe = Recipe.from_text(text, directory=code)
    with pytest.raises(UsageError, match=r"there is no nosuch\.py in the code"):
        service.check_inputs(recipe, {})
    (code / "nosuch.py").touch()
    assert service.check_inputs(recipe, {}) == []
    unsent = Recipe.from_text(text, directory=service.home.nothing_sent)
    service.home.nothing_sent.mkdir(parents=True)
    with pytest.raises(UsageError, match=r"no nosuch\.py as no code was sent with the recipe") as refused:
        service.check_inputs(unsent, {})
    assert "PUT /api/v1/code" in str(refused.value), "who asks by REST is told what to send"
    (told,) = wrong_fields(refused.value)["main"]
    assert ("the tab Code" in told, "PUT" in told) == (True, False), "who fills in the page has no use for it"
    service.close()
