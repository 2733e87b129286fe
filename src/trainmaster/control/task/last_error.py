"""`last_error`: what a log says of the failure that it ends with, whoever wrote lines after that. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import Final

_MOST_CHARACTERS: Final = 200
_MOST_ABOVE_ADVICE: Final = 30
#: What launchers put before the lines of a process: ``[rank0]:``, ``[1,0]<stderr>:``, ``0:``, ``(f pid=7)``;
#: and the bars of an exception group.
_PREFIX: Final = re.compile(r"\[[\w,]+\](?:<std\w+>)?: ?|\d+: |\(\w+ pid=\d+[^)]*\) ?|[\s+]*\| ?")
#: Colours, and whatever else a terminal would do: what is told goes to terminals of others.
_CONTROL: Final = re.compile(r"\x1b\[[0-9;:?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_TRACEBACK: Final = "Traceback (most recent call last):"
#: The line of a Python traceback that says what went wrong; without a traceback only what is named like one.
_RAISED: Final = re.compile(r"[A-Za-z_][\w.<>]*(?:\(\w+\))?(?::.*)?")
_EXCEPTION: Final = re.compile(r"(?:\w+\.)*\w*(?:Error|Exception|Exit|Interrupt|Failure)\b(?::.*)?")
#: Tracebacks after these lines are none of what has ended the process.
_IGNORED: Final = ("Exception ignored in", "Exception ignored on")
#: These only tell that something else has failed, which has said why.
_WRAPPERS: Final = re.compile(
    r"(?:[\w.]+\.)?(?:CalledProcessError|ChildFailedError|SystemExit|KeyboardInterrupt|ProcessExitedException)\b"
)
#: What other languages say at their end; the groups are what is told.
_CRASHES: Final = (
    re.compile(r"^terminate called after throwing an instance of '(.+)'(?:\n\s*what\(\):\s*(.*))?", re.M),
    re.compile(r"^thread '.*' (?:\(\d+\) )?(panicked at .*)(?:\n(?!note:)(\S.*))?", re.M),
    re.compile(r"^((?:panic|fatal error|Fatal Python error): .+)", re.M),
    re.compile(r"^Exception in thread \"[^\"]*\" (.+)", re.M),
    re.compile(r"^(.*: Assertion `.*' failed\.)", re.M),
    # `error: 0.25` is a metric.
    re.compile(
        r"^((?:[\w./:-]+: )*(?:\[error\]|error:|fatal(?: error)?:) (?![-+.\d]).+|Error in .+)", re.M | re.I
    ),
)
#: Launchers say so after what their processes have said.
_TOLD_AFTER: Final = re.compile(
    r"(?:srun|slurmstepd|make(?:\[\d+\])?|wandb|ninja): |-{20,}$|Primary job|(?:mpirun|prterun)\b"
    r"|the job to be terminated|  Process name:|.*(?:\bexit(?:ed)? (?:code|status)\b|\(exitcode)",
    re.I,
)
#: Above advice: where the complaint begins, if not after the last empty line.
_COMPLAINT: Final = re.compile(
    r".*\b(?:could ?n[o']t|can(?:no|')t|no such|not found|missing|invalid)\b", re.I
)
#: Advice below an error.
_HINT: Final = re.compile(
    r"Set the environment variable HYDRA_FULL_ERROR|note: run with `RUST_BACKTRACE|\(?see https?://"
    r"|For (?:more|further) (?:information|details)|Try '.*--help' for help|Aborted(?: \(core dumped\)|!)?$",
    re.I,
)


def last_error(tail: str) -> str:
    r"""What a log that ends with a failure says of it, in a line.

    It is the last exception of Python that no wrapper has raised, else what another language says of a
    crash, else the last line that is called an error, else the last line above advice.

    >>> last_error("Traceback (most recent call last):\n  ...\nKeyError: 'lr'\n(see https://example.org)\n")
    "KeyError: 'lr'"
    >>> last_error("Could not override 'a/b'.\nNo match.\n\nSet the environment variable HYDRA_FULL_ERROR=1")
    "Could not override 'a/b'. No match."
    """
    lines = [_without_prefix(line.rstrip("\r").rpartition("\r")[2].rstrip()) for line in tail.split("\n")]
    raised = [*_raised(lines)]
    told = [each for each in raised if not _WRAPPERS.match(each)] or _crash(lines) or raised or _last(lines)
    return told[-1].strip()[:_MOST_CHARACTERS] if told else ""


def _without_prefix(line: str) -> str:
    line = _CONTROL.sub("", line)
    found = _PREFIX.match(line)
    return line[found.end() :] if found else line


def _raised(lines: Sequence[str]) -> Iterator[str]:
    """The exceptions of Python, in order; each with the line below or above it where that says more."""
    in_traceback = is_ignored = False
    for number, line in enumerate(lines):
        if line.startswith(_IGNORED):
            is_ignored = True
        elif line.startswith(_TRACEBACK):
            in_traceback = True
        elif not line.startswith((" ", "\t")) and (_RAISED if in_traceback else _EXCEPTION).fullmatch(line):
            if not is_ignored:
                yield _whole(lines, number)
            in_traceback = is_ignored = False


def _whole(lines: Sequence[str], number: int) -> str:
    line = lines[number]
    if line.endswith(":") and number + 1 < len(lines):  # a message of several lines
        return f"{line} {lines[number + 1].strip()}"
    above = lines[number - 1].strip() if number else ""
    if line == "AssertionError" and lines[number - 1].startswith(" "):
        if not above.strip("^~ ") and number > 1:  # it marks a part of the line above
            above = lines[number - 2].strip()
        return f"{line}: {above}" if above.startswith("assert") else line
    return line


def _crash(lines: Sequence[str]) -> list[str]:
    text = "\n".join(line for line in lines if not _TOLD_AFTER.match(line))
    for pattern in _CRASHES:
        if found := [*pattern.finditer(text)]:
            return [": ".join(group.rstrip(":") for group in found[-1].groups() if group)]
    return []


def _last(lines: Sequence[str]) -> list[str]:
    """The last line; above advice the lines from where the complaint begins."""
    said = [line for line in lines if not _TOLD_AFTER.match(line)]
    while said and not said[-1].strip():
        said.pop()
    has_hint = False
    while said and (not said[-1].strip() or _HINT.match(said[-1])):
        has_hint = has_hint or bool(said[-1].strip())
        said.pop()
    if not has_hint:
        return said[-1:] or [line for line in lines if line.strip()]
    near = said[-_MOST_ABOVE_ADVICE:]
    begins = [number for number, line in enumerate(near) if _COMPLAINT.match(line)]
    begins = begins or [number + 1 for number, line in enumerate(near) if not line.strip()] or [0]
    paragraph = takewhile(str.strip, near[begins[-1] :])
    return [text] if (text := " ".join(line.strip() for line in paragraph)) else []
