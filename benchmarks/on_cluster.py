"""How long `run --on-cluster` takes until the first machine drives, on a warm cluster of the lab.

In turn with the same run driven from here: seconds until the first line of the task's log, which waits for no
driver to move.
"""

from __future__ import annotations

import ipaddress
import json
import re
import signal
import statistics
import tempfile
import time
from pathlib import Path

from clusters import Lab, until
from common import options, report

from trainmaster.testing.counting_proxy import CountingProxy
from trainmaster.testing.private_s3 import PrivateS3

RECIPE = """
name: bench
experiments:
  train: {command: "echo begun; sleep 20", hardware: {instance: m4.2xlarge}}
"""


def main() -> None:
    runs = options(__doc__ or "", runs=5).runs
    moved: list[float] = []
    first: dict[str, list[float]] = {"": [], "--on-cluster": []}
    with tempfile.TemporaryDirectory() as place:
        lab = Lab(Path(place))
        lab.call("lab", "up", "--memory-scale", "0.125", "--cpu-scale", "0.25", "--stop-grace", "5")
        try:
            network = ipaddress.ip_network(json.loads(lab.call("lab", "status", "--json"))["network"])
            with PrivateS3() as server, CountingProxy(server.url, str(network[2])) as line:
                lab.env |= server.environment(line.url)
                lab.env["TRAINMASTER_STORE"] = f"s3://{server.new_bucket()}/store"
                recipe = lab.work / "recipe.yaml"
                recipe.write_text(RECIPE)
                for number in range(runs + 1):
                    for option in first:
                        took, moved_s = once(lab, recipe, option)
                        if number:  # the first one rents, and brings what a driver needs
                            first[option].append(took)
                            moved += [moved_s] if option else []
                lab.call("clusters", "end", "--all")
        finally:
            lab.call("lab", "down")
    report(
        "on_cluster",
        {
            "moved_s": {"median": statistics.median(moved), "most": max(moved)},
            "first_line_s": {option or "here": statistics.median(times) for option, times in first.items()},
        },
    )


def once(lab: Lab, recipe: Path, option: str) -> tuple[float, float]:
    """Seconds from the call until the first line of the log, and from then until the driver has moved."""
    process, log, began = lab.start(recipe, "--keep", "10m", *([option] if option else []))
    accepted = until(lambda: re.search(r": started", log.read_text())) and time.time()
    moved = first = 0.0
    while process.poll() is None:
        text = log.read_text()
        first = first or ("begun" in text and time.time()) or 0.0
        moved = moved or ("drives it from now on" in text and time.time()) or 0.0
        time.sleep(0.02)
    if process.returncode:
        raise SystemExit(log.read_text())
    return (first or time.time()) - began, moved - accepted


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    main()
