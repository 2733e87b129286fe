"""`invoke`: a verb of the command line in this process."""

from __future__ import annotations

from functools import cache, partial

import typer
from typer.testing import CliRunner, Result

from trainmaster.cli.app import app

# All verbs are put together once per process: that takes longer than most verbs do.
typer.testing._get_command = cache(typer.main.get_command)
whole_command = partial(typer.testing._get_command, app)


def invoke(*words: object, typed: str | None = None) -> Result:
    """What a call has said, and its error if it had one."""
    return CliRunner().invoke(app, list(map(str, words)), input=typed)
