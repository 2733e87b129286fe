"""Print the files whose functions a task, a checkpoint or a line of metrics runs through, here or on a node.

    python scripts/walk.py [task | checkpoint | metric] [--node] [--json]

A small run is driven in a home of its own, with a profiler in the driver and in the supervisor. With
``--node`` its task runs on a host behind an SSH server of its own, by `engine: ssh`, and the host's processes
have the profiler, too. What counts is what runs inside the functions in `WALKS`, in whatever process; of a
task only until its bash has been started. What is only imported there does not count. Files come in the order
in which they were entered first, with the number of calls.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import getpass
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field

#: How a gang comes from its driver to a supervisor on another machine, and what happens there back to it.
_CONDUCTED = (
    "executors.gangs.conductor:Conductor._do",
    "executors.gangs.nodes:Link._command",
    "executors.gangs.agent:AgentProgram._answer",
)
#: What a walk runs in, as MODULE:FUNCTION, and what it ends with.
WALKS: dict[str, tuple[tuple[str, ...], str]] = {
    "task": (
        (
            "control.loop.attempt_actions:AttemptActions.request",
            "executors.local.executor:LocalExecutor.submit",
            "control.loop.attempt_actions:AttemptActions.launch_environment",
            "executors.local.executor:LocalExecutor.launch",
            "executors.supervisor.clients:Clients.receive",
            "executors.supervisor.gang_manager:GangManager.grant",
            *_CONDUCTED,
            "executors.gangs.conductor:Conductor._place",
        ),
        "executors.supervisor.members:Spawner.spawn",
    ),
    "checkpoint": (("control.attempt.saving:checkpoint", "cluster.node_files.worker:_obey"), ""),
    "metric": (
        (
            "executors.supervisor.outputs:Outputs.serve",
            "control.measure.progress:TaskProgress.update",
            "executors.gangs.nodes:Link._poll",
            "executors.gangs.copies:Mirror.take",
            *_CONDUCTED,
        ),
        "",
    ),
}
_RECIPE = """\
name: walk
engine: ssh
experiments:
  main:
    command: exec python train.py
    checkpoint: {every: 0.2s, keep: 1}
"""
_SCRIPT = """\
import os, pathlib, time
print("step 1 loss 0.5", flush=True)
(pathlib.Path(os.environ["TRAINMASTER_CHECKPOINT_DIR"]) / "step").write_text("1")
time.sleep(1.0)
"""
#: Notes each call and return of ours; a line each: nanoseconds, thread, event, MODULE:FUNCTION. No file is
#: kept open, as a supervisor closes what it has inherited. Supervisors and workers of nodes heed no
#: environment: theirs comes before what they are told to run.
_PROFILER = """
def _walk(folder):
    import os, sys, threading, time
    profiler = open(f"{folder}/../profiler/sitecustomize.py").read()
    def note(frame, event, _):
        if event in ("call", "return"):
            known = frame.f_globals
            module = known["__spec__"].name if known.get("__spec__") else known.get("__name__") or ""
            if module.startswith("trainmaster."):
                name = module[12:] + ":" + frame.f_code.co_qualname
                file = os.open(f"{folder}/{os.getpid()}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
                os.write(file, f"{time.monotonic_ns()} {threading.get_ident()} {event} {name}\\n".encode())
                os.close(file)
                if not known.get("_PROGRAM", profiler).startswith(profiler):
                    known["_PROGRAM"] = profiler + known["_PROGRAM"]
    threading.setprofile(note)
    sys.setprofile(note)
_walk(%r)
"""


@dataclass
class Walk:
    """The calls of one walk: how many by file, in the order of the first; and in how many processes."""

    calls: collections.Counter[str] = field(default_factory=collections.Counter)
    processes: set[str] = field(default_factory=set)

    def __str__(self) -> str:
        lines = [f"{count:7,} {name}" for name, count in self.calls.items()]
        return "\n".join([*lines, f"{len(self.calls)} files, {len(self.processes)} processes"])


def drive(place: pathlib.Path, *, on_node: bool) -> pathlib.Path:
    """Let a run run; the folder with a file of calls for each process."""
    folder, work, profiler, home = (place / name for name in ("calls", "work", "profiler", "home"))
    for each in (folder, work, profiler, home):
        each.mkdir()
    (work / "recipe.yaml").write_text(_RECIPE)
    (work / "train.py").write_text(_SCRIPT)
    (profiler / "sitecustomize.py").write_text(_PROFILER % str(folder))
    with contextlib.ExitStack() as stack:
        options = stack.enter_context(a_host(place, home, str(profiler))) if on_node else []
        subprocess.run(
            [sys.executable, "-m", "trainmaster", "run", "recipe.yaml", *options],
            cwd=work,
            env={**os.environ, "TRAINMASTER_HOME": str(home), "PYTHONPATH": str(profiler)},
            stdout=sys.stderr,
            check=True,
        )
    return folder


@contextlib.contextmanager
def a_host(place: pathlib.Path, home: pathlib.Path, profiler: str) -> Iterator[list[str]]:
    """A host of the home's own, with the profiler in all its Pythons; the options of a run that uses it."""
    from trainmaster.testing.private_sshd import SshHost, make_key

    make_key(place / "key")
    host = SshHost(place / "host", "n0", place / "key", PYTHONPATH=profiler)
    host.start()
    entry = {"address": "127.0.0.1", "port": host.port, "key": str(place / "key"), "slots": 2}
    (home / "hosts.yaml").write_text(
        json.dumps({"hosts": [{**entry, "user": getpass.getuser(), "python": host.python}]})
    )
    try:
        yield ["--provider", "hosts", "--yes"]
    finally:
        host.stop()


def calls(folder: pathlib.Path, entries: tuple[str, ...]) -> Iterator[tuple[int, str, str]]:
    """Nanoseconds, process and MODULE:FUNCTION of each call inside of the entries."""
    for file in folder.iterdir():
        inside: collections.Counter[str] = collections.Counter()
        for line in file.read_text().splitlines():
            at_ns, thread, event, name = line.split()
            inside[thread] += event == "call" and name in entries
            if event == "call" and inside[thread] > 0 and not name.endswith(":<module>"):
                yield int(at_ns), file.name, name
            inside[thread] -= event == "return" and name in entries


def walk(folder: pathlib.Path, what: str) -> Walk:
    """What one walk has run through."""
    entries, last = WALKS[what]
    found = Walk()
    rows = sorted(calls(folder, entries))
    begins_ns = min((at_ns for at_ns, _, name in rows if name == entries[0]), default=0)
    for at_ns, process, name in rows:
        if at_ns >= begins_ns:
            found.calls[f"{name.partition(':')[0].replace('.', '/')}.py"] += 1
            found.processes.add(process)
            if name == last:
                break
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("what", nargs="?", choices=[*WALKS], help="default: each of them")
    parser.add_argument("--node", action="store_true", help="the task runs on a host behind SSH")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="walk-") as directory:
        calls_of = drive(pathlib.Path(directory), on_node=arguments.node)
        walks = {what: walk(calls_of, what) for what in WALKS if arguments.what in (None, what)}
    if arguments.json:
        shown = {what: {"files": one.calls, "processes": len(one.processes)} for what, one in walks.items()}
        print(json.dumps(shown))
    else:
        print("\n\n".join(f"{what}\n{one}" for what, one in walks.items()))
