"""``trainmaster compare``: runs beside each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

import typer

from trainmaster.cli.opening import open_client
from trainmaster.cli.options import AsJson, run_ids
from trainmaster.cli.output import bill, duration, number, print_json, show, table
from trainmaster.spec.errors import UsageError
from trainmaster.spec.units import worked_s

#: So many are shown when none is named; the first are those that say how good a run is.
_SHOWN_METRICS: Final = 6


def compare(
    runs: Annotated[
        list[str],
        typer.Argument(autocompletion=run_ids, help="Up to eight runs: ids, beginnings, names, `latest`."),
    ],
    metric: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Show this one; may be repeated. Six by default.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show runs beside each other: best metrics, parameters, what differs in recipe and code."""
    client = open_client()
    found = client.compare([client.resolve(run) for run in runs])
    if as_json:
        print_json(found)
        return
    show("\n".join(compared_lines(found, metric or [])))


def compared_lines(found: Mapping[str, Any], chosen: Sequence[str]) -> list[str]:
    """What was compared, in lines.

    Args:
        found: what `ClientProtocol.compare` says.
        chosen: names of metrics; without, the first few.

    Raises:
        UsageError: no run has one of them.
    """
    from trainmaster.service.runs.comparison import varied
    from trainmaster.spec.node import nearest

    goals = found["metrics"]
    for name in chosen:
        if name not in goals:
            near = nearest(name, list(goals))
            raise UsageError(
                f"none of these runs has a metric {name!r}" + (f": did you mean {near!r}?" if near else ""),
                f"They have {', '.join(goals)}." if goals else "They have reported none.",
            )
    metrics = list(chosen) or list(goals)[:_SHOWN_METRICS]
    best = [each["best"].get(metrics[0]) if metrics else None for each in found["runs"]]
    names = varied([task for each in found["runs"] for task in each["tasks"]])
    rows, by = [], ["by"] * (len({each.get("owner") for each in found["runs"]}) > 1)
    for each, its in zip(found["runs"], best, strict=True):
        cells = [number(each["best"][key]["value"]) if key in each["best"] else "-" for key in metrics]
        if names and metrics:
            cells.append(f"{its['experiment']}/{its['task']}" if its else "-")
            cells += [number(its["parameters"].get(name, "-")) if its else "-" for name in names]
        took = duration(worked_s(each)), bill(each["cost_usd"]), *([each.get("owner", "-")] if by else [])
        rows.append([each["run"], each["reason"] or each["state"], *took, *cells])
    heads = [f"{goals[key]} {key}" if key in goals else key for key in metrics]
    of_best = [f"task of {heads[0]}", *names] if names and heads else []
    lines = [table(["run", "state", "took", "cost", *by, *heads, *of_best], rows)]
    if not chosen and (more := len(goals) - len(metrics)) > 0:
        lines.append(f"{more} more metrics: `--metric NAME` shows one, --json all")
    for diff in found["diffs"]:
        lines += ["", *_differences(found["runs"][0]["run"], diff)]
    return lines


def _differences(first: str, diff: Mapping[str, Any]) -> list[str]:
    code, is_other = diff["code"], bool(diff["lines"])
    if code is None:
        what = "other code, which is not here"
    elif any(each["is_source"] for each in code):
        what = "other code"
    else:
        what = "the same code" + "; of its other files (data, settings, outputs) some differ" * bool(code)
    lines = [f"beside {first}, {diff['run']} has {'another' if is_other else 'the same'} recipe and {what}"]
    for each in diff["inputs"]:
        has = f"{each['name']} {each['after']}" if each["after"] else f"no {each['name']}"
        lines.append(f"{each['experiment']} has {has}, not {each['before'] or 'none'}")
    lines += diff["lines"]
    for each in code or ():
        lines += [f"{each['change']}: {each['path']}", *each["lines"]]
    return lines
