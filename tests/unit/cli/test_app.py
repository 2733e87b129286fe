"""The table of verbs: what it shows, and what it imports for that."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from command_line import invoke, whole_command
from trainmaster.cli import main
from trainmaster.cli.app import _KEYS, _VERBS, PANELS, app
from trainmaster.spec import read_recipe
from trainmaster.spec.errors import UsageError


def test_each_verb_is_shown_once_below_the_title_of_its_kind():
    shown = [name for names in PANELS.values() for name in names]
    assert sorted(shown) == sorted(name for name in _VERBS if not name.startswith("_"))
    lines = invoke("--help").stdout.splitlines()
    titles = [next(i for i, line in enumerate(lines) if f" {panel} ─" in line) for panel in PANELS]
    assert titles == sorted(titles)


def test_what_all_verbs_do_is_said_as_each_says_it():
    """The table of verbs has the first sentence of each, so that none is imported for the list."""
    shown = json.loads(_in_a_process(["--help"])[-1])
    assert len(shown) <= 15, shown
    verbs = whole_command()
    for name, (_, summary) in _VERBS.items():
        assert verbs.commands[name].help.partition("\n\n")[0].replace("\n", " ") == summary, name
        assert verbs.commands[name].name == name


def test_a_verb_is_imported_without_the_others():
    for words in (["status", "--help"], ["workflows", "--help"], ["statsu"]):
        loaded = json.loads(_in_a_process(words)[-1])
        assert not {"trainmaster.cli.quote", "trainmaster.cli.lab", "trainmaster.service"} & set(loaded), (
            words
        )
    said = _in_a_process(["statsu"])
    assert "Did you mean status?" in "".join(said)


def test_who_looks_at_runs_loads_nothing_that_only_driving_needs(tmp_path, monkeypatch):
    monkeypatch.setenv("TRAINMASTER_HOME", str(tmp_path))
    loaded = json.loads(_in_a_process(["status"])[-1])
    assert len(loaded) <= 105, loaded
    assert not {"trainmaster.control.loop.controller", "trainmaster.executors.local.executor"} & set(loaded)


@pytest.mark.parametrize(
    ("words", "said", "hint"),
    [
        (["run"], "trainmaster run needs RECIPE: The YAML recipe, or a file", "`trainmaster run --help`"),
        (["cp"], "trainmaster cp needs RUN", "`trainmaster cp --help`"),
        (["logs", "job-1a", "train", "3"], "logs: train 3 is too much", "`--experiment` names an experiment"),
        (["check", "a", "b"], "trainmaster check: b is too much", "`trainmaster check --help`"),
        (["run", "a", "--total", "3"], "trainmaster run has no option --total", "`--set budget.total=20USD`"),
        (["run", "a", "--yess"], "trainmaster run has no option --yess", "Did you mean --yes?"),
        (["status", "--total", "3"], "status has no option --total", "`trainmaster status --help`"),
        (["models", "diff", "--foo"], "models diff has no option --foo", "`trainmaster models diff --help`"),
        (["models", "diff"], "trainmaster models diff needs A B", "`trainmaster models diff --help`"),
        (
            ["models", "diff", "a@1"],
            "models diff needs B: The other model",
            "`trainmaster models diff --help`",
        ),
        (["status", "--limit", "x"], "status: Invalid value for '--limit'", "`trainmaster status --help`"),
        (["server", "key", "rotate", "a", "b"], "rotate: b is too much", "server key rotate --help`"),
        (["workflows", "--yess"], "workflows list has no option --yess", "workflows list --help`"),
        (["workflows", "resum", "x"], "trainmaster workflows has no resum", "Did you mean resume?"),
        (["models", "sow", "x"], "trainmaster models has no sow", "Did you mean show?"),
        (["models", "job-1a", "x"], "trainmaster models list: x is too much", "models list --help`"),
        (["views", "nothing"], "trainmaster views has no nothing", "`trainmaster views --help` lists its"),
        (["statsu"], "trainmaster has no statsu", "Did you mean status?"),
        (["xyzzy"], "trainmaster has no xyzzy", "`trainmaster --help` lists its verbs."),
        (["--jsn", "status"], "trainmaster: No such option: --jsn", "`trainmaster --help` says"),
        (["team", "lisst"], "trainmaster team has no lisst", "Did you mean list?"),
        (["server", "keys", "list"], "trainmaster server has no keys", "Did you mean key?"),
        (["server", "--port", "x"], "trainmaster server: Invalid value for '--port'", "server --help`"),
        (["team", "list", "--jsn"], "team list has no option --jsn", "Did you mean --json?"),
    ],
)
def test_what_is_missing_or_too_much_is_said_in_two_lines(words, said, hint):
    with pytest.raises(UsageError) as refused:
        invoke(*words)
    assert said in refused.value.args[0]
    assert hint in refused.value.hint


def test_the_key_that_is_meant_by_an_option_is_named_with_a_value_that_a_recipe_may_have(tmp_path):
    """`budget.total=20` was named, and refused as an amount without a currency."""
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("name: x\nexperiments: {main: {command: 'true', workers: 1}}\n")
    for override in set(_KEYS.values()):
        assert read_recipe(recipe, overrides=[override]).budget is not None


@pytest.mark.parametrize("line", ["trainmaster run --", "trainmaster cp --", "trainmaster check a b --"])
def test_a_shell_that_completes_a_line_hears_nothing_of_what_is_missing_or_too_much(line):
    asked = {"_TRAINMASTER_COMPLETE": "complete_bash", "COMP_WORDS": line}
    asked["COMP_CWORD"] = str(len(line.split()) - 1)
    told = CliRunner().invoke(app, prog_name="trainmaster", env=asked)
    assert (told.exception, "--help" in told.stdout) == (None, True)


def _in_a_process(words):
    """Lines that it prints; the last one has the modules of ours that it has imported."""
    program = (
        "import atexit, json, sys\n"
        "ours = lambda: [name for name in sys.modules if name.startswith('trainmaster')]\n"
        "atexit.register(lambda: print(json.dumps(ours())))\n"
        "from trainmaster.cli import main\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *words], stdout=-1, stderr=subprocess.STDOUT, text=True, check=False
    )
    return done.stdout.splitlines()


def test_lists_of_runs_import_no_recipes():
    program = (
        "import sys, trainmaster.cli.status, trainmaster.api.embedded, trainmaster.service.runs.overview;"
        "print(*{'trainmaster.spec.recipe', 'trainmaster.spec.experiment'} & set(sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", program], stdout=-1, text=True, check=True).stdout == "\n"


@pytest.mark.parametrize(
    ("said", "becomes"),
    [("a loop of ours", RuntimeError), ("Could not determine home directory.", SystemExit)],
)
def test_only_what_lacks_a_home_directory_is_told_to_set_it(monkeypatch, said, becomes):
    def fails():
        raise RuntimeError(said)

    monkeypatch.setattr("trainmaster.cli.app.app", fails)
    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    with pytest.raises(becomes):
        main()


def test_a_second_ctrl_c_before_anything_can_end_says_what_is_left():
    program = (
        "import os, signal; from trainmaster.cli.driving import catch_signals; counts = iter([1, 0]);"
        "catch_signals(lambda: next(counts), 'r-1 is left as it is');"
        "os.kill(os.getpid(), signal.SIGINT); os.kill(os.getpid(), signal.SIGINT)"
    )
    done = subprocess.run([sys.executable, "-c", program], stderr=-1, text=True, check=False)
    assert (done.returncode, done.stderr.splitlines()[1:]) == (130, ["r-1 is left as it is"])
