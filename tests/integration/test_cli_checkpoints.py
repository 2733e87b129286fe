"""Checkpoints: taken while it runs and at its end, bounded, restored; a bad one is stepped over."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

from trainmaster.service.apps.rented_notebook import rented_notebook_recipe

#: Counts steps in its checkpoint; ``$NOTES/starts`` tells where each attempt began.
COUNTER = """
    import os, pathlib, time

    folder, notes = pathlib.Path(os.environ["TRAINMASTER_CHECKPOINT_DIR"]), pathlib.Path(os.environ["NOTES"])
    state = folder / "step"
    text = state.read_text() if state.exists() else "0"
    with (notes / "starts").open("a") as file:
        file.write(f"{os.environ['TRAINMASTER_ATTEMPT']} {os.getpid()} {text}\\n")
    step = int(text)
    while not (notes / "finish").exists():
        time.sleep(0.02)
        step += 1
        (folder / "new").write_text(str(step))
        (folder / "new").rename(state)
        (notes / "new").write_text(str(step))
        (notes / "new").rename(notes / "step")
        if (notes / "pause").exists():
            time.sleep(0.5)
        if (notes / "spoil").exists():
            state.write_text("rubbish")
            os._exit(9)
"""


def starts(tm):
    return [(int(line.split()[0]), int(line.split()[1]), line.split()[2]) for line in tm.marks("starts")]


def places(tm, run):
    folder = tm.home / "store" / "checkpoints" / run / "main" / "0"
    return sorted(path.parent for path in folder.glob("*/manifest.json") if path.parent.name.isdigit())


def published(tm, run):
    return [int(path.name) for path in places(tm, run)]


def begin(tm, command="exec python count.py", **keys):
    tm.write("count.py", COUNTER)
    call = tm.start("run", tm.task(command, **{"checkpoint": {"every": "1s", "keep": 2}, **keys}), "--json")
    run = call.run_id()
    tm.until_marks("starts")
    return call, run


def test_a_killed_member_goes_on_from_the_newest(tm):
    call, run = begin(tm, retries=1)
    (tm.notes / "pause").touch()  # now the folder stands still long enough to be taken
    tm.until(lambda: published(tm, run), "a checkpoint while it runs")
    os.kill(starts(tm)[0][1], signal.SIGKILL)
    tm.until_marks("starts", 2)
    last = int((tm.notes / "step").read_text())
    (tm.notes / "finish").touch()
    assert tm.summary(call.wait(0))["reason"] == "SUCCEEDED"
    attempt, _, step = starts(tm)[1]
    assert attempt == 2
    assert 0 < int(step) <= last


def test_a_script_that_never_stops_writing_is_told_that_it_has_no_checkpoint(tm):
    """Whoever is not told learns it when a machine is lost."""
    write = 'head -c 20000000 /dev/zero > "$TRAINMASTER_CHECKPOINT_DIR/a"'
    call, _ = begin(tm, f'echo 1 0 0 >> "$NOTES/starts"; while [ ! -e "$NOTES/finish" ]; do {write}; done')
    call.until(lambda: "no checkpoint: whenever its files were copied, 5 times" in call.err, "it is told")
    (tm.notes / "finish").touch()
    call.wait(0)
    assert call.err.count("no checkpoint:") == 1


def test_keep_is_honoured_in_the_store(tm):
    leaves_model = "python count.py; echo weights > $TRAINMASTER_OUTPUT_DIR/model"
    call, run = begin(tm, leaves_model, checkpoint={"every": "0.3s", "keep": 2})
    seen = set()

    def enough():
        found = published(tm, run)
        seen.update(found)
        (tm.notes / "pause").touch()
        return len(seen) >= 5 and len(found) == 2

    tm.until(enough, "five checkpoints")
    (tm.notes / "finish").touch()
    call.wait(0)
    (last,) = published(tm, run)  # with a model one is enough: keep_after
    assert last >= max(seen)


def test_a_checkpoint_is_taken_at_each_attempts_end(tm):
    call, run = begin(tm, retries=1, checkpoint={"every": "10m", "keep": 1})
    tm.until(lambda: (tm.notes / "step").exists() and int((tm.notes / "step").read_text()) > 5)
    assert published(tm, run) == []
    os.kill(starts(tm)[0][1], signal.SIGKILL)
    tm.until_marks("starts", 2)
    assert int(starts(tm)[1][2]) > 5
    (tm.notes / "finish").touch()
    call.wait(0)


def test_an_attempt_that_dies_at_once_makes_the_next_start_one_before(tm):
    call, run = begin(tm, retries=3)
    (tm.notes / "pause").touch()
    tm.until(lambda: published(tm, run), "a good checkpoint")
    (tm.notes / "pause").unlink()
    (tm.notes / "spoil").touch()
    tm.until_marks("starts", 2)  # from the rubbish: int() fails, it dies at once
    (tm.notes / "spoil").unlink()
    tm.until_marks("starts", 3)
    (tm.notes / "finish").touch()
    assert tm.summary(call.wait(0))["reason"] == "SUCCEEDED"
    steps = [step for _, _, step in starts(tm)]
    assert steps[0] == "0"
    assert steps[1] == "rubbish"
    assert int(steps[2]) > 0


def test_a_checkpoint_damaged_in_the_store_is_stepped_over(tm):
    call, run = begin(tm, retries=0, checkpoint={"every": "0.3s", "keep": 3})
    (tm.notes / "pause").touch()
    tm.until(lambda: len(published(tm, run)) >= 2, "two checkpoints")
    call.send(signal.SIGINT)
    call.wait(130)
    damaged = [path for path in places(tm, run)[-1].rglob("step") if path.is_file()]
    assert damaged
    for path in damaged:
        path.write_text("x" * path.stat().st_size)
    (tm.notes / "finish").touch()
    tm.resume(run)
    step = starts(tm)[-1][2]
    assert step.isdigit()
    assert int(step) > 0


def test_resume_after_ctrl_c_goes_on(tm):
    call, run = begin(tm)
    tm.until(lambda: (tm.notes / "step").exists() and int((tm.notes / "step").read_text()) > 5)
    call.send(signal.SIGINT)
    call.wait(130)
    (tm.notes / "finish").touch()
    tm.resume(run)
    assert int(starts(tm)[1][2]) > 5


def test_a_new_run_with_changed_code_begins_with_the_checkpoint_of_another_one(tm):
    script = """
        f=$TRAINMASTER_CHECKPOINT_DIR/step; count=$(cat $f 2>/dev/null || echo 0); echo $count >> $NOTES/begun
        echo $((count + 5)) > $f; test -e $NOTES/mended
    """
    first = tm.run(tm.task(script), code=1)["run"]
    refused = tm.call("models", "get", first, tm.root / "none", code=2).err
    uri = places(tm, first)[-1].as_uri()
    assert f"`trainmaster models get {uri} DIR` gets the last checkpoint of main/0" in refused
    assert f"`checkpoint: {{from: {first}/main/0}}`" in refused
    (tm.notes / "mended").touch()
    changed = {"checkpoint": {"from": first}, "distributed": {"strategy": "allreduce", "workers": 2}}
    command = f"test $TRAINMASTER_INDEX = 1 || ({script})"
    run = tm.run(tm.task(command, **changed), code=0)["run"]
    assert tm.marks("begun") == ["0", "5"]
    said = f"begins with checkpoint {first}/main/0@1"
    assert said in tm.call("status", run).out
    assert tm.status(run)["experiments"]["main"]["begins_with"] == f"{first}/main/0@1"
    (tm.notes / "mended").unlink()
    failed = tm.run(tm.task(script, checkpoint={"from": run}), code=1)["run"]
    assert tm.marks("begun")[-1] == "10"
    refused = tm.call("rm", run, "--yes", code=2)
    assert f"the recipe of {failed} names it" in refused.out + refused.err
    (tm.notes / "mended").touch()
    tm.resume(failed)
    assert tm.marks("begun")[-1] == "15", "its own checkpoint wins"
    tm.call("rm", run, "--yes")
    refused = tm.call("run", tm.task(script, checkpoint={"from": run}), code=2)
    assert f"experiments.main.checkpoint.from: there is no run '{run}'" in refused.err


def test_a_quote_counts_what_the_checkpoint_has_not_done(tm):
    script = """
        import os, pathlib, sys, time

        state = pathlib.Path(os.environ["TRAINMASTER_CHECKPOINT_DIR"]) / "step"
        step, end = int(state.read_text()) if state.exists() else 0, int(sys.argv[1])
        while step < end:
            time.sleep(float(sys.argv[2]))
            step += 1
            state.write_text(str(step))
            print(f"step={step} loss=1", flush=True)
    """
    tm.write("count.py", script)
    keys = {"steps": 400, "checkpoint": {"every": "10m"}}
    first = tm.run(tm.task("exec python count.py 250 0", **keys), code=0)["run"]
    more = tm.task("exec python count.py 400 0.05", **keys | {"checkpoint": {"every": "10m", "from": first}})
    tm.run(more, code=0)
    quote = tm.call("quote", more, "--no-measure", "--json").json
    assert "main goes on after step 250: its checkpoint has done those" in quote["warnings"]
    assert 150 * 0.05 < quote["time_s"]["p50"] < 400 * 0.05, "of 400 steps 150 are left"


def test_a_member_may_write_its_checkpoint_on_sigterm(tm):
    recipe = tm.task("""
        late=$TRAINMASTER_CHECKPOINT_DIR/late
        if [ -e $late ]; then cat $late >> $NOTES/found; exit 0; fi
        trap 'sleep 0.3; echo saved late > $late; exit 0' TERM
        touch $NOTES/up; sleep 600 & wait
    """)
    call = tm.start("run", recipe)
    run = call.run_id()
    tm.until((tm.notes / "up").exists)
    call.send(signal.SIGINT)
    call.wait(130)
    tm.resume(run)
    assert tm.marks("found") == ["saved late"]


def test_large_files_and_folders_come_back_whole(tm):
    recipe = tm.task(
        """
        cd $TRAINMASTER_CHECKPOINT_DIR
        if [ $TRAINMASTER_ATTEMPT = 1 ]; then
          mkdir -p shard/empty; head -c 20000000 /dev/urandom > shard/big; ln -s shard/big link; touch zero
          chmod 700 shard/big; sha256sum shard/big > sum; exit 1
        fi
        sha256sum -c sum; test -x shard/big; test -L link; test -e zero
    """,
        retries=1,
    )
    tm.run(recipe)


def test_checkpoints_of_tasks_do_not_mix(tm):
    recipe = tm.task(
        "f=$TRAINMASTER_CHECKPOINT_DIR/x; if [ -e $f ]; then cat $f >> $NOTES/$TRAINMASTER_TASK; exit 0; fi; "
        "echo {{x}} > $f; exit 1",
        parameters={"x": {"range": "10-15", "step": 1}},
        retries=1,
    )
    tm.run(recipe)
    assert [tm.marks(str(task)) for task in range(6)] == [[str(x)] for x in range(10, 16)]
    assert Path(tm.home, "store", "checkpoints").is_dir()


def test_a_script_that_says_nothing_keeps_what_it_saved(tm):
    # Each attempt adds ten and dies at once, without a metric or a word.
    command = """
        count=$(cat $TRAINMASTER_CHECKPOINT_DIR/n 2>/dev/null || echo 0)
        echo $((count + 10)) > $TRAINMASTER_CHECKPOINT_DIR/n
        test $count -ge 30
    """
    run = tm.run(tm.task(command, retries=4))["run"]
    assert tm.status(run)["reason"] == "SUCCEEDED"
    assert not (tm.home / "runs" / run / "tasks" / "main" / "0" / "5").exists()


#: In the place of JupyterLab in a notebook on a rented machine.
NOTEBOOK = """
    import os, pathlib, time

    def main():
        notes, written = pathlib.Path(os.environ["NOTES"]), pathlib.Path("mine.ipynb")
        with (notes / "starts").open("a") as file:
            file.write(f"{os.environ['TRAINMASTER_ATTEMPT']} {os.getpid()} {written.exists()}\\n")
        written.write_text("cells")
        pathlib.Path("code/old.py").unlink(missing_ok=True)
        while not (notes / "finish").exists():
            time.sleep(0.02)
"""


def test_a_rented_notebook_begins_again_with_what_was_written(tm):
    for name, text in {
        "jupyter_server/base/handlers.py": "class APIHandler:\n    update_api_activity = None\n",
        "jupyter_server/serverapp.py": "class ServerApp: pass\n",
        "jupyterlab/labapp.py": NOTEBOOK,
        "tornado/ioloop.py": "PeriodicCallback = None\n",
    }.items():
        tm.write(f"stand_in/{name}", text)
    tm.write("old.py", "")
    text, _ = rented_notebook_recipe("local", {}, 60.0)
    recipe = json.loads(text)
    notebook = recipe["experiments"]["notebook"]
    assert "EVERY_S = 180" in notebook["command"]
    notebook["command"] = notebook["command"].replace("EVERY_S = 180", "EVERY_S = 0.2")
    where = "import sysconfig; print(sysconfig.get_path('purelib'))"
    notebook["setup"] = f'cp -R stand_in/. "$(python -c "{where}")"'
    notebook["checkpoint"]["every"], notebook["retries"] = "0.3s", 1
    call = tm.start("run", tm.recipe(recipe), "--json")
    run = call.run_id()
    tm.until_marks("starts")
    store = tm.home / "store" / "checkpoints" / run
    tm.until(lambda: any(store.rglob("manifest.json")), "what was written is kept")
    os.kill(starts(tm)[0][1], signal.SIGKILL)
    tm.until_marks("starts", 2)
    (tm.notes / "finish").touch()
    assert tm.summary(call.wait(0))["reason"] == "SUCCEEDED"
    assert [(attempt, found) for attempt, _, found in starts(tm)] == [(1, "False"), (2, "True")]
    tm.call("models", "get", run, tm.root / "model")
    assert (tm.root / "model" / "mine.ipynb").read_text() == "cells"
    assert (tm.root / "model" / "code" / "recipe.yaml").exists()
    assert not (tm.root / "model" / "code" / "old.py").exists()
    assert not list(store.rglob("manifest.json"))
