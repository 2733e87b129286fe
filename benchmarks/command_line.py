"""The command line itself: ``--help``, ``status`` with many finished tasks, ``run`` here and on a server."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from common import TRAINMASTER, options, report, seconds, spread, workshop

from trainmaster.control.task.layout import Home
from trainmaster.db import AcceptedRun, Database
from trainmaster.db import tables as t

#: One run holds half of the tasks, the others share the rest.
SMALL_RUNS = 20


def fill(database: Database, run: str, tasks: int) -> None:
    """Write a run with finished tasks as a controller would have left it."""
    now = time.time()
    new = AcceptedRun(
        run,
        "old",
        '{"experiments": {"train": {}}}',
        "recipe.yaml",
        "local",
        "/",
        "file:///nowhere",
        [("train", tasks)],
    )
    database.release(database.create_run(new, now), now)
    experiment = database.experiment_rows(run)[0]["id"]
    done = {"state": "DONE", "reason": "SUCCEEDED"}
    rows = [
        {"experiment_id": experiment, "number": n, "attempt": 1, "metrics": '{"step":100,"loss":0.1}', **done}
        for n in range(tasks)
    ]
    with database.engine.begin() as connection:
        connection.execute(t.task.insert(), rows)
        connection.execute(t.experiment.update().where(t.experiment.c.id == experiment).values(done))
        connection.execute(t.run.update().where(t.run.c.id == run).values(ended_at=now, **done))


def cpu_s(words: Sequence[str], env: Mapping[str, str], directory: str) -> float:
    """CPU seconds of one call itself, without the processes that go on after it."""
    call = subprocess.Popen(
        [TRAINMASTER, *words], env=env, cwd=directory, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(call.pid, 0)
    call.returncode = os.waitstatus_to_exitcode(status)
    assert call.returncode == 0, words
    return usage.ru_utime + usage.ru_stime


@contextmanager
def served(env: dict[str, str], directory: str) -> Iterator[dict[str, str]]:
    """The variables of a client of that home's server."""
    made = [TRAINMASTER, "token", "create", "bench", "--scopes", "read,run", "--json"]
    token = json.loads(subprocess.run(made, env=env, check=True, capture_output=True).stdout)["token"]
    command = [TRAINMASTER, "server", "--port", "0", "--json"]
    with subprocess.Popen(command, env=env, cwd=directory, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        try:
            url = json.loads(server.stdout.readline())["url"]
            laptop = {"TRAINMASTER_HOME": f"{directory}/laptop"}
            yield {**env, **laptop, "TRAINMASTER_URL": url, "TRAINMASTER_TOKEN": token}
        finally:
            server.terminate()


def main() -> None:
    arguments = options(__doc__ or "", runs=11, tasks=100_000)
    directory, env = workshop()
    with directory:
        database = Database(Home.from_environment(env).database_url)
        for number in range(SMALL_RUNS):
            fill(database, f"old-{number:04d}", arguments.tasks // 2 // SMALL_RUNS)
        fill(database, "big", arguments.tasks // 2)
        database.close()
        verbs = {"help_s": ["--help"], "status_s": ["status"], "status_run_s": ["status", "big"]}
        measured = {
            name: spread([seconds([TRAINMASTER, *words], env, directory.name) for _ in range(arguments.runs)])
            for name, words in verbs.items()
        }
        recipe = Path(directory.name) / "recipe.yaml"
        recipe.write_text("experiments: {main: {command: sleep 2}}\n")
        run = ["run", "recipe.yaml"]
        with served(env, directory.name) as remote:
            pairs = [
                (cpu_s(run, env, directory.name), cpu_s(run, remote, directory.name))
                for _ in range(arguments.runs)
            ]
        measured["run_at_home_cpu_s"] = spread([home for home, _ in pairs])
        measured["run_on_server_cpu_s"] = spread([server for _, server in pairs])
    report(
        "command_line",
        {"finished_tasks": arguments.tasks, **measured, "targets": {"help_s": 0.3, "status_s": 0.4}},
        {name: value["median"] for name, value in measured.items()},
        "seconds",
    )


if __name__ == "__main__":
    main()
