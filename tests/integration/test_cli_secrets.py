"""A planted secret is looked for everywhere: process lists, files, the database, all that is printed."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest
import sqlalchemy as sa

from trainmaster.db.engine import make_engine

A, B = "swordfish-a5f81c", "sword fish = \u00e4 b77d02"
PARTS = tuple(text.encode() for text in (A, B, "swordfish", "b77d02"))


class ProcessLists(threading.Thread):
    """Looks at the command line and the environment of every process, again and again.

    Attributes:
        listed: command lines with a secret in them.
        holders: command lines of processes that have one in their environment, by process id.
    """

    def __init__(self):
        super().__init__(daemon=True)
        self.listed, self.holders, self.looks = set(), {}, 0
        self._enough = threading.Event()

    def run(self):
        while not self._enough.wait(0.02):
            self.look()

    def look(self):
        for process in Path("/proc").iterdir():
            if not process.name.isdigit() or int(process.name) == os.getpid():
                continue
            try:
                command = (process / "cmdline").read_bytes()
                environ = (process / "environ").read_bytes()
            except OSError:
                continue  # gone
            if any(part in command for part in PARTS):
                self.listed.add(command)
            if any(part in environ for part in PARTS):
                self.holders[int(process.name)] = command
        self.looks += 1

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self._enough.set()
        self.join()


def assert_nowhere_below(*directories):
    files = [path for directory in directories for path in directory.rglob("*") if path.is_file()]
    for path in files:
        data = path.read_bytes()
        assert not any(part in data for part in PARTS), path
    assert len(files) >= 5, "there was something to look at"


def rows_of(url):
    """Every row of every table of a PostgreSQL place, as text."""
    engine = make_engine(url)
    with engine.connect() as connection:
        tables = connection.execute(
            sa.text("SELECT tablename FROM pg_tables WHERE schemaname = current_schema()")
        )
        found = {}
        for (table,) in tables:
            rows = connection.execute(sa.text(f'SELECT t::text FROM "{table}" t'))
            found[table] = [row[0] for row in rows]
    engine.dispose()
    return found


#: Fails at first, so that there are messages, retries and checkpoints; prints, but not its secrets.
COMMAND = """
test "$TOKEN_A" = "$(cat $NOTES/a)"; test "$TOKEN_B" = "$(cat $NOTES/b)"
echo "attempt $TRAINMASTER_ATTEMPT, member $TRAINMASTER_INDEX"; echo $$ >> $NOTES/members
echo '{"step": 1, "loss": 0.5}' >> $TRAINMASTER_METRICS
echo model > $TRAINMASTER_OUTPUT_DIR/model; echo state > $TRAINMASTER_CHECKPOINT_DIR/state
sleep 1.2
test $TRAINMASTER_ATTEMPT = 2 || exit 3
"""


@pytest.mark.parametrize("database", ["sqlite", pytest.param("postgresql", marks=pytest.mark.crossings)])
def test_a_secret_is_nowhere(tm, request, database):
    url = ""
    if database == "postgresql":
        tm.env["TRAINMASTER_DATABASE"] = url = request.getfixturevalue("postgres").new_url()
    (tm.notes / "a").write_text(A)
    (tm.notes / "b").write_text(B)
    (tm.home).mkdir()
    secrets = tm.home / "secrets"
    secrets.write_text(f"TOKEN_B = {B}\n")
    secrets.chmod(0o600)
    recipe = tm.recipe(
        {
            "name": "quiet",
            "secrets": ["TOKEN_A"],
            "experiments": {
                "main": {
                    "secrets": ["TOKEN_B"],
                    "command": COMMAND,
                    "distributed": {"strategy": "allreduce", "workers": 2},
                    "framework": "plain",
                    "hardware": {"cpus": 1},
                    "retries": 1,
                },
                "then": {
                    "after": ["main"],
                    "secrets": ["TOKEN_B"],
                    "data": {"model": {"from": "main"}},
                    "search": {"metric": "loss", "goal": "min", "sampler": "random"},
                    "parameters": {"x": {"range": "0-1"}},
                    "samples": 2,
                    "command": "echo '{\"loss\": 1}' >> $TRAINMASTER_METRICS; test -e $NOTES/healed",
                },
            },
        }
    )
    env = {**tm.env, "TOKEN_A": A}
    printed = []
    with ProcessLists() as lists:
        call = tm.start("run", recipe, "--json", env=env)
        run = call.run_id()
        tm.until_marks("members", 2)
        supervisors = tm.supervisors()
        for arguments in (("status", run, "--json"), ("doctor", "--json"), ("logs", run)):
            result = tm.call(*arguments, code=None)
            printed += [result.out, result.err]
        result = call.wait(1)
        assert tm.summary(result)["experiments"]["main"]["reason"] == "SUCCEEDED", result
        printed += [result.out, result.err]
        (tm.notes / "healed").touch()
        again = tm.start("resume", run, "--json", env=env)
        result = again.wait(0)
        printed += [result.out, result.err]
    assert lists.looks > 20
    assert lists.listed == set()
    controllers = {call.pid, again.pid}
    assert controllers <= lists.holders.keys(), "it looks at the right thing"
    assert set(map(int, tm.marks("members"))) <= lists.holders.keys()
    for pid in supervisors:
        assert pid not in lists.holders, "the supervisor is not started with its caller's environment"
    for arguments in (
        ("status", run), ("status", "--json"), ("logs", run), ("models", run, "--json"), ("doctor",),
        ("check", recipe, "--tasks"),
    ):  # fmt: skip
        result = tm.call(*arguments, code=None)
        printed += [result.out, result.err]
    for text in printed:
        assert not any(part in text.encode() for part in PARTS), text
    tm.until_quiet()
    secrets.unlink()
    places = [tm.home, tm.work] + [tm.cache] * tm.cache.exists()
    assert_nowhere_below(*places)
    if database == "postgresql":
        rows = rows_of(url)
        assert rows["event"], rows.keys()
        assert rows["attempt"]
        for table, lines in rows.items():
            for line in lines:
                assert not any(part in line.encode() for part in PARTS), (table, line)


def test_a_secret_in_a_run_that_is_detached_and_killed(tm):
    """What drives it in the background was given the environment, and no word of it on the way."""
    recipe = tm.task("echo $$ >> $NOTES/members; sleep 600", secrets=["TOKEN_A"])
    with ProcessLists() as lists:
        run = tm.call("run", recipe, "--detach", "--json", env={**tm.env, "TOKEN_A": A}).json["run"]
        tm.until_marks("members")
        time.sleep(0.1)  # one more look
        tm.call("cancel", run)
    assert lists.listed == set()
    assert int(tm.marks("members")[0]) in lists.holders
    tm.until_quiet()
    assert_nowhere_below(tm.home, tm.work)
