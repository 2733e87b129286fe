"""The kinds of jobs that `quotes_kept.py` runs: their scripts, recipes, and what of these is drawn."""

from __future__ import annotations

import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

STEPS = """
import json, os, sys, time
steps, pause_s = int(sys.argv[1]), float(sys.argv[2])
place = os.environ.get("TRAINMASTER_CHECKPOINT_DIR", ".")
at = 0
if os.path.exists(place + "/at"):
    at = int(open(place + "/at").read())
first = os.environ.get("TRAINMASTER_RANK", "0") == "0"
lr = float(sys.argv[3]) if len(sys.argv) > 3 else 0.1
while at < steps:
    sum(i * i for i in range(50_000))
    time.sleep(pause_s)
    at += 1
    if first:
        with open(os.environ["TRAINMASTER_METRICS"], "a") as file:
            loss = (lr - 0.1) ** 2 + 1 / at
            file.write(json.dumps({"step": at, "loss": loss, "at": time.time()}) + "\\n")
        if at % 10 == 0:
            with open(place + "/draft", "w") as file:
                file.write(str(at))
            os.replace(place + "/draft", place + "/at")
if first:
    with open(os.environ["TRAINMASTER_OUTPUT_DIR"] + "/model", "wb") as file:
        file.write(b"0" * 1_000_000)
"""
DDP = """
import json, os, sys, time
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
torch.set_num_threads(1)
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Sequential(
    torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x, y = torch.randn(64, 256), torch.randint(0, 10, (64,))
for step in range(1, int(sys.argv[1]) + 1):
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    if dist.get_rank() == 0:
        with open(os.environ["TRAINMASTER_METRICS"], "a") as file:
            file.write(json.dumps({"step": step, "at": time.time()}) + "\\n")
dist.barrier()
os._exit(0)
"""
MPI = """
import json, os, sys, time
from mpi4py import MPI
import numpy as np
world, part = MPI.COMM_WORLD, np.ones(20000)
for step in range(1, int(sys.argv[1]) + 1):
    time.sleep(0.02)
    part = world.allreduce(part) / world.size
    if world.rank == 0:
        with open(os.environ["TRAINMASTER_METRICS"], "a") as file:
            file.write(json.dumps({"step": step, "at": time.time()}) + "\\n")
"""
WHOLE = """
import os, sys, time
end = time.monotonic() + float(sys.argv[1])
while time.monotonic() < end:
    time.sleep(0.1)
open(os.environ["TRAINMASTER_OUTPUT_DIR"] + "/out", "w").write("done")
"""
READ = """
import json, os, pathlib, sys, time
files = sorted(pathlib.Path(os.environ["TRAINMASTER_DATA_SET"]).rglob("*"))
for step in range(1, int(sys.argv[1]) + 1):
    sum(len(f.read_bytes()) for f in files[step % len(files)::16] if f.is_file())
    time.sleep(0.02)
    with open(os.environ["TRAINMASTER_METRICS"], "a") as file:
        file.write(json.dumps({"step": step, "at": time.time()}) + "\\n")
"""
#: Strong scaling: the members share out the examples of a batch, each of so many ms of a processor, and wait
#: for each other's gradient. By all-reduce member 0 is the centre; with parameter servers each holds a part.
SHARED = """
import json, os, socket, sys, time
steps, example_s, kib = int(sys.argv[1]), float(sys.argv[2]) / 1000, int(sys.argv[3])
work_s = example_s * int(os.environ["TRAINMASTER_BATCH_PER_WORKER"])
if "TF_CONFIG" in os.environ:
    config = json.loads(os.environ["TF_CONFIG"])
    cluster, task = config["cluster"], config["task"]
    workers = cluster.get("chief", []) + cluster.get("worker", [])
    centres = cluster.get("ps") or workers[:1]
    trains = len(workers) - (centres == workers[:1])
    first = task["type"] == "chief" or (task["type"] == "worker" and centres[0] == workers[task["index"]])
    serves = task["type"] == "ps" or (first and centres == workers[:1])
    here = centres[task["index"]] if serves else ""
elif int(os.environ.get("WORLD_SIZE", "1")) > 1:
    centres = [os.environ["MASTER_ADDR"] + ":" + os.environ["MASTER_PORT"]]
    trains = int(os.environ["WORLD_SIZE"]) - 1
    first = os.environ["RANK"] == "0"
    serves, here = first, centres[0]
else:
    centres, serves, first = [], False, True
part = bytes((kib << 10) // max(len(centres), 1))
def join(place):
    host, _, port = place.rpartition(":")
    for _ in range(900):
        try:
            return socket.create_connection((host, int(port)), 120)
        except OSError:
            time.sleep(0.1)
    sys.exit(place + " does not answer")
def take(link):
    left = len(part)
    while left:
        got = link.recv(min(left, 1 << 16))
        if not got:
            os._exit(0 if serves and not first else 1)
        left -= len(got)
links = []
if serves:
    server = socket.create_server(("", int(here.rpartition(":")[2])))
    links = [server.accept()[0] for _ in range(trains)]
else:
    links = [join(place) for place in centres]
at = 0
while at < steps or (serves and not first):
    end = time.thread_time() + (0.0 if serves and not first else work_s)
    while time.thread_time() < end:
        pass
    for link in links:
        take(link) if serves else link.sendall(part)
    for link in links:
        link.sendall(part) if serves else take(link)
    at += 1
    if first:
        with open(os.environ["TRAINMASTER_METRICS"], "a") as file:
            file.write(json.dumps({"step": at, "at": time.time()}) + "\\n")
"""
#: Each worker goes its own way; the parameter server counts the steps of all.
ASYNC = """
import json, os, socket, sys, threading, time
steps, example_s, part = int(sys.argv[1]), float(sys.argv[2]) / 1000, bytes(int(sys.argv[3]) << 10)
work_s = example_s * int(os.environ["TRAINMASTER_BATCH_PER_WORKER"])
config = json.loads(os.environ["TF_CONFIG"])
cluster, task = config["cluster"], config["task"]
host, _, port = cluster["ps"][0].rpartition(":")
def take(link, many):
    found = bytearray()
    while len(found) < many:
        got = link.recv(min(many - len(found), 1 << 16))
        if not got:
            return b""
        found += got
    return found
at, lock = 0, threading.Lock()
def serve(link):
    global at
    while take(link, len(part)):
        with lock:
            at += 1
            mine = at
        link.sendall(mine.to_bytes(8, "big") + part)
if task["type"] == "ps":
    server = socket.create_server(("", int(port)))
    trains = len(cluster.get("chief", [])) + len(cluster.get("worker", []))
    threads = [threading.Thread(target=serve, args=(server.accept()[0],)) for _ in range(trains)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    sys.exit(0)
for _ in range(900):
    try:
        link = socket.create_connection((host, int(port)), 120)
        break
    except OSError:
        time.sleep(0.1)
while at < steps:
    end = time.thread_time() + work_s
    while time.thread_time() < end:
        pass
    link.sendall(part)
    at = int.from_bytes(take(link, 8 + len(part))[:8], "big")
    if task["type"] == "chief":
        with open(os.environ["TRAINMASTER_METRICS"], "a") as file:
            file.write(json.dumps({"step": at, "at": time.time()}) + "\\n")
"""
#: A loss with noise: when it comes to a target is not known by its step alone.
CURVE = """
import json, os, random, sys, time
steps, pause_s = int(sys.argv[1]), float(sys.argv[2])
chance = random.Random()
scale = chance.lognormvariate(0, 0.2)
for step in range(1, steps + 1):
    sum(i * i for i in range(50_000))
    time.sleep(pause_s)
    if step % 5 == 0:
        loss = 0.05 + (1 + step / (20 * scale)) ** -0.8 * chance.lognormvariate(0, 0.02)
        with open(os.environ["TRAINMASTER_METRICS"], "a") as file:
            file.write(json.dumps({"step": step, "loss": loss, "at": time.time()}) + "\\n")
"""
#: Each file of a volume is read once, so that the network of its machine decides; members share them out.
STREAM = """
import json, os, pathlib, sys, time
files = sorted(f for f in pathlib.Path(os.environ["TRAINMASTER_DATA_SET"]).rglob("*") if f.is_file())
rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
for step in range(1, int(sys.argv[1]) + 1):
    with open(files[((step - 1) * world + rank) % len(files)], "rb") as file:
        while file.read(1 << 20):
            pass
    if rank == 0:
        with open(os.environ["TRAINMASTER_METRICS"], "a") as file:
            file.write(json.dumps({"step": step, "at": time.time()}) + "\\n")
"""
#: Words of a text of its own are counted again and again; each step is a job of Spark's.
COUNT = """
import json, os, random, sys, time
from pyspark.sql import SparkSession
context = SparkSession.builder.config("spark.ui.enabled", "false").getOrCreate().sparkContext
chance = random.Random(0)
lines = [" ".join(f"w{chance.randrange(3000)}" for _ in range(10)) for _ in range(int(sys.argv[2]))]
text = context.parallelize(lines, 2).cache()
for step in range(1, int(sys.argv[1]) + 1):
    text.flatMap(str.split).map(lambda word: (word, 1)).reduceByKey(lambda a, b: a + b).count()
    with open(os.environ["TRAINMASTER_METRICS"], "a") as file:
        file.write(json.dumps({"step": step, "at": time.time()}) + "\\n")
context.stop()
"""
#: As most scripts are: it knows nothing of Trainmaster, and prints how far it is. The recipe has no length.
PRINTED = """
import sys, time
epochs, each, pause_s, says = int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]), sys.argv[5]
for step in range(1, epochs * each + 1):
    sum(i * i for i in range(50_000))
    time.sleep(pause_s)
    epoch, of = (step - 1) // each + 1, (step - 1) % each + 1
    if says == "steps":
        print(f"step {step}/{epochs * each} loss {1 / step:.4f}", flush=True)
    elif says == "both" and of % 5 == 0:
        print(f"Epoch [{epoch}/{epochs}], Step [{of}/{each}], Loss: {1 / step:.4f}", flush=True)
    elif says == "bar":
        bar = f"Epoch {epoch}/{epochs}: 50%|##| {of}/{each} [00:01<00:01, 9.0it/s, loss=0.4]"
        print(bar, end="\\r", flush=True)
    elif of == each:
        print(f"epoch {epoch} loss {1 / step:.4f}", flush=True)
"""
#: A folder with code of its own: Java goes there, as machines of the lab have none. Beside the code of all
#: jobs its headers would make strangers of two versions of one.
WITH_JAVA = "../with-java"
SCRIPTS = {
    "steps.py": STEPS, "ddp.py": DDP, "mpi.py": MPI, "whole.py": WHOLE, "read.py": READ, "shared.py": SHARED,
    "async.py": ASYNC, "curve.py": CURVE, "stream.py": STREAM, "count.py": COUNT,
    "printed.py": PRINTED, f"{WITH_JAVA}/count.py": COUNT,
}  # fmt: skip
#: What is pushed as a volume of that name before the first run.
VOLUME = "quotes-kept-set"
#: The same for machines of the lab: 64 files of 4 MiB, in a store that they reach by their network.
LAB_VOLUME = "quotes-kept-large"


@dataclass(frozen=True)
class Kind:
    """Of jobs.

    Attributes:
        recipe: of one experiment, indented; names in braces are drawn.
        draws: what each may be.
        provider: ``local`` or ``lab``.
        fault: ``lost``, ``interrupted``, ``slow`` (the network), ``throttled`` (a machine); empty for none.
        fault_after_s: so long after its first step.
        folder: with its code, from the one of all recipes.
        options: more words of ``trainmaster run``.
    """

    recipe: str
    draws: dict[str, Sequence[Any]] = field(default_factory=dict)
    provider: str = "local"
    fault: str = ""
    fault_after_s: float = 4.0
    folder: str = "."
    options: tuple[str, ...] = ()


def gang(command: str, *more: str) -> str:
    lines = ["distributed: {{strategy: allreduce, workers: {workers}}}", f"command: {command}", *more]
    return "\n".join(f"    {line}" for line in lines)


def servers(command: str, *more: str) -> str:
    role = "parameter_servers: 1, chief: worker, hardware: {{ps: {{instance: t2.small}}}}"
    return gang(command, *more).replace("strategy: allreduce", f"strategy: ps-sync, {role}")


def single(command: str, *more: str) -> str:
    return "\n".join(f"    {line}" for line in (f"command: {command}", *more))


STEPPED = "python3 steps.py {{{{steps}}}} {pause}"
LENGTH = "steps: {steps}"
BATCH, EACH = "batch: {{global: 12}}", "batch: {{per_worker: 4}}"
TENSORFLOW = "framework: tensorflow"
TYPE = "hardware: {{instance: {instance}}}"
MOUNTED = f"data: {{{{set: {{{{volume: {LAB_VOLUME}}}}}}}}}"
COUNTED_WORDS = "python count.py {{{{steps}}}} {lines}"
#: Half of the processor time of a JVM that ends soon is that of its second compiler.
QUICK_JAVA = 'JDK_JAVA_OPTIONS: "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"'
PRINTS = ["steps", "both", "bar", "epochs"]
TYPES = ["t2.small", "m4.large", "m4.xlarge"]
KINDS = {
    "here-single": Kind(single(STEPPED, LENGTH), {"steps": [200, 400, 800], "pause": [0.03, 0.06]}),
    "here-short": Kind(single(STEPPED, LENGTH), {"steps": [100], "pause": [0.15, 0.2]}),
    "here-whole": Kind(single("python3 whole.py {seconds}"), {"seconds": [22, 40]}),
    "here-setup": Kind(
        single(STEPPED, LENGTH, "setup: sleep {sleep}; true {n}"),
        {"steps": [200], "pause": [0.1], "sleep": [8]},
    ),
    "here-ddp": Kind(
        gang("python3 ddp.py {{{{steps}}}}", LENGTH, "framework: torch"),
        {"steps": [1500, 3000], "workers": [2]},
    ),
    "here-sweep": Kind(
        single(
            "python3 steps.py {{{{steps}}}} {pause} {{{{lr}}}}",
            LENGTH,
            "workers: 2",
            "search:",
            "  metric: loss",
            "  goal: min",
            "  pruner: asha",
            "parameters: {{lr: {{range: 0.01-0.5}}}}",
            "samples: 8",
        ),
        {"steps": [80], "pause": [0.08], "seed": [0, 1, 2, 3, 4, 5, 6, 7]},
    ),
    "lab-single": Kind(
        single(STEPPED, LENGTH, TYPE),
        {"steps": [200, 500], "pause": [0.05, 0.1], "instance": TYPES},
        "lab",
    ),
    "lab-setup": Kind(
        single(STEPPED, LENGTH, TYPE, "setup: sleep {sleep}"),
        {"steps": [200], "pause": [0.1], "instance": TYPES, "sleep": [6, 12]},
        "lab",
    ),
    "lab-gang": Kind(
        gang(STEPPED, LENGTH, TYPE, "framework: plain", "batch: {{global: 12}}"),
        {"steps": [300], "pause": [0.05, 0.1], "instance": TYPES, "workers": [2, 3, 4, 6]},
        "lab",
    ),
    "lab-ddp": Kind(
        gang("python3 ddp.py {{{{steps}}}}", LENGTH, TYPE, "framework: torch"),
        {"steps": [400, 800], "instance": ["m4.xlarge"], "workers": [2, 3]},
        "lab",
    ),
    "lab-mpi": Kind(
        gang("python3 mpi.py {{{{steps}}}}", LENGTH, TYPE, "framework: mpi"),
        {"steps": [600], "instance": ["m4.large", "m4.xlarge"], "workers": [2, 3]},
        "lab",
    ),
    "lab-volume": Kind(
        single("python3 read.py {{{{steps}}}}", LENGTH, TYPE, "data: {{set: {{dir: set}}}}"),
        {"steps": [600], "instance": ["m4.large"]},
        "lab",
    ),
    "lab-spot": Kind(
        gang(STEPPED, LENGTH, "hardware: {{instance: {instance}, spot: true}}", "framework: plain"),
        {"steps": [300], "pause": [0.1], "instance": ["m4.large"], "workers": [2]},
        "lab",
    ),
    "lab-interrupted": Kind(
        gang(STEPPED, LENGTH, "hardware: {{instance: {instance}, spot: true}}", "framework: plain"),
        {"steps": [300], "pause": [0.1], "instance": ["m4.large"], "workers": [2]},
        "lab",
        "interrupted",
    ),
    "lab-lost": Kind(
        gang(STEPPED, LENGTH, TYPE, "framework: plain", "checkpoint: {{every: 5s}}"),
        {"steps": [300], "pause": [0.1], "instance": ["m4.large"], "workers": [2]},
        "lab",
        "lost",
    ),
    "lab-slow": Kind(
        gang("python3 ddp.py {{{{steps}}}}", LENGTH, TYPE, "framework: torch"),
        {"steps": [400], "instance": ["m4.xlarge"], "workers": [2]},
        "lab",
        "slow",
    ),
    "lab-throttled": Kind(
        gang("python3 shared.py {{{{steps}}}} {ms} {kib}", LENGTH, TYPE, "framework: torch", BATCH),
        {"steps": [300], "ms": [8], "kib": [16], "instance": ["m4.large"], "workers": [2]},
        "lab",
        "throttled",
    ),
    # named several times in a row, all but the first find its machines warm
    "lab-kept": Kind(
        gang(STEPPED, LENGTH, TYPE, "framework: plain", "setup: sleep 6"),
        {"steps": [200], "pause": [0.1], "instance": ["m4.large"], "workers": [2]},
        "lab",
        options=("--keep", "5m"),
    ),
    # for `--brute`: computing, the gradient's bytes, the start or the data weigh most in one of them each
    "lab-compute": Kind(
        single("python3 shared.py {{{{steps}}}} {ms} 0", LENGTH, TYPE, BATCH),
        {"steps": [300], "ms": [3, 8], "instance": TYPES},
        "lab",
    ),
    "lab-shared": Kind(
        gang("python3 shared.py {{{{steps}}}} {ms} {kib}", LENGTH, TYPE, "framework: torch", BATCH),
        {"steps": [300], "ms": [8], "kib": [16], "instance": TYPES[:2], "workers": [1, 2, 3]},
        "lab",
    ),
    "lab-gradient": Kind(
        gang("python3 shared.py {{{{steps}}}} {ms} {kib}", LENGTH, TYPE, "framework: torch", BATCH),
        {"steps": [200], "ms": [8], "kib": [256, 512], "instance": TYPES[:2], "workers": [1, 2, 3]},
        "lab",
    ),
    "lab-servers": Kind(
        servers("python3 shared.py {{{{steps}}}} {ms} {kib}", LENGTH, TYPE, TENSORFLOW, BATCH),
        {"steps": [200], "ms": [8], "kib": [64], "instance": TYPES[:2], "workers": [1, 2, 3]},
        "lab",
    ),
    "lab-servers-async": Kind(
        servers("python3 async.py {{{{steps}}}} {ms} {kib}", LENGTH, TYPE, TENSORFLOW, EACH).replace(
            "ps-sync", "ps-async"
        ),
        {"steps": [400], "ms": [8], "kib": [64], "instance": TYPES[:2], "workers": [2, 3]},
        "lab",
    ),
    "lab-mirrored": Kind(
        gang("python3 shared.py {{{{steps}}}} {ms} {kib}", LENGTH, TYPE, TENSORFLOW, BATCH),
        {"steps": [200], "ms": [8], "kib": [64], "instance": TYPES[:2], "workers": [2, 3]},
        "lab",
    ),
    "here-mount": Kind(
        single("python3 read.py {{{{steps}}}}", LENGTH, f"data: {{{{set: {{{{volume: {VOLUME}}}}}}}}}"),
        {"steps": [600, 1200]},
    ),
    "lab-mount": Kind(
        single("python3 stream.py {{{{steps}}}}", LENGTH, TYPE, MOUNTED),
        {"steps": [40, 64], "instance": ["m4.large"]},
        "lab",
    ),
    "lab-mount-gang": Kind(
        gang("python3 stream.py {{{{steps}}}}", LENGTH, TYPE, "framework: torch", MOUNTED),
        {"steps": [20, 32], "instance": ["m4.large"], "workers": [2]},
        "lab",
    ),
    "here-spark": Kind(
        gang(COUNTED_WORDS, LENGTH, "framework: spark", f"env: {{{{{QUICK_JAVA}}}}}"),
        {"steps": [20, 40], "lines": [20_000], "workers": [2]},
    ),
    "lab-spark": Kind(
        gang(
            COUNTED_WORDS,
            LENGTH,
            TYPE,
            "framework: spark",
            f"env: {{{{JAVA_HOME: /tmp/java, {QUICK_JAVA}}}}}",
            "setup:",
            '  - ln -sfn "$PWD/java" /tmp/java',
            "  - python -c 'import site; print(site.getsitepackages()[0])' > place",
            f"  - echo {sysconfig.get_path('purelib')} > $(cat place)/here.pth",
        ),
        {"steps": [20, 40], "lines": [20_000], "instance": ["m4.xlarge"], "workers": [2]},
        "lab",
        folder=WITH_JAVA,
    ),
    # five to ten minutes that are waited, so that several may run beside each other
    "here-long": Kind(single(STEPPED, LENGTH), {"steps": [300, 420], "pause": [1.0, 1.25]}),
    "lab-long": Kind(
        gang(STEPPED, LENGTH, TYPE, "framework: plain"),
        {"steps": [300, 420], "pause": [1.0, 1.2], "instance": ["m4.large"], "workers": [2]},
        "lab",
    ),
    "lab-long-lost": Kind(
        gang(STEPPED, LENGTH, TYPE, "framework: plain", "checkpoint: {{every: 15s}}"),
        {"steps": [300, 360], "pause": [1.0], "instance": ["m4.large"], "workers": [2]},
        "lab",
        "lost",
        fault_after_s=150.0,
    ),
    "here-printed": Kind(
        single("python3 printed.py --epochs {epochs} {each} {pause} {says}"),
        {"epochs": [6, 10], "each": [40, 60], "pause": [0.03, 0.05], "says": PRINTS},
    ),
    "lab-printed": Kind(
        single("python3 printed.py --epochs {epochs} {each} {pause} {says}", TYPE),
        {"epochs": [6, 10], "each": [50], "pause": [0.06], "says": PRINTS, "instance": TYPES[:2]},
        "lab",
    ),
    "here-target": Kind(
        single(
            "python3 curve.py {{{{steps}}}} {pause}",
            LENGTH,
            "target: {{metric: loss, at_most: {loss}}}",
        ),
        {"steps": [1500], "pause": [0.03], "loss": [0.1, 0.12]},
    ),
    "lab-short": Kind(
        gang("python3 shared.py {{{{steps}}}} {ms} {kib}", LENGTH, TYPE, "framework: torch", BATCH),
        {"steps": [60], "ms": [8], "kib": [16], "instance": TYPES[:2], "workers": [1, 2, 3]},
        "lab",
    ),
    "lab-data": Kind(
        single("python3 read.py {{{{steps}}}}", LENGTH, TYPE, "data: {{set: {{dir: set}}}}"),
        {"steps": [400], "instance": TYPES},
        "lab",
    ),
}


#: One run of each of these, by its number: what is drawn is the same on every machine.
SUBSET = {
    "here-single": 3, "here-short": 0, "here-whole": 1, "here-setup": 0, "here-ddp": 2, "here-sweep": 0,
    "lab-single": 1, "lab-setup": 0, "lab-gang": 4, "lab-spot": 0, "lab-lost": 0, "lab-slow": 0,
}  # fmt: skip
