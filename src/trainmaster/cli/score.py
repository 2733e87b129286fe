"""``trainmaster score``: how often quotes were kept here."""

from __future__ import annotations

from typing import Any

from trainmaster.cli.opening import open_client
from trainmaster.cli.options import AsJson
from trainmaster.cli.output import print_json, say, show, table


def score(as_json: AsJson = False) -> None:
    """Show how often the quotes of this home's finished runs were kept, and how good they were."""
    shown = open_client().score()
    if as_json:
        print_json(shown)
        return
    rows = []
    for kind, each in shown.items():
        rows += [[kind, one["provider"], one["job"], *_cells(one)] for one in each["by"]]
        if len(each["by"]) > 1:
            rows.append([kind, "all", "all", *_cells(each)])
    if not rows:
        say("no run with a quote has ended here yet")
        return
    sides = ["kept (95 % interval)", "inside", "early", "late", "ended by hand"]
    show(table(["quote", "provider", "job", *sides, "p95/p5"], rows))


def _cells(one: dict[str, Any]) -> list[str]:
    kept, inside = one["kept"], one["coverage"]
    span = f"{kept['n']} of {kept['of']}"
    if kept["of"]:
        span += f" ({kept['low']:.0%} to {kept['high']:.0%})"
    share = f"{inside['n']} of {inside['of']}"
    if inside["of"]:
        share += f" ({inside['low']:.0%} to {inside['high']:.0%}; {inside['nominal']:.0%} expected)"
    width = one["time_p95_over_p5"]
    counts = [str(one.get(key, 0)) for key in ("early", "late", "ended_by_hand")]
    return [span, share, *counts, "-" if width is None else f"{width:.2f}"]
