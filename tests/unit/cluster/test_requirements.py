"""Which experiments share machines."""

from __future__ import annotations

from trainmaster.cluster.renting.requirements import QuotedChoice, grouped
from trainmaster.spec import Recipe

RECIPE = Recipe.from_text(
    "name: r\nprovider: lab\nexperiments:\n"
    "  a: {command: x, distributed: {workers: 3}}\n"
    "  b: {command: x, distributed: {workers: 2}}\n"
    "  c: {command: x, hardware: {cpus: 4}}\n"
)


def names(picks: dict[str, QuotedChoice]) -> list[tuple[str, ...]]:
    """Of the experiments of each cluster."""
    return [tuple(needs.name for needs in group) for group in grouped(RECIPE, picks)]


def test_what_has_no_quote_shares_the_machines_of_what_has_one() -> None:
    """A second run knows one experiment and not the other: it rents no more than the first did."""
    large, small = QuotedChoice("large", "r1", nodes=2), QuotedChoice("small", "r1", nodes=2)
    assert names({}) == names({"b": large}) == names({"a": large}) == [("a", "b"), ("c",)]
    assert names({"a": large, "b": large, "c": large}) == [("a", "b"), ("c",)]
    assert names({"a": large, "b": small}) == [("a",), ("b",), ("c",)]
