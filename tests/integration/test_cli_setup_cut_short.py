"""A `setup:` that is cut short leaves no processes, and nothing half made that a later run would use."""

from __future__ import annotations

import signal

import pytest

SLOW = """
    echo $$ >> $NOTES/setups
    if [ ! -e $NOTES/go ]; then sleep 600 & setsid sleep 600 & wait; fi
    echo whole > $VIRTUAL_ENV/made
"""


def begin(tm):
    call = tm.start("run", tm.task("cat $VIRTUAL_ENV/made", setup=SLOW), "--json")
    run = call.run_id()
    tm.until_marks("setups")
    return call, run


def test_killed_and_then_interrupted_while_setup_runs(tm):
    call, run = begin(tm)
    call.kill()
    again = tm.start("resume", run, "--json")
    tm.until_marks("setups", 2)
    again.send(signal.SIGINT)
    again.wait(130)
    tm.until_quiet()
    (tm.notes / "go").touch()
    tm.resume(run)
    assert "whole\n" in tm.logs(run)
    tm.until_quiet()


def test_killed_and_then_cancelled_while_setup_runs(tm):
    call, run = begin(tm)
    call.kill()
    assert tm.call("cancel", run, "--json").json["reason"] == "CANCELLED"
    tm.until_quiet()


@pytest.mark.crossings  # to be interrupted, above, ends a setup in the same way
def test_cancel_while_setup_runs(tm):
    call, run = begin(tm)
    assert tm.call("cancel", run, "--json").json["reason"] == "CANCELLED"
    call.wait(1)
    tm.until_quiet()


def test_a_setup_that_writes_a_file_it_names_is_found_again(tm):
    script = "$VIRTUAL_ENV/bin/made"
    setup = f"printf '#!/bin/sh\\necho made\\n' > made.sh; cp made.sh {script}; chmod +x {script}"
    ended = tm.run(tm.task("made > $NOTES/said", setup=setup, parameters={"part": [1, 2]}))
    assert ended["reason"] == "SUCCEEDED"
    assert tm.marks("said") == ["made"]


#: It has an image as long as there is a file, and its registry has none. A setup takes long in it.
ENGINE = """\
    #!/bin/sh
    echo "$*" >> NOTES/asked
    case "$1 $2 $*" in
        "info "*) echo '["name=seccomp"]' ;;
        "manifest "*) echo '{}' ;;
        "image inspect "*) [ -e NOTES/image ] && echo '[{"Id": "sha256:1", "Config": {"Env": []}}]' ;;
        "run "*-setup-*) echo $$ >> NOTES/setups; sleep 600 ;;
        "run "*|"rm "*) ;;
        *) exit 1 ;;
    esac
"""
INSIDE = {"command": "true", "container": "nowhere.example/none:1", "setup": "true"}


def of_engine(tm):
    """Its directory is the first where programs are looked for; what it was asked."""
    engine = tm.write("docker", ENGINE.replace("NOTES", str(tm.notes)), 0o755)
    tm.env |= {"PATH": f"{engine.parent}:{tm.env['PATH']}", "TRAINMASTER_CONTAINER_ENGINE": "docker"}
    return tm.notes / "asked"


def test_an_image_that_cannot_be_had_ends_its_own_task_only(tm):
    of_engine(tm)
    beside = {"command": "until [ -e $NOTES/go ]; do sleep 0.05; done; echo whole"}
    recipe = tm.recipe({"name": "job", "experiments": {"inside": INSIDE, "beside": beside}})
    call = tm.start("run", recipe, "--json")
    run = call.run_id()
    tm.until(lambda: tm.status(run)["experiments"]["inside"]["tasks"]["failed"], "it has failed")
    (tm.notes / "go").touch()
    assert call.wait(1).json["experiments"]["beside"]["tasks"]["succeeded"] == 1
    assert "whole\n" in tm.logs(run)


@pytest.mark.parametrize("is_there", [True, False])
def test_cancel_ends_a_setup_in_an_image_and_pulls_none(tm, is_there):
    asked, image = of_engine(tm), tm.notes / "image"
    image.touch()
    call = tm.start("run", tm.recipe({"name": "job", "experiments": {"inside": INSIDE}}), "--json")
    run = call.run_id()
    tm.until_marks("setups")
    call.kill()
    asked.unlink()
    if not is_there:
        image.unlink()
    assert tm.call("cancel", run, "--json").json["reason"] == "CANCELLED"
    later = asked.read_text().splitlines()
    assert not [line for line in later if line.startswith(("pull", "run"))]
    assert any("-setup-" in line for line in later if line.startswith("rm")) == is_there
    tm.clean_up()
