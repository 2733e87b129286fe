"""Anwar et al.'s user: asks a server by `curl` how many machines a job should have, and gets an answer.

The paper's own job (its 113 rows), its two published requests, a price and a cap; by the command line every
cell of its table, and each batch again from a table without that batch. Then a job of one's own: points are
sent as CSV, and the answer is a quote with machines, time and price.
"""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from claims import Seen
from images import ROOT
from tables import Report, options

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from service import Server, home

CLAIMS = {
    "batch and latency in, machines out, by REST: 64,000 images without latency": "4 machines (figure 17)",
    "the same at 20 ms": "3 machines (figure 18)",
    "every batch and latency of its table has literally its winner, by the command line": "36 of 36 cells",
    "a batch left out of the table is answered: mostly within 10% of its fastest": "future work (section 8)",
    "time and price are weighed, below a cap": "equations 1 to 3, no number",
    "points of one's own in, a cluster with its time and its price out": "not in the paper",
}
TABLE = Path(ROOT, "src/trainmaster/advisor/papers/anwar.csv")
LATENCIES_MS = (0, 20, 40, 60, 80, 100)
BATCHES = (64000, 32000, 6400, 2560, 1280, 192)
RECIPE = """
name: mine
provider: aws
experiments:
  train:
    command: python train.py
    steps: 2000
    batch: {global: 6400}
    distributed: {strategy: allreduce, workers: auto}
    hardware: {instance: t2.large}
"""


class Curl:
    """`curl` with a token."""

    def __init__(self, server: Server, token: str) -> None:
        self.url, self.token = f"{server.url}/api/v1", token
        self.seconds: list[float] = []

    def __call__(self, path: str, body: object = None) -> dict[str, Any]:
        """The answer, which must be a good one."""
        command = ["curl", "--silent", "--show-error", "--fail-with-body", f"{self.url}{path}"]
        command += ["-H", f"Authorization: Bearer {self.token}"]
        if body is not None:
            command += ["-H", "Content-Type: application/json", "-d", json.dumps(body)]
        began = time.monotonic()
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        self.seconds.append(time.monotonic() - began)
        if done.returncode:
            raise SystemExit(f"curl {path}: {done.returncode} {done.stdout}{done.stderr}")
        return dict(json.loads(done.stdout))

    def workers(self, **wish: object) -> int:
        """How many machines it recommends."""
        query = "&".join(f"{name}={value}" for name, value in wish.items())
        return int(self(f"/recommend?{query}")["workers"])


#: Where its fourth machine works.
NEAR_MS = (0, 20)


def measured() -> list[dict[str, str]]:
    """Rows of the paper's table with a time."""
    with TABLE.open(encoding="utf-8") as file:
        return [row for row in csv.DictReader(file) if row["time_per_epoch_s"]]


def points() -> str:
    """Rows of the paper's table without latency as a CSV of one's own points."""
    out = io.StringIO()
    rows = csv.writer(out)
    rows.writerow(["job", "sync", "nodes", "workers", "local_batch", "step_time_s"])
    for row in measured():
        if row["latency_ms"] == "0" and int(row["batch_size"]) >= 1280:
            workers, batch = int(row["workers"]), int(row["batch_size"])
            step_s = float(row["time_per_epoch_s"]) / steps_of(workers, batch)
            rows.writerow(["train", "allreduce", workers, workers, batch // workers, f"{step_s:.4f}"])
    return out.getvalue()


def steps_of(workers: int, batch: int) -> int:
    """Of an epoch of the paper's table."""
    return 50 if workers == 1 and batch <= 6400 else 70


def recommended(env: dict[str, str], batch: int, latency: int, table: Path, rule: str) -> dict[str, Any]:
    """The command line's answer."""
    asked = ["recommend", "--batch", str(batch), "--latency-ms", str(latency), "--table", str(table)]
    done = subprocess.run(
        [sys.executable, "-m", "trainmaster", *asked, "--rule", rule, "--json"],
        env=env, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    return dict(json.loads(done.stdout))


def left_out(env: dict[str, str]) -> Seen:
    """Each batch but the largest, from a table without it: how long what is recommended took in truth."""
    rows, cells, worse = measured(), 0, []
    for batch in BATCHES[1:]:
        less = Path(env["TRAINMASTER_HOME"]).with_name("less.csv")
        with less.open("w", encoding="utf-8") as file:
            kept = csv.DictWriter(file, rows[0])
            kept.writeheader()
            kept.writerows(row for row in rows if row["batch_size"] != str(batch))
        for latency in NEAR_MS:
            times = {
                int(row["workers"]): float(row["time_per_epoch_s"])
                for row in rows
                if row["batch_size"] == str(batch)
                and (row["latency_ms"] == str(latency) or row["workers"] == "1")
            }
            machines = recommended(env, batch, latency, less, "model")["machines"]
            more = times[machines] / min(times.values()) - 1
            cells += 1
            if more > 0.101:
                worse.append(f"{more:.0%} longer with {batch:,} at {latency} ms")
    good = cells - len(worse)
    return Seen(3 * good >= 2 * cells, f"{good} of {cells} cells; {', '.join(worse)}", "too few are")


def table(env: dict[str, str]) -> Seen:
    """Every cell of the paper's CSV, asked by the command line: literally its winner and seconds."""
    rows = measured()
    right, wrong = 0, []
    for batch in BATCHES:
        for latency in LATENCIES_MS:
            here = [r for r in rows if (r["batch_size"], r["latency_ms"]) == (str(batch), str(latency))]
            fastest = min(here, key=lambda row: float(row["time_per_epoch_s"]))
            found = recommended(env, batch, latency, TABLE, "lookup")
            said = found["machines"], found["seconds"]
            if said == (int(fastest["workers"]), float(fastest["time_per_epoch_s"])):
                right += 1
            else:
                wrong.append(f"{batch} at {latency} ms: {said}, not {fastest['workers']}")
    return Seen(not wrong, f"{right} of {right + len(wrong)} cells", "; ".join(wrong))


def quote(curl: Curl) -> Seen:
    """Points of one's own, sent as CSV."""
    asked = {"recipe": RECIPE, "measurements": points(), "allow_stale": True, "catalogue": "builtin"}
    found = curl("/quotes?wait_s=30", asked)
    while found["state"] != "DONE":
        found = curl(f"/quotes/{found['id']}?wait_s=30")
    if not found["answer"]:
        return Seen(False, "", f"the quote failed: {found['error']}")
    answer = found["answer"]
    cluster, time_s, cost = answer["cluster"], answer["time_s"], answer["cost_usd"]
    count = cluster["worker"]["count"]
    (paper_s,) = (
        2000 * float(row["time_per_epoch_s"]) / steps_of(count, 6400)
        for row in measured()
        if (row["workers"], row["batch_size"], row["latency_ms"]) == (str(count), "6400", "0")
    )
    here = (
        f"{count} x {cluster['worker']['instance']}, {time_s['p50']:.0f} s ({time_s['p5']:.0f} to "
        f"{time_s['p95']:.0f}), ${cost['p50']:.2f}; at the paper's rate {paper_s:.0f} s"
    )
    return Seen(
        time_s["p5"] <= paper_s <= time_s["p95"], here, "the interval does not hold what was measured"
    )


def main() -> None:
    arguments = options(__doc__ or "")
    report = Report("recommender", arguments.quick)
    with home(False) as env:
        server = Server(env)
        try:
            curl = Curl(server, server.token())
            first = curl.workers(batch=64000, latency_ms=0)
            second = curl.workers(batch=64000, latency_ms=20)
            weighed = [
                curl.workers(batch=6400, latency_ms=0, beta=beta, usd_per_hour=0.0928) for beta in (0, 1000)
            ]
            capped = curl.workers(batch=6400, latency_ms=0, usd_per_hour=0.0928, max_usd_per_hour=0.2)
            answers = (
                Seen(first == 4, f"{first} machines", "another number than the paper's"),
                Seen(second == 3, f"{second} machines", "another number than the paper's"),
                table(env),
                left_out(env),
                Seen(
                    weighed[1] < weighed[0] and capped == 2,
                    f"{weighed[0]} machines by time, {weighed[1]} by time and price, {capped} below $0.20/h",
                    "the price did not count",
                ),
                quote(curl),
            )
        finally:
            server.stop()
    seconds = sorted(curl.seconds)
    report.end(
        CLAIMS,
        dict(zip(CLAIMS, answers, strict=True)),
        requests=len(seconds),
        median_request_s=round(seconds[len(seconds) // 2], 3),
    )


if __name__ == "__main__":
    main()
