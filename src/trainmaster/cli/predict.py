"""``trainmaster predict``: step times of other clusters from one's own measurements."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from trainmaster.spec.errors import UsageError, fails_as
from trainmaster.spec.units import counted


def predict(
    measurements: Annotated[Path, typer.Option(help="CSV of measured points, with their step_time_s.")],
    query: Annotated[Path, typer.Option(help="CSV of shapes to predict.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of CSV.")] = False,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Write the CSV here instead of printing it.")
    ] = None,
) -> None:
    """Predict step times of other clusters from your own measurements.

    Both files are CSV with the columns job, sync, nodes, workers, parameter_servers, local_batch,
    latency_ms, nic_mbps, gradient_mb, step_time_s; absent or empty means unknown. The query's rows
    come back in their order with step_time_s, lo_s, hi_s (90 % interval) and bottleneck filled in.
    """
    from trainmaster.service import predict_tables

    if as_json and output is not None:
        raise UsageError("--json and -o cannot be used together", "Leave one of them out.")
    answer = predict_tables(measurements, query)
    for note in answer.unexplained:
        sys.stderr.write(
            f"{note.where}: not learnt: {note.step_time_s:.4g} s was measured, "
            f"the other rows of job {note.job!r} suggest {note.expected_s:.4g} s\n"
        )
    for job, point in answer.next_measurements.items():
        where = f"{counted(point.workers, 'worker')} on {counted(point.nodes, 'node')}"
        sys.stderr.write(
            f"{job and f'job {job!r}: '}measure {where} next: its "
            f"interval spans a factor of {point.interval_now:.3g} now, then {point.interval_then:.3g}\n"
        )
    if output is None:
        sys.stdout.write(answer.as_json() + "\n" if as_json else answer.as_csv())
        return
    with fails_as(f"{output} cannot be written", "Name a file in a folder that exists."):
        output.write_text(answer.as_csv(), encoding="utf-8")
