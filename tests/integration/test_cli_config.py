"""`config`, `include` and `env_file`, from the command line to a server and into a capsule."""

from __future__ import annotations

import json

import pytest
from running_server import RunningServer

TOKEN = "hf_0123456789abcdef"


@pytest.fixture
def project(tm):
    """A recipe that includes another file, has variables in a third, and a configuration beside it."""
    tm.env["XDG_CONFIG_HOME"] = str(tm.root / "config")
    tm.write("base.yaml", "env: {SHARED: base}\nexperiments: {main: {retries: 0}}\n")
    tm.write(".env", f"PLAIN=from-file\nHF_TOKEN={TOKEN}\n")
    tm.write("pyproject.toml", "[tool.trainmaster.budget]\ntotal = '$7'\n")
    command = 'echo "$SHARED $PLAIN ${HF_TOKEN:0:3}"; ls -a'
    tm.write(
        "recipe.yaml",
        "name: job\ninclude: base.yaml\nenv_file: .env\n"
        f"experiments: {{main: {{command: {json.dumps(command)}}}}}\n",
    )
    return tm


def test_where_values_come_from_is_said_and_a_value_can_be_set(project):
    file = project.root / "config/trainmaster/config.toml"
    assert f"provider is in {file}" in project.call("config", "set", "provider", "lab").err
    project.call("config", "set", "budget.deadline", "3h")
    told = project.call("config", "set", "provder", "x", code=2).err
    assert "provder: unknown key 'provder'; did you mean 'provider'?" in told
    assert "Nothing was written" in told
    rows = {each["key"]: each for each in project.call("config", "show", "--json").json["values"]}
    assert rows["provider"] == {"key": "provider", "value": "lab", "file": str(file), "line": 1}
    assert rows["budget.total"]["file"] == str(project.work / "pyproject.toml")
    assert rows["objective"]["file"] is None
    table = project.call("config", "show", "recipe.yaml").out
    assert f"{file}:2" in table
    assert project.call("config", "path").out.split() == [str(project.work / "pyproject.toml"), str(file)]
    assert "provider lab" in project.call("check", "recipe.yaml", code=None).out + project.call("config").out


def test_other_files_travel_and_values_of_secrets_do_not(project):
    tm = project
    first = tm.call("run", "recipe.yaml", "--json")
    assert "note: .env: HF_TOKEN looks like a secret" in first.err
    run = first.json["run"]
    said = tm.logs(run).split()
    assert said[:2] == ["base", "from-file"]
    assert ".env" not in said
    capsule = tm.root / "job.capsule"
    tm.call("export", run, capsule)
    written = [each.read_bytes() for each in tm.root.rglob("*") if each.is_file() and each.name != ".env"]
    assert not [each for each in written if TOKEN.encode() in each]

    elsewhere = {**tm.env, "TRAINMASTER_HOME": str(tm.root / "other"), "HF_TOKEN": "another"}
    again = tm.call("run", capsule, "--json", env=elsewhere).json["run"]
    assert tm.call("logs", again, env=elsewhere).out.split()[:2] == ["base", "from-file"]


def test_a_server_plans_with_what_the_client_is_configured_and_has_its_own(project):
    pytest.importorskip("fastapi", reason="the extra `server` is not installed")
    tm = project
    server = RunningServer(tm.start)
    own = tm.root / "config/trainmaster/config.toml"
    own.parent.mkdir(parents=True)
    own.write_text("budget = {total = '$9', deadline = '5h'}\n")
    tm.env["HF_TOKEN"] = TOKEN
    server.start()
    token = tm.call("token", "create", "ci", "--scopes", "read,run", "--json").json["token"]
    at_server = dict(tm.env)
    tm.env |= {"TRAINMASTER_HOME": str(tm.root / "laptop"), "XDG_CONFIG_HOME": str(tm.root / "mine")}
    tm.env |= {"TRAINMASTER_URL": server.url, "TRAINMASTER_TOKEN": token}
    (tm.root / "mine/trainmaster").mkdir(parents=True)
    (tm.root / "mine/trainmaster/config.toml").write_text("notify = [{to = 'touch told'}]\n")
    run = tm.call("run", "recipe.yaml", "--json").json["run"]
    assert tm.logs(run).split()[:2] == ["base", "from-file"]
    shown = tm.call("config", "show", "--json").json
    assert {each["key"]: each["value"] for each in shown["server"]}["budget.deadline"] == "5h"
    assert "notify" not in {each["key"] for each in shown["server"]}
    recipe = json.loads(_row(tm.root / at_server["TRAINMASTER_HOME"] / "trainmaster.db", run))
    said = {key: value for key, value in recipe["budget"].items() if value is not None}
    assert said == {"total_usd": 7, "deadline_s": 18000}
    assert recipe["notify"] == []


def _row(database, run):
    import sqlite3

    with sqlite3.connect(database) as opened:
        return opened.execute("select recipe from run where id = ?", (run,)).fetchone()[0]


def test_the_schema_is_printed_and_written(tm):
    assert "experiments" in tm.call("schema", "--json").json["properties"]
    told = tm.call("schema", "--output", "recipe.schema.json").err
    assert "# yaml-language-server: $schema=recipe.schema.json" in told
    written = json.loads((tm.work / "recipe.schema.json").read_text())
    assert written["properties"]["provider"]["description"].startswith("that rents the machines")
    assert "No such file" in tm.call("schema", "--output", "no/x.json", code=2).err


def test_a_first_recipe_passes_check_and_runs_and_nothing_is_overwritten(tm):
    script = """
import os
import typer
def main(lr: float = 0.5, out_dir: str = "out"):
    open(os.path.join(out_dir, "model"), "w").write("x")
    print("loss", lr)
typer.run(main)
"""
    tm.write("train.py", script)
    told = tm.call("init", "--yes")
    assert "--out-dir" in told.out
    assert "# yaml-language-server: $schema=.recipe.schema.json" in (tm.work / "recipe.yaml").read_text()
    tm.call("check", "recipe.yaml")
    run = tm.run(tm.work / "recipe.yaml")
    assert run["experiments"]["train"]["reason"] == "SUCCEEDED"
    assert "is there already" in tm.call("init", code=2).err
    again = tm.call("init", "train.py", "--output", "other.yaml", "--json").json
    assert (again["by"], again["file"]) == ("typer", "other.yaml")


def test_a_dry_run_says_what_would_be_started_and_writes_nothing(tm):
    recipe = tm.task("echo $A", env={"A": "b"}, parameters={"x": [1, 2]})
    told = tm.call("run", recipe, "--dry-run")
    assert "main/0 worker-0, the first of 2 tasks" in told.out
    assert "A=b\n" in told.out
    assert "TRAINMASTER_PARAM_X=1" in told.out
    plan = tm.call("run", recipe, "--dry-run", "--json").json
    assert (plan["requests"], len(plan["processes"])) == ([], 1)
    kept = tm.call("run", recipe, "--dry-run", "--set", "on=webhook")
    assert "nothing of it runs now: `on` has a server keep it as the workflow" in kept.out + kept.err
    assert not (tm.root / "home").exists()
