"""The pages "You come from ...": what is marked on each is done in order, in a fresh home, as a user would.

Before a fenced block stands ``<!-- file: NAME -->`` (the block becomes that file) or ``<!-- run -->``: each
line that begins with ``$`` is executed, and the lines below it are compared with what it prints, loosely:
a line is found if one that was printed has all its words, as numbers, ids and paths differ from run to run.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from claims import Seen, tried
from tables import Report, options

ROOT: Final = Path(__file__).resolve().parents[2]
PAGES: Final = sorted(path for path in (ROOT / "docs/from").glob("*.md") if path.name != "index.md")
CLAIMS: Final = {
    f"the commands of docs/from/{page.name} do what it shows": "its five commands" for page in PAGES
}
COMMAND_S: Final = 180.0
_MARKED: Final = re.compile(r"^<!-- (run|file: (\S+)) -->\n+```[^\n]*\n(.*?)^```", re.DOTALL | re.MULTILINE)
_WORD: Final = re.compile(r"[A-Za-z][A-Za-z_-]{2,}")


@dataclass(frozen=True)
class Step:
    """A file that is written, or a command with what the page shows of its output.

    Attributes:
        text: of the file, or the command.
        file: its name; empty for a command.
        shown: lines below the command.
    """

    text: str
    file: str = ""
    shown: tuple[str, ...] = ()


def steps_of(page: str) -> list[Step]:
    """What is marked on a page, in order."""
    found = []
    for _, file, block in _MARKED.findall(page):
        if file:
            found.append(Step(block, file))
            continue
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command = re.match(r"(?:.*\\\n)*.*\n", part)
            assert command is not None
            lines = tuple(line for line in part[command.end() :].splitlines() if line.strip(" ."))
            found.append(Step(command[0].strip(), shown=lines))
    return found


def missing(shown: tuple[str, ...], printed: str) -> list[str]:
    """Lines of a page of which no printed line has all words."""
    has = [_words(line) for line in printed.splitlines()]
    return [line for line in shown if not any(_words(line) <= words for words in has)]


def _words(line: str) -> set[str]:
    line = re.sub(r"\S*/\S+|\b[\w-]+-[0-9a-f]{4,}\b", " ", line)  # paths, URLs and ids of runs
    return set(_WORD.findall(line))


def perform(page: Path) -> Seen:
    """Do what a page says; it holds if every command ends well and prints what the page shows."""
    place = Path(tempfile.mkdtemp(prefix="page-"))
    (place / "work").mkdir()
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = {**os.environ, "TRAINMASTER_HOME": str(place / "home"), "PATH": path}
    done = 0
    try:
        for step in steps_of(page.read_text()):
            if step.file:
                (place / "work" / step.file).parent.mkdir(parents=True, exist_ok=True)
                (place / "work" / step.file).write_text(step.text)
                continue
            ended = subprocess.run(
                ["bash", "-c", step.text], cwd=place / "work", env=env, stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=COMMAND_S,
            )  # fmt: skip
            print(f"$ {step.text}\n{ended.stdout}", flush=True)
            lacks = missing(step.shown, ended.stdout)
            if ended.returncode or lacks:
                last = ended.stdout.strip().rpartition("\n")[2]
                why = (
                    f"ended with {ended.returncode}: {last}"
                    if ended.returncode
                    else f"did not print {lacks[0]!r}"
                )
                return Seen(False, f"{done} commands", f"`{step.text}` {why}")
            done += 1
    finally:
        if (place / "home/lab").exists():
            subprocess.run(["trainmaster", "lab", "down"], env=env, capture_output=True)
        shutil.rmtree(place, ignore_errors=True)
    return Seen(
        done > 0, f"{done} commands, each with what the page shows", "nothing on it is marked `<!-- run -->`"
    )


def main() -> None:
    report = Report("pages", options(__doc__ or "").quick)
    seen: dict[str, Seen] = {}
    for name, page in zip(CLAIMS, PAGES, strict=True):
        seen |= tried([name], lambda page=page: [perform(page)])
    report.end(CLAIMS, seen)


if __name__ == "__main__":
    main()
