"""Points of the user's own CSV as what a quote rests on."""

from functools import cache

import pytest

from trainmaster.providers import load_catalogue
from trainmaster.service.quotes.own_points import OwnPoints
from trainmaster.spec import read_recipe
from trainmaster.spec.errors import UsageError

RECIPE = """
name: job
experiments:
  train:
    command: python train.py
    steps: 100
    distributed: {strategy: allreduce, workers: 2}
    framework: pytorch
"""
TWO = (
    RECIPE
    + """
  other:
    command: python other.py
    steps: 100
"""
)
HEADER = "job,sync,nodes,workers,local_batch,step_time_s,instance\n"


catalogue_of = cache(load_catalogue)  # reading it takes longer than the tests


@pytest.fixture
def read(tmp_path):
    def of(text, recipe=RECIPE, catalogue="builtin"):
        (tmp_path / "r.yaml").write_text(recipe)
        (tmp_path / "p.csv").write_text(text)
        found = read_recipe(tmp_path / "r.yaml")
        return OwnPoints.read(tmp_path / "p.csv", found, catalogue_of(catalogue))

    return of


def test_who_has_seconds_of_epochs_is_sent_to_the_verb_that_reads_them(read):
    with pytest.raises(UsageError, match="not of epochs") as refused:
        read("workers,batch_size,latency_ms,time_per_epoch_s\n1,128,0,10\n")
    assert "trainmaster recommend --batch N --latency-ms L --table p.csv" in refused.value.hint


@pytest.mark.parametrize("job", ["train", "job", "whatever", ""])
def test_the_only_job_is_the_only_experiment(read, job):
    (found,) = read(f"{HEADER}{job},allreduce,2,4.0,64,0.2,p3.2xlarge\n").measurements["train"]
    assert (found.point.workers, found.point.nodes, found.point.step_time_s) == (4, 2, 0.2)
    assert found.offer == "p3.2xlarge"
    assert found.startup_s > 0


def test_of_several_jobs_the_experiments_own_rows_count(read):
    rows = "train,allreduce,1,1,64,0.2,\ntrain,allreduce,1,2,64,0.3,\nelse,allreduce,1,1,64,9,\n"
    found = read(HEADER + rows).measurements
    assert [m.point.step_time_s for m in found["train"]] == [0.2, 0.3]
    assert {m.offer for m in found["train"]} == {"local"}
    assert set(read(HEADER + rows, TWO).measurements) == {"train"}


def test_a_type_that_the_recipe_names_is_what_was_measured(read):
    recipe = RECIPE + "    hardware: {instance: P3.2xlarge}\n"
    (found,) = read(HEADER + "train,allreduce,1,1,64,0.2,\n", recipe).measurements["train"]
    assert found.offer == "p3.2xlarge"
    (found,) = read(HEADER + "train,allreduce,1,1,64,0.2,\n", recipe, "local").measurements["train"]
    assert found.offer == "local"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HEADER + "x,allreduce,1,1,64,0.2,\ny,allreduce,1,1,64,0.2,\n", r"job: it has rows of 'x', 'y'"),
        (HEADER + "train,ps-sync,1,1,64,0.2,\n", r"p\.csv:2: sync: found 'ps-sync'"),
        (
            HEADER + "train,allreduce,1,1,64,0.2,\ntrain,allreduce,1,1,64,0.2,p9\n",
            r"p\.csv:3: instance: .*'p9'",
        ),
        (HEADER + "train,allreduce,1,1,64,-1,\n", r"p\.csv:2: step_time_s: found '-1'"),
        (
            HEADER.replace("nodes", "hosts") + "train,allreduce,1,1,64,1,\n",
            r"p\.csv:1: hosts: unknown column",
        ),
        ("", "is empty"),
        (HEADER, "no rows"),
    ],
)
def test_mistakes_name_line_and_column(read, text, message):
    with pytest.raises(UsageError, match=message):
        read(text)


def test_another_file_is_another_fingerprint(read):
    one = read(HEADER + "train,allreduce,1,1,64,0.2,\n").fingerprint
    assert one != read(HEADER + "train,allreduce,1,1,64,0.3,\n").fingerprint
    assert one == read(HEADER + "train,allreduce,1,1,64,0.2,\n").fingerprint


@pytest.mark.parametrize(("per_node", "nodes"), [("", 4), (", per_node: 4", 1), (", per_node: 3", 2)])
def test_points_without_nodes_lie_as_the_recipe_would_spread_them(read, per_node, nodes):
    recipe = RECIPE.replace("workers: 2}", f"workers: 2{per_node}}}")
    rows = "job,sync,workers,local_batch,step_time_s\ntrain,allreduce,4,64,0.2\n"
    (found,) = read(rows, recipe).measurements["train"]
    assert found.point.nodes == nodes
