"""`run` and `quote`, the two functions that most users need; `convert` and `init`, which make recipes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from trainmaster.api.client import AnyRecipe, Client
from trainmaster.spec.errors import RunError, UndrivenError

if TYPE_CHECKING:
    from trainmaster.advisor.quote.quote import Quote
    from trainmaster.api.run import Run
    from trainmaster.service.conversion.converting import Conversion
    from trainmaster.service.first_recipe import FirstRecipe


def run(
    recipe: AnyRecipe,
    *,
    wait: bool = True,
    overrides: Mapping[str, object] | None = None,
    provider: str | None = None,
    directory: str | os.PathLike[str] = ".",
    yes: bool = False,
    max_usd: float | None = None,
    keep: str | None = None,
    allow_stale: bool = False,
) -> Run:
    """Run a recipe: quote, rent, run, keep the model, give the machines back.

    A process of its own drives the run, so that it goes on if the caller is killed.

    Args:
        recipe: a path, the keys and values of a recipe as a dictionary, or a `Recipe`.
        wait: until it has ended, however it does (see `Run.check`); Ctrl-C cancels it. False returns at once.
        overrides: keys to change, such as ``{"experiments.train.retries": 5}``; None takes one away.
        provider: where to run, instead of the recipe's.
        directory: of a dictionary: where its ``code`` and other relative paths start.
        yes: agree to what it costs to rent machines.
        max_usd: agree to so many US dollars for the whole run: its ``budget.total``, which ends it.
        keep: how long rented machines stay warm for the next run, such as ``30m``.
        allow_stale: accept prices that are old.

    Raises:
        RecipeError: the recipe is wrong; with all mistakes.
        UsageError: it cannot run here, or its cost was not agreed to: nothing was started.
        NoFeasibleQuote: no cluster keeps its deadline and budget: nothing was started.
        ProviderError: the provider cannot be reached: nothing was started.
        StoreError: the database cannot be used.
        UndrivenError: the process that drove it was killed.
        RunError: it waits for what the task that called this holds; it was cancelled.
    """
    made = Client().start(
        recipe,
        overrides=overrides,
        provider=provider,
        directory=directory,
        yes=yes,
        max_usd=max_usd,
        keep=keep,
        allow_stale=allow_stale,
    )
    if not wait:
        return made
    try:
        return made.wait()
    except UndrivenError:
        raise
    except (KeyboardInterrupt, RunError):
        made.cancel()
        raise


def quote(
    recipe: AnyRecipe,
    *,
    overrides: Mapping[str, object] | None = None,
    provider: str | None = None,
    directory: str | os.PathLike[str] = ".",
    catalogue: str | None = None,
    max_workers: int | None = None,
    measurements: str | os.PathLike[str] | None = None,
    fresh: bool = False,
    allow_stale: bool = False,
    measure: bool = True,
) -> Quote:
    """Quote cluster, time and price of a recipe; measures its job on this machine if nothing is known of it.

    Args:
        recipe: a path, the keys and values of a recipe as a dictionary, or a `Recipe`.
        overrides: keys to change, such as ``{"budget.deadline": "2h"}``; None takes one away.
        provider: whose machines, instead of the recipe's.
        directory: of a dictionary: where its ``code`` and other relative paths start.
        catalogue: a name or a file: take these offers, whatever the provider is.
        max_workers: of one task.
        measurements: CSV of points that you measured: then nothing is measured.
        fresh: measure again what was measured before.
        allow_stale: do not warn of old prices.
        measure: False: what is known at once; where that is nothing, the interval of other jobs.

    Raises:
        RecipeError: the recipe is wrong; with all mistakes.
        UsageError: nothing can be measured, such as a script that shows no steps; names what to change.
        NoFeasibleQuote: no cluster keeps its deadline and budget.
        InterruptedByUser: Ctrl-C while measuring.
    """
    return Client().quote(
        recipe,
        overrides=overrides,
        provider=provider,
        directory=directory,
        catalogue=catalogue,
        max_workers=max_workers,
        measurements=measurements,
        fresh=fresh,
        allow_stale=allow_stale,
        measure=measure,
    )


def convert(document: str | os.PathLike[str]) -> Conversion:
    """A recipe of a file of another tool: ``recipe`` is its text; see ``decisions`` and ``dropped``.

    Args:
        document: a file of sbatch, SkyPilot, dstack, docker-compose, RADL or TOSCA; or, as a text, a command
            line of torchrun, accelerate, deepspeed or mpirun.

    Raises:
        UsageError: it cannot be read, is of no kind that is known, or no recipe can say it.
    """
    from trainmaster.service.conversion.converting import conversion_of_file

    return conversion_of_file(os.fspath(document))


def init(
    directory: str | os.PathLike[str] = ".", script: str | None = None, *, run_help: bool = False
) -> FirstRecipe:
    """A first recipe for the code in a directory: ``recipe`` is its text, ``notes`` say what was not found.

    Args:
        directory: of the code; nothing is written there.
        script: below it; one is looked for without.
        run_help: run the script with ``--help`` where only that shows its options.

    Raises:
        UsageError: there is no script, or it is no Python.
    """
    from trainmaster.service.first_recipe import first_recipe

    return first_recipe(Path(directory), script, may_run=run_help)
