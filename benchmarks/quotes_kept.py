"""How often quotes are kept: runs of a dozen kinds of jobs, here and in a lab, with and without faults.

Each run is a line of `benchmarks/data/quotes_kept.jsonl`, with the machine, its load and the commit, so that
hours of it may be cut anywhere and gone on with, by other machines too; `--report 1` only tells what the file
says. Beside each quote stands the naive one: the mean of past
runs of that kind, give or take 1.645 of their standard deviations (a tenth of the mean at least).

    python benchmarks/quotes_kept.py --rounds 3 --kinds here-single,lab-gang

`--subset 1` makes one run of each of twelve kinds (`make kept`), and fails if what a run says of its quote is
not so. `--brute lab-single,lab-gang` runs a job on all clusters of its kind, and asks for the quote that
leaves the cluster open, for the fastest and for the cheapest, before these runs and after: its regret is how
much longer the picked one took than the best, or how much more it cost.
"""

from __future__ import annotations

import contextlib
import ipaddress
import itertools
import json
import math
import os
import random
import re
import shutil
import sqlite3
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

from common import OUT, TRAINMASTER, machine, options, report
from quote_jobs import KINDS, LAB_VOLUME, SCRIPTS, SUBSET, VOLUME, WITH_JAVA, Kind

from trainmaster.lab.cgroups import CgroupTree, HostCgroup
from trainmaster.service.quotes.score import binomial_interval
from trainmaster.testing.counting_proxy import CountingProxy
from trainmaster.testing.private_s3 import PrivateS3

#: Of all sessions and machines.
ROWS = Path(__file__).resolve().parent / "data" / "quotes_kept.jsonl"
#: Width that a binding quote aims at, p95 over p50; what share of quotes is to be kept.
TARGET_WIDTH, TARGET_KEPT = 1.25, 0.9
NAIVE_LEAST = 0.1
#: Numbers of the runs that look for the best cluster begin here.
BRUTE = 10_000
#: What a slow machine has left of a core, of half of one.
THROTTLED = 0.2
#: A run that hangs is no reason to end all of them.
MOST_S = 900.0

UNITS = (("time", "s"), ("cost", "usd"))
#: The last digit of seconds and dollars that a quote is kept with.
DIGIT = 1e-6
#: What makes a job of a kind another cluster, and no other job.
CLUSTER = ("instance", "workers")
#: What a quote is asked for, and what of a run counts then.
COUNTED = {"fastest": "seconds", "cheapest": "cost_usd"}


class Bench:
    """A home that remembers, with a lab in it.

    Args:
        root: where both are, also the next time.
    """

    def __init__(self, root: Path) -> None:
        self.root, self.home, self.work = root, root / "home", root / "work"
        self.work.mkdir(parents=True, exist_ok=True)
        for name, text in SCRIPTS.items():
            (self.work / name).parent.mkdir(exist_ok=True)
            (self.work / name).write_text(text)
        write_set(
            self.work / "set", 1 << 19
        )  # the same in each session: it is part of what jobs are known by
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("TRAINMASTER_", "AWS_"))}
        self.env = {**kept, "TRAINMASTER_HOME": str(self.home), "COLUMNS": "200"}
        #: Where machines of the lab find a store; nothing, if no kind asks for one.
        self.reached: dict[str, str] = {}

    def call(self, *arguments: object, must: bool = True, env: Mapping[str, str] | None = None) -> str:
        """``trainmaster ...``; its output."""
        done = subprocess.run(
            [TRAINMASTER, *map(str, arguments)],
            env={**self.env, **(env or {})},
            capture_output=True,
            text=True,
            cwd=self.work,
        )
        if done.returncode and must:
            raise SystemExit(f"{arguments}: {done.stderr}")
        return done.stdout

    @contextlib.contextmanager
    def lab(self, kinds: Sequence[str]) -> Iterator[None]:
        """One that is there as long as it is needed."""
        needed = any(KINDS[name].provider == "lab" for name in kinds)
        if needed:
            self.call("lab", "down", must=False)
            scale = ["--cpu-scale", "0.25", "--memory-scale", "0.25", "--network-scale", "0.125"]
            self.call("lab", "up", *scale)
        with contextlib.ExitStack() as left:
            if needed:
                left.callback(self.call, "lab", "down", must=False)
            if any(LAB_VOLUME in KINDS[name].recipe for name in kinds):
                self.reached = left.enter_context(self._store())
            yield

    @contextlib.contextmanager
    def _store(self) -> Iterator[dict[str, str]]:
        """A store that machines of the lab reach, with the volume that they mount."""
        network = ipaddress.ip_network(json.loads(self.call("lab", "status", "--json"))["network"])
        write_set(self.root / "large", 4 << 20)
        with PrivateS3() as server, CountingProxy(server.url, str(network[2])) as line:
            env = server.environment(line.url) | {"TRAINMASTER_STORE": f"s3://{server.new_bucket()}/store"}
            self.call("volume", "push", self.root / "large", LAB_VOLUME, env=env)
            yield env

    def brute(self, name: str, number: int) -> Iterator[dict[str, Any]]:
        """Which cluster a job's quote takes if it may take any: before it ran on each, and after."""
        draws = {key: list(KINDS[name].draws[key]) for key in CLUSTER if key in KINDS[name].draws}
        yield from self._picks(name, number, draws, "before")
        for values in itertools.product(*draws.values()):
            yield self.run(name, number, **dict(zip(draws, values, strict=True)))
        yield from self._picks(name, number, draws, "after")

    def _picks(
        self, name: str, number: int, draws: dict[str, list[Any]], asked: str
    ) -> Iterator[dict[str, Any]]:
        lists = {key: str(every).replace("'", "") for key, every in draws.items()}
        path, drawn = self.recipe(name, number, **lists)
        text = path.read_text()
        if many := draws.get("workers"):
            text = text.replace(f"workers: {lists['workers']}", f"workers: {min(many)}..{max(many)}")
        kept = {key: value for key, value in drawn.items() if key not in CLUSTER}
        of = {"kind": name, "number": number, "asked": asked, "drawn": kept}
        for objective in COUNTED:
            top = f"provider: lab\nobjective: {objective}\nexperiments:"
            path.write_text(text.replace("experiments:", top))
            yield of | {"objective": objective} | self._pick(path, draws)

    def _pick(self, path: Path, draws: Iterable[str]) -> dict[str, Any]:
        """Which cluster a quote takes."""
        told = json.loads(self.call("quote", path, "--json", "--allow-stale").strip().splitlines()[-1])
        worker = told["cluster"]["worker"]
        picked = {"instance": worker["instance"], "workers": worker["processes"]}
        load, quoted = os.getloadavg()[0], {key: told[key] for key in ("time_s", "cost_usd")}
        return {
            "at": round(time.time()),
            "load": [load, load],
            "picked": {key: picked[key] for key in draws},
            "quoted": quoted,
        }

    def recipe(self, name: str, number: int, **draws: Any) -> tuple[Path, dict[str, Any]]:
        """The one of a run: drawn from its kind and number alone, but for what is given."""
        kind, rng = KINDS[name], random.Random(f"{name}/{number}")
        drawn = {key: rng.choice(list(values)) for key, values in kind.draws.items()} | draws
        engine = "engine: ssh\n" if kind.provider == "lab" else ""
        if VOLUME in kind.recipe and not (self.home / "store" / "volumes" / VOLUME).exists():
            self.call("volume", "push", self.work / "set", VOLUME)
        if kind.folder == WITH_JAVA and not (self.work / WITH_JAVA / "java").exists():
            take_java_along(self.work / WITH_JAVA)
        seed = f"seed: {drawn['seed']}\n" if "seed" in drawn else ""
        text = f"name: {name}\n{engine}{seed}experiments:\n  train:\n" + kind.recipe.format(**drawn, n=number)
        path = (self.work / kind.folder / f"{name}.yaml").resolve()
        path.write_text(text + "\n")
        return path, drawn

    def run(self, name: str, number: int, **draws: Any) -> dict[str, Any]:
        """One run, and what it was quoted; some of its draws may be given."""
        kind = KINDS[name]
        path, drawn = self.recipe(name, number, **draws)
        before, began, warm = os.getloadavg()[0], time.time(), self._hosts(kind)
        command = [TRAINMASTER, "run", str(path), "--provider", kind.provider, "--yes", "--json"]
        command += kind.options
        log = self.root / "last.log"
        with log.open("wb") as out:
            env = {**self.env, **(self.reached if LAB_VOLUME in kind.recipe else {})}
            process = subprocess.Popen(command, env=env, cwd=self.work, stdout=out, stderr=out)
            hurt = ""
            try:
                if kind.fault:
                    hurt = self._hurt(kind, process, lambda: started(name, log))
                process.wait(MOST_S)
            except subprocess.TimeoutExpired:
                process.terminate()
                process.wait(60)
        if kind.fault == "slow":
            self.call("lab", "delay", "all", "all", "none", must=False)
        found = started(name, log)
        said = log.read_text()
        record = {
            "kind": name,
            "number": number,
            "at": round(began),
            "load": [round(before, 2), round(os.getloadavg()[0], 2)],
            "drawn": drawn,
            "wall_s": round(time.time() - began, 2),
            **({"hurt": hurt} if kind.fault else {}),
            **({"warm": "is still warm and used again" in said} if kind.options else {}),
        }
        if not found:
            return record | {"reason": "NOT STARTED", "said": said[-500:]}
        return record | self._truth(found) | {"left": self._left(kind, found, warm)}

    def _hosts(self, kind: Kind) -> set[str]:
        """Machines of the lab."""
        hosts = json.loads(self.call("lab", "status", "--json"))["hosts"] if kind.provider == "lab" else []
        return {host["id"] for host in hosts if host["state"] == "running"}

    def _left(self, kind: Kind, run: str, before: set[str]) -> list[str]:
        """What a run that has ended has left: machines that it does not keep, and processes."""
        found = [] if kind.options else sorted(self._hosts(kind) - before)
        for place in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if f"={run}".encode() in (place / "environ").read_bytes():
                    found.append((place / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:200])
        return found

    def _hurt(self, kind: Kind, process: subprocess.Popen[bytes], run: Callable[[], str]) -> str:
        """Once it trains; which machine, or nothing if it was over before."""
        end = time.monotonic() + 240
        while process.poll() is None and time.monotonic() < end and not self._has_stepped(run()):
            time.sleep(0.5)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(kind.fault_after_s)
        if process.poll() is not None:
            return ""
        hosts = json.loads(self.call("lab", "status", "--json"))["hosts"]
        ids = [host["id"] for host in hosts if host["state"] == "running"]  # it lists what is gone, too
        hurt = "all" if kind.fault == "slow" else ids[-1]
        if kind.fault == "throttled":
            mark = next(CgroupTree().roots["cpu"].glob(f"tmlab-*/{hurt}")).parent.name
            HostCgroup(CgroupTree(), mark, hurt).limit_cpu(THROTTLED)
            return hurt
        command = {
            "slow": ("delay", hurt, hurt, 5),
            "lost": ("terminate", hurt),
            "interrupted": ("interrupt", hurt, "--notice", 5),
        }
        self.call("lab", *command[kind.fault])
        return hurt

    def _has_stepped(self, run: str) -> bool:
        """Whether a member has told a step."""
        told = (self.home / "runs" / run / "tasks").glob("*/*/*/*.metrics.jsonl") if run else ()
        return any(file.stat().st_size for file in told)

    def _truth(self, run: str) -> dict[str, Any]:
        with contextlib.closing(sqlite3.connect(self.home / "trainmaster.db")) as connection:
            query = (
                "select kind, data, time_s, cost_usd, kept, made_at from quote "
                "where run_id = ? and kind != 'forecast' order by id"
            )
            rows = connection.execute(query, (run,)).fetchall()
            reason, created = connection.execute(
                "select reason, created_at from run where id = ?", (run,)
            ).fetchone()
        status = json.loads(self.call("status", run, "--json").strip().splitlines()[-1])
        quotes = {}
        for kind, data, time_s, cost_usd, kept, made_at in rows:
            told = json.loads(data)
            quotes[kind] = {
                "time_s": told["time_s"],
                "cost_usd": told["cost_usd"],
                "phases": told.get("phases"),
                "kept": None if kept is None else bool(kept),
                "after_s": round(made_at - created, 1),
                "truth_s": time_s,
                "truth_usd": cost_usd,
            }
        return {
            "run": run,
            "reason": reason,
            "seconds": status.get("seconds"),
            "cost_usd": status.get("cost_usd"),
            "phases": status.get("phases"),
            "quotes": quotes,
            "told": status.get("quote"),
        }


def started(name: str, log: Path) -> str:
    """The run of that name that has begun, by its words; empty before."""
    found = re.search(rf"^({name}-\w+): started", log.read_text(), re.MULTILINE)
    return found.group(1) if found else ""


def is_disturbed(record: dict[str, Any]) -> bool:
    """Whether something was done to it; rows that do not say it were made when only delays came about."""
    return bool(record.get("hurt", KINDS[record["kind"]].fault == "slow"))


def write_set(place: Path, file_bytes: int) -> None:
    """Files whose contents are chance, but the same each time."""
    place.mkdir(exist_ok=True)
    for number in range(64):
        (place / f"{number}.bin").write_bytes(random.Random(number).randbytes(file_bytes))


def take_java_along(place: Path) -> None:
    """What runs programs, without what compiles them: a third of 160 MB."""
    jlink = Path(os.path.realpath(shutil.which("java") or "")).with_name("jlink")
    modules = "java.se,jdk.unsupported,jdk.incubator.vector,jdk.security.auth"
    command = [jlink, "--add-modules", modules, "--strip-debug", "--compress=2", "--output", place / "java"]
    subprocess.run(command, check=True)


def untrue(record: dict[str, Any]) -> list[str]:
    """What a run says of its quote and is not so; of a run that nobody could quote that is nothing."""
    wrong = []
    for kind, quote in record.get("quotes", {}).items():
        if quote["kept"] is None or quote["truth_s"] is None:
            continue
        time_s = quote["time_s"]
        within = all(quote[f"truth_{unit}"] <= quote[f"{what}_{unit}"]["p95"] + DIGIT for what, unit in UNITS)
        if quote["kept"] is not (within and record["reason"] == "SUCCEEDED"):
            wrong.append(f"{kind}: {quote['kept']=}, and it took {quote['truth_s']} of {time_s}")
    judged = [quote for quote in record.get("quotes", {}).values() if quote["kept"] is not None]
    told = record.get("told")
    if judged and told and told["kept"] is not judged[-1]["kept"]:
        wrong.append(f"status says {told['kept']}, the record {judged[-1]['kept']}")
    last = judged[-1] if judged else None
    if last and last["kept"] and told:
        is_early = any(last[f"truth_{unit}"] < last[f"{what}_{unit}"]["p5"] - DIGIT for what, unit in UNITS)
        if (told.get("outside") == "early") is not is_early:
            wrong.append(
                f"status says {told.get('outside')}, and it took {last['truth_s']}: {told['time_s']}"
            )
    if record.get("reason") == "SUCCEEDED" and record.get("quotes") and not judged:
        wrong.append("it was quoted and has ended, and is not judged")
    return wrong + [f"it has left {each}" for each in record.get("left", ())]


def is_asked(record: dict[str, Any], when: str) -> bool:
    """Whether it is a run, or a pick of that time."""
    return "picked" not in record or record.get("asked", "after") == when


def regrets(records: Sequence[dict[str, Any]]) -> list[float]:
    """How much longer the picked cluster of each job took than its best one, or more it cost: 0.05 is 5 %.

    Held against each other are runs of one round of one version: those of other rounds had another load. The
    newest round of a job stands for it: what an earlier version picked may have been mended since.
    """

    def job(record: dict[str, Any]) -> tuple[object, ...]:
        drawn = {key: value for key, value in record["drawn"].items() if key not in CLUSTER}
        return json.dumps(drawn, sort_keys=True), *(record[key] for key in ("kind", "number", "commit"))

    took: dict[tuple[object, ...], dict[str, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for each in records:
        if each.get("reason") == "SUCCEEDED":
            cluster = {key: each["drawn"][key] for key in CLUSTER if key in each["drawn"]}
            took[job(each)][json.dumps(cluster, sort_keys=True)].append(each)
    asked = [each for each in records if "picked" in each]
    newest = {job(each)[:2]: job(each) for each in sorted(asked, key=lambda each: each.get("at", 0))}
    found = []
    for each in asked:
        if newest[job(each)[:2]] != job(each):
            continue
        counted = COUNTED[each.get("objective", "fastest")]
        middles = {cluster: median(run[counted] for run in runs) for cluster, runs in took[job(each)].items()}
        picked = middles.get(json.dumps(each.get("picked"), sort_keys=True))
        if picked is not None:
            found.append(picked / min(middles.values()) - 1)
    return found


def interval_score(low: float, high: float, truth: float) -> float:
    """Of the logarithm; lower is better (Gneiting and Raftery, JASA 2007), for 90 %."""
    low, high, truth = (math.log(max(value, 1e-6)) for value in (low, high, truth))
    return (high - low) + 20 * max(low - truth, 0.0) + 20 * max(truth - high, 0.0)


def naive(past: Sequence[float]) -> tuple[float, float] | None:
    """What the mean of past runs says of the next."""
    if not past:
        return None
    middle = mean(past)
    spread = 1.645 * max(stdev(past) if len(past) > 1 else 0.0, NAIVE_LEAST * middle)
    return max(middle - spread, middle / 10), middle + spread


def scored(records: Sequence[dict[str, Any]], kind: str) -> dict[str, Any]:
    """Of one kind of quote, over runs in the order in which they were made."""
    past: dict[str, list[float]] = defaultdict(list)
    rows = []
    for each in records:
        key = each["kind"]
        quote = each.get("quotes", {}).get(kind)
        simple = naive(past[key])
        if quote is not None and quote["truth_s"] is not None:
            rows.append((each, quote, simple))
        if each.get("reason") == "SUCCEEDED" and each.get("seconds"):
            past[key].append(each["seconds"])
    if not rows:
        return {"quotes": 0}
    kept = sum(quote["kept"] for _, quote, _ in rows)
    good = [(quote, simple) for each, quote, simple in rows if each["reason"] == "SUCCEEDED"]
    inside = sum(q["time_s"]["p5"] <= q["truth_s"] <= q["time_s"]["p95"] for q, _ in good)
    both = [(q, s) for q, s in good if s is not None]
    ours = [interval_score(q["time_s"]["p5"], q["time_s"]["p95"], q["truth_s"]) for q, _ in both]
    theirs = [interval_score(*s, q["truth_s"]) for q, s in both]
    return {
        "quotes": len(rows),
        "kept": kept,
        "kept_share": round(kept / len(rows), 3),
        "kept_95": [round(v, 3) for v in binomial_interval(kept, len(rows))],
        "inside": round(inside / len(good), 3) if good else None,
        "p95_over_p50": round(median(q["time_s"]["p95"] / q["time_s"]["p50"] for _, q, _ in rows), 3),
        "after_s": round(median(q["after_s"] for _, q, _ in rows), 1),
        "score": round(mean(ours), 3) if ours else None,
        "naive_score": round(mean(theirs), 3) if theirs else None,
        "ratio_truth_p50": round(median(q["truth_s"] / q["time_s"]["p50"] for q, _ in good), 3)
        if good
        else None,
    }


def by_phase(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Of each phase that an estimate names: what it took over what was quoted, and how often within p95."""
    found: dict[str, list[tuple[float, float, float]]] = defaultdict(list)
    for each in records:
        told = (each.get("quotes", {}).get("estimate") or {}).get("phases") or {}
        if not any("p50" in span for span in told.values()):  # of each experiment
            told = next(iter(told.values()), {})
        lines = next(iter((each.get("phases") or {}).values()), [])
        truth = {part["phase"]: part["seconds"] for part in lines}
        for name, belief in told.items() if lines else ():
            if name not in ("pauses", "end of the tasks"):  # of what was seen they are part of the steps
                found[name].append((truth.get(name, 0.0), belief["p50"], belief["p95"]))
    return {
        name: {
            "runs": len(rows),
            "truth_s": round(median(t for t, _, _ in rows), 2),
            "quoted_s": round(median(m for _, m, _ in rows), 2),
            "within_p95": round(sum(t <= most for t, _, most in rows) / len(rows), 2),
            "mean_error_s": round(mean(t - m for t, m, _ in rows), 2),
        }
        for name, rows in found.items()
    }


def summary(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What the file says."""
    groups: dict[str, Callable[[dict[str, Any]], bool]] = {
        "all": lambda _: True,
        "undisturbed": lambda each: not is_disturbed(each),
        "disturbed": is_disturbed,
    }
    groups |= {name: lambda each, name=name: each["kind"] == name for name in KINDS}
    told, made = {}, [each for each in records if "picked" not in each]
    for name, takes in groups.items():
        mine = [each for each in made if takes(each)]
        if mine:
            told[name] = {kind: scored(mine, kind) for kind in ("estimate", "binding")}
            told[name]["runs"] = len(mine)
    asked = {when: [each for each in records if is_asked(each, when)] for when in ("before", "after")}
    regret, records = {when: regrets(mine) for when, mine in asked.items()}, made
    loads = [each["load"][1] for each in records]
    return {
        "runs": len(records),
        "load": [min(loads), round(median(loads), 2), max(loads)] if loads else [],
        "by": told,
        "phases": by_phase(records),
        "untrue": [f"{each['run']}: {words}" for each in records for words in untrue(each)],
        "regret": {
            when: {
                "jobs": len(found),
                "median": round(median(found), 4) if found else None,
                "at_most_0.05": round(sum(each <= 0.05 for each in found) / len(found), 3) if found else None,
            }
            for when, found in regret.items()
        },
        "target": {"kept": TARGET_KEPT, "width_p95_over_p50": TARGET_WIDTH},
    }


def main() -> None:
    chosen = options(
        __doc__ or "",
        rounds=1,
        kinds=",".join(KINDS),
        home="/var/tmp/trainmaster-quotes-kept",
        out=str(ROWS),
        minutes=1e9,
        report=0,
        since=0.0,
        subset=0,
        brute="",
    )
    out, kinds = Path(chosen.out), chosen.kinds.split(",")
    out.parent.mkdir(exist_ok=True)

    commit = ["git", "-C", str(ROWS.parent), "rev-parse", "--short", "HEAD"]
    here = {"of": {key: value for key, value in machine().items() if key != "load"}}
    here["commit"] = subprocess.run(commit, capture_output=True, text=True).stdout.strip()

    def keep(record: dict[str, Any]) -> None:
        with out.open("a") as file:
            file.write(json.dumps(here | record) + "\n")

    def records() -> list[dict[str, Any]]:
        lines = out.read_text().splitlines() if out.exists() else []
        return [found for line in lines if (found := json.loads(line))["at"] >= chosen.since]

    if chosen.subset:
        chosen.kinds, chosen.out = ",".join(SUBSET), str(OUT / "quotes_kept_subset.jsonl")
        out, kinds = Path(chosen.out), list(SUBSET)
        out.unlink(missing_ok=True)
        with tempfile.TemporaryDirectory(dir="/var/tmp", ignore_cleanup_errors=True) as home:
            bench = Bench(Path(home))
            with bench.lab(kinds):
                found = [bench.run(name, number) for name, number in SUBSET.items()]
        out.write_text("".join(json.dumps(here | each) + "\n" for each in found))
        if wrong := [f"{each['run']}: {words}" for each in found for words in untrue(each)]:
            raise SystemExit("\n".join(wrong))
    elif chosen.brute:
        names, bench = chosen.brute.split(","), Bench(Path(chosen.home))
        with bench.lab(names):
            for number in range(chosen.rounds):
                for record in (each for name in names for each in bench.brute(name, BRUTE + number)):
                    keep(record)
    elif not chosen.report:
        bench, end = Bench(Path(chosen.home)), time.time() + 60 * float(chosen.minutes)
        done = defaultdict(int)
        for each in records():
            if each["number"] < BRUTE:
                done[each["kind"]] = max(done[each["kind"]], each["number"] + 1)
        with bench.lab(kinds):
            for _ in range(chosen.rounds):
                for name in kinds:
                    if time.time() < end:
                        keep(bench.run(name, done[name]))
                        done[name] += 1
    report("quotes_kept", {"of": machine(), **summary(records())})


if __name__ == "__main__":
    main()
