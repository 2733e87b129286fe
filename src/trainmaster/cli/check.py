"""``trainmaster check``."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from trainmaster.cli.opening import context, open_client, unpacked
from trainmaster.cli.options import Changes, Provider, RecipeFile
from trainmaster.cli.output import print_json, say, show, table
from trainmaster.spec.units import counted

if TYPE_CHECKING:
    from collections.abc import Callable

    from trainmaster.spec import Recipe
    from trainmaster.spec.serve import Serve


def check(
    recipe: RecipeFile,
    tasks: Annotated[bool, typer.Option("--tasks", help="Print every task as a line of JSON.")] = False,
    provider: Provider = None,
    set_: Changes = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the DAG as JSON.")] = False,
) -> None:
    """Read a recipe, show its experiments and tasks, and look for what it needs; starts nothing."""
    import json

    from trainmaster.service import Home, capabilities_of, check_names, check_urls, not_sent_of
    from trainmaster.spec import read_recipe
    from trainmaster.spec.recipe_parts import named_places
    from trainmaster.spec.trigger import needs_server

    recipe = unpacked(recipe)
    found = read_recipe(recipe, overrides=set_ or (), provider=provider)
    check_names(found)
    check_urls(found)
    if tasks:
        for name in found.order():
            experiment = found.experiments[name]
            space = experiment.tasks(found.seed)
            count = experiment.summary()["tasks"]
            if count and experiment.search is not None and space.parameters(0) is None:
                why = f"{experiment.search.sampler} chooses them as it goes"
                line = {"experiment": name, "tasks": count, "parameters": None, "why": why}
                sys.stdout.write(json.dumps({**line, "command": experiment.command}) + "\n")
                continue
            for number in range(count):
                values = space.parameters(number)
                line = {
                    "experiment": name,
                    "task": number,
                    "parameters": values,
                    "command": experiment.command if values is None else experiment.script(values),
                }
                sys.stdout.write(json.dumps(line) + "\n")
    if as_json:
        not_sent = not_sent_of(found, Home.from_environment(makes=False))
        print_json({**found.summary(), "not_sent": [asdict(each) for each in not_sent]})
    else:
        _show(found, say if tasks else show)  # beside the lines of JSON nothing else is on standard output
    if found.on and context() is None:  # a server may come later: it is no mistake in the recipe
        say(f"note: {needs_server(found.on[0].key)}")
    of_models = any(e.serve or any(s.model for s in e.data.values()) for e in found.experiments.values())
    if of_models and (server := context()) is not None:
        say(f"note: {server.url} has the registered models: `trainmaster run` looks for them")
    # Others than `local` remember in the home what they are told; registered models are there.
    places = named_places(found)
    makes = of_models or not all(capabilities_of(each).is_here for each in places)
    for note in open_client(makes=makes).check(found):
        say(f"note: {note}")


def _show(found: Recipe, tell: Callable[[str], None]) -> None:
    from trainmaster.spec.recipe_parts import named_places

    summaries = {name: found.experiments[name].summary() for name in found.order()}
    rows = [
        [
            name,
            ", ".join(found.experiments[name].depends_on) or "-",
            _counted(found.experiments[name].serve, summary["tasks"]),
            " + ".join(f"{count} {role}" for role, count in summary["members"].items()),
            str(summary["workers"] or "-"),
        ]
        for name, summary in summaries.items()
    ]
    tell(
        f"{found.name}: {counted(len(rows), 'experiment')}, "
        f"provider {' or '.join(named_places(found))}, seed {found.seed}"
    )
    tell(table(["experiment", "after", "tasks", "members", "workers"], rows))


def _counted(serve: Serve | None, tasks: int) -> str:
    """How many tasks there are; of a service, whose tasks are alike, how many replicas.

    >>> from trainmaster.spec.serve import Replicas, Serve
    >>> _counted(None, 8), _counted(Serve(), 1), _counted(Serve(replicas=Replicas(fewest=0, most=4)), 4)
    ('8', '1 replica', '0 to 4 replicas')
    """
    if serve is None:
        return str(tasks)
    fewest, most = serve.replicas.fewest, serve.replicas.most
    return f"{fewest} to {most} replicas" if fewest < most else counted(most, "replica")
