"""``trainmaster quote``."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainmaster.cli.measuring import watched
from trainmaster.cli.output import can_ask, dollars_text, duration, print_json, say, show, span_text, table

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from trainmaster.api.protocol import ClientProtocol
    from trainmaster.service import Alternative, ExperimentQuote, Interval, Quote

_SHOWN_FRONT = 8


def quote(
    recipe: Annotated[Path, typer.Argument(help="The YAML recipe, or a file that `export` has made.")],
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
    fresh: Annotated[bool, typer.Option("--fresh", help="Measure again what was measured before.")] = False,
    allow_stale: Annotated[bool, typer.Option(help="Do not warn of old prices.")] = False,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw time against cost (.svg, .png, .pdf).")
    ] = None,
    measure_traffic: Annotated[
        bool,
        typer.Option(
            "--measure-traffic", help="For scala-opt: rent each type whose traffic is unknown for 2 min."
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the quote as JSON.")] = False,
) -> None:
    """Measure a recipe's job for a minute, and quote cluster, time and price as intervals."""
    from trainmaster.cli.opening import open_client, unpacked
    from trainmaster.service.quotes.quote_options import QuoteOptions
    from trainmaster.spec import read_recipe

    if plot is not None:
        from trainmaster.cli.plotting import check_format

        check_format(plot)
    recipe = unpacked(recipe)
    found = read_recipe(recipe, overrides=set_ or ())
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
    )
    client, tell = open_client(), say if as_json else show

    def ask() -> Quote:
        made: Quote = watched(client.quote_recipe(found, str(recipe), options), tell)
        return made

    from trainmaster.service import BandwidthUnknown, traffic_types

    try:
        made = ask()
    except BandwidthUnknown as error:
        if not _measured(client, recipe, set_ or (), error.types, agrees=measure_traffic):
            raise
        made = ask()
    else:
        if _measured(client, recipe, set_ or (), traffic_types(made.as_dict()), agrees=measure_traffic):
            made = ask()
    if made.time_s is not None and (line := client.score_line(found.provider)):
        tell(line)
    if plot is not None:
        from trainmaster.cli.quote_plot import draw_quote

        draw_quote(made, found.name, plot)
        say(f"drawn: {plot}")
    if as_json:
        print_json(made.as_dict())


def _measured(
    client: ClientProtocol, path: Path, set_: Sequence[str], types: Mapping[str, Any], *, agrees: bool
) -> bool:
    """Ask whether to rent the types whose traffic is unknown, and measure it; False if nothing was rented."""
    from trainmaster.cli.driving import see_to_end
    from trainmaster.service import traffic_runs, traffic_runs_offered
    from trainmaster.spec import read_recipe

    runs = traffic_runs(read_recipe(path, overrides=set_), types) if types else []
    if not runs:
        return False
    question = f"measure the traffic of one worker and one server? {traffic_runs_offered(runs)}"
    if not agrees and not can_ask():
        say(f"note: {question} (--measure-traffic agrees)")
        return False
    if not agrees:
        sys.stderr.write(f"{question} [y/N] ")
        sys.stderr.flush()
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            return False
    for each in runs:
        recipe = read_recipe(path, overrides=[*set_, *each.overrides])
        plan = watched(
            client.plan_run(recipe, str(path), allow_stale=False, can_agree=True, measure_first=False)
        )
        accepted = client.accept_run(plan.id, agreed_usd_per_hour=plan.most_usd_per_hour)
        what = f"{accepted.run}: measures {each.experiment} on {each.instance}"
        say(f"{what}; that it ends after two minutes is no failure")
        see_to_end(client, accepted, "", as_json=False)
    return True


def show_quote(made: Quote, show: Callable[[str], None]) -> None:
    """The quote for people, by a function that takes lines."""
    for one in made.experiments.values():
        _show_experiment(one, show)
    if len(made.experiments) > 1 and made.time_s and made.cost_usd:
        show(f"all: {_span(made.time_s)}, {_dollars(made.cost_usd)}")
    if made.as_of and made.catalogue != "local":
        show(f"prices: {made.catalogue}, as of {made.as_of}")
    for note in made.notes:
        show(f"note: {note}")


def _show_experiment(one: ExperimentQuote, show: Callable[[str], None]) -> None:
    from trainmaster.spec.units import dollars

    show(f"{one.name}: {one.cluster.words()}, {_count(one.cluster.workers, 'worker')}{_at_once(one)}")
    if one.time_s and one.cost_usd:
        show(f"  time {_span(one.time_s)}   cost {_dollars(one.cost_usd)}")
    else:
        show(f"  ${one.cluster.usd_per_hour:.4g} per hour; this policy knows no time")
    if one.bottleneck:
        show(f"  limited by {one.bottleneck}")
    if one.types:
        show(f"  chosen of workers {', '.join(one.types.workers)}; servers {', '.join(one.types.servers)}")
    if where := _where_time_went(one):
        show(f"  measured: {where}")
    if one.memory_headroom is not None:
        show(f"  memory: {one.memory_headroom:.0%} stays free")
    if one.measurements:
        similar = f", {one.similar} of them of similar jobs" if one.similar else ""
        rests = _count(one.measurements, "measurement")
        show(f"  rests on {rests}{similar}; {_count(one.candidates, 'cluster')} compared")
    if (following := one.next_measurement) is not None:
        many = _count(following.workers, "worker")
        what = f"{many} on {following.instance} for {duration(following.seconds)}"
        gain = f"from {following.width_now:.2f} to {following.width_then:.2f} (p95/p50)"
        show(f"  measuring {what} ({dollars(following.cost_usd)}) would narrow a step's time {gain}")
    if line := wide_line(one):
        show(f"  {line}")
    for note in one.notes:
        show(f"  note: {note}")
    if len(one.pareto) > 1:
        rows = [[a.cluster.words(), duration(a.time_s), dollars(a.cost_usd)] for a in _some(list(one.pareto))]
        lines = table(
            ["  no cluster is both faster and cheaper", "time", "cost"], [["  " + r[0], *r[1:]] for r in rows]
        )
        show(lines)


def wide_line(one: ExperimentQuote) -> str:
    """What measuring would cut a wide interval to, and how to have that; empty if it is not wide."""
    from trainmaster.service import capabilities_of

    following = one.next_measurement
    if one.time_s is None or not one.time_s.is_wide or following is None or following.time_s is None:
        return ""
    then = following.time_s
    many = _count(following.workers, "worker")
    # Here only what is new here helps: the job itself, or the machine that it will run on.
    helps_here = one.similar == one.measurements or capabilities_of(one.cluster.worker.provider).is_here
    how = (
        "`trainmaster run --measure-first` measures on this machine before it runs"
        if helps_here
        else "a run there is such a measurement: its binding quote tells what came of it"
    )
    return (
        f"{one.name}: this estimate is wide: {duration(following.seconds)} of measuring {many} on "
        f"{following.instance} would cut it to about {duration(then.p5)} to {duration(then.p95)}; "
        f"{how}"
    )


def _where_time_went(one: ExperimentQuote) -> str:
    """Of the newest measurement with the most workers, as far as it is known."""
    known = [each for each in one.measured if each.time_shares is not None and each.point is not None]
    if not known:
        return ""
    most = max(known, key=lambda each: each.point.workers if each.point else 0)
    shares = most.time_shares
    words = {
        "of a worker's time is computing": shares and shares.computing,
        "waiting": shares and shares.waiting,
        "of the network card's time": shares and shares.network,
        "of the parameter server's processors": shares and shares.server,
    }
    return ", ".join(f"{share:.0%} {what}" for what, share in words.items() if share is not None)


def _at_once(one: ExperimentQuote) -> str:
    return f", {one.cluster.at_once} tasks at a time" if one.cluster.at_once > 1 else ""


def _some(front: list[Alternative]) -> list[Alternative]:
    if len(front) <= _SHOWN_FRONT:
        return front
    return [front[round(i * (len(front) - 1) / (_SHOWN_FRONT - 1))] for i in range(_SHOWN_FRONT)]


def _span(interval: Interval) -> str:
    return span_text(asdict(interval))


def _dollars(interval: Interval) -> str:
    return dollars_text(asdict(interval))


def _count(number: int, noun: str) -> str:
    """A number of things.

    >>> _count(1, "worker"), _count(2, "worker")
    ('1 worker', '2 workers')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
