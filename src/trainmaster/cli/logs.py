"""``trainmaster logs``."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from trainmaster.cli.opening import open_client
from trainmaster.cli.options import RunOrNone

if TYPE_CHECKING:
    from trainmaster.api.protocol import ClientProtocol


def logs(
    run: RunOrNone = None,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on until the run has ended.")] = False,
    experiment: Annotated[str | None, typer.Option(help="Only this experiment.")] = None,
    task: Annotated[int | None, typer.Option(help="Only this task.")] = None,
    attempt: Annotated[int | None, typer.Option(min=1, help="Only this attempt, from 1 on.")] = None,
    member: Annotated[
        str | None, typer.Option(help="Only this member, such as worker-0; with --system a machine.")
    ] = None,
    tail: Annotated[int | None, typer.Option(min=0, help="Only the last N lines of each member.")] = None,
    since: Annotated[
        str | None, typer.Option(help="Only what was written since so long ago, such as 5m.")
    ] = None,
    grep: Annotated[str | None, typer.Option(help="Only lines with this regular expression.")] = None,
    text: Annotated[str | None, typer.Option(help="Only lines with this text, in any case.")] = None,
    system: Annotated[
        bool, typer.Option("--system", help="What operating systems of its machines said, instead.")
    ] = False,
    now: Annotated[bool, typer.Option("--now", help="With --system: ask a machine now.")] = False,
    everywhere: Annotated[bool, typer.Option("--all", help="Look for --text in all runs.")] = False,
    limit: Annotated[int, typer.Option(min=1, help="With --all: at most so many lines.")] = 200,
    after: Annotated[str | None, typer.Option(help="With --all: go on behind this run.")] = None,
) -> None:
    """Print what the tasks wrote: every member and attempt, as it was written."""
    from trainmaster.api import LogQuery
    from trainmaster.spec.errors import UsageError

    if everywhere != (run is None) or (everywhere and text is None):
        raise UsageError(
            "name one run, or look for a text in all", "`logs latest`, or `logs --all --text 'CUDA error'`."
        )
    if everywhere and (
        follow or system or grep or member or experiment or (task, attempt, tail) != (None,) * 3
    ):
        raise UsageError(
            "--all looks for a --text in every log of each run",
            "Only --since, --limit and --after go with it.",
        )
    if now and not system:
        raise UsageError("--now asks an operating system", "Add --system.")
    if text is not None and not everywhere:
        if grep is not None:
            raise UsageError("--text and --grep: only one of them", "Leave one out.")
        grep = f"(?i){re.escape(text)}"
    client = open_client()
    if run is None:
        pieces = _found(client, text or "", limit, after, since)
    elif now:
        pieces = iter([client.fetch_system_log(client.resolve(run), member).encode()])
    else:
        query = LogQuery(follow, experiment, task, member, tail, grep, since, system, attempt)
        pieces = client.logs(client.resolve(run), query)
    try:
        for piece in pieces:
            sys.stdout.buffer.write(piece)
            sys.stdout.buffer.flush()
    except BrokenPipeError:  # `trainmaster logs RUN | head`: what is left is not wanted
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _found(
    client: ClientProtocol, text: str, limit: int, after: str | None, since: str | None
) -> Iterator[bytes]:
    """Lines of all runs, each with its run and whose it is; then, on standard error, what was left out."""
    while limit > 0:
        answer = client.search_logs(text, limit, after, since)
        for each in answer["lines"]:
            place = "{run} {experiment}/{task}#{attempt} {member} | ".format_map(each)
            yield f"{place}{each['line']}\n".encode()
        for each in answer["cut"]:
            more = f"trainmaster logs {each} --text {shlex.quote(text)}"
            typer.echo(f"{each} has more than was looked at: `{more}`", err=True)
        limit, after = limit - len(answer["lines"]), answer["next"]
        if after is None:
            return
    went_on = f"trainmaster logs --all --text {shlex.quote(text)} --after {after}"
    typer.echo(f"There may be more: `{went_on}{f' --since {since}' if since else ''}`", err=True)
