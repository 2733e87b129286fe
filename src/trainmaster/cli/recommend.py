"""``trainmaster recommend``: how many machines, for a batch and a latency."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from trainmaster.cli.opening import open_client
from trainmaster.cli.output import print_json, show, table
from trainmaster.spec.errors import UsageError
from trainmaster.spec.units import counted, dollars


def recommend(
    batch: Annotated[float, typer.Option(help="Global batch: samples per step of all machines.")],
    latency_ms: Annotated[
        float | None, typer.Option(help="Between machines, one way. Without it: that of the table, or 0.")
    ] = None,
    table_file: Annotated[
        Path | None,
        typer.Option(
            "--table",
            metavar="FILE",
            help="CSV workers,batch_size,latency_ms,time_per_epoch_s[,usd_per_hour]; no seconds: it does not "
            "fit. Without it the table of Anwar et al. (2021).",
        ),
    ] = None,
    profile: Annotated[
        str | None, typer.Option(metavar="RUN[/EXPERIMENT]", help="What was measured of a run's job instead.")
    ] = None,
    rule: Annotated[
        str,
        typer.Option(
            help="lookup: rows of that batch and latency only. carried: also one machine's rows at any "
            "latency. model: the step-time model where nothing was measured."
        ),
    ] = "model",
    usd_per_hour: Annotated[
        list[float] | None,
        typer.Option(help="Price of a machine. Repeated: of the first, the second, ... and all others."),
    ] = None,
    max_usd_per_hour: Annotated[float | None, typer.Option(help="All machines together at most.")] = None,
    max_usd: Annotated[float | None, typer.Option(help="The epochs may cost at most so much.")] = None,
    epochs: Annotated[float, typer.Option(help="That time and dollars are told for.")] = 1.0,
    max_workers: Annotated[int | None, typer.Option(help="Machines at most.")] = None,
    alpha: Annotated[float, typer.Option(help="Weight of a second.")] = 1.0,
    beta: Annotated[float, typer.Option(help="Weight of a US dollar per hour.")] = 0.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")] = False,
) -> None:
    """Recommend how many machines to train on, for a batch size and a latency between machines."""
    from trainmaster.service import PUBLISHED, RecommendQuery
    from trainmaster.service.quotes.recommending import recommended_by_table

    if table_file is not None and profile is not None:
        raise UsageError("--table and --profile cannot be used together", "Leave one of them out.")
    wish = RecommendQuery(
        batch,
        latency_ms,
        epochs,
        alpha,
        beta,
        tuple(usd_per_hour or ()),
        max_usd_per_hour,
        max_usd,
        max_workers,
        rule,
    )
    if profile is not None and profile != PUBLISHED:
        client = open_client()
        run, _, experiment = profile.partition("/")
        found = client.recommend(wish, "/".join(filter(None, (client.resolve(run), experiment))))
    else:
        found = recommended_by_table(wish, table_file)
    if as_json:
        print_json(found)
    else:
        _tell(found)


def _tell(found: dict[str, Any]) -> None:
    many = counted(found["machines"], "machine")
    costs = any(each["usd_per_hour"] is not None for each in found["candidates"])
    cost = ""
    if found["usd"] is not None:
        cost = f", {dollars(found['usd'])} at {dollars(found['usd_per_hour'])} per hour"
    how = "measured" if found["is_measured"] else "not measured"
    show(f"{many}: {found['seconds']:.4g} s{cost} ({how}; rule {found['rule']}, {found['profile']})")
    for each in found["others"]:
        if each["machines"] is None:
            show(f"  {each['rule']} says nothing: {each['why']}")
        else:
            why = f" ({each['why']})" if each["why"] else ""
            show(f"  {each['rule']} says {each['machines']}: {each['seconds']:.4g} s{why}")
    for note in found["notes"]:
        show(f"  note: {note}")
    header = ["  machines", "time", "model, 90 %", "measured", "note"]
    rows = [
        [
            f"  {each['workers']}",
            f"{each['time_s']:.4g} s",
            f"{each['low_s']:.4g} to {each['high_s']:.4g} s" if found["rule"] == "model" else "-",
            "yes" if each["is_measured"] else "no",
            each["note"],
            *(_dollars(each[key]) for key in ("usd_per_hour", "usd") if costs),
        ]
        for each in found["candidates"]
    ]
    show(table([*header, *(["per hour", "in all"] if costs else [])], rows))


def _dollars(usd: float | None) -> str:
    return "unknown" if usd is None else dollars(usd)
