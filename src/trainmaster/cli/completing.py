"""What a shell is offered when Tab is pressed where a run is to be named."""

from __future__ import annotations

#: The newest runs; more are no help.
_RUNS = 50


def run_ids(incomplete: str) -> list[str]:
    """Ids of runs that begin so, the newest first; none if anything is wrong: Tab is no place to say so."""
    from contextlib import suppress

    from trainmaster.service import Home

    found: list[str] = []
    with suppress(Exception):
        from trainmaster.cli.opening import context

        if context() is not None:
            return []  # a server that is away would keep Tab waiting
        home = Home.from_environment()
        if home.root.is_dir():  # else there are none, and Tab must not make one
            from trainmaster.service import Service

            found = [row["run"] for row in Service(home).runs(_RUNS)["runs"]]
    return [run for run in (*found, *(["latest"] * bool(found))) if run.startswith(incomplete)]
