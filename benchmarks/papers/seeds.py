"""`make seeds`: what the users of the four papers did, and each claim as yes or no with its number.

One step after the other, each a script of this directory with a limit of its own: first what each user
did, then what each paper measured. A step that fails answers its claims with "no" and the reason, and the
next begins; nothing that it has started stays. What is known is in ``benchmarks/out/seeds.json`` after each
step (the tables in ``seeds.md``); Ctrl-C and SIGTERM end it and print the rest.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from claims import HEAD, Claim, answered, plain, rows
from laboratory import TRAINMASTER
from tables import OUT, machine, text_table

from trainmaster.control.marked_processes import end_marked

FOLDER = Path(__file__).resolve().parent
#: For a step that was told to end: a lab is taken down meanwhile.
END_S = 90
#: In the environment of a step and of all that it starts.
MARK = "SEEDS_STEP"
#: Lines that say nothing about why a step failed.
_NOISE = re.compile(r"^\s*$|^Traceback|^\s+(File|raise|\^|~)|[IWE]0000 ")


@dataclass(frozen=True)
class Step:
    """A script.

    Attributes:
        paper: whose claims it looks at.
        script: its name, and that of the module with its ``CLAIMS``.
        limit_s, quick_limit_s: after which it is ended.
    """

    paper: str
    script: str
    limit_s: float
    quick_limit_s: float = 420.0


STEPS = (
    Step("fc2", "phone", 400),
    Step("anwar", "recommender", 200),
    Step("hyper", "hyper", 800),
    Step("hyper", "hyper_files", 500),
    Step("jorge", "jorge_im", 1200, 600),
    Step("anwar", "anwar", 560),
    Step("fc2", "fc2", 900, 600),
    Step("jorge", "jorge", 420),
    Step("anwar", "accuracy", 420),
    Step("pages", "pages", 600),
)
PAPERS = tuple(dict.fromkeys(step.paper for step in STEPS))
TITLES = {
    "fc2": "FC2 (Ta 2019): the web page, Scala-Opt, the parameter server's network card",
    "anwar": "Anwar et al. (2021): batch, latency, and how many machines",
    "hyper": "Hyper (Buniatyan 2019): recipes, spot machines, a file system over an object store",
    "jorge": "Jorge et al. (2019): a cluster by Infrastructure Manager, TensorFlow with HDFS",
    "pages": 'The pages "You come from ...": their commands, as they are written',
}


class Ended(Exception):  # noqa: N818 - a request, not an error
    """Somebody has asked to end it."""


def run(step: Step, quick: bool) -> tuple[list[Claim], float]:
    """One step, to its end; its claims, and the seconds that it took."""
    claims = import_module(step.script).CLAIMS
    result = OUT / f"papers_{step.script}.json"
    result.unlink(missing_ok=True)
    limit_s = step.quick_limit_s if quick else step.limit_s
    began, before = time.monotonic(), machine()
    log = OUT / f"seeds_{step.script}.log"
    place = Path(tempfile.mkdtemp(prefix="seeds-"))
    with log.open("w") as out:
        process = subprocess.Popen(
            [sys.executable, FOLDER / f"{step.script}.py", *(["--quick"] if quick else [])],
            env={**os.environ, "TMPDIR": str(place), MARK: place.name},
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        process.wait(limit_s)
        failure = ""
    except subprocess.TimeoutExpired:
        failure = f"was ended after {limit_s:.0f} s"
    finally:
        end(process, place)
    if process.returncode == 0 and result.exists():
        found = [Claim(**each) for each in json.loads(result.read_text())["claims"]]
    else:
        failure = failure or f"failed with {process.returncode}"
        found = answered(claims, {}, f"{step.script}.py {failure}, its last words: {last_words(log)}", before)
    return found, time.monotonic() - began


def end(process: subprocess.Popen[bytes], place: Path) -> None:
    """It cleans up after SIGTERM; whatever is left then is ended and removed.

    Args:
        process: the script.
        place: its temporary directory, whose name it and all that it has started have in their environment.
    """
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(END_S)
    end_marked(MARK, place.name)
    process.wait()
    for lab in place.glob("*/home/lab"):  # hosts, networks and mounts are found by what they are called
        env = {**os.environ, "TRAINMASTER_HOME": str(lab.parent)}
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run([TRAINMASTER, "lab", "down"], env=env, capture_output=True, timeout=END_S)
    for line in reversed(Path("/proc/self/mounts").read_text().splitlines()):
        if (point := line.split()[1]).startswith(f"{place}/"):
            subprocess.run(["umount", "-l", point])
    shutil.rmtree(place, ignore_errors=True)


def last_words(log: Path) -> str:
    """The last line of a log that says something."""
    lines = [line for line in log.read_text(errors="replace").splitlines() if not _NOISE.search(line)]
    return lines[-1].strip()[-200:] if lines else "it has said nothing"


def keep(found: dict[str, dict[str, Any]], quick: bool, first: dict[str, Any]) -> None:
    """As JSON and as tables, also while other steps are still to come."""
    OUT.mkdir(exist_ok=True)
    full = {"benchmark": "seeds", "quick": quick, "machine": first, "load_after": machine()["load"]}
    draft = OUT / "seeds.json.new"
    draft.write_text(json.dumps({**full, "steps": found}, indent=1) + "\n")
    draft.rename(OUT / "seeds.json")
    seconds = sum(step["seconds"] for step in found.values())
    stamp = (
        f"{time.strftime('%Y-%m-%d')}, {first['cores']} cores, load {first['load']:.0f} to "
        f"{full['load_after']:.0f}, {seconds} s{' with `--quick`' if quick else ''}"
    )
    (OUT / "seeds.md").write_text(f"{stamp}\n\n{told(found)}\n")


def told(found: dict[str, dict[str, Any]]) -> str:
    """The tables, by paper, and how long each step took."""
    texts = []
    for paper, title in TITLES.items():
        claims = [
            Claim(**each) for step in found.values() if step["paper"] == paper for each in step["claims"]
        ]
        if claims:
            texts.append(f"### {title}\n\n{text_table(HEAD, rows(claims))}\n")
    kept = {script: sum(each["holds"] for each in step["claims"]) for script, step in found.items()}
    total = sum(len(step["claims"]) for step in found.values())
    texts.append(f"{sum(kept.values())} of {total} claims came out.\n")
    steps = [
        [f"`{script}.py`", step["seconds"], f"{kept[script]} of {len(step['claims'])}"]
        for script, step in found.items()
    ]
    texts.append(text_table(("step", "s", "yes"), steps))
    return "\n".join(texts)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer points: each paper in a few minutes")
    parser.add_argument("--only", action="append", choices=PAPERS, help="this paper (may be repeated)")
    options = parser.parse_args(arguments)
    steps = [step for step in STEPS if not options.only or step.paper in options.only]
    OUT.mkdir(exist_ok=True)
    signal.signal(signal.SIGTERM, _ended)
    signal.signal(signal.SIGINT, _ended)
    first, found = machine(), {}
    is_ended = False
    for step in steps:
        seconds, why = 0.0, "`make seeds` was ended before"
        if not is_ended:
            print(f"{step.paper}: {step.script}.py ...", file=sys.stderr, flush=True)
            try:
                claims, seconds = run(step, options.quick)
            except Ended:
                is_ended, why = True, "`make seeds` was ended meanwhile"
        if not seconds:
            claims = answered(import_module(step.script).CLAIMS, {}, why, first)
        found[step.script] = {"paper": step.paper, "seconds": round(seconds), "claims": plain(claims)}
        keep(found, options.quick, first)
        kept = sum(claim.holds for claim in claims)
        print(f"  {kept} of {len(claims)} in {seconds:.0f} s", file=sys.stderr, flush=True)
    print(told(found))
    return 1 if is_ended else 0


def _ended(signum: int, frame: Any) -> None:
    """Only the first time: what then runs is cleaning up."""
    signal.signal(signum, signal.SIG_IGN)
    raise Ended


if __name__ == "__main__":
    sys.exit(main())
