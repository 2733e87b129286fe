"""What takes longer of Jorge et al.'s service than `jorge_im.py`: 4.5 GB into HDFS, and what breaks.

As many bytes as the paper's faces are generated, in files of 3 MB, and staged from S3 into an HDFS on three
p2.xlarge, whose NameNode then says how much it has. Then a training goes on while Infrastructure Manager is
away for a minute, and loses a worker's machine.
"""

from __future__ import annotations

import json
import time
from typing import Any

from claims import Seen, tried
from images import cifar_files
from jorge_im import CPU_SCALE, NETWORK_SCALE, PAPER_STAGED_MB_PER_S, WORKERS, start
from observed import PATIENCE_S, Watch, story_of, tensorboard, until
from surroundings import Surroundings, surroundings
from tables import Report, options

FILE_BYTES = 3_000_000
FILES = 1500
#: Until so much has left the S3 server, that is code, and no data.
FIRST_BYTES = 200_000_000
AWAY_S = 60.0
STEPS = 50_000  # for much longer than it takes to see all: the run is cancelled then
CLAIMS = {
    "4.5 GB are staged from S3 into HDFS, and all of it is there": "13 min, 5.8 MB/s",
    "while Infrastructure Manager is away for a minute, training goes on": "not tried there",
    "a worker's machine is lost: another one comes, training goes on at the checkpoint": "not tried there",
}
FACES = """
name: faces
code: code
env: {{HADOOP_MIRROR: "{mirror}"}}
budget: {{total: $20}}
notify:
  - {{to: cat >> "$EVENTS", events: [run, experiment, task, note]}}
experiments:
  stage:
    framework: pytorch
    distributed: {{strategy: allreduce, workers: {workers}}}
    hardware: {{instance: p2.xlarge}}
    roles: [roles/hadoop]
    data:
      images: {{url: "s3://{bucket}/faces", stage: hdfs, hadoop: /opt/hadoop}}
    command: python3 count_hdfs.py
"""


def staged(around: Surroundings, files: int) -> dict[str, Any]:
    """So many files from S3 into HDFS: seconds, and what its NameNode says it has."""
    began = time.monotonic()
    data_bytes = around.generate("faces", files, FILE_BYTES)
    generated_s = time.monotonic() - began
    text = FACES.format(mirror=around.mirror, bucket=around.bucket, workers=WORKERS)
    (around.lab.work / "recipe.yaml").write_text(text)
    with Watch(around, FIRST_BYTES) as watch:
        call = around.lab.start("run", "recipe.yaml", "--provider=im", "--yes", "--json")
        run = call.end(PATIENCE_S)["run"]
    (told,) = (around.lab.home / "runs" / run / "tasks" / "stage" / "0" / "1").glob("*-0.metrics.jsonl")
    there = json.loads(told.read_text().splitlines()[-1])
    seconds = story_of(around, run).at("RUNNING", "stage") - watch.at["staging"]
    return {
        "bytes": data_bytes,
        "files": files,
        "generated_s": round(generated_s, 1),
        "staged_s": round(seconds, 1),
        "mb_per_s": round(data_bytes / 1e6 / seconds, 1),
        "there": there,
    }


def seen_of_staging(found: dict[str, Any]) -> Seen:
    """Whether all of it is there, and not later than in the paper."""
    there = found["there"]
    is_whole = (there["length"], there["files"]) == (found["bytes"], found["files"])
    return Seen(
        is_whole and found["mb_per_s"] > PAPER_STAGED_MB_PER_S,
        f"{found['bytes'] / 1e9:.1f} GB in {found['files']:,} files in {found['staged_s']:.0f} s, "
        f"{found['mb_per_s']} MB/s; HDFS has {there['length']:,} bytes in {there['files']:,} files",
        "DataNodes and what sends to them share the machine's cores with all else",
    )


def disturbed(around: Surroundings) -> dict[str, Any]:
    """Infrastructure Manager is away for a minute, then a worker's machine is lost; TensorBoard meanwhile."""
    call = start(around, {"asynchronous": STEPS})
    until(lambda: call.run_id, "the run's id", call)
    checkpoints = f"store/checkpoints/{call.run_id}/"
    until(lambda: around.objects(checkpoints), "a checkpoint in S3", call)
    before = story_of(around, call.run_id).step("asynchronous")
    around.manager.stop()
    away_until = time.monotonic() + AWAY_S
    curves = tensorboard(around, call.run_id, 1)
    until(lambda: time.monotonic() > away_until, "a minute", call)
    around.manager.start()
    story = story_of(around, call.run_id)
    while_away = story.step("asynchronous") - before
    # Not that of the first worker: chief and NameNode are there, too.
    last = f"worker-{WORKERS - 1}"
    lost = around.machine_at(around.lab.call("exec", call.run_id, last, "--", "hostname", "-I"))
    at = time.time()

    def begun() -> dict[str, Any] | None:
        reports = story_of(around, call.run_id).reports["asynchronous"]
        return next((each for each in reports if each["at"] > at and "begins" in each), None)

    around.lab.call("lab", "terminate", lost)
    again = until(begun, "a training that begins again", call)
    around.lab.call("cancel", call.run_id)  # it has steps for much longer, however long all that has taken
    until(lambda: call.is_over, "the end of a run that was cancelled")
    story = story_of(around, call.run_id)
    until(lambda: not around.machines(), "an empty list of machines")
    return {
        "run": call.run_id,
        "steps_while_im_was_away": while_away,
        "curves_meanwhile": curves,
        "lost": lost,
        "step_of_checkpoint": again["begins"],
        "until_it_trains_again_s": round(again["at"] - at, 2),
        "steps": story.step("asynchronous"),
    }


def seen_of_faults(found: dict[str, Any]) -> tuple[Seen, ...]:
    """What came of ours."""
    away, again = found["steps_while_im_was_away"], found["step_of_checkpoint"]
    return (
        Seen(away > 0, f"{away} steps meanwhile", "no step was made"),
        Seen(
            again > 0,
            f"at step {again}, {found['until_it_trains_again_s']:.0f} s later",
            "it began anew: there was no checkpoint",
        ),
    )


def main() -> None:
    arguments = options(__doc__ or "")
    report = Report("jorge_more", arguments.quick)
    found: dict[str, Any] = {}
    faults: dict[str, Any] = {}
    names = list(CLAIMS)
    with surroundings(CPU_SCALE, NETWORK_SCALE) as around:

        def faces() -> list[Seen]:
            found.update(staged(around, FILES // 10 if arguments.quick else FILES))
            return [seen_of_staging(found)]

        def broken() -> tuple[Seen, ...]:
            around.upload(cifar_files(), "cifar-10")
            faults.update(disturbed(around))
            return seen_of_faults(faults)

        answers = tried(names[:1], faces) | tried(names[1:], broken)
    if found:
        report.table(
            "Files of 3 MB from S3 into an HDFS on three p2.xlarge, each with a quarter of a core per vCPU",
            ["files", "bytes", "s", "MB/s", "copies"],
            [
                [
                    *(found[name] for name in ("files", "bytes", "staged_s", "mb_per_s")),
                    round(found["there"]["spaceConsumed"] / found["bytes"]),
                ]
            ],
        )
    report.end(CLAIMS, answers, found=found, faults=faults)


if __name__ == "__main__":
    main()
