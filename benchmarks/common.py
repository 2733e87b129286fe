"""What the benchmark scripts share: the machine, paired timing, JSON and plots."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
OUT = Path(__file__).resolve().parent / "out"
TRAINMASTER = str(Path(sys.executable).parent / "trainmaster")


def options(description: str, **defaults: int | str) -> argparse.Namespace:
    """Command line of a benchmark: one option per default, of its type."""
    parser = argparse.ArgumentParser(description=description)
    for name, value in defaults.items():
        parser.add_argument(f"--{name}", type=type(value), default=value)
    return parser.parse_args()


def machine() -> dict[str, Any]:
    """Where the numbers come from."""
    return {
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load": round(os.getloadavg()[0], 2),
    }


def workshop() -> tuple[tempfile.TemporaryDirectory[str], dict[str, str]]:
    """A directory of its own with a home in it, and the environment that names the home."""
    # A driver that a server has left behind may write a last time.
    directory = tempfile.TemporaryDirectory(prefix="trainmaster-bench-", ignore_cleanup_errors=True)
    env = {
        **os.environ,
        "TRAINMASTER_HOME": f"{directory.name}/home",
        "TRAINMASTER_CACHE": f"{directory.name}/cache",
        "XDG_CONFIG_HOME": f"{directory.name}/config",  # not the server that somebody has logged in to
    }
    for name in ("TRAINMASTER_STORE", "TRAINMASTER_DATABASE"):
        env.pop(name, None)
    return directory, env


def seconds(command: Sequence[str], env: dict[str, str], cwd: str | Path) -> float:
    """How long a command takes, its output thrown away; it must succeed."""
    began = time.perf_counter()
    subprocess.run(
        command, env=env, cwd=cwd, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    return time.perf_counter() - began


def paired(runs: int, ours: Callable[[], float], theirs: Callable[[], float]) -> dict[str, Any]:
    """Time two things in turn, so that a noisy machine disturbs both; medians and their spread."""
    pairs = [(ours(), theirs()) for _ in range(runs)]
    return {
        "ours": spread([pair[0] for pair in pairs]),
        "bare": spread([pair[1] for pair in pairs]),
        "difference": spread([pair[0] - pair[1] for pair in pairs]),
        "ratio": spread([pair[0] / pair[1] for pair in pairs]),
    }


def spread(values: Sequence[float]) -> dict[str, Any]:
    """Minimum, median and maximum."""
    return {
        "min": round(min(values), 4),
        "median": round(statistics.median(values), 4),
        "max": round(max(values), 4),
        "n": len(values),
    }


def report(name: str, result: dict[str, Any], bars: dict[str, float] | None = None, unit: str = "") -> None:
    """Print the result as JSON, keep it and a bar chart under ``benchmarks/out``."""
    OUT.mkdir(exist_ok=True)
    full = {"benchmark": name, "machine": machine(), **result}
    (OUT / f"{name}.json").write_text(json.dumps(full, indent=1) + "\n")
    if bars:
        plot(name, bars, unit)
    print(json.dumps(full))


def plot(name: str, bars: dict[str, float], unit: str) -> None:
    """Draw horizontal bars into ``benchmarks/out/NAME.svg``."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 0.6 + 0.45 * len(bars)))
    axes.barh(list(bars), list(bars.values()), color=["#3b6ea5", "#b8b8b8"] * len(bars))
    axes.bar_label(axes.containers[0], fmt="%.3g", padding=3)
    axes.invert_yaxis()
    axes.set_xlabel(unit)
    axes.set_title(name)
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(OUT / f"{name}.svg")
    pyplot.close(figure)
