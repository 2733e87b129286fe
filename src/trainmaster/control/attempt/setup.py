"""`Setup`: the virtual environment of a recipe's ``setup``, made once, here and on nodes by the same code.

On a node `cluster/node_files/image_orders.py` makes it, in our runtime.
"""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final

from trainmaster.dataclass import dataclass
from trainmaster.spec.errors import UsageError
from trainmaster.spec.locking import locked
from trainmaster.spec.processes import end_marked

#: Marks all processes of a setup; its value is the place of the environment.
_VARIABLE: Final = "TRAINMASTER_SETUP"
#: Tells which run's code it is for.
OF_VARIABLE: Final = "TRAINMASTER_SETUP_OF"
#: With it bash would take itself for a login's shell and run its start-up files.
_OF_A_LOGIN: Final = ("SSH_CLIENT", "SSH2_CLIENT")
#: So long a directory that cannot be removed is tried again.
_REMOVED_S: Final = 10.0
_WORDS_BYTES: Final = 2000
_FINDS_VENV: Final = "import sys; print('%d.%d' % sys.version_info[:2]); import ensurepip, venv"
#: `venv` would have pip install itself, which takes a processor two seconds: its wheels are unpacked instead.
_ADDS_PIP: Final = r"""
import ensurepip, os, sys, sysconfig, zipfile

SCRIPT = f'''#!/bin/sh
\'\'\'exec\' "{sys.executable}" "$0" "$@"
\' \'\'\'
import sys
from pip._internal.cli.main import main
sys.exit(main())
'''

def unpack(arguments, wheels=None):
    for wheel in wheels:
        zipfile.main(["--extract", wheel, sysconfig.get_path("purelib")])  # they are this Python's own
    for name in ("pip", "pip3", "pip%d.%d" % sys.version_info[:2]):
        path = os.path.join(sysconfig.get_path("scripts"), name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(SCRIPT)
        os.chmod(path, 0o755)

if hasattr(ensurepip, "_run_pip"):
    ensurepip._run_pip = unpack
ensurepip.bootstrap(upgrade=True, default_pip=True)
"""
#: What `sudo` is in a setup: never a question for a password, and nothing but the command for root.
AS_ROOT: Final = r"""
sudo() {
  if [[ $EUID == 0 ]]; then
    local user=root
    while [[ ${1-} == -* ]]; do
      case $1 in -u) user=$2; shift ;; -g|-p|-C|-D|-h|-R|-T) shift ;; --) shift; break ;; esac
      shift
    done
    if [[ $user == root ]]; then env "$@"; else runuser -u "$user" -- env "$@"; fi
  elif ! type -P sudo >/dev/null; then
    echo "sudo: there is no sudo on $HOSTNAME; have $1 run there by root, or take a container that has it" >&2
    return 1
  elif ! command sudo -n -l >/dev/null 2>&1; then
    echo "sudo: $(id -un) may not become root on $HOSTNAME without a password;" \
      "allow it in /etc/sudoers.d (NOPASSWD), have $1 run there by root, or take a container that has it" >&2
    return 1
  else
    command sudo -n "$@"
  fi
}
export -f sudo
"""
_under_way: set[Path] = set()

InImage = Callable[["Setup", BinaryIO, Mapping[str, str]], int]


@dataclass(frozen=True)
class Setup:
    """All that goes into an environment; it travels to a node as JSON.

    Attributes:
        path: where it goes; its log and its lock lie beside it.
        script: the recipe's.
        code: working directory of the script.
        variables: what the script finds.
        python: of the host; in an image, the image's own is taken.
        image: what the script runs in; empty without.
        identity: of the host's Python, or of the image: with another one, it is made anew.
    """

    path: str
    script: str
    code: str
    variables: Mapping[str, str]
    python: str = ""
    image: str = ""
    identity: str = ""

    @property
    def log(self) -> Path:
        """What is said while it is made."""
        return Path(f"{self.path}.log")

    def make(self, in_image: InImage | None = None) -> bool:
        """Make it unless it is there; whether it was not. No process of its script is left.

        Args:
            in_image: runs one in an image; see `LocalImages.set_up`.

        Raises:
            UsageError: it failed; its log is named.
        """
        path, ready = Path(self.path), Path(self.path, "ready")
        with locked(path):
            if ready.is_file() and ready.read_text(encoding="utf-8") == self.identity:
                with suppress(OSError):
                    os.utime(ready)  # what removes those that nothing needs goes by their last use
                return False
            with self.log.open("wb") as output, _marked(path) as mark:
                marker = {_VARIABLE: mark, OF_VARIABLE: self.code}
                _remove(path)
                if in_image is None:
                    code = self._on_host(output, marker)
                else:
                    path.mkdir()
                    code = in_image(self, output, marker)
            if code != 0:
                said = " / ".join(
                    self.said(_WORDS_BYTES).decode("utf-8", "replace").strip().splitlines()[-3:]
                )
                # Its log lies on the same file system: where that is full, nothing was said.
                is_full = "No space left on" in said or not _has_room(path.parent)
                said = said or ("no space is left on the disk" if is_full else "without a word")
                raise UsageError(
                    f"setup failed with exit code {code}: {said}",
                    f"Make room at {path.parent}, then resume. " * is_full + f"Its whole output: {self.log}",
                )
            ready.write_text(self.identity, encoding="utf-8")
        return True

    def said(self, limit_bytes: int) -> bytes:
        """The end of its log."""
        with self.log.open("rb") as file:
            file.seek(max(0, self.log.stat().st_size - limit_bytes))
            return file.read()

    def _on_host(self, output: BinaryIO, marker: dict[str, str]) -> int:
        base = {name: value for name, value in os.environ.items() if name not in _OF_A_LOGIN} | marker
        there = str(Path(self.path).parent)
        code = _run([self.python, "-m", "venv", self.path, "--without-pip"], output, base, there)
        if code == 0:
            code = _run([f"{self.path}/bin/python", "-Ic", _ADDS_PIP], output, base, there)
        if code != 0:
            found = subprocess.run([self.python, "-I", "-c", _FINDS_VENV], capture_output=True, check=False)
            if found.returncode != 0:
                package = f"python{found.stdout.decode().strip()}-venv"
                raise UsageError(
                    f"{self.python} cannot make virtual environments: install {package} "
                    f"(Debian: apt install {package})"
                )
            return code
        env = {**base, **self.variables, "VIRTUAL_ENV": self.path}
        env["PATH"] = f"{self.path}/bin:{env.get('PATH', os.defpath)}"
        script = ["bash", "-euo", "pipefail", "-c", "--", f"{AS_ROOT}{self.script}", "setup"]
        return _run(script, output, env, self.code)


def _has_room(place: Path) -> bool:
    found = os.statvfs(place)
    return found.f_bavail > 0 and (found.f_favail > 0 or not found.f_files)


@atexit.register
def end_setups() -> None:
    """The run is over or interrupted while a thread still waits for a setup."""
    for path in list(_under_way):
        end_marked(_VARIABLE, _mark(path))


def end_abandoned(path: Path, end_container: Callable[[], None] | None = None) -> None:
    """End a setup whose driver was killed; one that another driver makes goes on.

    Args:
        path: of its environment.
        end_container: ends what it runs in, if it has one.
    """
    if (path / "ready").is_file():
        return
    with locked(path, waits=False) as is_free:
        if is_free and path.exists():
            end_marked(_VARIABLE, _mark(path))
            if end_container is not None:
                end_container()


@contextmanager
def _marked(path: Path) -> Iterator[str]:
    """What processes of a setup are found by; none of them is left afterwards, nor of one that was killed."""
    mark = _mark(path)
    _under_way.add(path)
    try:
        end_marked(_VARIABLE, mark)
        yield mark
    finally:
        end_marked(_VARIABLE, mark)
        _under_way.discard(path)


def _mark(path: Path) -> str:
    """Differs from that of the same path in another container of the machine."""
    status = path.parent.stat()
    return f"{path} {status.st_dev}:{status.st_ino}"


def _run(command: list[str], output: BinaryIO, env: Mapping[str, str], cwd: str) -> int:
    return subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        env=env,
        cwd=cwd,
        check=False,
        start_new_session=True,  # Ctrl-C is for us: we end it
    ).returncode


def _remove(path: Path) -> None:
    """An engine that just ends a container may still put something there, or make the directory again."""
    deadline = time.monotonic() + _REMOVED_S
    while path.exists():
        shutil.rmtree(path, ignore_errors=time.monotonic() < deadline)
        time.sleep(0.01)
