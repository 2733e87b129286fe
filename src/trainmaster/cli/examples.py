"""``trainmaster examples``."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from trainmaster.cli.options import AsJson
from trainmaster.cli.output import print_json, say, show, table
from trainmaster.spec.errors import UsageError


def examples(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="The one to copy.")] = None,
    directory: Annotated[
        Path | None, typer.Argument(metavar="[DIR]", help="To be made; without it, one of its name.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the recipes that come with Trainmaster, or copy one with its code."""
    from trainmaster.service.examples import example, examples

    if name is None:
        found = examples()
        if as_json:
            print_json({"examples": [each.summary() for each in found]})
        elif found:
            show(table(["example", "what it is"], [[each.name, each.title] for each in found]))
            say("`trainmaster examples NAME` copies one")
        else:
            raise UsageError("this package was built without examples", "The project's repository has them.")
        return
    chosen = example(name)
    target = directory or Path(chosen.name)
    chosen.copy_to(target)
    if as_json:
        print_json({**chosen.summary(), "directory": str(target)})
    else:
        show(str(target))
        say(f"`trainmaster run {shlex.quote(str(target))}` runs it; its README says what it does")
