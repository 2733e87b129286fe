"""Many tiny tasks with their state on PostgreSQL, as durable as it comes, against SQLite in the same run."""

from __future__ import annotations

import time

from common import options, report, spread, workshop
from many_tasks import run

from trainmaster.db import AcceptedRun, Database, Lease, Note
from trainmaster.testing.private_postgres import PrivatePostgres


def main() -> None:
    arguments = options(__doc__ or "", runs=3, tasks=1000)
    directory, env = workshop()
    # The server's own settings: every commit is on the disk before it is answered.
    with directory, PrivatePostgres() as server:
        shared = {**env, "TRAINMASTER_DATABASE": server.url}
        run(10, env, directory.name)
        run(10, shared, directory.name)
        postgres, sqlite = [], []
        for _ in range(arguments.runs):  # in turn, so that a noisy machine disturbs both
            postgres.append(arguments.tasks / run(arguments.tasks, shared, directory.name)["driven_s"])
            sqlite.append(arguments.tasks / run(arguments.tasks, env, directory.name)["driven_s"])
        commits = {
            "postgresql": commits_per_s(server.url),
            "sqlite": commits_per_s(f"sqlite:///{directory.name}/commits.db"),
        }
    result = {
        "tasks": arguments.tasks,
        "postgresql_tasks_per_s": spread(postgres),
        "sqlite_tasks_per_s": spread(sqlite),
        "ratio": spread([ours / theirs for ours, theirs in zip(postgres, sqlite, strict=True)]),
        "commits_per_s": commits,
        "targets": {"postgresql_tasks_per_s": 150},
    }
    report(
        "postgres",
        result,
        {
            "PostgreSQL": result["postgresql_tasks_per_s"]["median"],
            "SQLite": result["sqlite_tasks_per_s"]["median"],
        },
        "tasks per second",
    )


def commits_per_s(url: str, commits: int = 300) -> float:
    """How many commits of one event a store takes from one process."""
    database = Database(url)
    experiments = [("only", 1)]
    lease: Lease = database.create_run(
        AcceptedRun("commits", "x", "{}", "", "local", "", "", experiments), 0.0
    )
    began = time.perf_counter()
    for _ in range(commits):
        database.commit(lease, [Note("x")], time.time())
    took = time.perf_counter() - began
    database.close()
    return round(commits / took, 1)


if __name__ == "__main__":
    main()
