from trainmaster.cli.compare import compared_lines


def _run(run, loss, lr):
    best = {"value": loss, "experiment": "train", "task": 0, "parameters": {"lr": lr, "seed": 1}}
    best = {"loss": best} if loss is not None else {}
    return {"run": run, "state": "DONE", "reason": "SUCCEEDED", "seconds": 5, "cost_usd": 0, "best": best}


def test_runs_stand_in_a_table_and_what_differs_below_it():
    found = {
        "metrics": {"loss": "min", "accuracy": "max"},
        "runs": [_run("a-1", 0.25, 0.1), _run("a-2", 0.5, 0.2), _run("a-3", None, 0)],
        "diffs": [
            {"run": "a-2", "lines": ["-lr: 1", "+lr: 2"], "code": []},
            {"run": "a-3", "lines": [], "code": [{"path": "t.py", "change": "changed", "lines": ["+x"]}]},
        ],
    }
    assert compared_lines(found, ["loss"]) == [
        "run  state      took  cost   min loss  best task  lr\n"
        "a-1  SUCCEEDED  5 s   $0.00  0.25      train/0    0.1\n"
        "a-2  SUCCEEDED  5 s   $0.00  0.5       train/0    0.2\n"
        "a-3  SUCCEEDED  5 s   $0.00  -         -          -",
        "",
        "beside a-1, a-2 has another recipe and the same code",
        "-lr: 1",
        "+lr: 2",
        "",
        "beside a-1, a-3 has the same recipe and other code",
        "changed: t.py",
        "+x",
    ]


def test_of_many_metrics_the_first_are_shown_and_the_others_counted():
    found = {"metrics": dict.fromkeys("abcdefgh", "min"), "runs": [_run("a-1", 1, 0)], "diffs": []}
    assert compared_lines(found, [])[1:] == ["2 more metrics: `--metric NAME` shows one, --json all"]
