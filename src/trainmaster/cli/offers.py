"""``trainmaster offers``: what can be rented, where, for how much."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final, Optional

import typer

if TYPE_CHECKING:
    from trainmaster.service import Catalogue, Offer, OfferFilter

#: Rows that people are shown unless they ask for another number.
SHOWN: Final = 20

_SORTS: Final = (
    "price",
    "price-per-cpu",
    "price-per-gpu",
    "cpus",
    "memory",
    "gpus",
    "nic",
    "region",
    "instance",
)
_FLAGS: Final = {
    "gpu": "--gpu",
    "gpus": "--gpus",
    "cpus": "--cpus",
    "memory_bytes": "--memory",
    "max_price_usd_per_hour": "--max-price",
    "region": "--region",
    "provider": "--provider",
    "instances": "--instance",
}


def offers(
    gpu: Annotated[Optional[str], typer.Option(help="Model of the GPUs, such as v100.")] = None,  # noqa: UP045
    gpus: Annotated[
        Optional[int],  # noqa: UP045 - typer reads the annotations
        typer.Option(min=0, help="At least so many GPUs; 0: machines without any."),
    ] = None,
    cpus: Annotated[Optional[int], typer.Option(min=1, help="At least so many vCPUs.")] = None,  # noqa: UP045
    memory: Annotated[Optional[str], typer.Option(help="At least so much, such as 16GB.")] = None,  # noqa: UP045
    max_price: Annotated[Optional[str], typer.Option(help="At most so many USD per hour.")] = None,  # noqa: UP045
    region: Annotated[Optional[str], typer.Option(help="Region or zone, such as 'eu-*'.")] = None,  # noqa: UP045
    provider: Annotated[Optional[str], typer.Option(help="Such as aws.")] = None,  # noqa: UP045
    instance: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option(metavar="TYPE", help="Instance type, such as m4.large or 'g5.*'; may be repeated."),
    ] = None,
    spot: Annotated[
        Optional[bool],  # noqa: UP045
        typer.Option("--spot/--on-demand", help="Only those that may be taken back, or only the others."),
    ] = None,
    catalogue: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(metavar="NAME|FILE", help="builtin, fc2-2018, local, or a CSV or JSON file."),
    ] = None,
    sort: Annotated[str, typer.Option(help=f"By {', '.join(_SORTS)}.")] = "price",
    limit: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(min=1, help=f"At most so many rows; {SHOWN} in the table, all with --json."),
    ] = None,
    refresh: Annotated[
        bool,
        typer.Option("--refresh", help="Ask AWS for the prices of now first, with your own credentials."),
    ] = False,
    refused: Annotated[
        bool, typer.Option("--refused", help="Show the rows that are not offered, and why.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """List what can be rented: instance types, places and prices, as of a date.

    Exit code 0 also if nothing is found; a hint then says which wish nothing meets.
    """
    import os
    from dataclasses import replace

    from trainmaster.cli.output import print_json, say, show
    from trainmaster.service import Home, OfferFilter, load_catalogue
    from trainmaster.service.candidate_offers import extras_of
    from trainmaster.service.prices import Prices, named_regions
    from trainmaster.spec.errors import UsageError

    order = _order(sort)
    wishes = OfferFilter(
        gpu=gpu,
        gpus=gpus,
        cpus=cpus,
        memory_bytes=_memory(memory),
        max_price_usd_per_hour=_price(max_price),
        region=region,
        provider=provider,
        instances=tuple(instance or ()),
        spot=spot,
    )
    prices = Prices.of(Home.from_environment(makes=refresh), os.environ)
    if refresh:
        if catalogue is not None:
            raise UsageError(
                "--refresh: prices of a catalogue that you name are not asked for", "Leave --catalogue out."
            )
        for place, count in prices.refresh(named_regions(region, prices.catalogue(), os.environ)).items():
            say(f"{place}: {_count(count, 'price')} of AWS, as of today")
    whole = prices.catalogue() if catalogue is None else load_catalogue(catalogue)
    extras = extras_of(os.environ)
    billed = whole.where(replace(wishes, max_price_usd_per_hour=None))
    found = billed.with_offers(map(extras.added_to, billed)).where(wishes)
    chosen = sorted(found, key=order)
    shown = chosen[: limit or (None if as_json else SHOWN)]
    notes = _warnings(found)
    if not chosen:
        notes.append(_nothing_because(wishes, whole))
    if as_json:
        print_json(_object(shown, found, notes, refused))
        return
    if refused:
        for refusal in whole.refused:
            show(str(refusal))
        say(f"{_count(len(whole.refused), 'row')} refused in the catalogue '{whole.name}'")
        return
    if shown:
        show(_table(shown))
        if more := len(chosen) - len(shown):
            say(f"... and {more:,} more: narrow it down, or --limit {len(chosen)}")
        if any(offer.cpu_credits for offer in shown):
            say("* CPU credits: the cores slow down, or cost more, when those are used up")
        if any(offer.extras_usd_per_hour for offer in shown):
            address = " and a public address" * extras.public_address
            say(f"prices of aws hold a disk of {extras.disk_bytes / 2**30:g} GiB{address}")
    for note in notes:
        say(note)
    if whole.refused:
        say(f"{_count(len(whole.refused), 'row')} of the catalogue refused: see --refused")


def _order(sort: str) -> Any:  # noqa: ANN401 - a key function
    from trainmaster.spec.errors import UsageError

    def per(price: float, count: float) -> float:
        return price / count if count else float("inf")

    first: dict[str, Any] = {
        "price": lambda o: o.price_usd_per_hour,
        "price-per-cpu": lambda o: per(o.price_usd_per_hour, o.vcpus),
        "price-per-gpu": lambda o: per(o.price_usd_per_hour, o.accelerators),
        "cpus": lambda o: -o.vcpus,
        "memory": lambda o: -o.memory_bytes,
        "gpus": lambda o: -o.accelerators,
        "nic": lambda o: -(o.nic_gbps or 0.0),
        "region": lambda o: o.place,
        "instance": lambda o: o.instance_type,
    }
    if sort not in _SORTS:
        import difflib

        near = difflib.get_close_matches(sort, _SORTS, n=1)
        hint = f"Did you mean {near[0]}?" if near else f"Known are {', '.join(_SORTS)}."
        raise UsageError(f"--sort: offers cannot be sorted by {sort!r}", hint)
    key = first[sort]
    return lambda o: (key(o), o.price_usd_per_hour, o.provider, o.place, o.instance_type, o.spot)


def _memory(text: str | None) -> int | None:
    from trainmaster.spec.errors import UsageError
    from trainmaster.spec.units import parse_bytes

    try:
        return None if text is None else parse_bytes(text)
    except ValueError as error:
        raise UsageError(f"--memory: {error}") from None


def _price(text: str | None) -> float | None:
    """Dollars: a currency is not needed where only one is possible."""
    from trainmaster.spec.errors import UsageError
    from trainmaster.spec.units import parse_money

    if text is None:
        return None
    try:
        price = parse_money(
            text if any(sign in text.upper() for sign in ("$", "USD")) else f"${text.strip()}"
        )
    except ValueError:
        raise UsageError(
            f"--max-price: {text!r} is no price", "Write a number of US dollars per hour, such as 3 or 0.25."
        ) from None
    if not price > 0:
        raise UsageError(
            "--max-price: nothing costs 0 USD per hour or less", "See --catalogue local for this machine."
        )
    return price


def _warnings(found: Catalogue) -> list[str]:
    from datetime import UTC, datetime

    notes = list(found.warnings)
    today = datetime.now(UTC).date()
    if old := found.stale(today):
        oldest, newest = min(o.as_of for o in old), max(o.as_of for o in old)
        dates = f"{oldest}" if oldest == newest else f"{oldest} to {newest}"
        notes.append(f"warning: old prices ({dates}): they may have changed since")
    return notes


def _nothing_because(wishes: OfferFilter, whole: Catalogue) -> str:
    if not whole.offers:
        return f"nothing found: the catalogue '{whole.name}' is empty"
    blamed = wishes.blamed(whole)
    parts = []
    for name in blamed:
        value = getattr(wishes, name)
        if name == "spot":
            parts.append("--spot" if value else "--on-demand")
        elif name == "memory_bytes":
            parts.append(f"{_FLAGS[name]} {value / 1e9:g}GB")
        else:
            words = value if isinstance(value, tuple) else (value,)
            texts = [f"{word:g}" if isinstance(word, float) else str(word) for word in words]
            parts.append(" ".join(f"{_FLAGS[name]} {text}" for text in texts))
    hint = f"nothing found: the catalogue '{whole.name}' has none with {', '.join(parts)}"
    if known := _known(blamed[0], whole) if len(blamed) == 1 else "":
        hint += f" (it has {known})"
    return hint


def _known(name: str, whole: Catalogue) -> str:
    """What the catalogue does have where a wish names something it does not."""
    values = {
        "gpu": {o.accelerator for o in whole if o.accelerator},
        "provider": {o.provider for o in whole},
        "region": {o.region for o in whole if o.region},
    }.get(name, set())
    return ", ".join(sorted(values)[:SHOWN])


def _object(shown: list[Offer], found: Catalogue, notes: list[str], with_refused: bool) -> dict[str, Any]:
    as_of = found.as_of
    answer: dict[str, Any] = {
        "offers": [offer.as_dict() for offer in shown],
        "total": len(found),
        "catalogue": found.name,
        "as_of": None if as_of is None else as_of.isoformat(),
        "warnings": notes,
        "refused": len(found.refused),
    }
    if with_refused:
        answer["refused_rows"] = [
            {"file": r.file, "line": r.line, "offer": r.subject, "reason": r.reason} for r in found.refused
        ]
    return answer


def _table(shown: list[Offer]) -> str:
    from trainmaster.cli.output import table

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


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
