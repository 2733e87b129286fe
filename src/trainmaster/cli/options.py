"""Arguments and options that several verbs have."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

#: The newest runs; more are no help.
_RUNS = 50


def run_ids(incomplete: str) -> list[str]:
    """Ids and names of runs that begin so, the newest first; none if anything is wrong: Tab cannot say so."""
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

            rows = Service(home).runs(_RUNS)["runs"]
            names = dict.fromkeys(filter(None, (row.get("labels", {}).get("name") for row in rows)))
            found = [*(row["run"] for row in rows), *names]
    return [run for run in (*found, *(["latest"] * bool(found))) if run.startswith(incomplete)]


def kept_seconds(keep: str | None) -> float:
    """Of ``--keep``; nothing is kept without.

    Raises:
        UsageError: that is no time.
    """
    from trainmaster.cli.output import parsed
    from trainmaster.spec import parse_duration

    return 0.0 if keep is None else parsed("--keep", parse_duration, keep)


RunId = Annotated[
    str, typer.Argument(autocompletion=run_ids, help="Id or name of a run, a beginning, or `latest`.")
]
RunOrNone = Annotated[
    str | None,
    typer.Argument(autocompletion=run_ids, help="Id or name of a run, a beginning, or `latest`."),
]
RecipeFileOrNone = Annotated[
    Path | None, typer.Argument(metavar="RECIPE", help="The YAML recipe, or a file that `export` has made.")
]
RecipeFile = Annotated[Path, typer.Argument(help="The YAML recipe, or a file that `export` has made.")]
Provider = Annotated[str | None, typer.Option(help="Where to run, instead of the recipe's.")]
NewDirectory = Annotated[
    Path, typer.Argument(metavar="DIR", help="Where to put it; must not exist or be empty.")
]
Changes = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="PATH=VALUE", help="Change a key: --set experiments.train.retries=2"),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print it as JSON.")]
AgreesToCost = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before money is spent.")]
Keep = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="Keep rented machines warm for the next run, such as 30m."),
]
LendKeys = Annotated[
    bool, typer.Option("--lend-keys", help="Give nodes your own keys of object stores, not narrower ones.")
]
#: Of verbs that act on several runs; `condition` below and `selected` of `cli/labels.py` take them.
Labels = Annotated[
    list[str] | None,
    typer.Option("--label", metavar="KEY=VALUE", help="Runs with this label; KEY!=VALUE, or KEY for any."),
]
WhereText = Annotated[
    str | None,
    typer.Option("--where", metavar="CONDITION", help="Runs such as 'loss < 0.3 and state = SUCCEEDED'."),
]


def condition(labels: Sequence[str] | None, where: str | None) -> str:
    """What ``--label`` and ``--where`` ask together; empty without any.

    Raises:
        UsageError: one of them is wrong.
    """
    if not labels and where is None:
        return ""
    from trainmaster.spec.labels import joined
    from trainmaster.spec.where import parse_where

    wanted = joined(where or "", labels or ())
    parse_where(wanted if where is None else where)  # told before anything is asked of a server
    return wanted
