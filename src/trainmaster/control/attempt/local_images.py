"""`LocalImages`: images that an engine of this machine has: brought, tried, and used for a ``setup``."""

from __future__ import annotations

import atexit
import os
import pwd
import signal
import subprocess
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from io import BufferedIOBase
from pathlib import Path
from typing import BinaryIO, Final

from trainmaster.control.attempt.setup import AS_ROOT, Setup
from trainmaster.control.task.environment import UNBUFFERED
from trainmaster.executors.base import Container, Sandbox
from trainmaster.executors.containers import command_line
from trainmaster.executors.containers.engines import ContainerEngine, ContainerImage, last_words
from trainmaster.executors.supervisor.container_calls import MAKING_S
from trainmaster.spec.errors import UsageError
from trainmaster.spec.processes import end_begun_by

#: A directory that anybody may write in nearly every image, and that goes with the container.
HOME_INSIDE: Final = "/tmp"  # noqa: S108
_DEFAULT_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_START_S: Final = 120.0

#: ``$1`` is the recipe's script. The image's own packages stay in sight: often they are why it was chosen.
_SETUP: Final = """\
python=$(command -v python3 || command -v python) || { echo "there is no python3 in the image"; exit 1; }
"$python" -m venv --system-site-packages "$VIRTUAL_ENV"
export PATH="$VIRTUAL_ENV/bin:$PATH"
exec bash -euo pipefail -c -- "$1" setup
"""


class LocalImages:
    """Safe to use from several threads.

    Args:
        engine: of this machine.
        owner: tells the containers that it starts from those of others.
    """

    def __init__(self, engine: ContainerEngine, owner: str) -> None:
        self.engine = engine
        self._owner = owner

    def find(self, name: str, *, connect_s: float | None = None) -> ContainerImage:
        """An image that is here, or is brought here now.

        Args:
            name: of the image.
            connect_s: how long a registry may be silent; as long as the engine waits by default.

        Raises:
            UsageError: it cannot be had.
        """
        image = self.engine.image(name)
        if image is None:
            self.engine.pull(name, _children, connect_s)
            image = self.engine.image(name)
        if image is None:
            raise UsageError(f"{self.engine.kind} does not know the image {name}", "Pull it by hand.")
        return image

    def load(self, name: str, archive: BufferedIOBase) -> ContainerImage:
        """Take an image from an archive of ``docker save`` or ``podman save``.

        Raises:
            UsageError: it cannot be taken.
            EOFError: it is not whole.
        """
        self.engine.load(name, archive, _children)
        image = self.engine.image(name)
        if image is None:
            raise UsageError(f"{self.engine.kind} does not know the image {name} after it was sent there")
        return image

    def try_out(self, name: str, cwd: str, *, gpus: bool, sandbox: Sandbox | None = None) -> None:
        """Start an image once, as members will be started: what is wrong is told before they are.

        Args:
            name: of an image that is here.
            cwd: a directory to mount.
            gpus: all of them are shown to it.
            sandbox: of members.

        Raises:
            UsageError: it cannot be started, or has no bash.
            FullStoreError: there is no room to start it.
        """
        container = replace(self.engine.container(name, (cwd,)), sandbox=sandbox)
        probe = command_line.container_name(self._owner, f"{name}/{os.getpid()}", "probe")
        gpu_ids = ("all",) if gpus else ()
        said = os.memfd_create("said")
        try:
            with open(said, "wb", closefd=False) as output:
                arguments = ["-c", "--", ":", "probe"]
                exit_code = _run(self.engine, container, probe, cwd, arguments, {}, output, gpu_ids, _START_S)
            words = last_words(os.pread(said, 65536, 0).decode("utf-8", "replace"))
        finally:
            os.close(said)
        if exit_code == 0:
            return
        if exit_code == 127 or "bash" in words:
            raise UsageError(
                f"the image {name} has no bash", "Add one to it: scripts run under `bash -euo pipefail`."
            )
        raise self.engine.refusal(f"the image {name} cannot be started", words)

    def end_setup(self, path: str) -> None:
        """End the container in which the environment at a path is made, if it has one."""
        self.engine.remove(_of_setup(path))

    def set_up(self, setup: Setup, output: BinaryIO, marker: Mapping[str, str]) -> int:
        """Make a virtual environment with the image's Python and run a recipe's ``setup`` in it.

        Args:
            setup: in an image that is here; its directory exists and is empty.
            output: takes what is said.
            marker: variable that the client's process gets, so that it can be found.

        Returns:
            The exit code.
        """
        container = self.engine.container(setup.image, (setup.code, setup.path))
        name = _of_setup(setup.path)
        self.end_setup(setup.path)  # left over by a control process that was killed
        env = {**setup.variables, "VIRTUAL_ENV": setup.path, **marker}  # Apptainer's client has it not
        arguments = ["-c", "--", _SETUP, "setup", f"{AS_ROOT}{setup.script}"]
        container = replace(container, settings={**container.settings, **marker})
        return _run(self.engine, container, name, setup.code, arguments, env, output)


def _of_setup(path: str) -> str:
    # The path is the same on all machines of a cluster, and what goes by the name may lie where all see it.
    return command_line.container_name(f"{os.uname().nodename}:{path}", "setup", Path(path).name)


def base_inside(image: ContainerImage | None, user: str) -> dict[str, str]:
    """What a member finds in an image, with what every member gets on top."""
    own = image.env if image is not None else {}
    return {"PATH": _DEFAULT_PATH, **UNBUFFERED, **own, **added_inside(image, user)}


def added_inside(image: ContainerImage | None, user: str) -> dict[str, str]:
    """What every member gets that the image does not set: a user without a name has no home either.

    >>> added_inside(ContainerImage("i", {"PYTHONUNBUFFERED": "0"}), "ann")
    {'USER': 'ann', 'LOGNAME': 'ann', 'HOME': '/tmp'}
    """
    own = image.env if image is not None else {}
    added = {name: value for name, value in UNBUFFERED.items() if name not in own}
    return {**added, **({"USER": user, "LOGNAME": user} if user else {}), "HOME": HOME_INSIDE}


def own_user() -> str:
    """The name of who runs this; empty if there is none."""
    with suppress(KeyError):
        return pwd.getpwuid(os.getuid()).pw_name
    return ""


def _run(
    engine: ContainerEngine,
    container: Container,
    name: str,
    cwd: str,
    arguments: list[str],
    env: Mapping[str, str],
    output: BinaryIO,
    gpu_ids: tuple[str, ...] = (),
    timeout_s: float | None = None,
) -> int:
    """Run bash in a container to its end; the exit code."""
    command = command_line.run_command(
        container.message(),
        name=name,
        labels={},
        cwd=cwd,
        gpu_ids=gpu_ids,
        user=(os.getuid(), os.getgid()),
        groups=os.getgroups(),
    )
    if engine.kind in command_line.WITHOUT_DAEMON:
        scratch = Path(command_line.scratch(engine.settings, name))
        try:
            scratch.mkdir(mode=0o700)
        except OSError as error:
            raise UsageError(
                f"{scratch.parent}, where containers of {engine.kind.capitalize()} have their /tmp: "
                f"{error.strerror}",
                "Set TMPDIR to a directory in which you may write.",
            ) from None
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=subprocess.STDOUT,
        env=dict(container.settings),
        start_new_session=True,  # Ctrl-C is for us: we end it
    )
    _children.add(process.pid)
    _containers_of[name] = engine
    try:
        process.communicate(command_line.records(arguments, env), timeout_s)
    except subprocess.TimeoutExpired:
        os.write(output.fileno(), f"it did not end within {timeout_s:.0f} s\n".encode())
    finally:
        if process.poll() is None:
            _kill(process.pid)
            process.wait()
        if process.returncode < 0:
            _remove(name, engine)
        elif engine.kind in command_line.WITHOUT_DAEMON:
            engine.remove(name)
        _containers_of.pop(name, None)
        _children.discard(process.pid)
    return process.returncode


_children: set[int] = set()
_containers_of: dict[str, ContainerEngine] = {}
_ending = threading.Lock()


@atexit.register
def end_all() -> None:
    """The run is over or interrupted while a thread still waits for a pull or a setup."""
    with _ending:
        for pid in list(_children):
            _kill(pid)
        for name, engine in list(_containers_of.items()):
            _remove(name, engine)


def _kill(pid: int) -> None:
    """A client, and what serves its container."""
    end_begun_by(pid, signal.SIGKILL)


def _remove(name: str, engine: ContainerEngine) -> None:
    """End a container whose client was killed; the engine may just be making it."""
    engine.remove(name)
    time.sleep(MAKING_S)
    engine.remove(name)
