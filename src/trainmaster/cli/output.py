"""What the verbs print with: people read standard error, machines the last line of standard output."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from typing import Any

from trainmaster.spec.errors import TrainmasterError

#: Models named one by one; `trainmaster models RUN` lists the others.
SHOWN_MODELS = 5


def say(text: str = "") -> None:
    """A line for people."""
    try:
        print(text, file=sys.stderr, flush=True)  # noqa: T201
    except OSError:  # nobody reads it any more (`2>&1 | head`, a closed terminal): the work goes on
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115 - for the process's life


def say_error(error: TrainmasterError) -> None:
    """An error for people: no traceback, and what to do next."""
    say(str(error) if error.exit_code == 130 else f"error: {error}")


def print_json(value: dict[str, Any]) -> None:
    """One JSON object as a line of standard output."""
    print(json.dumps(value, allow_nan=False), flush=True)  # noqa: T201


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns padded with spaces; nothing is cut off.

    >>> print(table(["a", "bb"], [["10", "2"]]))
    a   bb
    10  2
    """
    lines = [list(header), *[list(row) for row in rows]]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def duration(seconds: float) -> str:
    """A time span for people.

    >>> duration(3.14), duration(75), duration(7300)
    ('3.1 s', '1m15s', '2h01m')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}m{rest:02d}s"
    return f"{minutes // 60}h{minutes % 60:02d}m"


def number(value: object) -> str:
    """A metric for people."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def best_text(experiment: str, best: dict[str, Any], metric: str = "") -> str:
    """The best task of a search on one line."""
    values = " ".join(f"{name}={number(value)}" for name, value in best["parameters"].items())
    return f"best {experiment}/{best['task']}  {metric or 'value'}={number(best['value'])}  {values}"


def model_text(model: dict[str, Any]) -> str:
    """Where a model of a summary lies, on one line."""
    parts = [f"model {model['experiment']}/{model['task']}", metrics_text(model["metrics"]), model["uri"]]
    return "  ".join(part for part in parts if part)


def metrics_text(metrics: dict[str, Any], limit: int = 6) -> str:
    """Metrics on one line, ``step`` first."""
    ordered = sorted(metrics.items(), key=lambda item: item[0] != "step")
    return " ".join(f"{key}={number(value)}" for key, value in ordered[:limit])
