"""A page of the docs is walked as somebody new does: its files, commands and output are the page's own.

A block ``console`` has commands, and lines that they say; ``text`` is what a command that goes on says next.
Any other block is a file, whose name stands first in the paragraph before it. The last command of a block may
go on when the lines that are shown of it have come. A word with digits stands for any, ``...`` for anything.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

FENCE = re.compile(r"^```(\w+)\n(.*?)^```\n", re.DOTALL | re.MULTILINE)
#: Done before: they download, or build for half an hour.
DONE_BEFORE = ("pip ", "apt-get ", "make ", "python3 -m venv ")
PATIENCE_S = 240.0
#: Of a line: a path of the reader's home, how long something took, a word with digits, anything, and space.
SIGNS = (r"\S*/home/me\S*", r"[\d.]+ (?:min|s)(?: \d+ s)?", r"\w*\d\w*", r"\.\.\.", r"\s+")
STANDS_FOR = (r"\S+", r"[\d.]+ (?:min|s)(?: \d+ s)?", r"\w+", ".*", r"\s+")


def shown(line: str) -> re.Pattern[str]:
    """What a line of a page stands for."""
    words = re.split("|".join(f"({each})" for each in SIGNS), line.strip())
    kinds = (None, *STANDS_FOR)
    return re.compile(
        "".join(kinds[at % len(kinds)] or re.escape(word) for at, word in enumerate(words) if word)
    )


@dataclass
class Terminal:
    """A command, and what it says."""

    process: subprocess.Popen[bytes]
    log: Path

    @property
    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def has_said(self, lines: list[str]) -> bool:
        """Whether it has, in their order."""
        at, text = 0, self.text
        for line in lines:
            if (found := shown(line).search(text, at)) is None:
                return False
            at = found.end()
        return True


class Reader:
    """Somebody who does what a page says, with nothing but a home.

    Attributes:
        said: by all commands.
    """

    def __init__(self, folder: Path, programs: str = "", instead: dict[str, str] | None = None) -> None:
        (folder / "work").mkdir()
        self.folder, self.instead = folder, instead or {}
        # What was built for the tests is in the cache of whoever runs them.
        cache = os.environ.get("TRAINMASTER_CACHE") or str(Path.home() / ".cache/trainmaster")
        kept = {name: os.environ[name] for name in ("LANG",) if name in os.environ}
        path = ":".join(filter(None, (programs, str(Path(sys.executable).parent), os.environ["PATH"])))
        self.env = {**kept, "TRAINMASTER_CACHE": cache, "HOME": str(folder), "PATH": path, "COLUMNS": "200"}
        self.terminals = list[Terminal]()

    @property
    def said(self) -> str:
        return "\n".join(each.text for each in self.terminals)

    def walk(self, page: Path) -> None:
        """From its first line to its last."""
        text, at = page.read_text(), 0
        for block in FENCE.finditer(text):
            self.heed(prose := text[at : block.start()])
            at = block.end()
            if block[1] == "console":
                self.type(block[2])
            elif block[1] == "text":
                self.await_lines(block[2].splitlines(), *self.going())
            else:
                self.write(prose, block[2])
        self.heed(text[at:])

    def going(self) -> list[Terminal]:
        return [each for each in self.terminals if each.process.poll() is None]

    def await_ends(self) -> None:
        """Until all commands have ended: the last one may have said its last line just now."""
        for each in self.terminals:
            each.process.wait(PATIENCE_S)

    def heed(self, prose: str) -> None:
        """Press Ctrl-C where it says so."""
        if "Ctrl-C" in prose and (going := self.going()):
            terminal = going[0 if "first terminal" in prose else -1]
            os.killpg(terminal.process.pid, signal.SIGINT)
            terminal.process.wait(PATIENCE_S)

    def write(self, prose: str, content: str) -> None:
        """The file that the last paragraph before a block names first."""
        name = re.findall(r"`([^`]+)`", prose.strip().rpartition("\n\n")[2])[0]
        file = Path(name.replace("~", str(self.folder), 1)) if name[0] == "~" else self.folder / "work" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)

    def type(self, block: str) -> None:
        """Commands, each until it has ended; the last one until it has said what is shown of it."""
        commands = [each.split("\n", 1) for each in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]]
        for number, (command, rest) in enumerate(commands, 1):
            lines = rest.splitlines()
            if command.startswith(DONE_BEFORE):
                continue
            if seen := shown(command).search(self.said) if command.startswith("export ") else None:
                name, value = seen[0].removeprefix("export ").split("=", 1)
                self.env[name] = value
                continue
            terminal = self.start(command)
            if number == len(commands) and lines:
                self.await_lines(lines, terminal)
            else:
                terminal.process.wait(PATIENCE_S)
                assert terminal.has_said(lines), f"{command}\n{terminal.text}"

    def start(self, command: str) -> Terminal:
        """In a shell."""
        log = self.folder / f"terminal-{len(self.terminals)}"
        with log.open("wb") as out:
            process = subprocess.Popen(
                ["bash", "-c", self.instead.get(command, command)],
                stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=self.env, cwd=self.folder / "work",
                start_new_session=True,
            )  # fmt: skip
        self.terminals.append(Terminal(process, log))
        return self.terminals[-1]

    def await_lines(self, lines: list[str], *terminals: Terminal) -> None:
        """Until one of them has said them; at its end it must have."""
        deadline = time.monotonic() + PATIENCE_S
        while not any(each.has_said(lines) for each in terminals):
            told = "\n".join([*lines, "is not in", *(each.text for each in terminals)])
            assert time.monotonic() < deadline, told
            if all(each.process.poll() is not None for each in terminals):
                assert any(each.has_said(lines) for each in terminals), told
            time.sleep(0.2)

    def leave(self) -> None:
        """Whatever of it goes on."""
        for each in reversed(self.going()):
            os.killpg(each.process.pid, signal.SIGINT)
            try:
                each.process.wait(60)
            except subprocess.TimeoutExpired:
                os.killpg(each.process.pid, signal.SIGKILL)
                each.process.wait()
