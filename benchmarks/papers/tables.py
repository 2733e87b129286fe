"""What the experiments share: options, medians, the JSON line, text tables, plots."""

from __future__ import annotations

import argparse
import itertools
import json
import signal
import statistics
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from claims import HEAD, Seen, answered, plain, rows
from common import OUT, machine

PLOTS = Path(__file__).resolve().parent / "plots"
#: Points whose medians are closer than this are as good as each other: busy machines differ by more.
TIE = 0.1
#: Above the claims, which are the last table.
ANSWERS = "What the paper says, and whether it came out:"
COLORS = ("#3b6ea5", "#d1792b", "#4f9a4f", "#b04a5a", "#7a5ca8", "#777777")


def options(description: str) -> argparse.Namespace:
    """``--quick``: fewer points, about a minute; ``--no-plot``: JSON and table only."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(
        "--quick", action="store_true", help="fewer points: about a minute on a quiet machine"
    )
    parser.add_argument("--no-plot", action="store_true", help="keep the plot that is there")
    found = parser.parse_args()
    found.no_plot = found.no_plot or found.quick  # the plots that are kept have all points
    return found


def middle(values: Sequence[float]) -> dict[str, Any]:
    """Median, least and most of what was measured several times."""
    return {
        "median": round(statistics.median(values), 4),
        "min": round(min(values), 4),
        "max": round(max(values), 4),
        "n": len(values),
    }


def best(times: dict[int, float], tie: float = TIE) -> list[int]:
    """Those that are fastest, or so nearly so that nobody could tell.

    >>> best({1: 10.0, 2: 6.0, 3: 5.9})
    [2, 3]
    """
    least = min(times.values())
    return sorted(key for key, value in times.items() if value <= least * (1 + tie))


def falls(series: Sequence[Sequence[int]]) -> bool:
    """Whether one can choose from each, in order, and never rise.

    >>> falls([[3, 4], [2, 3], [3], [1, 2]]), falls([[1], [2]])
    (True, False)
    """
    ceiling: float = float("inf")
    for choices in series:
        allowed = [one for one in choices if one <= ceiling]
        if not allowed:
            return False
        ceiling = max(allowed)
    return True


def knee(rates: dict[int, float], gain: float = 0.15) -> int:
    """The number of workers after which one more no longer gives `gain` of what the first one gave.

    >>> knee({1: 10, 2: 19, 3: 21, 4: 21.5})
    3
    >>> knee({1: 10, 2: 19, 3: 28})
    3
    """
    counts = sorted(rates)
    for before, after in itertools.pairwise(counts):
        if rates[after] - rates[before] < gain * rates[counts[0]] * (after - before):
            return before
    return counts[-1]


def text_table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table in Markdown with aligned columns.

    >>> print(text_table(["n", "s"], [[1, 2.0], [10, "a"]]))
    | n  | s   |
    |----|-----|
    | 1  | 2.0 |
    | 10 | a   |
    """
    cells = [[str(cell) for cell in row] for row in [head, *rows]]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in cells
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


class Report:
    """Collects what an experiment found; prints and keeps it."""

    def __init__(self, name: str, quick: bool) -> None:
        self.name, self.quick = name, quick
        self.machine = machine()
        self._began = time.monotonic()
        self._texts: list[str] = []
        # What a script has started ends with it.
        signal.signal(signal.SIGTERM, lambda signum, frame: sys.exit(128 + signum))

    def table(self, title: str, head: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """One more table of the text."""
        self._texts.append(f"{title}\n\n{text_table(head, rows)}\n")

    def end(self, claims: Mapping[str, str], seen: Mapping[str, Seen], **found: Any) -> None:
        """Prints JSON, tables and which of the paper's claims came out, and keeps them.

        Args:
            claims: the paper's numbers by claim.
            seen: what was seen, by claim; those that are missing were left out by ``--quick``.
            found: more for the JSON.
        """
        missing = "not measured with --quick" if self.quick else "it was not measured"
        answers = answered(claims, seen, missing, self.machine)
        self.table(ANSWERS, HEAD, rows(answers))
        seconds = round(time.monotonic() - self._began)
        full = {
            "benchmark": f"papers/{self.name}",
            "quick": self.quick,
            "seconds": seconds,
            "machine": self.machine,
            "load_after": machine()["load"],
            "claims": plain(answers),
            **found,
        }
        OUT.mkdir(exist_ok=True)
        (OUT / f"papers_{self.name}.json").write_text(json.dumps(full, indent=1) + "\n")
        text = "\n".join(self._texts)
        load = f"load {self.machine['load']:.0f} to {full['load_after']:.0f}"
        stamp = f"{time.strftime('%Y-%m-%d')}, {self.machine['cores']} cores, {load}, {seconds} s"
        (OUT / f"papers_{self.name}.md").write_text(f"{stamp}\n\n{text}")
        print(json.dumps(full))
        print(f"\n{text}\n{stamp}")


def figure(columns: int, rows: int = 1, *, share_y: bool = False) -> tuple[Any, Any]:
    """An empty figure of so many panels."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    pyplot.rcParams.update({"font.size": 8, "svg.fonttype": "none", "svg.hashsalt": "trainmaster"})
    made, axes = pyplot.subplots(
        rows, columns, figsize=(2.6 * columns, 2.5 * rows), squeeze=False, sharey="row" if share_y else False
    )
    for axis in axes.flat:
        axis.spines[["top", "right"]].set_visible(False)
    return made, axes


def keep(made: Any, name: str) -> None:
    """As SVG beside the results, and as PNG under ``out/``."""
    from matplotlib import pyplot

    made.tight_layout()
    PLOTS.mkdir(exist_ok=True)
    OUT.mkdir(exist_ok=True)
    made.savefig(PLOTS / f"{name}.svg", metadata={"Date": None})
    made.savefig(OUT / f"papers_{name}.png", dpi=150)
    pyplot.close(made)
