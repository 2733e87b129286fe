"""What a file of another tool says that no key of a recipe does is told: nothing goes in silence."""

from __future__ import annotations

import pytest

from trainmaster.service.conversion.converting import conversion_of, convert
from trainmaster.spec import Experiment, Recipe


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
