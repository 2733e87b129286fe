"""`Transport` and `Connection`: commands and byte streams to a machine, whatever leads there.

Contract: `trainmaster.testing.transport_contract`. What a new one has to bring are `exchange`, `stream`,
`forward` and `close`; everything else is made of these.

`Target`: where to connect to, and as whom.

What can go wrong with a machine at the other end of a connection.

* TrainmasterError
  + ProviderError                                     somebody cannot be reached; later may help
    - UnreachableError        no connection, or it was lost
      + ConnectionLostError   it was lost while a command ran
    - RemoteTimeoutError      connected, but a command was not done in time
  + UsageError                exit code 2
    - LoginRefusedError       the host does not take the user or the key
    - HostKeyError            the host shows another key than it did, or than the inventory says
  + CommandError              a command failed on the host
"""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Protocol, Self

from trainmaster.dataclass import dataclass
from trainmaster.spec.errors import ProviderError, TrainmasterError, UsageError
from trainmaster.spec.processes import this_user


class UnreachableError(ProviderError):
    """No connection, or it was lost."""


class ConnectionLostError(UnreachableError):
    """It was lost while a command ran."""


class RemoteTimeoutError(ProviderError):
    """Connected, but a command was not done in time."""


class LoginRefusedError(UsageError):
    """The host does not take the user or the key."""


class HostKeyError(UsageError):
    """The host shows another key than it did, or than the inventory says."""


class CommandError(TrainmasterError):
    """A command failed on the host.

    Attributes:
        code: its exit code; None if a signal or a lost connection ended it.
    """

    def __init__(self, message: str, hint: str = "", code: int | None = None) -> None:
        self.code = code
        super().__init__(message, hint)


@dataclass(frozen=True, slots=True)
class Target:
    """A machine with an SSH server.

    Attributes:
        name: in messages.
        address, port, user: where to, and as whom; an empty user is the caller.
        key: private key file; None for the user's agent and usual keys.
        host_key: ``type base64``; empty for what was pinned.
        pin_as: what its host key is pinned as; ``[address]:port`` by default. Rented machines are pinned by
            id, as addresses come back with other machines behind them.
        private_address: where other machines reach it.
        jump: to go through; None for none.
        way: command whose standard input and output lead to the SSH server; it runs where ``jump`` leads to,
            or on this machine.
        python, directory: see ``docs/hosts.md``.
    """

    name: str
    address: str
    port: int = 22
    user: str = ""
    key: Path | None = None
    host_key: str = ""
    pin_as: str = ""
    private_address: str = ""
    jump: Target | None = None
    way: str = ""
    python: str = ""
    directory: str = ""

    @property
    def login(self) -> str:
        """The user to log in as."""
        return self.user or this_user()

    @property
    def shown(self) -> str:
        """Name and address, as far as they differ.

        >>> Target("gpu1", "10.0.0.5", 2222).shown, Target("10.0.0.5", "10.0.0.5").shown
        ('gpu1 (10.0.0.5:2222)', '10.0.0.5')
        """
        address = self.address if self.port == 22 else f"{self.address}:{self.port}"
        return self.name if address == self.name else f"{self.name} ({address})"

    @property
    def pin(self) -> str:
        """As OpenSSH names it in ``known_hosts``.

        >>> Target("a", "10.0.0.5").pin, Target("a", "10.0.0.5", 2222).pin
        ('10.0.0.5', '[10.0.0.5]:2222')
        """
        return self.pin_as or (self.address if self.port == 22 else f"[{self.address}]:{self.port}")

    def openssh(self, alias: str, known_hosts: Path, settings: Mapping[str, str]) -> list[str]:
        """Options of OpenSSH's client: with this key only, and to a host that the file knows by the alias."""
        pinned = {"HostKeyAlias": alias, "UserKnownHostsFile": f'"{known_hosts}"'}  # without, spaces part it
        options = openssh_options({**pinned, "StrictHostKeyChecking": "yes", **settings})
        return options if self.key is None else [*options, "-i", str(self.key), "-o", "IdentitiesOnly=yes"]


def openssh_options(settings: Mapping[str, str]) -> list[str]:
    """Settings, as `ssh_config` has them, on a command line."""
    return [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]


def jump_target(written: str, key: Path | None) -> Target | None:
    """Where ``user@host:port`` is; None for an empty text."""
    if not written:
        return None
    user, _, place = written.rpartition("@")
    address, _, port = place.partition(":")
    return Target(name=address, address=address, port=int(port or 22), user=user, key=key)


#: What is kept of an answer: enough for any of ours, and no log can fill the memory.
ANSWER_BYTES: Final = 1 << 20
_PIECE_BYTES: Final = 1 << 18


@dataclass(frozen=True, slots=True)
class Result:
    """What a command did.

    Attributes:
        code: exit code, 128 + number if a signal ended it; -1 if unknown.
        out: standard output. err: standard error. Of what is too long, the end.
        truncated: whether something is missing.
    """

    code: int
    out: str
    err: str
    truncated: bool = False

    @property
    def last_words(self) -> str:
        """The last line that says why it failed."""
        lines = [line.strip() for line in f"{self.out}\n{self.err}".splitlines() if line.strip()]
        return lines[-1] if lines else f"exit code {self.code}"


@dataclass(frozen=True, slots=True)
class Exchange:
    """A command, and what it is told.

    Attributes:
        command: for the POSIX shell.
        answer: given the first line that begins with ``expects``, what to send; None to send nothing.
        lead: sent in any case, before that line is awaited.
        reads_first: whether that line is awaited; without, ``answer`` is called with an empty one.
        expects: how it begins; lines before it are noise of the host's start-up files.
    """

    command: str
    answer: Callable[[str], Iterable[bytes] | None]
    lead: bytes = b""
    reads_first: bool = True
    expects: str = ""


class Connection(Protocol):
    """A way to a machine that is open. Threads share it. Close it, or use it in a ``with``.

    Attributes:
        target: the machine.
        host_key: that it has shown, ``type base64``; empty where nothing is shown.
    """

    target: Target
    host_key: str

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def exchange(
        self, talk: Exchange, timeout_s: float | None = None, limit_bytes: int = ANSWER_BYTES
    ) -> Result:
        """Run a command that says first whether it wants what we have; see `run` for the rest."""
        ...

    def stream(self, command: str) -> socket.socket:
        """Start a command for as long as it runs; its standard input and output, as a socket.

        Args:
            command: for the POSIX shell. What it says on standard error is lost.

        Raises:
            UnreachableError: the connection was lost, or takes no more commands.
        """
        ...

    def forward(self, host: str, port: int, local_port: int = 0) -> AbstractContextManager[int]:
        """Let a port here lead to one over there, while inside ``with``; the port here."""
        ...

    def close(self) -> None:
        """Hang up."""

    @property
    def is_closed(self) -> bool:
        """Whether it was closed or lost."""
        ...

    def run(
        self,
        command: str,
        *,
        data: bytes | Iterable[bytes] = b"",
        timeout_s: float | None = None,
        limit_bytes: int = ANSWER_BYTES,
    ) -> Result:
        """Run a command to its end, whatever its exit code.

        Args:
            command: for the POSIX shell, whatever the user's login shell is; one line, as that may be any.
            data: its standard input.
            timeout_s: after which it is killed; a minute by default.
            limit_bytes: of standard output and standard error each; of more, the end is kept.

        Raises:
            RemoteTimeoutError: it was not done in time.
            UnreachableError: the connection was lost.
        """
        pieces = [data] if isinstance(data, bytes) else data
        return self.exchange(
            Exchange(command, lambda _: iter(pieces), reads_first=False), timeout_s, limit_bytes
        )

    def shell(self, script: str, *, timeout_s: float | None = None) -> Result:
        """Run a script of many lines; see `run`."""
        return self.run("exec /bin/sh -s", data=script.encode(), timeout_s=timeout_s)

    def check(self, command: str, **options: Any) -> str:  # noqa: ANN401 - those of `run`
        """Run a command that must not fail; its standard output.

        Raises:
            CommandError: it failed.
        """
        result = self.run(command, **options)
        if result.code != 0:
            raise CommandError(
                f"{self.target.shown}: {result.last_words}", f"The command was: {command}", result.code
            )
        return result.out

    def upload(self, source: Path, destination: str, timeout_s: float = 900.0) -> None:
        """Copy what is in a directory here into one over there, which is made if need be; links stay links.

        Raises:
            CommandError: the machine cannot take it.
        """
        place = shlex.quote(destination)
        self.check(
            f"mkdir -p {place} && exec tar -xf - -C {place}", data=_packed(source), timeout_s=timeout_s
        )


class Transport(Protocol):
    """Makes connections: how machines of a provider are reached (`Capabilities.reach`). Threads share it."""

    def connect(self, target: Target) -> Connection:
        """A way to a machine.

        Raises:
            UnreachableError: the machine does not answer in time.
            LoginRefusedError: the user or the key is not taken.
        """
        ...

    def connection(self, target: Target) -> AbstractContextManager[Connection]:
        """A connection for a few quick things, for a ``with``; raises as `connect`."""
        return self.connect(target)

    def known_keys(self, target: Target) -> tuple[str, ...]:
        """Host keys that a machine is known by, ``type base64`` each; none where nothing is shown."""
        del target
        return ()

    def forget(self, target: Target) -> None:
        """The machine is given back: what it was known by counts no more."""
        del target  # nothing is kept, if it does not say more

    def close(self) -> None:
        """End every connection."""
        return


def _packed(source: Path) -> Iterator[bytes]:
    command = ["tar", "-cf", "-", "-C", os.fspath(source), "."]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        while piece := process.stdout.read(_PIECE_BYTES):
            yield piece
    if process.returncode != 0:
        raise OSError(f"{source} could not be read whole")
