"""Scripts that fail, and values that would be dangerous in a shell that trusted them."""

from __future__ import annotations

import json
import resource

import pytest

NASTY = [
    "'; touch pwned; $(touch pwned)",
    "`touch pwned`",
    '"; touch pwned; "',
    "a b  c",
    "$HOME",
    "*",
    "~",
    "-n",
    "a\nb",
    "\\",
    "!!",
    "{a,b}",
    "<(touch pwned)",
    "\u00e4\u4e2d\U0001f600",
    "%s",
    "{{other}}",
]


def test_values_arrive_literally(tm):
    tm.write(
        "see.py",
        """
        import json, os, sys
        assert sys.argv[1] == os.environ["TRAINMASTER_PARAM_VALUE"], sys.argv
        with open(os.environ["NOTES"] + "/seen", "a") as file:
            file.write(json.dumps([sys.argv[1], sys.argv[2]]) + "\\n")
    """,
    )
    command = """
        python see.py {{value}} pre{{value}}post
        x={{value}}; test "$x" = "$TRAINMASTER_PARAM_VALUE"
        ls > $NOTES/ls
    """
    recipe = tm.task(command, parameters={"value": NASTY})
    tm.run(recipe)
    seen = [json.loads(line) for line in tm.marks("seen")]
    assert sorted(value for value, _ in seen) == sorted(NASTY)
    assert all(wrapped == f"pre{value}post" for value, wrapped in seen)
    assert tm.marks("ls") == ["recipe.yaml", "see.py"]
    assert not list(tm.root.rglob("pwned"))


def test_a_value_from_the_command_line_is_no_code_either(tm):
    recipe = tm.task("printf %s {{value}}", parameters={"value": ["x"]})
    run = tm.run(recipe, "--set", 'experiments.main.parameters.value=["$(touch pwned)\'"]')["run"]
    assert tm.logs(run) == "$(touch pwned)'"


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("no-such-program --x", ["127", "not found"]),
        ("python -c '{}[7]' || { echo bye; exit 3; }", ["exit code 3 (KeyError: 7)"]),
        ("kill -SEGV $$", ["SIGSEGV"]),
        ("kill -9 $$", ["SIGKILL"]),
        ("touch f; ./f", ["126", "not executable"]),
        ("if then", ["exit code"]),
        ("python -c 'import os; os.abort()'", ["SIGABRT"]),
        ("sleep 600 & pid=$!; kill -TERM $pid; wait $pid", ["143", "SIGTERM"]),
    ],
)
def test_how_it_failed_is_told(tm, command, words):
    result = tm.call("run", tm.task(command), "--json", code=1)
    summary = tm.summary(result)
    assert summary["reason"] == "USER_ERROR"
    for word in words:
        assert word in summary["experiments"]["main"]["message"]
        assert word in result.err
    assert summary["run"] in result.err


def test_what_a_task_of_many_said_last_is_told(tm):
    """The output of so many is not shown."""
    script = (
        "python -c 'import os; {}[os.environ[\"TRAINMASTER_TASK\"]]' || { echo see example.org; exit 4; }"
    )
    result = tm.call("run", tm.task(script, parameters={"x": [1, 2, 3, 4, 5]}), code=1)
    assert "main/3 (x=4): attempt 1 USER_ERROR: exit code 4 (KeyError: '3')" in result.err


def test_out_of_memory_in_python(tm):
    recipe = tm.task("ulimit -v 400000; python -c 'x = bytearray(1 << 30)'", retries=1)
    summary = tm.run(recipe, code=1)
    assert summary["reason"] == "OOM"
    assert "memory" in summary["experiments"]["main"]["message"]
    assert len(tm.logs(summary["run"], "--member", "worker-0").split("MemoryError")) == 3, "two attempts"


def test_out_of_memory_by_the_kernel_looks_like_a_kill(tm):
    # without a limit of its own a real one would take the machine along; the kernel's signal is the same
    assert tm.run(tm.task("kill -9 $$"), code=1)["reason"] in ("USER_ERROR", "OOM")


def test_a_script_longer_than_the_kernel_takes(tm):
    lines = "\n".join(f"x{number}={'y' * 90}" for number in range(3000))
    run = tm.run(tm.task(f"{lines}\necho ${{#x2999}}"))["run"]
    assert tm.logs(run) == "90\n"


def test_bash_reads_the_script_as_it_was_written(tm):
    recipe = tm.recipe("""
        experiments:
          main:
            command: |
              cat <<'END'
              $HOME `date` "quotes" \\ back
              END
              for i in 1 2; do
                echo $i   # a comment
              done
    """)
    assert tm.logs(tm.run(recipe)["run"]) == '$HOME `date` "quotes" \\ back\n1\n2\n'


def test_a_task_that_fills_its_own_output_directory_with_odd_things(tm):
    recipe = tm.task("""
        cd $TRAINMASTER_OUTPUT_DIR
        mkfifo pipe; ln -s nowhere dangling; touch $'new\\nline' $'lat\\xe4'; echo x > ok
    """)
    summary = tm.run(recipe, code=0)
    assert summary["models"]
    tm.call("models", "get", summary["models"][0]["uri"], tm.root / "got")
    assert (tm.root / "got" / "ok").read_text() == "x\n"


def test_a_task_that_removes_its_directories(tm):
    for code, command in ((0, "rm -rf $TRAINMASTER_CHECKPOINT_DIR"), (0, "rm -rf $TRAINMASTER_OUTPUT_DIR")):
        tm.run(tm.task(command), code=code)
    recipe = tm.task("rm -rf $(dirname $TRAINMASTER_OUTPUT_DIR); echo gone")
    assert tm.call("run", recipe, "--json", code=None).code in (0, 1)
    tm.until_quiet()


def test_a_task_that_replaces_its_output_directory(tm):
    recipe = tm.task("rmdir $TRAINMASTER_OUTPUT_DIR; echo file > $TRAINMASTER_OUTPUT_DIR")
    result = tm.call("run", recipe, "--json", code=None)
    assert result.code in (0, 1)
    assert result.json["state"] == "DONE"


def test_many_processes_of_one_task_end_with_it(tm):
    tm.run(tm.task("for i in $(seq 40); do setsid sleep 600 & sleep 600 & done"))
    tm.until_quiet()


def test_a_limit_on_open_files_is_the_callers(tm):
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    run = tm.run(tm.task("ulimit -n"))["run"]
    assert int(tm.logs(run)) >= min(soft, 1024)
