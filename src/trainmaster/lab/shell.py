"""`call`: run one of the system's tools, and say what it said when it fails."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

from trainmaster.lab.errors import LabError

#: A tool that takes longer hangs: the machine may be busy with many hosts.
TIMEOUT_S = 60.0


def call(
    command: Sequence[str | Path], *, text: str = "", check: bool = True, timeout_s: float = TIMEOUT_S
) -> str:
    """Run a command to its end.

    Args:
        command: the program and its arguments.
        text: its standard input.
        check: whether its failure is ours.
        timeout_s: after that it hangs.

    Returns:
        Its standard output.

    Raises:
        LabError: it failed, or it is not there.
    """
    words = [str(word) for word in command]
    try:
        done = subprocess.run(
            words, input=text, capture_output=True, text=True, check=False, timeout=timeout_s
        )
    except FileNotFoundError:
        raise LabError(
            f"there is no {words[0]} on this machine", "Run scripts/system.sh, or install it."
        ) from None
    except subprocess.TimeoutExpired:
        raise LabError(f"{shlex.join(words)}: not done after {timeout_s:.0f} s") from None
    if check and done.returncode != 0:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise LabError(f"{shlex.join(words)}: {said[-1] if said else f'exit code {done.returncode}'}")
    return done.stdout


def inside(namespace: Path, *command: str | Path) -> list[str]:
    """The command line that runs a command in a network namespace."""
    return ["nsenter", f"--net={namespace}", *map(str, command)]


def ip_batch(namespace: Path | None, lines: Iterable[str]) -> None:
    """Do several things of ``ip`` in one process, in a namespace or in the machine's own."""
    command = ["ip", "-batch", "-"]
    call(command if namespace is None else inside(namespace, *command), text="\n".join(lines) + "\n")
