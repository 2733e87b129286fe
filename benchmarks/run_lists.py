"""Lists of runs: a page and all of 5,000, by `Service.runs` and by the command line."""

from __future__ import annotations

import time

from common import TRAINMASTER, options, report, seconds, spread, workshop

from trainmaster.control.task.layout import Home
from trainmaster.db import tables as t
from trainmaster.db.leases import this_process
from trainmaster.service import Service

PAGE = 50
#: About as long as that of a search with six parameters.
RECIPE = '{"experiments": {"train": {"command": "' + "x" * 4000 + '"}}}'


def fill(service: Service, runs: int) -> None:
    """Write runs, one a minute: half of them have ended, of the others the driver was killed."""
    now = time.time()
    gone = this_process().rsplit(":", 1)[0] + ":1"
    columns = ("state", "reason", "ended_at", "lease_owner", "lease_expires_at")
    rows = []
    for number in range(runs):
        at = now - 60 * number
        how = ("DONE", "SUCCEEDED", at + 9, None, at) if number % 2 else ("RUNNING", None, None, gone, at)
        row = {
            "id": f"old-{number:05d}",
            "recipe": RECIPE,
            "created_at": at,
            "session_at": at,
            "lease_token": 1,
        }
        named = {
            "name": "old",
            "recipe_path": "",
            "provider": "local",
            "code_path": "/",
            "store_url": "file:///x",
        }
        rows.append({**row, **named, **dict(zip(columns, how, strict=True))})
    with service.database.engine.begin() as connection:
        connection.execute(t.run.insert(), rows)


def timed(service: Service, limit: int | None, after: str | None) -> float:
    """Seconds of one call."""
    began = time.perf_counter()
    assert service.runs(limit=limit, after=after)["runs"]
    return time.perf_counter() - began


def main() -> None:
    arguments = options(__doc__ or "", runs=11, listed=5000)
    directory, env = workshop()
    with directory:
        service = Service(Home.from_environment(env))
        fill(service, arguments.listed)
        middle = f"old-{arguments.listed // 2:05d}"
        calls = {"first_page_s": (PAGE, None), "middle_page_s": (PAGE, middle), "all_s": (None, None)}
        measured = {
            name: spread([timed(service, *call) for _ in range(arguments.runs)])
            for name, call in calls.items()
        }
        verbs = {"status_s": ["status"], "status_json_s": ["status", "--json"]}
        measured |= {
            name: spread([seconds([TRAINMASTER, *words], env, directory.name) for _ in range(arguments.runs)])
            for name, words in verbs.items()
        }
        service.close()
    report(
        "run_lists",
        {"listed": arguments.listed, "page": PAGE, **measured, "targets": {"first_page_s": 0.05}},
        {name: value["median"] for name, value in measured.items()},
        "seconds",
    )


if __name__ == "__main__":
    main()
