"""Standard output has results, and with ``--json`` only JSON; standard error has all else."""

import json

import pytest

RESULTS = {
    "status": "run ",
    "status latest": "experiment ",
    "offers --limit 2": "$/hour",
    "models": "run ",
    "check recipe.yaml": "experiment ",
    "quote recipe.yaml --policy quote": "main: ",
    "doctor": "python",
    "volume ls": "pets",
    "volume ls pets": "model.txt",
    "volume versions pets": "version ",
    "volume fsck pets": "1",
    "models fsck": "1 model",
    "logs latest": "visible",
    "predict --measurements points.csv --query shapes.csv": "bottleneck",
}
#: That tell what they have done, or that nothing is there.
DEEDS = (
    "run recipe.yaml",
    "resume latest",
    "cancel latest",
    "clusters",
    "clusters end --all",
    "lab status",
    "lab down",
    "score",
    "volume push data pets",
    "volume gc pets",
    "run recipe.yaml --detach",
)
WITHOUT_JSON = ("logs latest", "models save latest")


@pytest.fixture
def used(tm):
    """A home with a run, a model and a volume."""
    tm.write("data/model.txt", "x")
    report = 'for step in 1 2 3; do echo "{\\"step\\": $step}" >> $TRAINMASTER_METRICS; sleep 0.2; done; '
    tm.task(report + "echo visible; cp data/model.txt $TRAINMASTER_OUTPUT_DIR/", steps=3)
    shapes = "job,sync,nodes,workers,local_batch,step_time_s\n"
    tm.write("points.csv", shapes + "j,allreduce,1,1,32,0.1\nj,allreduce,2,2,32,0.12\n")
    tm.write("shapes.csv", shapes + "j,allreduce,4,4,32,\n")
    tm.call("run", "recipe.yaml")
    tm.call("volume", "push", "data", "pets", "--json")
    return tm


def test_standard_output_has_results_and_nothing_else(used):
    wrong = {}
    for words, beginning in RESULTS.items():
        result = used.call(*words.split(), code=None)
        if beginning.lower() not in result.out.lower():
            wrong[words] = result
    for words in (*DEEDS, "models save latest"):
        result = used.call(*words.split(), code=None)
        if result.out or not result.err:
            wrong[words] = result
    assert not wrong


def test_with_json_standard_output_has_one_object(used):
    wrong = {}
    for words in (each for each in (*RESULTS, *DEEDS) if each not in WITHOUT_JSON):
        result = used.call(*words.split(), "--json", code=None)
        if result.out.count("\n") != 1 or not isinstance(json.loads(result.out), dict):
            wrong[words] = result
    assert not wrong


def test_a_result_can_be_cut_short(used):
    result = used.start("offers", "--limit", "500", prefix="exec > >(head -n 1 >/dev/null);").wait()
    assert "Broken pipe" not in result.err
