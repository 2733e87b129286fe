"""Turns ``replay.json`` into a table.

python benchmarks/replay/report.py benchmarks/out/replay.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

METHODS = ("trainmaster", "nearest", "ernest", "forest")


def main() -> None:
    """Print Markdown."""
    answer = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    print("| split | rows | MAPE, median % | coverage % | p95/p50 | score | nearest | Ernest | forest |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name, methods in answer["splits"].items():
        ours = methods["trainmaster"]
        others = " | ".join(
            f"{methods[m]['mape']:.0f}, {methods[m]['interval_score']:.1f}" for m in METHODS[1:]
        )
        print(
            f"| {name} | {ours['rows']:.0f} | {ours['mape']:.1f}, {ours['median']:.1f} "
            f"| {ours['coverage']:.0f} | "
            f"{ours['p95/p50']:.2f} | {ours['interval_score']:.2f} | {others} |"
        )
    for title in ("regret_anwar_size", "regret_cost", "fit"):
        print(f"\n{title}: {json.dumps(answer[title])}")


if __name__ == "__main__":
    main()
