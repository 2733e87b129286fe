"""`Wandb`: Weights & Biases through the user's own `wandb`, which runs in processes of its own.

W&B documents no interface for others, so its own program writes offline runs and sends them (`wandb sync`).
A run that is sent again from its beginning replaces itself there: it has the same id, and each report the
same number.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Final

from trainmaster.dataclass import dataclass
from trainmaster.service.sinks.feed import SinkError
from trainmaster.spec.errors import MissingPartError

#: An answer that takes longer is none: `wandb` itself would try for days.
_LONGEST_S: Final = 120.0
_LOOK_S: Final = 5.0
_WRITER: Final = Path(__file__).with_name("wandb_writer.py")
#: What of our environment it gets: nothing that says where else to log in.
_KEPT: Final = (
    "PATH",
    "LANG",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "HTTPS_PROXY",
    "https_proxy",
    "NO_PROXY",
    "no_proxy",
)


def wandb_python() -> str:
    """The Python that has `wandb`: ours, or that of the `wandb` on PATH.

    Raises:
        MissingPartError: there is none.
    """
    if find_spec("wandb") is not None:
        return sys.executable
    command = shutil.which("wandb")
    python = Path(command).resolve().with_name("python") if command else None
    if python is None or not python.exists():
        raise MissingPartError(
            "sinks.wandb: W&B is not installed",
            "Run: pip install 'trainmaster[wandb]', or have any `wandb` on PATH (`pipx install wandb`).",
        )
    return str(python)


@dataclass(frozen=True, slots=True)
class Wandb:
    """The program.

    Attributes:
        url: of the server.
        key: to log in with; empty: nothing is sent.
        python: has `wandb`.
        place: a directory of ours, its home.
    """

    url: str
    key: str
    python: str
    place: Path

    def write(self, places: Sequence[Path], alive: Callable[[], None]) -> None:
        """Write offline runs; see `wandb_writer`.

        Args:
            places: of what is to be written.
            alive: called now and then.

        Raises:
            SinkError: it does not work.
        """
        self._run(["-c", _WRITER.read_text()], "".join(f"{place}\n" for place in places), alive)

    def sync(self, runs: Sequence[Path], alive: Callable[[], None]) -> None:
        """Send offline runs.

        Args:
            runs: their directories.
            alive: called now and then.

        Raises:
            SinkError: the server has not taken all of them.
        """
        said = self._run(["-m", "wandb", "sync", *map(str, runs)], "", alive)
        if any(not list(each.glob("*.wandb.synced")) for each in runs):
            raise SinkError(f"W&B has not taken all: {_last_words(said)}")

    def _run(self, words: Sequence[str], text: str, alive: Callable[[], None]) -> str:
        self.place.mkdir(mode=0o700, parents=True, exist_ok=True)
        until = time.monotonic() + _LONGEST_S
        with tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as given:
            given.write(text.encode())
            given.seek(0)
            working = subprocess.Popen(
                [self.python, *words], stdin=given, stdout=said, stderr=subprocess.STDOUT,
                cwd="/", env=self._environment(os.environ), start_new_session=True,
            )  # fmt: skip
            try:
                while True:
                    try:
                        code = working.wait(_LOOK_S)
                        break
                    except subprocess.TimeoutExpired:
                        alive()
                    if time.monotonic() > until:
                        raise SinkError(f"W&B does not answer: {_last_words(_read(said))}")
            finally:
                if working.poll() is None:
                    os.killpg(working.pid, 9)
                    working.wait()
            found = _read(said)
        if code:
            raise SinkError(f"W&B: {_last_words(found) or f'it ended with {code}'}")
        return found

    def _environment(self, ours: Mapping[str, str]) -> dict[str, str]:
        kept = {name: ours[name] for name in _KEPT if name in ours}
        # Else the directory of the caller, and on old Pythons ours, are looked into for `wandb`.
        own = {
            "PYTHONSAFEPATH": "1",
            "HOME": str(self.place),
            "WANDB_BASE_URL": self.url,
            "WANDB_ERROR_REPORTING": "false",
        }
        return {**kept, **own, **({"WANDB_API_KEY": self.key} if self.key else {})}


def _read(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


def _last_words(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")[:300]
