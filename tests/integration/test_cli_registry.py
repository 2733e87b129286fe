"""A run starts from a registered model, and its own becomes the next version."""

from __future__ import annotations

TRAIN = """
    echo {{content}} > $TRAINMASTER_OUTPUT_DIR/w
    echo '{"accuracy": '{{content}}'}' >> $TRAINMASTER_METRICS
"""
TUNE = "cp -r $TRAINMASTER_DATA_WEIGHTS/w $TRAINMASTER_OUTPUT_DIR/w; echo tuned >> $TRAINMASTER_OUTPUT_DIR/w"
SEARCH = {"sampler": "grid", "metric": "accuracy", "goal": "max"}


def test_the_best_model_is_promoted_and_the_next_run_starts_from_it(tm):
    first = tm.recipe(
        {
            "name": "first",
            "experiments": {
                "train": {
                    "command": TRAIN,
                    "parameters": {"content": [5, 9, 7]},
                    "search": SEARCH,
                    "promote": "digits@production",
                }
            },
        },
        "first.yaml",
    )
    tm.call("run", first)
    (version,) = tm.call("models", "show", "digits", "--json").json["versions"]
    assert (version["parameters"], version["aliases"]) == ({"content": 9}, ["production"])

    keys = {"command": TUNE, "promote": "digits@production"}
    tune = {
        "name": "tune",
        "experiments": {"tune": keys | {"data": {"weights": {"model": "digits@production"}}}},
    }
    tm.call("run", tm.recipe(tune, "tune.yaml"))
    tm.call("models", "get", "digits@production", tm.root / "got")
    assert (tm.root / "got" / "w").read_text() == "9\ntuned\n"
    shown = tm.call("models", "show", "digits", "--json").json
    assert [(each["before"], each["version"], each["kind"]) for each in shown["moves"]] == [
        (1, 2, "run"),
        (None, 1, "run"),
    ]
    assert [(each["data"], each["version"]) for each in shown["used_by"]] == [("weights", 1)]
    assert "data: weights" in tm.call("models", "diff", "digits@1", "digits@2").out
    assert "version 1" in tm.call("models", "rollback", "digits@production").err
    assert "digits@1 is digits@production" in tm.call("models", "rm", "digits@1", code=2).err
    tm.call("models", "rm", "digits@2")

    keys["data"] = {"weights": {"model": "digits@prodution"}}
    wrong = tm.recipe(tune | {"experiments": {"tune": keys}}, "wrong.yaml")
    refused = tm.call("run", wrong, code=2).err
    assert f"{wrong}:" in refused
    assert "data.weights.model: there is no digits@prodution; did you mean production" in refused
    assert len(tm.runs()) == 2
