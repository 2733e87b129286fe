"""Jorge et al. (2018): synchronous against asynchronous, and a parameter server on too small a machine.

TensorFlow on CIFAR-10, three p2.xlarge as workers (CPU only here), 32 images per worker and step: as many
steps for the server's processor as the paper's 128 on GPUs, in proportion. One gang has its parameter server
on a t2.small, as the paper's first, one on a fourth p2.xlarge, as its second. Each is measured with 1 to 3
workers, both ways, and once more with a third worker that is three times as slow. Network cards are 8 times
the published ones, so that the processor of the t2.small is the limit, as the paper found, and not its card.
One p2.xlarge alone, without servers, does the same steps (table 2).
Then, in a lab with CPU credits that run out 30 times as fast as on EC2, three workers go on until those of
the t2.small are used up (figure 5).
"""

from __future__ import annotations

import json
import statistics
from dataclasses import asdict, dataclass

from claims import Seen, tried
from fc2 import Cell, traffic
from images import cifar
from laboratory import Finished, Laboratory
from tables import COLORS, Report, figure, keep, middle, options

BATCH = 32
SLOW = 3.0
CPU_SCALE = 0.125
CORES_SMALL = CPU_SCALE  # of a t2.small, which has one vCPU
SMALL, LARGE, ALONE = "t2.small", "p2.xlarge", "none"
#: So many times as fast as on EC2: a t2.small that is busy all the time is slow after 75 s.
CREDITS_SPEED = 30.0
#: Of 3 s, one after the other; TensorFlow's start takes half of the credits.
DECAY_ROUNDS = 25
#: Global steps/s and examples/s: table 1 (sync and async with a t2.small and 3 workers), tables 2 and 3.
PAPER = {
    ("sync", SMALL, 3): (3.26, 485),
    ("async", SMALL, 3): (10.04, 2755),
    ("async", SMALL, 2): (7.68, 1259),
    ("async", LARGE, 2): (13.04, 1687),
    ("async", ALONE, 1): (7, 850),
}
CLAIMS = {
    "asynchronous training is faster than synchronous (3 workers, small server)": "5.7 times (table 1)",
    "the same with a large server": "not measured there",
    "with one slow worker, asynchronous training is ahead by more (small server)": "not measured there",
    "the same with a large server, one slow worker": "not measured there",
    "a large server with 2 workers is faster than a small one with 2": "1.70 times (steps/s, table 3)",
    "and faster than a small one with 3: the machine is better spent as the server": "1.30 times (steps/s)",
    "the small server's processor is the limit: over 0.7 of it is used": "figure 5, no number",
    "when its CPU credits run out, the steps fall to under half": "figure 5; 10.04 ± 5.59 steps/s (table 3)",
}
RECIPE = """
name: jorge
code: code
experiments:
  train:
    framework: tensorflow
    distributed:
      strategy: ps-async
      workers: 3
      parameter_servers: 1
      hardware: {{ps: {{instance: {server}}}}}
    hardware: {{instance: p2.xlarge}}
    command: >-
      python3 parameter_server.py --kinds {kinds} --workers {counts} --batches {batch}
      --slow {slow} --rounds {rounds} --seconds {seconds}
"""
#: A node without parameter servers.
PLAIN = """
name: alone
code: code
experiments:
  train:
    hardware: {{instance: p2.xlarge}}
    command: python3 parameter_server.py --batches {batch} --rounds {rounds} --seconds {seconds}
"""
Key = tuple[str, str, int, float]  # server, kind, workers, how slow the last one is


def cells(server: str, done: Finished) -> dict[Key, Cell]:
    """Batches per second, over all workers: a synchronous step is one batch of each."""
    found: dict[Key, Cell] = {}
    served = done.reports.get("ps-0", [])
    for row in done.reports["chief-0"] if served else next(iter(done.reports.values())):
        cell = found.setdefault((server, row["kind"], row["workers"], row["slow"]), Cell([], [], []))
        mbps, cpu = traffic(served, row["began"], row["ended"]) if served else (0.0, 0.0)
        batches = row["steps"] * (row["workers"] if row["kind"] == "sync" else 1)
        cell.steps_per_s.append(batches / (row["ended"] - row["began"]))
        cell.mbps.append(mbps)
        cell.cpu.append(cpu)
    return found


@dataclass(frozen=True)
class Decay:
    """Batches per second in each round, in their order, and what was left of the credits after some."""

    rates: list[float]
    credits: dict[int, float]

    @property
    def ends(self) -> tuple[float, float]:
        """At the best, and at the end: of three rounds each."""
        means = [statistics.mean(self.rates[n : n + 3]) for n in range(len(self.rates) - 2)]
        return max(means), means[-1]

    def seen(self) -> Seen:
        """Whether it has fallen, and whether it were the credits."""
        best, last = self.ends
        left = self.credits[max(self.credits)]
        here = f"from {best:.1f} to {last:.1f} batches/s, with {left:g} credits left of 30"
        return Seen(last < best / 2 and left < 1, here, "the credits were not used up: workers were slower")


def decay() -> Decay:
    """Three workers with a small server whose credits run out, from the first step on."""
    left: dict[int, float] = {}
    rounds = 0
    with Laboratory(cpu=CPU_SCALE, network=8.0, files=[cifar()], credits=CREDITS_SPEED) as lab:

        def listen(line: str) -> None:
            nonlocal rounds
            if " steps/s, loss " not in line:
                return
            rounds += 1
            if rounds % 6 == 1:
                status = json.loads(lab.call("lab", "status", "--json"))
                left[rounds] = min(
                    each["cpu_credits"] for each in status["conditions"].values() if "cpu_credits" in each
                )

        recipe = RECIPE.format(
            server=SMALL, kinds="async", counts=3, batch=BATCH, slow=1, rounds=DECAY_ROUNDS, seconds=3.0
        )
        (cell,) = cells(SMALL, lab.run(recipe, listen=listen)).values()
    return Decay(cell.steps_per_s, left)


def seen(rates: dict[Key, float], cores: dict[Key, float]) -> dict[str, Seen]:
    """What the paper concludes, tried on ours; the two with a slow worker are why."""

    def lead(server: str, slow: float = 1.0) -> float:
        return rates[server, "async", 3, slow] / rates[server, "sync", 3, slow]

    def ahead(server: str) -> Seen:
        why = "five processes need more cores than the machine had left: rounds differ by more"
        return Seen(lead(server) > 1, f"{lead(server):.2f} times", why)

    def more_ahead(server: str) -> Seen:
        here = f"{lead(server, SLOW):.2f} times; {lead(server):.2f} times if all are alike"
        why = "the cores of this machine were the limit of both, not the slow worker"
        return Seen(lead(server, SLOW) > lead(server), here, why)

    large = rates[LARGE, "async", 2, 1.0]
    two, three = large / rates[SMALL, "async", 2, 1.0], large / rates[SMALL, "async", 3, 1.0]
    used = cores[SMALL, "async", 3, 1.0] / CORES_SMALL
    why = "the large server's gang had less than its share of the machine's cores"
    found = (
        ahead(SMALL),
        ahead(LARGE),
        more_ahead(SMALL),
        more_ahead(LARGE),
        Seen(two > 1.1, f"{two:.2f} times", why),
        Seen(three > 1, f"{three:.2f} times", why),
        Seen(used > 0.7, f"{used:.2f} of it", "workers were slower than it, or other work had its cores"),
    )
    return dict(zip(CLAIMS, found, strict=False))


def draw(rates: dict[Key, float], counts: list[int], decayed: list[Decay]) -> None:
    """Batches per second against workers, both servers and kinds; bars of the paper's; credits run out."""
    made, (axes,) = figure(4)
    for (server, color), (kind, line) in [
        (one, other)
        for one in ((SMALL, COLORS[1]), (LARGE, COLORS[0]))
        for other in (("async", "o-"), ("sync", "s--"))
    ]:
        axes[0].plot(
            counts,
            [rates[server, kind, n, 1.0] for n in counts],
            line,
            color=color,
            markersize=4,
            label=f"{server}, {kind}",
        )
    axes[0].set_xlabel("workers")
    axes[0].set_ylabel(f"batches of {BATCH} per s")
    axes[0].set_title("lab")
    axes[0].set_ylim(bottom=0)
    axes[0].set_xticks(counts)
    axes[0].legend(frameon=False)
    named = {f"{kind} {server} {n}": g for (kind, server, n), (g, _) in PAPER.items()}
    axes[1].barh(list(named), list(named.values()), color=COLORS[5])
    axes[1].set_xlabel("global steps per s")
    axes[1].set_title("paper, tables 1 and 3")
    kinds = ("async", "sync")
    for offset, slow, color in ((-0.2, 1.0, COLORS[0]), (0.2, SLOW, COLORS[3])):
        heights = [rates[SMALL, kind, 3, slow] for kind in kinds]
        axes[2].bar(
            [n + offset for n in range(2)],
            heights,
            0.4,
            color=color,
            label="all alike" if slow == 1 else f"one {slow:g} x slower",
        )
    axes[2].set_xticks([0, 1], kinds)
    axes[2].set_title(f"3 workers, {SMALL}")
    axes[2].set_ylabel(f"batches of {BATCH} per s")
    axes[2].legend(frameon=False, loc="lower left")
    for each in decayed:
        axes[3].plot([3 * n for n in range(len(each.rates))], each.rates, color=COLORS[1])
    axes[3].set_title(f"CPU credits of the {SMALL} run out")
    axes[3].set_xlabel(f"s ({CREDITS_SPEED:g} times as fast as on EC2)")
    axes[3].set_ylim(bottom=0)
    keep(made, "jorge")


def main() -> None:
    arguments = options(__doc__ or "")
    report = Report("jorge", arguments.quick)
    counts = [2, 3] if arguments.quick else [1, 2, 3]
    rounds, seconds = (1, 2.5) if arguments.quick else (2, 3.0)
    found: dict[Key, Cell] = {}
    with Laboratory(cpu=CPU_SCALE, network=8.0, files=[cifar()]) as lab:
        for server in (SMALL, LARGE):
            recipe = RECIPE.format(
                server=server,
                kinds="async sync",
                counts=" ".join(map(str, counts)),
                batch=BATCH,
                slow=SLOW,
                rounds=rounds,
                seconds=seconds,
            )
            found |= cells(server, lab.run(recipe))
        found |= cells(ALONE, lab.run(PLAIN.format(batch=BATCH, rounds=rounds, seconds=seconds)))
    decayed: list[Decay] = []

    def credits() -> list[Seen]:
        decayed.append(decay())
        return [decayed[0].seen()]

    decay_seen = tried(list(CLAIMS)[-1:], credits)
    rates = {key: statistics.median(cell.steps_per_s) for key, cell in found.items()}
    cores = {key: statistics.median(cell.cpu) for key, cell in found.items()}
    rows = []
    for (server, kind, workers, slow), cell in sorted(found.items()):
        rate = rates[server, kind, workers, slow]
        theirs = PAPER.get((kind, server, workers)) if slow == 1 else None
        rows.append(
            [
                server,
                kind,
                workers,
                f"{slow:g} x" if slow > 1 else "",
                f"{rate:.1f}",
                f"{min(cell.steps_per_s):.1f}-{max(cell.steps_per_s):.1f}",
                f"{rate * BATCH:.0f}",
                f"{cores[server, kind, workers, slow]:.3f}",
                f"{statistics.median(cell.mbps):.0f}",
                *(theirs or ("", "")),
            ]
        )
    report.table(
        "Batches per second over all workers (a synchronous step of 3 counts 3), and the paper's",
        [
            "server",
            "kind",
            "workers",
            "slow",
            "batches/s",
            "rounds",
            "examples/s",
            "server's cores",
            "Mbit/s",
            "paper steps/s",
            "paper ex/s",
        ],
        rows,
    )
    if not arguments.no_plot:
        draw(rates, counts, decayed)
    points = [
        {
            "server": server,
            "kind": kind,
            "workers": workers,
            "slow": slow,
            "batches_per_s": middle(cell.steps_per_s),
            "server_cores": middle(cell.cpu),
            "mbps": middle(cell.mbps),
        }
        for (server, kind, workers, slow), cell in sorted(found.items())
    ]
    for each in decayed:
        report.table(
            f"Three workers, and a {SMALL} whose credits run out {CREDITS_SPEED:g} times as fast as on EC2",
            ["s", "batches/s", "credits left"],
            [
                [3 * n, f"{statistics.mean(each.rates[n : n + 3]):.1f}", each.credits.get(n + 1, "")]
                for n in range(0, DECAY_ROUNDS - 2, 3)
            ],
        )
    report.end(CLAIMS, seen(rates, cores) | decay_seen, points=points, decay=[*map(asdict, decayed)])


if __name__ == "__main__":
    main()
