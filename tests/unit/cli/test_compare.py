import pytest

from trainmaster.cli.compare import compared_lines
from trainmaster.spec.errors import UsageError


def _run(run, loss, lr):
    best = {"value": loss, "experiment": "train", "task": 0, "parameters": {"lr": lr, "seed": 1}}
    tasks = [best, {**best, "task": 1}]
    best = {"loss": best} if loss is not None else {}
    its = {"best": best, "tasks": tasks}
    return {"run": run, "state": "DONE", "reason": "SUCCEEDED", "seconds": 5, "cost_usd": 0, **its}


def _file(path, change="changed", lines=()):
    return {"path": path, "is_source": path.endswith(".py"), "change": change, "lines": list(lines)}


def test_runs_stand_in_a_table_and_what_differs_below_it():
    found = {
        "metrics": {"loss": "min", "accuracy": "max"},
        "runs": [_run("a-1", 0.25, 0.1), _run("a-2", 0.5, 0.2), _run("a-3", None, 0)],
        "diffs": [
            {"run": "a-2", "lines": ["-lr: 1", "+lr: 2"], "code": [], "inputs": []},
            {"run": "a-3", "lines": [], "code": [_file("t.py", lines=["+x"])], "inputs": []},
            {"run": "a-4", "lines": [], "code": [_file("out/a.json", "added")], "inputs": []},
        ],
    }
    assert compared_lines(found, ["loss"]) == [
        "run  state      took  cost   min loss  task of min loss  lr\n"
        "a-1  SUCCEEDED  5 s   $0.00  0.25      train/0           0.1\n"
        "a-2  SUCCEEDED  5 s   $0.00  0.5       train/0           0.2\n"
        "a-3  SUCCEEDED  5 s   $0.00  -         -                 -",
        "",
        "beside a-1, a-2 has another recipe and the same code",
        "-lr: 1",
        "+lr: 2",
        "",
        "beside a-1, a-3 has the same recipe and other code",
        "changed: t.py",
        "+x",
        "",
        "beside a-1, a-4 has the same recipe and the same code; "
        "of its other files (data, settings, outputs) some differ",
        "added: out/a.json",
    ]


def test_runs_of_several_people_say_whose_they_are():
    runs = [{**_run(f"a-{at}", 0.25, 0.1), "owner": owner} for at, owner in enumerate(("ann", "ben"))]
    (table, *_) = compared_lines({"metrics": {"loss": "min"}, "runs": runs, "diffs": []}, ["loss"])
    assert [line.partition("$0.00")[2].split()[:1] for line in table.splitlines()[1:]] == [["ann"], ["ben"]]
    assert table.splitlines()[0].split()[3:6] == ["cost", "by", "min"]


def test_of_one_grid_the_best_task_is_told_and_by_which_metric():
    run = _run("a-1", 0.25, 0.1)
    run["tasks"][1] = {**run["tasks"][1], "parameters": {"lr": 0.9, "seed": 1}}
    found = {"metrics": {"loss": "min", "accuracy": "max"}, "runs": [run], "diffs": []}
    head, row = compared_lines(found, [])[0].splitlines()
    assert head.split("  ")[-2:] == ["task of min loss", "lr"]
    assert row.split()[-2:] == ["train/0", "0.1"]


def test_of_many_metrics_the_first_are_shown_and_the_others_counted():
    found = {"metrics": dict.fromkeys("abcdefgh", "min"), "runs": [_run("a-1", 1, 0)], "diffs": []}
    assert compared_lines(found, [])[1:] == ["2 more metrics: `--metric NAME` shows one, --json all"]


@pytest.mark.parametrize(
    ("metrics", "said", "hint"),
    [
        (
            ("loss", "accuracy"),
            "none of these runs has a metric 'los': did you mean 'loss'?",
            "loss, accuracy",
        ),
        ((), "none of these runs has a metric 'los'", "They have reported none."),
    ],
)
def test_a_metric_that_no_run_has_is_told(metrics, said, hint):
    found = {"metrics": dict.fromkeys(metrics, "min"), "runs": [_run("a-1", 1, 0)], "diffs": []}
    with pytest.raises(UsageError) as error:
        compared_lines(found, ["los"])
    assert error.value.args[0] == said
    assert hint in error.value.hint
