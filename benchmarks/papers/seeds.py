"""`make seeds`: what the users of the four papers did, and each claim as yes or no with its number.

One step after the other, each a script of this directory with a limit of its own: first what each user
did, then what each paper measured. A step that fails answers its claims with "no" and the reason, and the
next begins; nothing that it has started stays. What is known is in ``benchmarks/out/seeds.json`` after each
step (the tables in ``seeds.md``), each step with its date and commit; Ctrl-C and SIGTERM end it and print the
rest. ``--only`` takes a paper or a step and leaves what is known of the others, ``--resume`` leaves out what
was measured of this code. When all steps are known, the tables come into RESULTS.md.
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

import results
from claims import HEAD, Claim, answered, plain, rows
from laboratory import TRAINMASTER
from tables import OUT, machine, text_table

from trainmaster.spec.processes import end_marked

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
        is_apart: takes long, so that it is measured only if `--only` names it.
    """

    paper: str
    script: str
    limit_s: float
    quick_limit_s: float = 420.0
    is_apart: bool = False


STEPS = (
    Step("fc2", "phone", 400),
    Step("anwar", "recommender", 300),
    Step("hyper", "hyper", 800),
    Step("hyper", "hyper_files", 500),
    Step("jorge", "jorge_im", 1200, 600),
    Step("anwar", "anwar", 560),
    Step("fc2", "fc2", 900, 600),
    Step("jorge", "jorge", 420),
    Step("anwar", "accuracy", 420),
    Step("pages", "pages", 600),
    Step("jorge", "jorge_more", 1500, is_apart=True),
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


def run(step: Step, quick: bool) -> dict[str, Any]:
    """One step, to its end: its claims, how long it took, when it was, and of which code."""
    claims = import_module(step.script).CLAIMS
    result = OUT / f"papers_{step.script}.json"
    result.unlink(missing_ok=True)
    limit_s = step.quick_limit_s if quick else step.limit_s
    began, before, commit = time.monotonic(), machine(), commit_of_code()
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
    return {
        "paper": step.paper,
        "seconds": round(time.monotonic() - began),
        "claims": plain(found),
        "failure": failure,
        "date": time.strftime("%Y-%m-%d"),
        "commit": commit,
        "load": [before["load"], machine()["load"]],
    }


#: What a measurement is of: without what is measured.
_CODE = ("src", "benchmarks", ":!benchmarks/papers/plots", ":!**/RESULTS.md")


def commit_of_code() -> str:
    """The commit; with a + if the code is another one, so that nothing is known of it the next time."""
    commit = _git("rev-parse", "--short", "HEAD").stdout.strip()
    return commit if commit and is_code_of(commit) else f"{commit}+"


def is_code_of(commit: str) -> bool:
    """Whether the code here is that of a commit."""
    return _git("diff", "--quiet", commit, "--", *_CODE).returncode == 0


def _git(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *arguments], cwd=FOLDER.parents[1], capture_output=True, text=True)


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


def known(quick: bool) -> dict[str, dict[str, Any]]:
    """What earlier calls have measured, by script."""
    try:
        before = json.loads((OUT / "seeds.json").read_text())
    except FileNotFoundError:
        return {}
    return dict(before["steps"]) if before["quick"] == quick else {}


def keep(found: dict[str, dict[str, Any]], quick: bool, first: dict[str, Any]) -> None:
    """As JSON and as tables, also while other steps are still to come."""
    OUT.mkdir(exist_ok=True)
    found = {step.script: found[step.script] for step in STEPS if step.script in found}
    full = {"benchmark": "seeds", "quick": quick, "machine": first}
    draft = OUT / "seeds.json.new"
    draft.write_text(json.dumps({**full, "steps": found}, indent=1) + "\n")
    draft.rename(OUT / "seeds.json")
    seconds = sum(step["seconds"] for step in found.values())
    stamp = (
        f"{first['cores']} cores, {seconds} s{' with `--quick`' if quick else ''}; the last table has when"
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
        [
            f"`{script}.py`",
            step["seconds"],
            f"{kept[script]} of {len(step['claims'])}",
            *(step.get(name, "") for name in ("date", "commit")),
            " to ".join(f"{load:.0f}" for load in step.get("load", ())),
        ]
        for script, step in found.items()
    ]
    texts.append(text_table(("step", "s", "yes", "date", "commit", "load"), steps))
    return "\n".join(texts)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer points: each paper in a few minutes")
    parser.add_argument(
        "--only",
        action="append",
        choices=[*PAPERS, *(f"{step.script}.py" for step in STEPS)],
        metavar="PAPER|STEP.py",
        help="the steps of a paper, or one step (may be repeated)",
    )
    parser.add_argument("--resume", action="store_true", help="leave out what was measured of this code")
    options = parser.parse_args(arguments)
    wanted = options.only or PAPERS
    before, first = known(options.quick), machine()
    steps = [
        step
        for step in STEPS
        if (step.paper in wanted and not step.is_apart) or f"{step.script}.py" in wanted
        if not (options.resume and step.script in before and is_measured(before[step.script]))
    ]
    OUT.mkdir(exist_ok=True)
    signal.signal(signal.SIGTERM, _ended)
    signal.signal(signal.SIGINT, _ended)
    if before:
        keep(before, options.quick, first)
    is_ended, found = False, before
    for step in steps:
        print(f"{step.paper}: {step.script}.py ...", file=sys.stderr, flush=True)
        try:
            found[step.script] = one = run(step, options.quick)
        except Ended:
            is_ended = True
            break
        keep(found, options.quick, first)
        kept = sum(claim["holds"] for claim in one["claims"])
        print(f"  {kept} of {len(one['claims'])} in {one['seconds']} s", file=sys.stderr, flush=True)
    print((OUT / "seeds.md").read_text() if found else "nothing was measured")
    if missing := [f"{step.script}.py" for step in STEPS if step.script not in found and not step.is_apart]:
        print(f"not measured yet: {', '.join(missing)}; `--resume` goes on", file=sys.stderr)
    elif not options.quick:
        results.main()
    return 1 if is_ended else 0


def is_measured(step: dict[str, Any]) -> bool:
    """Whether it is known of this code."""
    return not step["failure"] and is_code_of(step["commit"])


def _ended(signum: int, frame: Any) -> None:
    """Only the first time: what then runs is cleaning up."""
    signal.signal(signum, signal.SIG_IGN)
    raise Ended


if __name__ == "__main__":
    sys.exit(main())
