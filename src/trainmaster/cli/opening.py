"""`open_client`: whom the verbs ask."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from trainmaster.cli.output import say
from trainmaster.spec.errors import TrainmasterError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from trainmaster.api import ClientProtocol
    from trainmaster.api.administration import AdministrationProtocol
    from trainmaster.api.remote.connection import RestConnection
    from trainmaster.api.remote.contexts import ServerContext

_is_local = False
_chosen: ServerContext | None = None


def stay_local() -> None:
    """Ask this machine's home in this process, whatever context is in use: ``trainmaster --local``."""
    global _is_local
    _is_local = True


def ask_server() -> None:
    """Ask a server from now on: the one in use, else the one that this user has logged in to.

    Raises:
        UsageError: there is none, or several; or ``--local`` says otherwise.
    """
    global _chosen
    from trainmaster.api.remote.contexts import Contexts

    if _is_local:
        raise UsageError("--on-server and --local contradict each other", "Leave out one of them.")
    contexts = Contexts()
    known, _ = contexts.all()
    found = contexts.current()
    if found is None and len(known) > 1:
        names = ", ".join(each.name for each in known)
        raise UsageError(
            f"--on-server: you have logged in to several servers: {names}",
            "`trainmaster context use NAME` says which one is meant.",
        )
    if found is None and not known:
        raise UsageError(
            "--on-server: you have not logged in to a server",
            "`trainmaster login URL` does; docs/server.md says how to have one.",
        )
    _chosen = found or known[0]


def context() -> ServerContext | None:
    """The server that is asked; None: this machine's home."""
    from trainmaster.api.remote.contexts import Contexts

    return None if _is_local else _chosen or Contexts().current()


def refuse_on_server(what: str) -> None:
    """Refuse a command that works only on the local home.

    Raises:
        UsageError: it is.
    """
    found = context()
    if found is not None:
        raise UsageError(
            f"{what} is for the machine where runs are: {found.url} does not do it for others",
            "Do it there, or with `trainmaster --local` on the home of this machine.",
        )


def server_of_volume(volume: str) -> RestConnection | None:
    """The server in use, if a text names a volume there; URLs and directories are for this machine."""
    from trainmaster.api.remote.volumes import is_name

    return server_in_use() if context() is not None and is_name(volume) else None


def refuse_volume_on_server(what: str, volume: str, instead: str) -> None:
    """Say what to do instead, where a volume of a server is meant.

    Raises:
        UsageError: it is.
    """
    found = context()
    if found is not None and server_of_volume(volume) is not None:
        raise UsageError(
            f"{what} is not there for {volume}, a volume of {found.url}",
            f"{instead} For a volume of this machine's home: `trainmaster --local`.",
        )


def server_in_use() -> RestConnection | None:
    """A connection to the server that is asked; None: this machine's home."""
    found = context()
    if found is None:
        return None
    from trainmaster.api.remote.connection import RestConnection

    return RestConnection(found.url, found.token, found.fingerprint)


def open_administration() -> AdministrationProtocol:
    """Who may use the server in use, and what may be spent there; of this machine's home without one.

    Raises:
        UsageError: the home's directory cannot be made or written, or the context cannot be used.
    """
    return open_client().administration


def open_client(
    *, starts: bool = False, runs_here: bool = False, makes: bool = True, goes_on: bool = True
) -> ClientProtocol:
    """The server in use, or the home that the variables name, embedded in this process.

    Args:
        starts: something is started, or sent to be: which server does it is said before.
        runs_here: a run will be driven on this machine: what it needs starts meanwhile.
        makes: the home, if it is not there.
        goes_on: with a run that is looked at and whose driver on its own machine is lost, in the background.

    Raises:
        UsageError: the home's directory cannot be made or written, or the context cannot be used.
    """
    if (server := server_in_use()) is not None:
        from trainmaster.api.remote.remote import RemoteClient

        if starts and (found := context()) is not None:
            why = f"context {found.name}" if found.name else "TRAINMASTER_URL"
            say(f"uses the server {found.url} ({why}); `trainmaster --local` uses this machine's home")
        return RemoteClient(server)
    from trainmaster.api import EmbeddedClient

    client = EmbeddedClient(makes=makes)
    client.on_lost = say if goes_on else None
    if runs_here:
        client.warm_up()
    return client


def _refuse_run(name: str) -> None:
    """Say how a run is begun once more, to who names it where a file is wanted."""
    run = ""
    if "/" not in name:
        with suppress(TrainmasterError):  # who reads the file says what is wrong
            run = open_client(makes=False, goes_on=False).resolve(name)
    if run:
        again = f"`trainmaster export {run} {run}.capsule`, then `trainmaster run {run}.capsule`"
        raise UsageError(f"{name} is a run, and no file", f"{again}, with --set for what is to change.")


def unpacked(file: Path) -> Path:
    """The recipe in a capsule, whose notes are told; what is no capsule stays.

    Raises:
        UsageError: it is damaged, or a later Trainmaster has written it; or there is a run of that name.
    """
    try:
        with file.open("rb") as opened:
            if opened.read(4) != b"PK\x03\x04":
                return file
    except FileNotFoundError:
        _refuse_run(str(file))
        return file
    except OSError:  # as of a directory: who reads it says what is wrong
        return file
    from trainmaster.service import Home
    from trainmaster.service.runs.capsule import open_capsule

    capsule = open_capsule(file, Home.from_environment().cache)
    for note in capsule.notes:
        say(f"note: {note}")
    return capsule.recipe
