"""``tests/integration/homes/REVISION.tar.gz``: a home as the released code of a commit leaves it.

``python scripts/make_home.py REVISION COMMIT``, once before a schema's next revision is released; REVISION is
the schema's. The home has a run that ended, a search that ended, one of each whose machine lost its power in
the middle, and one that was cancelled while the object store was away, so that its model is kept in the home.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HOMES = ROOT / "tests/integration/homes"
#: The test puts its own place instead of this one, wherever it is written down.
PLACE = Path("/tmp/trainmaster-released")  # noqa: S108 - nobody else looks at it meanwhile
_PATIENCE_S = 120.0

#: The first task of an interrupted run leaves a checkpoint and waits; a resumed run goes on to the end.
SCRIPT = """\
import json, os, pathlib, sys, time
steps = int(sys.argv[1])
checkpoints, output = (pathlib.Path(os.environ[f"TRAINMASTER_{n}_DIR"]) for n in ("CHECKPOINT", "OUTPUT"))
found = checkpoints / "step"
start = int(found.read_text()) if found.exists() else 0
for step in range(start + 1, steps + 1):
    with open(os.environ["TRAINMASTER_METRICS"], "a") as stream:
        stream.write(json.dumps({"step": step, "loss": 1 / step}) + "\\n")
    print("step", step, "after", start, flush=True)
    found.write_text(str(step))
    time.sleep(0.05)
    while sys.argv[2:] == ["wait"] and not start and step == 3:
        time.sleep(1)
(output / "weights").write_text(f"{steps} steps\\n")
if sys.argv[2:] == ["away"]:
    pathlib.Path("STORE").rename("STORE.away")
    pathlib.Path("STORE").touch()
"""
RECIPE = """\
name: {name}
experiments:
  train:
    command: [python3 train.py {arguments}]
    checkpoint: {{every: 1s}}
"""
#: Of a search that is cut off the fourth task waits; the first three have shown what they are worth.
TRIAL = """\
import json, os, pathlib, sys, time
x = float(sys.argv[1])
with open(os.environ["TRAINMASTER_METRICS"], "a") as stream:
    stream.write(json.dumps({"step": 1, "loss": (x - 0.3) ** 2}) + "\\n")
if sys.argv[2:] == ["wait"] and [os.environ[f"TRAINMASTER_{n}"] for n in ("TASK", "ATTEMPT")] == ["3", "1"]:
    pathlib.Path("WAITS").touch()
    while True:
        time.sleep(1)
(pathlib.Path(os.environ["TRAINMASTER_OUTPUT_DIR"]) / "weights").write_text(f"{x}\\n")
"""
SWEEP = """\
name: {name}
seed: 7
experiments:
  tune:
    command: python3 trial.py {{{{x}}}} {arguments}
    parameters: {{x: {{range: 0-1}}}}
    samples: 6
    hardware: {{cpus: 1}}
    workers: 1
    search: {{metric: loss, goal: min, sampler: tpe}}
"""


def main() -> None:
    """Run what the commit has, and pack what it leaves."""
    revision, commit = sys.argv[1:]
    source = PLACE / "source"
    shutil.rmtree(PLACE, ignore_errors=True)
    (PLACE / "work").mkdir(parents=True)
    archive = subprocess.run(["git", "archive", commit, "src"], cwd=ROOT, check=True, capture_output=True)
    source.mkdir()
    subprocess.run(["tar", "-x", "-C", source], input=archive.stdout, check=True)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TRAINMASTER_")}
    environment |= {
        "PYTHONPATH": str(source / "src"),
        "TRAINMASTER_HOME": str(PLACE / "home"),
        "TRAINMASTER_CACHE": str(PLACE / "cache"),
    }
    command = [sys.executable, "-m", "trainmaster", "run"]
    work = PLACE / "work"
    (work / "train.py").write_text(SCRIPT.replace("STORE", str(PLACE / "other")))
    (work / "ended.yaml").write_text(RECIPE.format(name="ended", arguments="5"))
    (work / "trial.py").write_text(TRIAL.replace("WAITS", str(PLACE / "waits")))
    (work / "searched.yaml").write_text(SWEEP.format(name="searched", arguments=""))
    (work / "searching.yaml").write_text(SWEEP.format(name="searching", arguments="wait"))
    (work / "interrupted.yaml").write_text(RECIPE.format(name="interrupted", arguments="6 wait"))
    for recipe in ("ended.yaml", "searched.yaml"):
        subprocess.run([*command, recipe], cwd=work, env=environment, check=True)
    _keep_a_model(command[:-1], work, environment | {"TRAINMASTER_STORE": f"file://{PLACE / 'other'}"})
    cut_off = ("interrupted.yaml", "searching.yaml")
    drivers = [subprocess.Popen([*command, recipe], cwd=work, env=environment) for recipe in cut_off]
    try:
        _wait_for("home/**/checkpoints/interrupted-*/**/manifest.json")
        _wait_for("waits")
    finally:
        _lose_power(*(driver.pid for driver in drivers))
        for driver in drivers:
            driver.wait()
    HOMES.mkdir(exist_ok=True)
    with tarfile.open(HOMES / f"{revision}.tar.gz", "w:gz") as tar:
        for name in ("home", "work", "other"):
            if (PLACE / name).exists():
                tar.add(PLACE / name, name, filter=_plain)
    shutil.rmtree(PLACE)
    print(f"{HOMES / revision}.tar.gz: {(HOMES / f'{revision}.tar.gz').stat().st_size} bytes")


def _wait_for(pattern: str) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not any(PLACE.glob(pattern)):
        if time.monotonic() > deadline:
            sys.exit(f"no {pattern} after {_PATIENCE_S:.0f} s")
        time.sleep(0.1)


def _keep_a_model(command: list[str], work: Path, environment: dict[str, str]) -> None:
    (work / "kept.yaml").write_text(RECIPE.format(name="kept", arguments="4 away"))
    with subprocess.Popen([*command, "run", "kept.yaml"], cwd=work, env=environment):
        status = [*command, "status", "kept", "--json"]
        deadline = time.monotonic() + _PATIENCE_S
        while (
            '"unsaved"'
            not in subprocess.run(
                status, cwd=work, env=environment, capture_output=True, text=True, check=False
            ).stdout
        ):
            if time.monotonic() > deadline:
                sys.exit(f"all could be saved after {_PATIENCE_S:.0f} s")
            time.sleep(0.5)
        subprocess.run([*command, "cancel", "kept"], cwd=work, env=environment, check=True)
    (PLACE / "other").unlink()
    (PLACE / "other.away").rename(PLACE / "other")


def _lose_power(*drivers: int) -> None:
    """Kill all that knows the home; those first that would write down that members end."""
    home = str(PLACE / "home").encode()
    found = [(0, driver) for driver in drivers]
    for directory in Path("/proc").iterdir():
        try:
            command, variables = ((directory / name).read_bytes() for name in ("cmdline", "environ"))
            if directory.name.isdigit() and home in command + variables:
                found.append((1 if b"supervisor" in command else 2, int(directory.name)))
        except OSError:  # it has ended, or is none of ours
            continue
    for _, pid in sorted(found):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Nobody's; no sockets."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member if member.isfile() or member.isdir() or member.issym() else None


if __name__ == "__main__":
    main()
