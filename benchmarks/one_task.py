"""One task: what `trainmaster run` costs over the bare command, and when its first line appears."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

from common import TRAINMASTER, options, paired, report, seconds, spread, workshop

RECIPE = "name: one\nexperiments:\n  only:\n    command: echo first; sleep 0.2\n"


def first_line_s(env: dict[str, str], cwd: str) -> float:
    """From the call to the moment when the task's line can be read on standard error."""
    began = time.perf_counter()
    process = subprocess.Popen(
        [TRAINMASTER, "run", "recipe.yaml"],
        env=env,
        cwd=cwd,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if line.strip() == b"first":
            break
    else:
        raise SystemExit("the task's line never appeared")
    appeared = time.perf_counter() - began
    process.stderr.read()
    if process.wait():
        raise SystemExit("the run failed")
    return appeared


def main() -> None:
    arguments = options(__doc__ or "", runs=15)
    directory, env = workshop()
    with directory:
        Path(directory.name, "recipe.yaml").write_text(RECIPE)
        ours = [TRAINMASTER, "run", "recipe.yaml"]
        bare = ["bash", "-c", "echo first; sleep 0.2"]
        seconds(ours, env, directory.name)  # a warm home
        whole = paired(
            arguments.runs,
            lambda: seconds(ours, env, directory.name),
            lambda: seconds(bare, env, directory.name),
        )
        first = spread([first_line_s(env, directory.name) for _ in range(arguments.runs)])
    report(
        "one_task",
        {"whole_s": whole, "first_line_s": first, "targets": {"difference_s": 0.5, "first_line_s": 0.4}},
        {"over the bare command": whole["difference"]["median"], "first line": first["median"]},
        "seconds",
    )


if __name__ == "__main__":
    main()
