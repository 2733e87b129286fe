"""Every benchmark, one after the other; each prints one line of JSON and keeps it under ``out/``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPTS = (
    "install_size",
    "command_line",
    "one_task",
    "context_run",
    "many_tasks",
    "sweep_tasks",
    "executors",
    "clusters",
    "schedules",
    "postgres",
    "ddp_rate",
    "tf_rate",
    "search",
    "quote_speed",
    "quotes_kept",
    "time_to_accuracy",
    "adapt",
    "batch_steps",
    "simulation",
    "failures",
    "volumes/push",
    "volumes/table",
    "volumes/read",
    "volumes/training",
    "volumes/peers",
    "volumes/large",
    "papers/anwar",
    "papers/fc2",
    "papers/jorge",
    "papers/accuracy",
)


def main() -> None:
    folder = Path(__file__).resolve().parent
    chosen = sys.argv[1:] or SCRIPTS
    failed = [name for name in chosen if subprocess.run([sys.executable, folder / f"{name}.py"]).returncode]
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
