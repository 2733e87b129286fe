"""FC2 (Ta 2019): time against workers when the server's network card is the limit, and Scala-Opt.

Asynchronous TensorFlow on CIFAR-10. One gang per kind of parameter server: m4.large (450 Mbit/s, as in the
paper's 8.1 and 8.2) and m4.10xlarge (10 Gbit/s, 8.4), each with five t2.large; for 1 to 5 workers in turn
the steady rate of steps, and what went through the parameter server's card. Then one worker trains with each
batch, and `trainmaster quote --policy scala-opt` takes the traffic that was measured of that run.
The network has 0.28 million weights, a quarter of the paper's, and hosts have an eighth of the published
cards.
"""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass
from typing import Any

from claims import Seen
from images import cifar
from laboratory import Finished, Laboratory
from tables import COLORS, Report, figure, keep, knee, middle, options

NETWORK_SCALE = 0.125
WORKERS = 5
WORKER = "t2.large"
NARROW, WIDE = "m4.large", "m4.10xlarge"
NARROW_MBPS = 450
#: Images of an epoch of CIFAR-10.
EPOCH = 50_000
#: Scala-Opt's picks for p2.xlarge workers and an m4.large (8.2), by batch.
PAPER = {128: 2, 512: 3, 1280: 5}
CLAIMS = {
    "small batches saturate the server: five workers do under 1.25 of the steps of three": "2 do (8.2)",
    "large batches gain more from five workers than small ones": "5 with 1280, 2 with 128 (8.2)",
    "larger batch, more workers by Scala-Opt (traffic from measured runs)": "2, 3, 5 with 128, 512, 1280",
    "Scala-Opt's cluster needs at most 1.35 of the time of five workers": "similar (figure 10)",
    "and costs less where the server is saturated": "80%, 50% less with 128, 512 (8.2)",
    "a server with a large card: small batches gain more from five workers": "figure 19, no number",
}
RECIPE = """
name: fc2
code: code
provider: lab
experiments:
  train:
    framework: tensorflow
    distributed:
      strategy: ps-async
      workers: {workers}
      parameter_servers: 1
      hardware: {{ps: {{instance: {server}}}}}
    hardware: {{instance: {worker}}}
    steps: 1000
    batch: {{per_worker: {size}}}
    command: >-
      python3 parameter_server.py --batches {batches} --workers {counts}
      --rounds {rounds} --seconds {seconds} {more}
"""
#: Of one worker, for which Trainmaster measures its traffic.
ALONE_S = 20.0


@dataclass(frozen=True)
class Cell:
    """What one point was measured to be, once per round.

    Attributes:
        steps_per_s: over all workers.
        mbps: through the parameter server's card, the larger of both ways.
        cpu: seconds of CPU per second of the parameter server.
    """

    steps_per_s: list[float]
    mbps: list[float]
    cpu: list[float]


def traffic(watched: list[dict[str, Any]], began: float, ended: float) -> tuple[float, float]:
    """Mbit/s (the larger of both ways) and CPU-seconds per second of the parameter server between two times.

    >>> zero, later = {"received": 0, "sent": 0, "cpu_s": 0}, {"received": 10**6, "sent": 500, "cpu_s": 1}
    >>> traffic([{"at": 0, **zero}, {"at": 2, **later}], 0, 2)
    (4.0, 0.5)
    """
    within = [row for row in watched if began <= row["at"] <= ended]
    if len(within) < 2:
        return float("nan"), float("nan")
    first, last = within[0], within[-1]
    seconds = last["at"] - first["at"]
    most = max(last[way] - first[way] for way in ("received", "sent"))
    return most * 8e-6 / seconds, (last["cpu_s"] - first["cpu_s"]) / seconds


def cells(done: Finished) -> dict[tuple[str, int, int], Cell]:
    """By kind, batch and workers."""
    found: dict[tuple[str, int, int], Cell] = {}
    for row in done.reports["chief-0"]:
        cell = found.setdefault((row["kind"], row["batch"], row["workers"]), Cell([], [], []))
        mbps, cpu = traffic(done.reports["ps-0"], row["began"], row["ended"])
        cell.steps_per_s.append(row["steps"] / (row["ended"] - row["began"]))
        cell.mbps.append(mbps)
        cell.cpu.append(cpu)
    return found


def picked(lab: Laboratory, batch: int) -> dict[str, Any]:
    """Scala-Opt's answer for a batch, by the traffic of one worker that the run before has shown."""
    recipe = RECIPE.format(
        workers=1,
        server=NARROW,
        worker=WORKER,
        batches=batch,
        size=batch,
        counts=1,
        rounds=1,
        seconds=ALONE_S,
        more="--each",
    )
    lab.run(recipe)
    auto = ("--set", "experiments.train.distributed.workers=auto", "--max-workers=6")
    found = json.loads(lab.call("quote", "recipe.yaml", "--policy=scala-opt", *auto, "--json"))
    return dict(found["experiments"]["train"])


def main() -> None:
    arguments = options(__doc__ or "")
    report = Report("fc2", arguments.quick)
    batches = [128, 1280] if arguments.quick else [128, 512, 1280]
    counts = [1, 2, 3, 5] if arguments.quick else list(range(1, WORKERS + 1))
    few = [1, 3, 5]
    rounds, seconds = (1, 2.5) if arguments.quick else (2, 3.0)
    found: dict[tuple[str, int, int], Cell] = {}
    with Laboratory(cpu=0.125, network=NETWORK_SCALE, files=[cifar()]) as lab:
        for server in [NARROW] if arguments.quick else [NARROW, WIDE]:
            wide = server == WIDE
            recipe = RECIPE.format(
                workers=WORKERS,
                server=server,
                worker=WORKER,
                batches=" ".join(map(str, batches[:1] if wide else batches)),
                size=batches[0],
                counts=" ".join(map(str, few if wide else counts)),
                rounds=rounds,
                seconds=seconds,
                more="",
            )
            found |= {(server, *key[1:]): cell for key, cell in cells(lab.run(recipe)).items()}
        picks = {batch: picked(lab, batch) for batch in batches}
    rates = {key: statistics.median(cell.steps_per_s) for key, cell in found.items()}
    rows = []
    for (server, batch, workers), cell in sorted(found.items()):
        rate = rates[server, batch, workers]
        rows.append(
            [
                server,
                batch,
                workers,
                f"{rate:.2f}",
                f"{min(cell.steps_per_s):.2f}-{max(cell.steps_per_s):.2f}",
                f"{rate / rates[server, batch, 1]:.2f}",
                f"{EPOCH / batch / rate:.0f}",
                f"{statistics.median(cell.mbps):.1f}",
                f"{statistics.median(cell.cpu):.2f}",
            ]
        )
    head = [
        "server",
        "batch",
        "workers",
        "steps/s",
        "rounds",
        "speed-up",
        "s/epoch",
        "server Mbit/s",
        "its cores",
    ]
    report.table(
        f"Steps per second over all workers; the {NARROW} has {NARROW_MBPS * NETWORK_SCALE:g} Mbit/s here",
        head,
        rows,
    )
    choices = chosen(batches, rates, picks)
    report.table(
        "What Scala-Opt picks (at most 6), beside the paper's p2.xlarge; time and cost against five workers",
        [
            "batch",
            "Mbit/s of one worker (published scale)",
            "its workers",
            "paper's",
            "knee here",
            "time",
            "price",
            "cost",
        ],
        [
            [
                batch,
                f"{one['mbps']:.0f}",
                one["workers"],
                PAPER[batch],
                one["knee"],
                f"x {one['time']:.2f}",
                f"x {one['price']:.2f}",
                f"x {one['cost']:.2f}",
            ]
            for batch, one in choices.items()
        ],
    )
    if not arguments.no_plot:
        draw(rates, batches, choices)
    points = [
        {
            "server": server,
            "batch": batch,
            "workers": workers,
            "steps_per_s": middle(cell.steps_per_s),
            "mbps": middle(cell.mbps),
            "server_cores": middle(cell.cpu),
        }
        for (server, batch, workers), cell in sorted(found.items())
    ]
    report.end(CLAIMS, seen(batches, rates, choices), points=points, scala_opt=choices)


def chosen(
    batches: list[int],
    rates: dict[tuple[str, int, int], float],
    picks: dict[int, dict[str, Any]],
) -> dict[int, dict[str, Any]]:
    """Scala-Opt's cluster of each batch, and its time, price and cost as shares of those of all workers."""
    found = {}
    for batch in batches:
        measured = {n: rate for (server, b, n), rate in rates.items() if (server, b) == (NARROW, batch)}
        cluster, traffic = picks[batch]["cluster"], picks[batch]["types"]["traffic_mbps"]
        worker, server = cluster["worker"], cluster["parameter_server"]
        # A number between two that were measured (--quick): the lower one.
        there = max(n for n in measured if n <= max(1, worker["count"]))
        time = measured[max(measured)] / measured[there]
        price = (server["usd_per_hour"] + there * worker["usd_per_hour"]) / (
            server["usd_per_hour"] + max(measured) * worker["usd_per_hour"]
        )
        found[batch] = {
            "mbps": round(traffic[WORKER] / NETWORK_SCALE, 1),
            "workers": worker["count"],
            "measured_at": there,
            "knee": knee(measured),
            "time": round(time, 3),
            "price": round(price, 3),
            "cost": round(time * price, 3),
        }
    return found


def seen(
    batches: list[int], rates: dict[tuple[str, int, int], float], choices: dict[int, dict[str, Any]]
) -> dict[str, Seen]:
    """What the paper concludes, tried on ours."""
    small, large = batches[0], batches[-1]

    def gain(server: str, batch: int, more: int, fewer: int) -> float:
        return rates[server, batch, more] / rates[server, batch, fewer]

    picks = [one["workers"] for one in choices.values()]
    saved = ", ".join(f"{1 - one['cost']:.0%}" for one in choices.values())
    slower = max(one["time"] for one in choices.values())
    last, first = gain(NARROW, small, WORKERS, 3), gain(NARROW, small, WORKERS, 1)
    found = [
        Seen(last < 1.25, f"{last:.2f} times (1.67 without a limit)", "workers were slower than the card"),
        Seen(
            gain(NARROW, large, WORKERS, 1) > first,
            f"{gain(NARROW, large, WORKERS, 1):.2f} times with {large}, {first:.2f} times with {small}",
            "five workers with large batches need more cores than the machine had left",
        ),
        Seen(
            picks == sorted(picks) and picks[-1] > picks[0],
            f"{', '.join(map(str, picks))} with {', '.join(map(str, batches))}",
            "the traffic of one worker did not fall with the batch",
        ),
        Seen(
            slower <= 1.35,
            f"{slower:.2f} times at most",
            "too few workers were picked",
        ),
        Seen(
            choices[small]["cost"] < 1,
            f"{saved} less with {', '.join(map(str, batches))} (than five)",
            "so few workers were so much slower that they cost as much",
        ),
    ]
    if (WIDE, small, WORKERS) in rates:
        wide = gain(WIDE, small, WORKERS, 1)
        why = "behind the large card the cores of this machine are the limit"
        found.append(Seen(wide > 1.25 * first, f"{wide:.2f} times, {first:.2f} with the small card", why))
    return dict(zip(CLAIMS, found, strict=False))


def draw(
    rates: dict[tuple[str, int, int], float], batches: list[int], choices: dict[int, dict[str, Any]]
) -> None:
    """Time of an epoch against workers, normalised as the paper's figure 11."""
    made, axes = figure(len(batches), share_y=True)
    for axis, batch in zip(axes[0], batches, strict=True):
        for server, color in ((NARROW, COLORS[0]), (WIDE, COLORS[1])):
            points = sorted((n, rate) for (s, b, n), rate in rates.items() if (s, b) == (server, batch))
            if points:
                counts, speeds = zip(*points, strict=True)
                axis.plot(counts, [speeds[0] / one for one in speeds], "o-", color=color, label=server)
        axis.axvline(choices[batch]["workers"], color=COLORS[2], linestyle="--", label="Scala-Opt here")
        axis.axvline(PAPER[batch] + 0.05, color=COLORS[5], linestyle=":", label="paper (p2.xlarge)")
        axis.set_title(f"batch {batch}")
        axis.set_xlabel("workers")
        axis.set_ylim(0, 1.1)
    axes[0][0].set_ylabel("time per epoch, 1 worker = 1")
    axes[0][0].legend(frameon=False)
    keep(made, "fc2")


if __name__ == "__main__":
    main()
