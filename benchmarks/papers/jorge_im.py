"""Jorge et al. (2018) whole, unattended: Infrastructure Manager, HDFS, parameter server, TensorBoard, S3.

One recipe is run with ``provider: im`` on the paper's machines, a t2.small as parameter server and three
p2.xlarge as workers (CPU only here). An Ansible role installs Hadoop, CIFAR-10 is staged from S3 into an HDFS
on the machines, and one script trains asynchronously, then, with `--sync`, in step. Model and event files
are kept in S3, TensorBoard shows both, and at the end nothing is left: that is asked of the lab, of
Infrastructure Manager and of this machine. `jorge_more.py` has what takes longer.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from typing import Any

from claims import Seen
from images import cifar_files
from laboratory import Call
from observed import PATIENCE_S, Story, Watch, kept_in_s3, story_of, tensorboard, until
from surroundings import Surroundings, processes_of, surroundings
from tables import Report

CPU_SCALE = 0.25  # a p2.xlarge has one core, a t2.small a quarter of one
NETWORK_SCALE = 1.0
ENDING_S = 20.0  # of processes that have been told to end
WORKERS = 3
MACHINES = ["p2.xlarge"] * WORKERS + ["t2.small"]
#: Seconds until these machines were deployed, at best; MB/s from S3 into HDFS (4.5 GB in 13 minutes).
PAPER_DEPLOYMENT_S = 15 * 60
PAPER_STAGED_MB_PER_S = 4500 / (13 * 60)
#: Global steps and examples per second, table 1.
PAPER_RATES = {"asynchronous": (10.04, 2755), "synchronous": (3.26, 485)}
CURVES = {"loss", "global_step/sec"}
BATCH = 64
OPTIONS = "--steps {{steps}} --batch {{batch_per_worker}}"  # as the recipe has them
CHANCE = 0.1
MOST_STEPS = 100  # between two reports: several in the minute without Infrastructure Manager
CLAIMS = {
    "one command has Infrastructure Manager deploy a t2.small and three p2.xlarge": "15 to 20 min, with boot",
    "the data go from S3 into HDFS on these machines": "5.8 MB/s",
    "one script trains asynchronously and synchronously, an option apart": "92% after 60,000 steps",
    "asynchronous training is faster (images/s)": "5.7 times (table 1)",
    "TensorBoard shows loss and global_step/sec of both": "figure 5, no number",
    "model and logs are in S3 at the end": "section 3, no number",
    "nothing is left of machines, infrastructures and processes": "by hand",
}
RECIPE = """
name: jorge
code: code
env: {{HADOOP_MIRROR: "{mirror}"}}
budget: {{total: $20}}
notify:
  - {{to: cat >> "$EVENTS", events: [run, experiment, task, note]}}
experiments:
"""
EXPERIMENT = """
  {name}:{after}
    framework: tensorflow
    distributed:
      strategy: {strategy}
      workers: {workers}
      parameter_servers: 1
      hardware: {{ps: {{instance: t2.small}}}}
    hardware: {{instance: p2.xlarge}}
    roles: [roles/hadoop]
    data:
      images: {{url: "s3://{bucket}/cifar-10", stage: hdfs, hadoop: /opt/hadoop}}
    batch: {{per_worker: {batch}}}
    steps: {steps}
    command: python3 cifar_training.py {options} --round {round}
    checkpoint: {{every: 5s}}
"""


def recipe(around: Surroundings, steps: dict[str, int]) -> str:
    """The same for each kind of training, one after the other on the same machines."""
    text, after = RECIPE.format(mirror=around.mirror), ""
    for name, count in steps.items():
        text += EXPERIMENT.format(
            name=name,
            after=after,
            workers=WORKERS,
            strategy="ps-sync" if name == "synchronous" else "ps-async",
            bucket=around.bucket,
            steps=count,
            round=min(max(count // 10, 2), MOST_STEPS),
            batch=BATCH,
            options=OPTIONS + " --sync" * (name == "synchronous"),
        )
        after = f"\n    after: {name}"
    return text


def start(around: Surroundings, steps: dict[str, int]) -> Call:
    """The one command."""
    (around.lab.work / "recipe.yaml").write_text(recipe(around, steps))
    return around.lab.start("run", "recipe.yaml", "--provider=im", "--yes", "--json")


def phases_of(
    story: Story, seen: dict[str, float], mirrored_at: float, names: list[str], began: float
) -> dict[str, float]:
    """Seconds of each, one after the other.

    Args:
        story: of the run.
        seen: when data began to leave S3, when all machines were gone.
        mirrored_at: when the last machine had Hadoop.
        names: of the experiments, in their order.
        began: when the command was called.
    """
    marks = {
        "deployment through IM": story.at("STAGING", names[0]),
        "Ansible role (Java and Hadoop)": mirrored_at,
        "HDFS start": seen["staging"],
        "staging from S3 into HDFS": story.at("RUNNING", names[0]),
    }
    for name in names:
        marks |= {
            f"{name}: until the first step": story.rounds(name)[0]["at"],
            f"{name}: training": story.at("SAVING", name),
            f"{name}: saving model and logs": story.at("DONE", name),
        }
    marks["destroying"] = seen["destroyed"]
    starts = [began, *marks.values()]
    return {name: round(end - start, 2) for (name, end), start in zip(marks.items(), starts, strict=False)}


def rate_of(story: Story, experiment: str) -> dict[str, float]:
    """Global steps and examples per second; the first steps are traced, and do not count."""
    rounds = story.rounds(experiment)[2:] or story.rounds(experiment)[-1:]
    seconds = sum(each["seconds"] for each in rounds)
    return {
        "steps_per_s": round(sum(each["steps"] for each in rounds) / seconds, 3),
        "examples_per_s": round(sum(each["examples"] for each in rounds) / seconds, 1),
        "accuracy": next(each["accuracy"] for each in story.reports[experiment] if "accuracy" in each),
        "steps": story.rounds(experiment)[-1]["step"],
    }


def undisturbed(around: Surroundings, steps: dict[str, int], data_bytes: int) -> dict[str, Any]:
    """The paper's experiment, from one command to nothing."""
    with Watch(around, data_bytes) as watch:
        began = time.time()
        summary = start(around, steps).end(PATIENCE_S)
        until(lambda: "destroyed" in watch.at, "an empty list of machines")
    story = story_of(around, summary["run"])
    mirrored_at = max(at for at in around.mirrored if at < watch.at["staging"])
    phases = phases_of(story, watch.at, mirrored_at, list(steps), began)
    return {
        "run": summary["run"],
        "cost_usd": summary["cost_usd"],
        "machines": sorted(watch.most.values()),
        "infrastructures": watch.infrastructures,
        "phases_s": phases,
        "rates": {experiment: rate_of(story, experiment) for experiment in steps},
        "data_bytes": data_bytes,
        "staged_mb_per_s": round(data_bytes / 1e6 / phases["staging from S3 into HDFS"], 2),
        "kept": kept_in_s3(around, summary["run"], list(steps)),
        "curves": tensorboard(around, summary["run"], len(steps)),
    }


def seen(found: dict[str, Any], steps: dict[str, int]) -> dict[str, Seen]:
    """What came of the paper's claims."""
    phases, rates, kept = found["phases_s"], found["rates"], found["kept"]
    deployed, staged = phases["deployment through IM"], found["staged_mb_per_s"]
    shown = [name for name, curves in found["curves"].items() if set(curves) >= CURVES]
    accuracies = {name: rates[name]["accuracy"] for name in steps}
    is_trained = all(rates[name]["steps"] == count for name, count in steps.items())
    ratio = rates["asynchronous"]["examples_per_s"] / rates["synchronous"]["examples_per_s"]
    left = [f"{len(each)} {what}" for what, each in found["left"].items()]
    answers = (
        Seen(
            found["machines"] == MACHINES and deployed < PAPER_DEPLOYMENT_S,
            f"{deployed:.0f} s; nothing boots in the lab",
            f"the machines were {', '.join(found['machines'])}, or it took longer",
        ),
        Seen(
            staged > PAPER_STAGED_MB_PER_S,
            f"{staged:.1f} MB/s",
            "DataNodes and what sends to them share the machine's cores with all else",
        ),
        Seen(
            is_trained and all(each > CHANCE for each in accuracies.values()),
            ", ".join(f"{accuracies[name]:.0%} after {count} steps" for name, count in steps.items()),
            f"a training did not make its steps, or is no better than chance, {CHANCE:.0%}",
        ),
        Seen(ratio > 1, f"{ratio:.2f} times", "all workers are equally quick here, and share the cores"),
        Seen(
            len(shown) >= len(steps),
            f"{len(shown)} of {len(steps)} trainings",
            f"it showed {found['curves']}",
        ),
        Seen(
            kept["model_bytes"] > 0 and kept["event_bytes"] > 0,
            f"models of {kept['model_bytes']:,} bytes, event files of {kept['event_bytes']:,} bytes",
            "they were not found there",
        ),
        Seen(
            not any(found["left"].values()),
            f"{', '.join(left)} left after {phases['destroying']:.1f} s",
            f"left: {found['left']}",
        ),
    )
    return dict(zip(CLAIMS, answers, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer images and steps")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    os.environ["JORGE_IM"] = mark = f"jorge-im-{os.getpid()}"  # all that is started inherits it
    report = Report("jorge_im", arguments.quick)
    files = cifar_files()
    files = [files[0], files[-1]] if arguments.quick else files
    steps = {"asynchronous": 60, "synchronous": 20}
    if not arguments.quick:
        steps = {name: 5 * count for name, count in steps.items()}
    with surroundings(CPU_SCALE, NETWORK_SCALE) as around:
        found = undisturbed(around, steps, around.upload(files, "cifar-10"))
        found["left"] = {"machines": list(around.machines()), "infrastructures": around.infrastructures()}
    found["left"]["processes"] = processes_of(mark, ENDING_S)
    report.table(
        "Seconds of each phase, one after the other",
        ["phase", "here", "paper"],
        [
            [name, f"{seconds:.1f}", {"deployment through IM": "900-1200"}.get(name, "")]
            for name, seconds in found["phases_s"].items()
        ],
    )
    report.table(
        "Table 1: global steps and examples per second, all workers",
        ["training", "steps/s", "examples/s", "paper steps/s", "paper examples/s"],
        [
            [name, rate["steps_per_s"], rate["examples_per_s"], *PAPER_RATES[name]]
            for name, rate in found["rates"].items()
        ],
    )
    report.end(CLAIMS, seen(found, steps), found=found)


if __name__ == "__main__":
    main()
