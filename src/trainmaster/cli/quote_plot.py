"""``quote --plot``: time against cost of the clusters that none beats in both, and the chosen one."""

from __future__ import annotations

from pathlib import Path

from trainmaster.service import Quote
from trainmaster.spec.errors import MissingPartError, UsageError

_CHOSEN, _OTHER = "#c8442b", "#3b6ea5"
_LABELS = 6
#: Costs that differ by more than this are drawn on a logarithmic axis.
_WIDE = 30


def draw_quote(quote: Quote, name: str, file: Path) -> None:
    """Draw the Pareto front of each experiment.

    Args:
        quote: with times; the policies that know none have nothing to draw.
        name: of the recipe, for the title.
        file: its suffix tells the format.

    Raises:
        MissingPartError: matplotlib is not installed.
        UsageError: there is nothing to draw, or the file cannot be written.
    """
    drawable = [one for one in quote.experiments.values() if one.time_s and one.cost_usd]
    if not drawable:
        raise UsageError(f"--plot: the policy {quote.policy} knows no times", "Leave --plot out.")
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingPartError(
            f"--plot needs matplotlib, which cannot be imported: {error}", "pip install 'trainmaster[plot]'"
        ) from error
    figure = Figure(figsize=(7.0 * len(drawable), 4.6), layout="constrained")
    for axes, one in zip(figure.subplots(1, len(drawable), squeeze=False)[0], drawable, strict=True):
        assert one.time_s is not None
        assert one.cost_usd is not None
        unit, length = _unit(one.time_s.p95)
        times = [a.time_s / length for a in one.pareto]
        axes.plot(
            times,
            [a.cost_usd for a in one.pareto],
            "o-",
            color=_OTHER,
            markersize=4,
            label="no cluster is both faster and cheaper",
        )
        step = max(1, len(one.pareto) // _LABELS)
        for alternative, at in list(zip(one.pareto, times, strict=True))[::step]:
            axes.annotate(
                alternative.cluster.words(), (at, alternative.cost_usd), fontsize=7, xytext=(4, 6),
                textcoords="offset points",
            )  # fmt: skip
        low, high = one.time_s.p50 - one.time_s.p5, one.time_s.p95 - one.time_s.p50
        cheap, dear = one.cost_usd.p50 - one.cost_usd.p5, one.cost_usd.p95 - one.cost_usd.p50
        axes.errorbar(
            [one.time_s.p50 / length], [one.cost_usd.p50], xerr=[[low / length], [high / length]],
            yerr=[[cheap], [dear]], fmt="o", color=_CHOSEN, capsize=3,
            label=f"quoted, with 90 %: {one.cluster.words()}",
        )  # fmt: skip
        axes.set_xlabel(f"time [{unit}]")
        axes.set_ylabel("cost [USD]")
        axes.set_title(one.name)
        costs = [a.cost_usd for a in one.pareto if a.cost_usd > 0]
        if costs and max(costs) > _WIDE * min(costs):
            axes.set_yscale("log")
        else:
            axes.set_ylim(bottom=0)
        axes.legend(loc="best", fontsize=8)
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(name)
    try:
        figure.savefig(file)
    except OSError as error:
        raise UsageError(f"--plot {file}: {error.strerror or error}", "Choose another file.") from None


def _unit(seconds: float) -> tuple[str, float]:
    if seconds > 7200:
        return "h", 3600.0
    return ("min", 60.0) if seconds > 180 else ("s", 1.0)
