"""What a file of another tool says that no key of a recipe does is told: nothing goes in silence."""

from __future__ import annotations

import pytest

from trainmaster.service.conversion.converting import conversion_of, convert
from trainmaster.spec import Experiment, Recipe
from trainmaster.spec.errors import UsageError


def only(text: str) -> Experiment:
    """The one experiment of a recipe."""
    (found,) = Recipe.from_text(text).experiments.values()
    return found


def test_a_batch_script_that_no_shell_runs_is_run_as_it_is() -> None:
    source = "#!/usr/bin/env python3\n#SBATCH -t 10\nimport os\nprint(os.environ['SLURM_JOB_ID'])\n"
    made = conversion_of(source, "dir/my job.sbatch")
    main = only(made.recipe)
    assert (main.command, main.timeout_s, main.aliases) == ("python3 'my job.sbatch'", 600, ("slurm",))
    assert [(line, what) for line, what, _ in made.decisions] == [(1, "#!/usr/bin/env python3")]
    assert only(convert("#!/bin/bash -l\n#SBATCH -t 10\nmake\n", "a.sbatch")).command == "make"


def test_what_a_batch_script_sends_takes_from_the_shell_and_has_of_several_kinds_is_told() -> None:
    source = "#SBATCH --export=ALL,FOO=bar,BAZ\n#SBATCH hetjob\n#SBATCH -N1\nmake\nsbatch --wait b.sbatch\n"
    made = conversion_of(source, "a.sbatch")
    told = [(line, what) for line, what, _ in made.decisions]
    assert told == [(1, "--export=BAZ"), (2, "hetjob"), (5, "sbatch --wait b.sbatch")]
    assert dict(only(made.recipe).env) == {"FOO": "bar"}


@pytest.mark.parametrize(
    ("text", "file", "what"),
    [
        (
            "service: {replica_policy: {\n min_replicas: 1,\n max_replicas: 3}}\nrun: serve\n",
            "a.yaml",
            (3, "max_replicas: 3"),
        ),
        ("type: service\nport: 80\nreplicas: 1..4\ncommands: [x]\n", "a.dstack.yml", (3, "replicas: 1..4")),
        ("type: task\nretry: {on_events: [error]}\ncommands: [x]\n", "a.dstack.yml", (2, "retry:")),
    ],
)
def test_how_many_replicas_there_may_be_and_what_is_tried_again_is_to_be_decided(
    text: str, file: str, what: tuple[int, str]
) -> None:
    found = [told[:2] for told in conversion_of(text, file).decisions]
    assert any(line == what[0] and said.startswith(what[1]) for line, said in found), found


@pytest.mark.parametrize(
    ("written", "spot"), [("true", True), ("True", True), ("yes", True), ("False", False)]
)
def test_spot_is_read_however_yaml_lets_it_be_written(written: str, spot: bool) -> None:
    made = convert(f"resources: {{cpus: 2, use_spot: {written}}}\nrun: make\n", "a.yaml")
    assert Recipe.from_text(made).experiments["main"].hardware.spot is spot


@pytest.mark.parametrize("size", ["cpus: 0.5", "memory: 4x", "disk_size: large"])
def test_a_size_of_skypilot_that_no_recipe_says_is_told(size: str) -> None:
    made = convert(f"resources:\n  {size}\nrun: make\n", "a.yaml")
    assert f"# 2: {size}  -> " in made


@pytest.mark.parametrize(
    "line",
    [
        "nohup torchrun --nproc-per-node=2 train.py --epochs 2 > out.log 2>&1 &",
        "torchrun --nproc-per-node=2 train.py --epochs 2 &>> out.log& disown",
        "setsid nohup torchrun --nproc-per-node=2 train.py --epochs 2 > 'my run/out.log' 2>&1 &",
        '#!/bin/bash\nsetsid -w torchrun --nproc-per-node=2 train.py --epochs 2 >> "my out.log" &',
        "#!/bin/bash\nnohup torchrun --nproc-per-node=2 train.py --epochs 2 &\n",
        "nohup torchrun --nproc-per-node=2 train.py --epochs 2 \\\n  > out.log \\\n  2>&1 &",
    ],
)
def test_what_a_shell_starts_in_the_background_is_waited_for_and_read(line: str) -> None:
    made = conversion_of(line, "run.sh")
    assert only(made.recipe).command == "python train.py --epochs 2"
    assert any("`trainmaster run --detach`" in why for _, _, why in made.dropped), made.dropped


def test_a_line_with_nohup_behind_variables_is_the_launcher_of_a_gang() -> None:
    made = conversion_of("OMP_NUM_THREADS=1 nohup torchrun --nproc-per-node=2 train.py > out.log &", "run.sh")
    assert only(made.recipe).command == "OMP_NUM_THREADS=1 python train.py"
    assert "workers: 2" in made.recipe


def test_what_is_waited_for_stays_in_the_background() -> None:
    command = "tensorboard --logdir logs &\npython train.py > log 2>&1"
    assert command in only(convert(f"resources: {{cpus: 1}}\nrun: {command!r}\n", "a.yaml")).command.replace(
        "\\n", "\n"
    )


def test_the_price_per_hour_and_the_retries_of_skypilot_are_keys() -> None:
    source = (
        "resources:\n  max_hourly_cost: 2.5\n  job_recovery: {max_restarts_on_errors: 3}\n"
        "run: |\n  cd ~/sky_workdir\n  python train.py\n"
    )
    made = conversion_of(source, "a.yaml")
    recipe = Recipe.from_text(made.recipe)
    assert recipe.budget is not None
    assert recipe.budget.usd_per_hour == 2.5
    assert only(made.recipe).retries == 3
    assert only(made.recipe).command == "python train.py", "it begins where the code is"
    assert not made.dropped
    told = conversion_of("resources: {job_recovery: EAGER}\nrun: make\n", "a.yaml").dropped
    assert [what for _, what, _ in told] == ["resources: {job_recovery: EAGER}"]


@pytest.mark.parametrize(
    ("file", "source", "hint"),
    [
        ("Makefile", "train:\n\tpython train.py\n", "`make TARGET` is a `command`"),
        ("my tune.py", "from ray import train, tune\n", "what stands for `tune.Tuner`"),
        ("my train.py", "import torch\n", "`trainmaster init 'my train.py'`"),
        ("notes.txt", "hello\n", "docs/migrate.md"),
    ],
)
def test_what_no_other_tool_reads_is_told_what_makes_a_recipe_of_it(
    file: str, source: str, hint: str
) -> None:
    with pytest.raises(UsageError) as caught:
        convert(source, file)
    assert hint in str(caught.value.hint)
