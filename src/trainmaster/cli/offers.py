"""``trainmaster offers``: what can be rented, where, for how much."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from trainmaster.cli.opening import open_client
from trainmaster.cli.options import AsJson
from trainmaster.cli.output import parsed, print_json, say, show, table
from trainmaster.spec.errors import UsageError
from trainmaster.spec.units import counted, parse_bytes, parse_dollars

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainmaster.service import Offer

#: Rows that people are shown unless they ask for another number.
SHOWN: Final = 20

_SORT_HELP: Final = "By price, price-per-cpu, price-per-gpu, cpus, memory, gpus, nic, region, instance."


def offers(
    gpu: Annotated[str | None, typer.Option(help="Model of the GPUs, such as v100.")] = None,
    gpus: Annotated[
        int | None, typer.Option(min=0, help="At least so many GPUs; 0: machines without any.")
    ] = None,
    cpus: Annotated[int | None, typer.Option(min=1, help="At least so many vCPUs.")] = None,
    memory: Annotated[str | None, typer.Option(help="At least so much, such as 16GB.")] = None,
    max_price: Annotated[str | None, typer.Option(help="At most so many USD per hour.")] = None,
    region: Annotated[str | None, typer.Option(help="Region or zone, such as 'eu-*'.")] = None,
    provider: Annotated[str | None, typer.Option(help="Such as aws.")] = None,
    instance: Annotated[
        list[str] | None,
        typer.Option(metavar="TYPE", help="Instance type, such as m4.large or 'g5.*'; may be repeated."),
    ] = None,
    spot: Annotated[
        bool | None,
        typer.Option("--spot/--on-demand", help="Only those that may be taken back, or only the others."),
    ] = None,
    catalogue: Annotated[
        str | None, typer.Option(metavar="NAME|FILE", help="builtin, fc2-2018, local, or a CSV or JSON file.")
    ] = None,
    sort: Annotated[str, typer.Option(help=_SORT_HELP)] = "price",
    limit: Annotated[
        int | None, typer.Option(min=1, help=f"At most so many rows; {SHOWN} in the table, all with --json.")
    ] = None,
    refresh: Annotated[
        bool,
        typer.Option("--refresh", help="Ask AWS for the prices of now first, with your own credentials."),
    ] = False,
    refused: Annotated[
        bool, typer.Option("--refused", help="Show the rows that are not offered, and why.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List what can be rented: instance types, places and prices, as of a date.

    Exit code 0 also if nothing is found; a hint then says which wish nothing meets.
    """
    from trainmaster.service import OfferFilter

    wishes = OfferFilter(
        gpu=gpu,
        gpus=gpus,
        cpus=cpus,
        memory_bytes=None if memory is None else parsed("--memory", parse_bytes, memory),
        max_price_usd_per_hour=_price(max_price),
        region=region,
        provider=provider,
        instances=tuple(instance or ()),
        spot=spot,
    )
    client = open_client(makes=refresh)
    if refresh:
        if catalogue is not None:
            raise UsageError(
                "--refresh: prices of a catalogue that you name are not asked for", "Leave --catalogue out."
            )
        for place, count in client.refresh_prices(region).items():
            say(f"{place}: {counted(count, 'price')} of AWS, as of today")
    found = client.offers(wishes, catalogue, sort, limit or (None if as_json else SHOWN))
    shown = found.offers
    if as_json:
        print_json(found.as_dict(with_refused=refused))
        return
    if refused:
        for refusal in found.refused:
            show(str(refusal))
        say(f"{counted(len(found.refused), 'row')} refused in the catalogue '{found.catalogue}'")
        return
    if shown:
        show(_table(shown))
        if more := found.total - len(shown):
            say(f"... and {more:,} more: narrow it down, or --limit {found.total}")
        if any(offer.cpu_credits for offer in shown):
            say("* CPU credits: the cores slow down, or cost more, when those are used up")
        if any(offer.extras_usd_per_hour for offer in shown):
            address = " and a public address" * found.extras.public_address
            say(f"prices of aws hold a disk of {found.extras.disk_bytes / 2**30:g} GiB{address}")
    for note in found.warnings:
        say(note)
    if found.refused:
        say(f"{counted(len(found.refused), 'row')} of the catalogue refused: see --refused")


def _price(text: str | None) -> float | None:
    """Dollars per hour, as typed."""
    if text is None:
        return None
    try:
        price = parse_dollars(text)
    except ValueError:
        raise UsageError(
            f"--max-price: {text!r} is no price", "Write a number of US dollars per hour, such as 3 or 0.25."
        ) from None
    if not price > 0:
        raise UsageError(
            "--max-price: nothing costs 0 USD per hour or less", "See --catalogue local for this machine."
        )
    return price


def _table(shown: Sequence[Offer]) -> str:
    header = ["$/hour", "", "instance", "vCPUs", "memory", "GPUs", "network", "provider", "place", "as of"]
    return table(
        header,
        [
            [
                f"{offer.price_usd_per_hour:.4f}",
                "spot" if offer.spot else "",
                offer.instance_type,
                f"{offer.vcpus:g}{'*' if offer.cpu_credits else ''}",
                f"{round(offer.memory_bytes / 2**30, 1):g} GiB",
                f"{offer.accelerators:g} {offer.accelerator}" if offer.accelerator else "-",
                _network(offer),
                offer.provider,
                offer.place or "-",
                offer.as_of.isoformat(),
            ]
            for offer in shown
        ],
    )


def _network(offer: Offer) -> str:
    """Gbit/s: sustained, and for minutes."""
    slow, fast = offer.nic_gbps, offer.nic_burst_gbps
    if slow is None:
        return "?" if fast is None else f"up to {fast:g} Gbit/s"
    return f"{slow:g} Gbit/s" if fast is None or fast == slow else f"{slow:g} to {fast:g} Gbit/s"
