"""What is put before the user before money is spent: quotes, and the question whether to rent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from trainmaster.cli.output import dollars_text, duration, need_yes, say, span_text, table
from trainmaster.spec.units import counted, dollars, price

if TYPE_CHECKING:
    from trainmaster.api import ClientProtocol, RunPlan
    from trainmaster.service import Alternative, ExperimentQuote, Interval, PlaceRow, Quote

_SHOWN_FRONT = 8
#: So many characters are the whole time.
_BAR = 24


def agree(client: ClientProtocol, plan: RunPlan, *, yes: bool) -> None:
    """Show what a run would rent and cost, and ask. Hosts of one's own cost nothing: there is no question.

    Args:
        client: has planned it.
        plan: of the run.
        yes: the user has agreed before.

    Raises:
        UsageError: the user does not want it, or there is no terminal to ask on; nothing was started.
    """
    told = list(plan.lines)
    if plan.quote is not None:
        line = client.score_line(plan.provider)
        told += [line] if line else []
        told += [wide for one in plan.quote.experiments.values() if (wide := wide_line(one))]
    for line in (*told, *(f"note: {note}" for note in plan.notes)):
        say(line)
    if yes or not plan.most_usd_per_hour:
        return
    usd = f"at most {price(plan.most_usd_per_hour)} per hour"
    need_yes(f"Rent this for {usd}?", f"this rents machines for {usd}", "not rented", "Nothing was started.")


def agree_to_send(lines: Sequence[str], *, yes: bool) -> None:
    """Show what is sent to the machine that is to drive a run, and ask.

    Args:
        lines: what that is.
        yes: the user has agreed before.

    Raises:
        UsageError: the user does not want it, or there is no terminal to ask on; nothing was started.
    """
    say("its first machine is sent, into memory where nothing else is said:")
    for line in lines:
        say(f"  {line}")
    if yes:
        return
    what = "--on-cluster sends credentials to a machine"
    need_yes("Send them?", what, "not sent", "Nothing was started.")


def show_quote(made: Quote, show: Callable[[str], None]) -> None:
    """The quote for people, by a function that takes lines."""
    for one in made.experiments.values():
        _show_experiment(one, show)
    if (len(made.experiments) > 1 or made.without) and made.time_s and made.cost_usd:
        whole = f"all {made.without}" if made.without else "all"
        show(f"{whole}: {_span(made.time_s)}, {_dollars(made.cost_usd)}")
    if made.unknown is not None:
        show(f"no estimate: it {replace(made.unknown, why='').words()}")  # its notes have said why
    if made.as_of and made.catalogue != "local":
        show(f"prices: {made.catalogue}, as of {made.as_of}")
    if made.places:
        show_places(made.places, show)
    for note in made.notes:
        show(f"note: {note}")


def show_places(places: Sequence[PlaceRow], show: Callable[[str], None]) -> None:
    """The table of all places: waits are in neither time nor price."""
    head = ["place", "machines", "time (90 %)", "price (90 %)", ""]
    show(table(head, [each.cells for each in places]))


def _show_experiment(one: ExperimentQuote, show: Callable[[str], None]) -> None:
    from trainmaster.service import capabilities_of

    show(f"{one.name}: {one.cluster.words()}, {counted(one.cluster.workers, 'worker')}{_at_once(one)}")
    if one.time_s and one.cost_usd:
        show(f"  time {_span(one.time_s)}   cost {_dollars(one.cost_usd)}")
    elif one.cluster.usd_per_hour or one.types:
        knows_none = "; this policy knows no time" if one.types else ""
        show(f"  ${one.cluster.usd_per_hour:.4g} per hour{knows_none}")
    if one.target:
        show(f"  {one.target.words}")
    if one.bottleneck:
        show(f"  limited by {one.bottleneck}")
    if one.types:
        show(f"  chosen of workers {', '.join(one.types.workers)}; servers {', '.join(one.types.servers)}")
    if where := _where_time_went(one):
        show(f"  measured: {where}")
    if one.memory_headroom is not None:
        show(f"  memory: {one.memory_headroom:.0%} stays free")
    if one.measurements:
        similar = f", {one.similar} of them of other versions of this code" if one.similar else ""
        rests = counted(one.measurements, "measurement")
        is_here = capabilities_of(one.cluster.worker.provider).is_here
        compared = (
            counted(one.candidates, "way") + " to run it here"
            if is_here
            else counted(one.candidates, "cluster")
        )
        show(f"  rests on {rests}{similar}; {compared} compared")
    if (following := one.next_measurement) is not None:
        many = counted(following.workers, "worker")
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


def explain(made: Quote, show: Callable[[str], None]) -> None:
    """Where the time of each experiment goes, and the doubt about it; and what a minute more would buy."""
    for one in made.experiments.values():
        if not one.phases:
            continue
        middle = sum(each.time_s.p50 for each in one.phases)
        rows = [
            [
                f"  {each.name}",
                "#" * round(_BAR * each.time_s.p50 / middle) if middle else "",
                each.time_s.span(duration),
                f"{round(each.doubt, 2) + 0.0:.0%}",  # never -0%
            ]
            for each in one.phases
        ]
        show(table([f"{one.name}: where the time goes", "", "90 %", "of the doubt"], rows))
        if (more := one.more_measuring) is not None:
            what = f"{duration(more.seconds)} in all, {dollars(more.cost_usd)}"
            then = more.then_s.span(duration)
            show(f"  a minute on 1 x {more.instance} ({what}) would cut {_span(more.now_s)} to about {then}")


def wide_line(one: ExperimentQuote) -> str:
    """What measuring would cut a wide interval to, and how to have that; empty if it is not wide."""
    from trainmaster.service import capabilities_of

    following = one.next_measurement
    if one.time_s is None or not one.time_s.is_wide or following is None or following.time_s is None:
        return ""
    then = following.time_s
    many = counted(following.workers, "worker")
    # Here only what is new here helps: the job itself in one process, or the machine that it will run on.
    is_new = following.workers == 1 and one.similar == one.measurements
    can = capabilities_of(one.cluster.worker.provider)
    how = "a run there is such a measurement: its binding quote tells what came of it"
    if is_new or can.is_here:
        how = "`trainmaster run --measure-first` measures on this machine before it runs"
    elif can.costs:
        how = "`trainmaster quote --measure` agrees to rent that"
    return (
        f"{one.name}: this estimate is wide: {duration(following.seconds)} of measuring {many} on "
        f"{following.instance} would cut it to about {then.span(duration)}; "
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
