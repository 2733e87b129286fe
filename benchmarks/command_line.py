"""The command line itself: ``--help``, and ``status`` with many finished tasks in the database."""

from __future__ import annotations

import time

from common import TRAINMASTER, options, report, seconds, spread, workshop

from trainmaster.control.layout import Home
from trainmaster.db import Database, NewRun
from trainmaster.db import tables as t

#: One run holds half of the tasks, the others share the rest.
SMALL_RUNS = 20


def fill(database: Database, run: str, tasks: int) -> None:
    """Write a run with finished tasks as a controller would have left it."""
    now = time.time()
    new = NewRun(
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
    report(
        "command_line",
        {"finished_tasks": arguments.tasks, **measured, "targets": {"help_s": 0.3, "status_s": 0.4}},
        {name: value["median"] for name, value in measured.items()},
        "seconds",
    )


if __name__ == "__main__":
    main()
