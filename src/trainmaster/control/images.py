"""`Images`: what the experiments of a run name as ``container``, made ready before their members start."""

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
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from trainmaster.control.environment import UNBUFFERED
from trainmaster.executors import _containers
from trainmaster.executors._engine_calls import MAKING_S
from trainmaster.executors.base import Container
from trainmaster.executors.engines import Engine, Image, container_fields, find_engine, last_words
from trainmaster.spec.errors import UsageError

if TYPE_CHECKING:
    from trainmaster.control.job_context import TaskContext

#: A directory that anybody may write in nearly every image, and that goes with the container.
HOME_INSIDE = "/tmp"  # noqa: S108
_DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
#: The tasks of an experiment that all fail for want of its image ask for it once.
_REMEMBER_REFUSAL_S = 30.0
_START_S = 120.0

#: ``$1`` is the recipe's script. The image's own packages stay in sight: often they are why it was chosen.
_SETUP = """\
python=$(command -v python3 || command -v python) || { echo "there is no python3 in the image"; exit 1; }
"$python" -m venv --system-site-packages "$VIRTUAL_ENV"
export PATH="$VIRTUAL_ENV/bin:$PATH"
exec bash -euo pipefail -c -- "$1" setup
"""


class Images:
    """One run's, shared by its jobs; safe to use from several threads.

    Args:
        environ: the caller's.
    """

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        self._environ = dict(os.environ if environ is None else environ)
        self._engine: Engine | None = None
        self._ready: dict[str, Image] = {}
        self._refused: dict[str, tuple[float, UsageError]] = {}
        self._lock = threading.Lock()

    @property
    def engine(self) -> Engine:
        """What runs them.

        Raises:
            UsageError: there is nothing that could.
        """
        if self._engine is None:
            self._engine = find_engine(self._environ)
        return self._engine

    def request(self, context: TaskContext, data: Mapping[str, Path]) -> Container:
        """The container of an attempt's members; what it mounts is there once it was staged."""
        image = _image_of(context)
        mounts = [context.home.code_directory(context.run), context.place.directory, *data.values()]
        if context.experiment.setup is not None:
            mounts.append(context.home.cache / "environments")
        paths = tuple(dict.fromkeys(map(str, mounts)))
        try:
            return self.engine.container(image, paths)
        except UsageError:  # staging says so, and then nothing is started
            return Container(image, program="", kind="docker", mounts=paths)

    def prepare(self, context: TaskContext) -> Image:
        """Bring an image here unless it is, and see that scripts can run in it; once.

        Raises:
            UsageError: it cannot be had, or cannot be used.
        """
        name = _image_of(context)
        if name in self._ready:  # the loop asks again, and must not wait for another one's pull
            return self._ready[name]
        with self._lock:
            if name in self._ready:
                return self._ready[name]
            refused_at, refusal = self._refused.get(name, (0.0, None))
            if refusal is not None and time.monotonic() - refused_at < _REMEMBER_REFUSAL_S:
                raise refusal
            try:
                self._ready[name] = self._prepare(context, name)
            except UsageError as error:
                refusal = UsageError(f"experiments.{context.experiment.name}.container: {error}")
                self._refused[name] = (time.monotonic(), refusal)
                raise refusal from None
            return self._ready[name]

    def environment(self, name: str) -> dict[str, str]:
        """What a member finds in the image, with what every member gets on top.

        Args:
            name: of an image that is ready.
        """
        own = self._ready[name].env if name in self._ready else {}
        return {"PATH": _DEFAULT_PATH, **UNBUFFERED, **own, **self.additions(name)}

    def additions(self, name: str) -> dict[str, str]:
        """What every member gets that the image does not set: a user without a name has no home either."""
        own = self._ready[name].env if name in self._ready else {}
        added = {name: value for name, value in UNBUFFERED.items() if name not in own}
        with suppress(KeyError):  # no entry for this user
            added["USER"] = added["LOGNAME"] = pwd.getpwuid(os.getuid()).pw_name
        return {**added, "HOME": HOME_INSIDE}

    def set_up(self, context: TaskContext, venv: Path, output: BinaryIO, marker: Mapping[str, str]) -> int:
        """Make a virtual environment with the image's Python and run the recipe's ``setup`` in it.

        Args:
            context: the attempt.
            venv: where; it exists and is empty.
            output: takes what is said.
            marker: variable that the client's process gets, so that it can be found.

        Returns:
            The exit code.
        """
        code = context.home.code_directory(context.run)
        container = self.engine.container(_image_of(context), (str(code), str(venv)))
        name = _containers.container_name(str(venv), "setup", venv.name)
        self.engine.remove(name)  # left over by a control process that was killed
        env = {**self.additions(container.image), **context.variables, "VIRTUAL_ENV": str(venv)}
        arguments = ["-c", "--", _SETUP, "setup", context.experiment.setup or ""]
        container = replace(container, settings={**container.settings, **marker})
        return _run(self.engine, container, name, str(code), arguments, env, output)

    def _prepare(self, context: TaskContext, name: str) -> Image:
        image = self.engine.image(name)
        if image is None:
            self.engine.pull(name, _children)
            image = self.engine.image(name)
        if image is None:
            raise UsageError(f"{self.engine.kind} does not know the image {name}", "Pull it by hand.")
        self._try(context, name)
        return image

    def _try(self, context: TaskContext, name: str) -> None:
        """Start it once, as members will be started: what is wrong is told before they are."""
        code = str(context.home.code_directory(context.run))
        container = self.engine.container(name, (code,))
        probe = _containers.container_name(str(context.home.root), f"{context.run}/{os.getpid()}", "probe")
        gpu_ids = ("all",) if context.experiment.hardware.gpus else ()
        said = os.memfd_create("said")
        try:
            with open(said, "wb", closefd=False) as output:
                arguments = ["-c", "--", ":", "probe"]
                exit_code = _run(
                    self.engine, container, probe, code, arguments, {}, output, gpu_ids, _START_S
                )
            words = last_words(os.pread(said, 65536, 0).decode("utf-8", "replace"))
        finally:
            os.close(said)
        if exit_code == 0:
            return
        if exit_code == 127 or "bash" in words:
            raise UsageError(
                f"the image {name} has no bash", "Add one to it: scripts run under `bash -euo pipefail`."
            )
        raise UsageError(f"the image {name} cannot be started: {words}")


def _run(
    engine: Engine,
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
    command = _containers.run_command(
        container_fields(container),
        name=name,
        labels={},
        cwd=cwd,
        gpu_ids=gpu_ids,
        user=(os.getuid(), os.getgid()),
        groups=os.getgroups(),
    )
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
        process.communicate(_containers.records(arguments, env), timeout_s)
    except subprocess.TimeoutExpired:
        os.write(output.fileno(), f"it did not end within {timeout_s:.0f} s\n".encode())
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        if process.returncode < 0:
            _remove(name, engine)
        _containers_of.pop(name, None)
        _children.discard(process.pid)
    return process.returncode


_children: set[int] = set()
_containers_of: dict[str, Engine] = {}


@atexit.register
def _end_all() -> None:
    # The run is over or interrupted while a thread still waits for a pull or a setup.
    for pid in list(_children):
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
    for name, engine in list(_containers_of.items()):
        _remove(name, engine)


def _remove(name: str, engine: Engine) -> None:
    """End a container whose client was killed; the engine may just be making it."""
    engine.remove(name)
    time.sleep(MAKING_S)
    engine.remove(name)


def _image_of(context: TaskContext) -> str:
    assert context.experiment.container is not None
    return context.experiment.container
