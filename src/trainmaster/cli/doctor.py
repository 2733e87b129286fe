"""``trainmaster doctor``."""

from __future__ import annotations

from typing import Annotated

import typer

from trainmaster.cli.output import print_json, show


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Look at this machine and home: what is there, what is missing, what to do about it."""
    from dataclasses import asdict

    from trainmaster.service import Home
    from trainmaster.service.doctor import checkup

    findings = checkup(Home.from_environment())
    if as_json:
        print_json({"findings": [asdict(f) for f in findings], "ok": all(f.ok for f in findings)})
    else:
        for finding in findings:
            show(f"{'ok  ' if finding.ok else 'FAIL'}  {finding.what}: {finding.found}")
            if finding.advice:
                show(f"      {finding.advice}")
    if not all(finding.ok for finding in findings):
        raise typer.Exit(1)
