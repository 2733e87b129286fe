import json
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trainmaster.spec import Recipe, read_recipe, reading
from trainmaster.spec.errors import RecipeError, UsageError

CIFAR = """
name: cifar
code: .
provider: local
budget: {total: $20, per_hour: $2, deadline: 3h}
objective: cheapest
env: {OMP_NUM_THREADS: 1, PYTHON: 3.10}
secrets: [WANDB_API_KEY]
data: {words: {url: "s3://bucket/words", at: words}}
experiments:
  train:
    after: [prepare]
    data: {images: {volume: cifar10}, shards: {from: prepare}}
    framework: pytorch
    hardware: {gpu: v100, gpus: 1, memory: 16GB, spot: true, instance: p3.2xlarge}
    distributed: {strategy: allreduce, workers: auto, per_node: 1}
    batch: {global: 256}
    epochs: 90
    examples: 50000
    parameters: {lr: {range: 0.1-0.3, sampling: uniform}, depth: [18, 34]}
    samples: 8
    search: {metric: accuracy, goal: max, sampler: tpe, pruner: asha, options: {seed: 3}}
    env: {PYTHON: 3.12}
    setup: pip install -r requirements.txt
    command:
      - python train.py --lr {{lr}} --depth {{depth}} --batch {{batch_per_worker}} --steps {{steps}}
      - echo done
    checkpoint: {every: 90s, keep: 3}
    metrics: {pattern: 'step (?P<step>\\d+) loss (?P<loss>\\S+)'}
    profile: {seconds: 30, shapes: [1, 2, 4]}
    until: accuracy >= 0.97
    retries: 3
    timeout: 1h
    grace: 0
  prepare:
    workers: 4
    parameters: {part: {range: 0-15, step: 1}}
    command: python shard.py --part {{part}}
"""


def test_every_key(read, tmp_path):
    recipe = read(CIFAR)
    assert (recipe.name, recipe.code, recipe.provider, recipe.directory) == ("cifar", ".", "local", tmp_path)
    budget = recipe.budget
    assert (budget.total_usd, budget.usd_per_hour, budget.deadline_s) == (20.0, 2.0, 10800.0)
    assert recipe.objective.name == "cheapest"
    assert recipe.source_text == CIFAR
    assert recipe.order() == ["prepare", "train"]
    train = recipe.experiments["train"]
    assert train.env == {"OMP_NUM_THREADS": "1", "PYTHON": "3.12"}
    assert train.secrets == ("WANDB_API_KEY",)
    assert list(train.data) == ["words", "images", "shards"]
    assert (train.data["words"].url, train.data["words"].at) == ("s3://bucket/words", "words")
    assert train.depends_on == ("prepare",)
    assert train.launcher == "torchrun"
    assert (train.hardware.memory_bytes, train.hardware.instance) == (16 * 10**9, ("p3.2xlarge",))
    assert (train.checkpoint.every_s, train.checkpoint.keep) == (90.0, 3)
    assert (train.retries, train.timeout_s, train.grace_s) == (3, 3600.0, 0.0)
    assert (train.search.sampler, train.search.options) == ("tpe", {"seed": "3"})
    assert (train.profile.duration_s, train.profile.shapes) == (30.0, (1, 2, 4))
    assert train.metrics.pattern == r"step (?P<step>\d+) loss (?P<loss>\S+)"
    assert list(train.tasks(0)) == [None] * 8
    assert [task["part"] for task in recipe.experiments["prepare"].tasks(0)] == list(range(16))
    values = {"lr": 0.25, "depth": 18}
    assert train.script(values, workers=4) == (
        "python train.py --lr 0.25 --depth 18 --batch 64 --steps 17640\necho done"
    )
    assert train.environment(values, workers=4) == {
        "TRAINMASTER_PARAM_LR": "0.25",
        "TRAINMASTER_PARAM_DEPTH": "18",
        "TRAINMASTER_BATCH_PER_WORKER": "64",
        "TRAINMASTER_BATCH_GLOBAL": "256",
        "TRAINMASTER_STEPS": "17640",
        "TRAINMASTER_EPOCHS": "90",
    }


def test_defaults(read):
    recipe = read("experiments: {a: {command: 'true'}}")
    experiment = recipe.experiments["a"]
    assert (recipe.name, recipe.code, recipe.provider, recipe.seed, recipe.budget) == (
        "recipe",
        ".",
        "local",
        0,
        None,
    )
    assert (experiment.workers, experiment.distributed, experiment.launcher) == (None, None, "plain")
    assert (experiment.checkpoint, experiment.retries, experiment.timeout_s, experiment.grace_s) == (
        None,
        0,
        None,
        20.0,
    )
    assert (experiment.script({}), experiment.environment({})) == ("true", {})
    assert [(role.name, role.count) for role in experiment.members()] == [("worker", 1)]


@pytest.mark.parametrize("text", ["experiments: {a: {command: true}}", "experiments: {a: {command: [true]}}"])
def test_the_command_true_is_a_command(read, text):
    assert read(text).experiments["a"].command == "true"


def test_an_empty_checkpoint_has_the_defaults(read):
    checkpoint = read("experiments: {a: {command: x, checkpoint: {}}}").experiments["a"].checkpoint
    assert (checkpoint.every_s, checkpoint.keep) == (60.0, 2)


def test_a_name_from_a_file(tmp_path):
    path = tmp_path / "my recipe (2).yaml"
    path.write_text("experiments: {a: {command: x}}")
    assert read_recipe(path).name == "my-recipe-2"


def test_a_wheel_runs_its_main(read):
    recipe = read("code: dist/a.whl\nexperiments: {a: {retries: 1}, b: {command: x}}")
    assert [experiment.command for experiment in recipe.experiments.values()] == ["python main.py", "x"]
    recipe = read("code: a.whl\nmain: my main.py\nexperiments: {a: {retries: 1}}")
    assert recipe.experiments["a"].command == "python 'my main.py'"


def test_code_is_a_text_or_a_directory_with_what_is_included(read):
    recipe = read("code: {dir: src, include: ['*.bin', data/x.txt]}\nexperiments: {a: {command: x}}")
    assert (recipe.code, recipe.include) == ("src", ("*.bin", "data/x.txt"))
    sent = Recipe.from_text(recipe.as_yaml(code="."))  # as a server gets it
    assert (sent.code, sent.include) == (".", recipe.include)
    short = read("code: {include: data/}\nexperiments: {a: {command: x}}")
    assert (short.code, short.include) == (".", ("data/",))
    assert Recipe.from_text(read("code: src\nexperiments: {a: {command: x}}").as_yaml(code=".")).code == "."


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("[a]", "code: a list; write a directory, a wheel or a git URL@ref"),
        ("{includes: [x]}", "code.includes: unknown key 'includes'; did you mean 'include'?"),
        ("{dir: a.whl, include: [x]}", "code.include: `include` is for a directory"),
        ("{dir: 'https://h/p@v1', include: [x]}", "code.include: `include` is for a directory"),
    ],
)
def test_code_that_is_wrong_says_where(read, code, told):
    with pytest.raises(UsageError) as caught:
        read(f"code: {code}\nexperiments: {{a: {{command: x}}}}")
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("keys", "launcher", "members"),
    [
        ("distributed: {workers: 3}", "torchrun", {"worker": 3}),
        ("distributed: {workers: 3}, framework: jax", "jax", {"worker": 3}),
        ("distributed: {workers: 3}, framework: deepspeed", "deepspeed", {"worker": 3}),
        ("distributed: {strategy: ps-sync, workers: 3}", "tensorflow", {"chief": 1, "ps": 1, "worker": 3}),
        ("distributed: {strategy: ps-sync, workers: 3, chief: worker}", "tensorflow", {"ps": 1, "worker": 3}),
        (
            "distributed: {strategy: ps-async, workers: 2, parameter_servers: 2}, framework: mxnet",
            "mxnet",
            {"ps": 2, "worker": 2},
        ),
        ("framework: keras", "tensorflow", {"worker": 1}),
    ],
)
def test_gangs(read, keys, launcher, members):
    experiment = read(f"experiments: {{a: {{command: x, {keys}}}}}").experiments["a"]
    assert experiment.launcher == launcher
    assert {role.name: role.count for role in experiment.members()} == members


def test_who_decides_about_success(read):
    experiment = read(
        "experiments: {a: {command: x, distributed: {strategy: ps-sync, workers: 2}}}"
    ).experiments["a"]
    assert [role.name for role in experiment.members() if role.essential] == ["chief"]


def test_hardware_by_role(read):
    text = """
experiments:
  a:
    command: x
    hardware: {cpus: 4, gpu: v100}
    distributed: {strategy: ps-sync, workers: 2, hardware: {ps: {cpus: 16, gpus: 0}}}
"""
    experiment = read(text).experiments["a"]
    again = type(experiment).model_validate_json(experiment.model_dump_json())
    for version in (experiment, again):
        roles = {role.name: role.hardware for role in version.members()}
        assert (roles["ps"].cpus, roles["ps"].gpu_count, roles["worker"].cpus, roles["worker"].gpu_count) == (
            16,
            0,
            4,
            1,
        )


def test_a_number_of_workers_that_is_chosen_later(read):
    keys = "distributed: {workers: 2..4}, batch: {global: 12}, steps: 5"
    experiment = read(f"experiments: {{a: {{command: x, {keys}}}}}").experiments["a"]
    assert [role.count for role in experiment.members()] == [2]
    assert experiment.builtin_values(3) == {"batch_per_worker": 4, "batch_global": 12, "steps": 5}
    with pytest.raises(UsageError, match="5 workers, but the recipe says"):
        experiment.members(5)
    keys = "distributed: {workers: auto}, batch: {global: 8}, steps: 5"
    experiment = read(f"experiments: {{a: {{command: x, {keys}}}}}").experiments["a"]
    with pytest.raises(UsageError, match="a global batch of 8 cannot be shared evenly by 3 workers"):
        experiment.builtin_values(3)


def test_a_batch_per_worker(read):
    keys = "distributed: {workers: 4}, batch: {per_worker: 8}, epochs: 2, examples: 100"
    experiment = read(f"experiments: {{a: {{command: x, {keys}}}}}").experiments["a"]
    assert experiment.builtin_values() == {"batch_per_worker": 8, "batch_global": 32, "steps": 8, "epochs": 2}


def test_values_that_are_missing_or_impossible(read):
    experiment = read("experiments: {a: {command: 'echo {{x}}', parameters: {x: [a]}}}").experiments["a"]
    with pytest.raises(UsageError, match="the command needs 'x', which has no value"):
        experiment.script({})
    with pytest.raises(UsageError, match="contains a NUL byte"):
        experiment.script({"x": "a\0b"})


def test_objectives(read):
    for text, name in [("fastest", "fastest"), ("cheapest", "cheapest"), ("{time: 1, cost: 2}", "weighted")]:
        assert read(f"objective: {text}\nexperiments: {{a: {{command: x}}}}").objective.name == name


def test_aliases_are_plain_repetitions(read):
    text = "experiments:\n  a: {command: x, hardware: &h {cpus: 2}}\n  b: {command: y, hardware: *h}\n"
    assert read(text).experiments["b"].hardware.cpus == 2


def test_windows_files(read):
    text = "\ufeffexperiments:\r\n  a:\r\n    command: |\r\n      echo 1\r\n      echo 2\r\n"
    assert read(text).experiments["a"].command == "echo 1\necho 2\n"


def test_the_round_trip_of_models(read):
    for text in (CIFAR, "experiments: {a: {command: 'x {{p}}', parameters: {p: [3.10, 1, true, a]}}}"):
        recipe = read(text)
        again = Recipe.model_validate_json(recipe.model_dump_json())
        assert again == recipe
        assert again.model_dump_json() == recipe.model_dump_json()
        for name, experiment in recipe.experiments.items():
            other = again.experiments[name]
            assert list(other.tasks(3)) == list(experiment.tasks(3))
            for task in experiment.tasks(3):
                if task is not None:
                    assert other.script(json.loads(json.dumps(task))) == experiment.script(task)


def test_models_are_frozen(read):
    with pytest.raises(ValueError, match="frozen"):
        read(CIFAR).name = "other"


def test_the_summary_is_json(read):
    summary = json.loads(json.dumps(read(CIFAR).summary()))
    train = summary["experiments"]["train"]
    assert (train["after"], train["tasks"], train["workers"], train["launcher"]) == (
        ["prepare"],
        8,
        None,
        "torchrun",
    )
    assert train["members"] == {"worker": "auto"}
    assert summary["experiments"]["prepare"]["tasks"] == 16


def test_errors_and_states_cost_nothing():
    code = (
        "import sys; from trainmaster.spec.errors import RecipeError; "
        "from trainmaster.spec.states import State; "
        "assert not {'pydantic', 'ruamel.yaml', 'ruamel', 'difflib'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


YAMLISH = st.lists(
    st.sampled_from(
        [
            "experiments",
            ":",
            " ",
            "\n",
            "\n  ",
            "\n    ",
            "a",
            "command",
            "- ",
            "{",
            "}",
            "[",
            "]",
            ",",
            "'",
            '"',
            "|",
            ">",
            "&a",
            "*a",
            "!x",
            "#",
            "\t",
            "1e3",
            "range: 0-1",
            "parameters",
            "{{a}}",
            "samples: 3",
            "~",
            "%YAML 1.1",
            "---",
            "\\",
            "? ",
            "budget",
            "$3",
            "\u2028",
            "\x85",
            "0x",
            "env",
            "after",
            "<<",
            "distributed",
            "workers: 1..",
            "null",
            "-",
        ]
    ),
    max_size=30,
).map("".join)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(max_size=60) | YAMLISH | st.binary(max_size=60))
def test_any_file_is_a_recipe_or_a_mistake(read, text):
    try:
        content = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
        assert isinstance(read(content), Recipe)
    except RecipeError as error:
        found = error.mistakes
    else:
        return
    assert found
    assert all(mistake.line >= 1 and mistake.column >= 1 for mistake in found)


VALUES = st.recursive(
    st.sampled_from(
        [
            "1",
            "x",
            "-1",
            "0.5",
            "true",
            "null",
            "''",
            "1..4",
            "0-1",
            "$3",
            "3h",
            "auto",
            "{{x}}",
            "1e400",
            "$",
            "[",
            "&",
        ]
    ),
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda items: f"[{', '.join(items)}]")
        | st.dictionaries(
            st.sampled_from(
                [
                    "range",
                    "step",
                    "sampling",
                    "workers",
                    "strategy",
                    "global",
                    "from",
                    "volume",
                    "x",
                    "samples",
                    "metric",
                ]
            ),
            inner,
            max_size=3,
        ).map(lambda entries: "{" + ", ".join(f"{key}: {value}" for key, value in entries.items()) + "}")
    ),
    max_leaves=6,
)
PATHS = st.sampled_from(
    [
        "name",
        "code",
        "code.include",
        "budget",
        "budget.total",
        "seed",
        "objective",
        "env",
        "data",
        "secrets",
        "experiments",
        "experiments.a",
    ]
    + [
        f"experiments.a.{key}"
        for key in (
            "after",
            "workers",
            "distributed",
            "framework",
            "hardware",
            "batch",
            "steps",
            "epochs",
            "parameters",
            "parameters.x",
            "samples",
            "search",
            "data",
            "data.d",
            "env",
            "setup",
            "command",
            "checkpoint",
            "metrics",
            "retries",
            "profile",
            "until",
        )
    ]
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(PATHS, VALUES), max_size=4))
def test_any_values_are_a_recipe_or_a_mistake(read, overrides):
    try:
        recipe = read(
            "experiments: {a: {command: 'echo {{x}}', parameters: {x: [1, 2]}}}",
            overrides=[f"{path}={value}" for path, value in overrides],
        )
    except UsageError:
        return
    assert Recipe.model_validate_json(recipe.model_dump_json()) == recipe
    json.dumps(recipe.summary())
    for experiment in recipe.experiments.values():
        tasks = experiment.tasks(recipe.seed)
        for index in range(min(len(tasks), 3)):
            values = tasks.parameters(index)
            if values is not None:
                experiment.script(values)
                experiment.environment(values)


def test_many_mistakes_of_a_kind_are_found_without_looking_for_each_among_all(monkeypatch):
    looked = []
    monkeypatch.setattr(reading, "nearest", lambda word, known: looked.append(word))
    lines = "".join(f"  e{at}: {{command: a, after: f{at}}}\n" for at in range(500))
    with pytest.raises(RecipeError) as caught:
        Recipe.from_text(f"experiments:\n{lines}")
    assert len(caught.value.mistakes) == 500
    assert len(looked) == 50
    assert caught.value.mistakes[0].message.endswith("e49, e50 and 449 more")
    assert caught.value.mistakes[-1].message == "unknown experiment 'f499'; write one that is known"


def test_variables_of_all_experiments_are_there_once():
    lines = "".join(f"  e{at}: {{command: a}}\n" for at in range(3))
    recipe = Recipe.from_text(f"env: {{A: 1}}\nsecrets: [S]\ndata: {{d: {{dir: .}}}}\nexperiments:\n{lines}")
    first, *others = recipe.experiments.values()
    assert all(each.env is first.env and each.data is first.data for each in others)


def test_keys_that_begin_with_x_are_the_users_own(tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text(
        "name: x\nx-grid: &grid {lr: [1, 2]}\nexperiments:\n"
        "  a: {command: 'echo {{lr}}', parameters: *grid, x-why: {any: thing}}\n"
    )
    assert [*read_recipe(path).experiments["a"].tasks(0)] == [{"lr": 1}, {"lr": 2}]
