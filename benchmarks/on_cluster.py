"""What `run --on-cluster` costs on a warm cluster of the lab, in turn with the same run driven from here.

The task says every half second what time it is: so there is a first line, an end, and how old each line is
when it is shown here (by `logs -f`, once a machine drives the run). The first run of each kind rents, and
brings what a driver needs: it is told alone.
"""

from __future__ import annotations

import ipaddress
import json
import math
import os
import re
import signal
import statistics
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from clusters import Lab
from common import TRAINMASTER, options, report

from trainmaster.testing.counting_proxy import CountingProxy
from trainmaster.testing.private_s3 import PrivateS3

RECIPE = """
name: bench
experiments:
  train:
    command: "for i in $(seq {lines}); do date +at%s.%N; sleep 0.5; done; date +at%s.%N"
    hardware: {{instance: m4.2xlarge}}
"""
KINDS = {"here": (), "on_cluster": ("--on-cluster",)}
LONGEST_S = 300.0
Phases = dict[str, float]


def main() -> None:
    chosen = options(__doc__ or "", runs=3, lines=20)
    first: dict[str, Phases] = {}
    warm: dict[str, list[Phases]] = {kind: [] for kind in KINDS}
    with tempfile.TemporaryDirectory() as place:
        lab = Lab(Path(place))
        lab.call("lab", "up", "--memory-scale", "0.125", "--cpu-scale", "0.25", "--stop-grace", "5")
        try:
            network = ipaddress.ip_network(json.loads(lab.call("lab", "status", "--json"))["network"])
            with PrivateS3() as server, CountingProxy(server.url, str(network[2])) as line:
                lab.env |= server.environment(line.url)
                lab.env["TRAINMASTER_STORE"] = f"s3://{server.new_bucket()}/store"
                recipe = lab.work / "recipe.yaml"
                recipe.write_text(RECIPE.format(lines=chosen.lines))
                for number in range(chosen.runs + 1):
                    for kind, option in KINDS.items():
                        found = once(lab, recipe, option)
                        if number:
                            warm[kind].append(found)
                        else:
                            first[kind] = found
                lab.call("clusters", "end", "--all")
        finally:
            lab.call("lab", "down")
    median = {kind: medians(found) for kind, found in warm.items()}
    both = median["here"].keys() & median["on_cluster"].keys()
    cost = {name: round(median["on_cluster"][name] - median["here"][name], 2) for name in sorted(both)}
    report(
        "on_cluster",
        {
            "runs": chosen.runs,
            "on_cluster_costs": cost,
            "median": median,
            "first": {kind: medians([found]) for kind, found in first.items()},
        },
    )


def medians(found: Sequence[Phases]) -> Phases:
    names = [name for name in found[0] if all(name in each for each in found)]
    return {name: round(statistics.median(each[name] for each in found), 2) for name in names}


def once(lab: Lab, recipe: Path, option: Sequence[str]) -> Phases:
    """Seconds of a run from the call on; its task's own are not among them."""
    process, log, began = lab.start(recipe, "--keep", "10m", *option)
    accepted = moved = driver_cpu_s = 0.0
    driver: Path | None = None
    follower: subprocess.Popen[bytes] | None = None
    shown, since = log, math.inf if option else 0.0
    ages: dict[float, float] = {}
    finished = None
    while finished is None:
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid:
            finished = usage
            process.returncode = os.waitstatus_to_exitcode(status)
        now, text = time.time(), log.read_text()
        accepted = accepted or (": started" in text and now) or 0.0
        moved = moved or ("drives it from now on" in text and now) or 0.0
        if moved and follower is None:
            shown = log.with_suffix(".followed")
            with shown.open("wb") as out:
                command = [TRAINMASTER, "logs", "-f", lab.run_of(log)]
                follower = subprocess.Popen(command, env=lab.env, stdout=out)
        lines = stamps_in(shown.read_text())
        if (
            lines and shown != log and since == math.inf
        ):  # what it shows first was written before it was asked
            since = now
        for stamp in lines:
            if stamp > since:
                ages.setdefault(stamp, now - stamp)
        if moved:
            driver = driver or driver_of(lab.run_of(log))
            driver_cpu_s = max(driver_cpu_s, cpu_s(driver))
        if now - began > LONGEST_S:
            process.kill()
        time.sleep(0.05)
    if process.returncode:
        raise SystemExit(log.read_text())
    if option and not moved:
        raise SystemExit("its task ended before its machine could drive it: give it more --lines")
    returned = time.time()
    if follower is not None:
        follower.wait(LONGEST_S)
    stamps = stamps_in(lab.call("logs", lab.run_of(log)))
    found = {
        "all_but_task_s": returned - began - (stamps[-1] - stamps[0]),
        "accepted_s": accepted - began,
        "first_line_s": stamps[0] - began,
        "record_after_task_s": returned - stamps[-1],
        "cpu_s": finished.ru_utime + finished.ru_stime,
    }
    if ages:
        found |= {"line_age_s": statistics.median(ages.values()), "line_age_most_s": max(ages.values())}
    if option:
        found |= {"moved_after_accepted_s": moved - accepted, "driver_cpu_s": driver_cpu_s}
    return found


def stamps_in(text: str) -> list[float]:
    return [float(found) for found in re.findall(r"\bat(\d+\.\d+)$", text, re.MULTILINE)]


def driver_of(run: str) -> Path | None:
    """The process on the lab's host that drives a run."""
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            words = (entry / "cmdline").read_bytes() if entry.name.isdigit() else b""
            if b"on_cluster.machine_driver" in words and run.encode() in words:
                return entry
    return None


def cpu_s(process: Path | None) -> float:
    with suppress(OSError):
        if process is not None:
            fields = (process / "stat").read_text().rpartition(")")[2].split()
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return 0.0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    main()
