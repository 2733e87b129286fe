"""Ray's nodes on this machine: how `RayCluster` reaches them in tests and benchmarks."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
from collections.abc import Mapping, Sequence

from trainmaster.executors.gangs.engine import ClusterNode
from trainmaster.spec.errors import ExecutorError

_RUN_TIMEOUT_S = 150.0


def run_here(_node: ClusterNode, command: Sequence[str], stdin: bytes) -> bytes:
    """The runner for nodes that are on this machine."""
    try:
        done = subprocess.run(
            command,
            input=stdin,
            capture_output=True,
            timeout=_RUN_TIMEOUT_S,
            check=False,
            env=_plain(os.environ),
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ExecutorError(f"cannot run {command[0]}: {error}", "Is Trainmaster installed there?") from error
    if done.returncode:
        words = done.stderr.decode(errors="replace").strip().splitlines()
        raise ExecutorError(
            f"{command[0]} ended with {done.returncode}: {words[-1] if words else 'it said nothing'}",
            "Install it with: pip install 'trainmaster[ray]'",
        )
    return done.stdout


def open_here(_node: ClusterNode, command: Sequence[str]) -> socket.socket:
    """The opener for a head that is on this machine."""
    return stream_to(command, _plain(os.environ))


def stream_to(command: Sequence[str], env: Mapping[str, str] | None = None) -> socket.socket:
    """Start a command (``ssh HOST ...`` as well); the other end of its standard input and output.

    Raises:
        ExecutorError: it cannot be started.
    """
    ours, theirs = socket.socketpair()
    with theirs:
        try:
            process = subprocess.Popen(
                list(command), stdin=theirs.fileno(), stdout=theirs.fileno(), env=env, start_new_session=True
            )
        except OSError as error:
            ours.close()
            raise ExecutorError(f"cannot run {command[0]}: {error.strerror}", "Is it installed?") from error
    # It ends with its stream; its exit has to be waited for, and is not reported.
    threading.Thread(target=process.wait, name="relay", daemon=True).start()
    return ours


def _plain(around: Mapping[str, str]) -> dict[str, str]:
    """Without what may point Ray to another cluster."""
    return {name: value for name, value in around.items() if not name.startswith("RAY_")}


#: How a `RayCluster` whose nodes are all here runs commands there and opens streams.
HERE = (run_here, open_here)
