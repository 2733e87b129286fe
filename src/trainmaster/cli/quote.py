"""``trainmaster quote``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainmaster.cli.measuring import watched
from trainmaster.cli.opening import context, open_client, unpacked
from trainmaster.cli.options import Keep, Provider, RecipeFileOrNone, kept_seconds
from trainmaster.cli.output import (
    bill,
    can_ask,
    duration,
    print_json,
    say,
    says_yes,
    show,
    show_list,
    table,
    when,
)
from trainmaster.spec.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from trainmaster.api.protocol import ClientProtocol
    from trainmaster.service import Quote
    from trainmaster.spec import Recipe


def quote(
    recipe: RecipeFileOrNone = None,
    provider: Provider = None,
    policy: Annotated[
        str,
        typer.Option(
            help="quote, cost-opt, time-opt, scala-opt, scala-opt-m or lookup; else the recipe's objective."
        ),
    ] = "",
    catalogue: Annotated[
        str | None, typer.Option(metavar="NAME|FILE", help="Take these offers, whatever the provider is.")
    ] = None,
    bandwidth: Annotated[
        Path | None, typer.Option(help="CSV instance,mbps: measured traffic of one worker, for scala-opt.")
    ] = None,
    parameter_server: Annotated[
        str | None, typer.Option(metavar="TYPES", help="Types of parameter servers, with commas.")
    ] = None,
    worker_types: Annotated[
        str | None, typer.Option(metavar="TYPES", help="Types of workers, with commas, for FC2's policies.")
    ] = None,
    usd_per_hour: Annotated[
        float | None, typer.Option(metavar="N", help="Of all machines, instead of budget.per_hour.")
    ] = None,
    p: Annotated[
        float | None,
        typer.Option("--p", metavar="SHARE", help="Of the servers' bandwidth, for scala-opt (0.95)."),
    ] = None,
    max_workers: Annotated[int | None, typer.Option(min=1, help="Workers of one task at most.")] = None,
    measurements: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="CSV of points that you measured, as for `predict`: no profile."),
    ] = None,
    latency_ms: Annotated[
        float | None,
        typer.Option(min=0, max=60_000, help="Latency between machines, one way, instead of the recipe's."),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="PATH=VALUE", help="Change a key: --set budget.deadline=2h"),
    ] = None,
    keep: Keep = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Measure again what was measured before.")] = False,
    allow_stale: Annotated[bool, typer.Option(help="Do not warn of old prices.")] = False,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw time against cost (.svg, .png, .pdf).")
    ] = None,
    measure: Annotated[
        bool | None,
        typer.Option(
            "--measure/--no-measure",
            help="Agree to rent what is to be measured, for some minutes; or measure nothing.",
        ),
    ] = None,
    explain: Annotated[
        bool,
        typer.Option("--explain", help="Show where time and doubt come from, and what cuts it."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the quote as JSON.")] = False,
    lists: Annotated[
        bool, typer.Option("--list", help="Show what your team has asked the server for within a week.")
    ] = False,
) -> None:
    """Measure a recipe's job for a minute, and quote cluster, time and price as intervals."""
    if lists:
        _show_asked(recipe, as_json=as_json)
        return
    if recipe is None:
        raise UsageError(
            "trainmaster quote needs RECIPE, or --list", "`trainmaster quote --help` has the rest."
        )
    from trainmaster.service.quotes.quote_options import QuoteOptions
    from trainmaster.spec import read_recipe

    if plot is not None:
        from trainmaster.cli.plotting import check_format

        check_format(plot)
    recipe = unpacked(recipe)

    def read(*changes: str) -> Recipe:
        return read_recipe(recipe, overrides=[*(set_ or ()), *changes], provider=provider)

    found = read()
    options = QuoteOptions(
        policy,
        catalogue,
        bandwidth,
        parameter_server,
        max_workers,
        fresh,
        allow_stale,
        measurements=measurements,
        worker_types=worker_types,
        p=p,
        usd_per_hour=usd_per_hour,
        latency_ms=latency_ms,
        measures=measure is not False,
        keep_s=kept_seconds(keep),
    )
    client, tell = open_client(starts=True), say if as_json else show

    def ask() -> Quote:
        made: Quote = watched(client.quote_recipe(found, options), tell)
        return made

    from trainmaster.service.quotes.measuring_runs import is_point, types_to_measure
    from trainmaster.spec.errors import MeasurementNeeded

    try:
        made = ask()
    except MeasurementNeeded as error:
        if measure is False or not _measured(client, recipe, read, error.types, agrees=measure):
            raise
        made = ask()
    else:
        types = types_to_measure(made.as_dict())
        # A script takes the quote that there is, if only points would narrow it.
        asks = not as_json or not all(is_point(each) for each in types.values())
        if measure is not False and _measured(client, recipe, read, types, agrees=measure, asks=asks):
            options = replace(options, fresh=False)
            made = ask()
    if explain:
        from trainmaster.cli.renting import explain as explain_quote

        explain_quote(made, tell)
    if made.time_s is not None and not found.places and (line := client.score_line(found.provider)):
        tell(line)
    if plot is not None:
        from trainmaster.cli.plotting import draw_quote

        draw_quote(made, found.name, plot)
        say(f"drawn: {plot}")
    if as_json:
        print_json(made.as_dict())


def _show_asked(recipe: Path | None, *, as_json: bool) -> None:
    if recipe is not None:
        raise UsageError(f"{recipe}, and --list", "Name a recipe to quote, or list what was asked; not both.")
    client = open_client()

    def text(quotes: Sequence[dict[str, Any]]) -> str:
        has_teams = (
            len({each.get("team") for each in quotes}) > 1
        )  # who sees several is to know whose each is
        rows = [
            [
                each["id"],
                each["name"],
                each["asked_by"],
                *([each["team"] or ""] if has_teams else []),
                when(each["created_at"]),
                *(
                    [f"no quote: {each['error']}", ""]
                    if each["error"]
                    else [_between(each["time_s"], duration), _between(each["cost_usd"], bill)]
                    if each["state"] == "DONE"
                    else [each["state"].lower(), ""]
                ),
            ]
            for each in quotes
        ]
        team = ["team"] if has_teams else []
        return table(["quote", "recipe", "by", *team, "asked", "time (90 %)", "price (90 %)"], rows)

    none = "none within a week: `trainmaster quote RECIPE` asks for one"
    if context() is None:
        none = "only a server keeps quotes; `trainmaster score` tells of those of this home's runs"
    show_list("quotes", client.asked_quotes(), text, none, as_json=as_json)


def _between(interval: Mapping[str, float] | None, words: Callable[[float], str]) -> str:
    return f"{words(interval['p5'])} to {words(interval['p95'])}" if interval else "not known"


def _measured(
    client: ClientProtocol,
    path: Path,
    read: Callable[..., Recipe],
    types: Mapping[str, Any],
    *,
    agrees: bool | None,
    asks: bool = True,
) -> bool:
    """Ask whether to rent what is to be measured first, and measure it; False if nothing was rented."""
    from trainmaster.cli.driving import see_to_end
    from trainmaster.service.quotes.measuring_runs import measuring_runs, measuring_runs_offered

    runs = measuring_runs(read(), types) if types else []
    if not runs:
        return False
    question = f"measure first? {measuring_runs_offered(runs)}"
    if not agrees and not (asks and can_ask()):
        say(f"note: {question} (--measure agrees)")
        return False
    if not agrees and not says_yes(question):
        return False
    for each in runs:
        recipe = read(*each.overrides)
        plan = watched(
            client.plan_run(recipe, str(path), allow_stale=False, can_agree=True, measure_first=False)
        )
        accepted = client.accept_run(plan.id, agreed_usd_per_hour=plan.most_usd_per_hour)
        what = f"{accepted.run}: measures {each.experiment} on {each.words}"
        say(f"{what}; that it ends after a while is no failure")
        see_to_end(client, accepted, "", as_json=False)
    return True
