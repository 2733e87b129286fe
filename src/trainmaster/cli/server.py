"""``trainmaster server``: REST and web pages over this home; and what its owner does with its keys."""

from __future__ import annotations

import gc
import os
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from trainmaster.cli._groups import DefaultGroup
from trainmaster.cli.opening import refuse_on_server
from trainmaster.cli.options import AsJson
from trainmaster.cli.output import print_json, say, tell
from trainmaster.spec.errors import UsageError

if TYPE_CHECKING:
    from fastapi import FastAPI

    from trainmaster.service.driving.key_rotation import KeyRotation

app = typer.Typer(invoke_without_command=True)
key_app = typer.Typer(help="Keys that seal secrets in the database of this home.", cls=DefaultGroup)
app.add_typer(key_app, name="key")
#: Of malloc.h.
_M_ARENA_MAX: Final = -8


@app.callback()
def server(
    context: typer.Context,
    host: Annotated[str, typer.Option(help="Address to listen at.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen at; 0 for any that is free.")
    ] = 8470,
    tls_cert: Annotated[str | None, typer.Option(help="Certificate chain, PEM.")] = None,
    tls_key: Annotated[str | None, typer.Option(help="Its private key, PEM.")] = None,
    self_signed: Annotated[
        bool,
        typer.Option("--self-signed", help="TLS with a certificate of its own; `login` asks about it."),
    ] = False,
    behind_proxy: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="A proxy there does TLS: its headers are believed.")
    ] = None,
    oidc: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Single sign-on: provider and groups, TOML.")
    ] = None,
    apps_port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Port of apps, such as TensorBoard; the next one.")
    ] = None,
    apps_url: Annotated[
        str,
        typer.Option(metavar="URL", help="How browsers reach apps, if that is another host."),
    ] = "",
    url: Annotated[
        list[str] | None,
        typer.Option(
            metavar="URL", help="How others reach it; links use the first, other hosts are refused (421)."
        ),
    ] = None,
    local_runs: Annotated[
        str | None,
        typer.Option(
            metavar="HOW",
            envvar="TRAINMASTER_LOCAL_RUNS",
            help="How tasks of teams run: none, user[:PATTERN][,metadata], container[:IMAGE]; then ,max=24h.",
        ),
    ] = None,
    audit_to: Annotated[
        list[str] | None,
        typer.Option(
            metavar="URL",
            envvar="TRAINMASTER_AUDIT_TO",
            help="Where the audit is sent as it grows: file:///FILE, syslog: or https://HOST/PATH.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One line of JSON when it is ready.")] = False,
) -> None:
    """Serve this home by REST and web, until Ctrl-C. Runs go on when it stops."""
    if context.invoked_subcommand is not None:
        return
    from trainmaster.api.serving import Ready, ServerAddress, serve
    from trainmaster.service import Service
    from trainmaster.service.driving.local_runs import local_runs_of, open_metadata
    from trainmaster.service.users.audit_feed import VARIABLE as AUDIT_TO

    service, fingerprint = Service.from_environment(), ""
    if self_signed:
        from trainmaster.service.self_signed import self_signed as certificate

        if tls_cert is not None or behind_proxy is not None:
            raise UsageError("--self-signed is instead of --tls-cert and --behind-proxy", "Give one of them.")
        pem, fingerprint = certificate(service.home.root, host)
        tls_cert = tls_key = str(pem)

    local = local_runs_of(service.home, local_runs, os.environ)

    where = ServerAddress(host, port, tls_cert, tls_key, behind_proxy, apps_port, apps_url, tuple(url or ()))

    def ready(at: Ready) -> None:
        for each in where.warnings():
            say(f"warning: {each}")
        if as_json:
            more = {"fingerprint": fingerprint} if fingerprint else {}
            print_json({**asdict(at), **more})
            return
        if local:
            say(f"tasks of teams with `provider: local` run {local}")
        if fingerprint:
            say(f"its certificate has the SHA-256 {fingerprint}: `trainmaster login` shows the same")
        say(f"Trainmaster is at {at.url} (stop it with Ctrl-C; runs go on), apps are at {at.apps_url}")
        say(f"open {at.setup_url} to log in as its owner; it works once")

    gc.freeze()
    _bound_arenas()
    environ = {**os.environ, AUDIT_TO: " ".join(audit_to or ())}
    serve(service, environ, where, ready, _pages, oidc)
    open_metadata(service.home, service.database)


def _bound_arenas() -> None:
    """Have threads share two arenas of the C library's allocator.

    By default each of the threads that answer gets one of its own, up to eight a core, and each keeps what it
    once needed at most: half of what a busy server had of the C library's memory was free and unused.
    """
    import ctypes

    with suppress(AttributeError):  # only glibc has it
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 2)


def _pages(app: FastAPI) -> None:
    from trainmaster.web.pages import add_pages

    add_pages(app)


@app.command()
def audit(
    head: Annotated[
        str, typer.Option(metavar="HASH", help="One kept elsewhere: an entry must have it.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Go through the audit, and name the first entry that was changed; show how far it was sent on."""
    from trainmaster.service import Service
    from trainmaster.service.users.audit import Audit

    refuse_on_server("server audit")
    found = Audit(Service.from_environment().database)
    verified, sent = found.verify(head), found.sent()
    if as_json:
        print_json({**asdict(verified), "sent": sent})
    else:
        say(f"{verified.entries} entries; the newest has the hash")
        typer.echo(verified.head)
    for each in sent:
        say(
            f"{each['target']} has all up to entry {each['sent']}{each['trouble'] and ': ' + each['trouble']}"
        )
    if verified.why:
        which = "" if verified.broken is None else f"entry {verified.broken} is the first that does not fit: "
        say(f"error: {which}{verified.why}")
        raise typer.Exit(1)


@app.command(no_args_is_help=True)
def backup(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A new one; keep it as safe as the home.")],
    as_json: AsJson = False,
) -> None:
    """Write this home and its database into one file. Servers and runs go on meanwhile."""
    from trainmaster.service import Service
    from trainmaster.service.backup.writing import back_up

    refuse_on_server("server backup")
    service = Service.from_environment()
    found = back_up(service.home, service.database, file, os.environ)
    words = f"{found['file']} has {found['files']} files and the database, {found['bytes']:,} bytes"
    tell(found, words, as_json=as_json)
    for each in found["elsewhere"]:
        say(f"not in it: {each}")
    for each in found["unreadable"]:
        say(f"warning: not in it, as it cannot be read: {each}")


@app.command(no_args_is_help=True)
def restore(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What `server backup` has written.")],
    go_on: Annotated[
        bool,
        typer.Option("--go-on", help="The home that was saved is gone for good: its runs go on here."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Make the home that TRAINMASTER_HOME names, which is empty, and its database of a backup."""
    import time

    from trainmaster.service.backup.restoring import restore as restore_home

    refuse_on_server("server restore")
    found = restore_home(file, goes_on=go_on)
    at = time.strftime("%F %H:%M:%S", time.localtime(found["at"]))
    words = f"{found['home']} is as it was at {at}: {found['files']} files and the database"
    tell(found, words, as_json=as_json)
    for each in found["elsewhere"]:
        say(f"not in the backup: {each}")
    if not go_on:
        say(f"runs under way then are ended: {found['held']}; `trainmaster resume RUN` goes on with one")
        say("workflows are paused; `trainmaster workflows resume NAME` goes on with one")
    say("two homes from one backup must not be used at once: each would end machines of the other")


@key_app.command("list")
def keys(as_json: AsJson = False) -> None:
    """Show the keys by name: which one seals, and how many values each has sealed."""
    found = _rotation().listed()
    if as_json:
        print_json(found)
        return
    say(f"the keys are in {found['file']}")
    for each in found["keys"]:
        does = "seals" if each["seals"] else "opens" if each["is_known"] else "is not in the file"
        typer.echo(f"{each['key']}  {does}, {each['values']} values")


@key_app.command("add")
def add_key() -> None:
    """Make a key that only opens, for other servers to know it before anything is sealed with it."""
    typer.echo(_rotation().add())
    say("copy the key file to each server of the database, then: trainmaster server key rotate NAME")


@key_app.command("rotate")
def rotate_key(
    name: Annotated[str, typer.Argument(help="Of a key that was added; a new one without.")] = "",
    as_json: AsJson = False,
) -> None:
    """Seal with another key from now on, also what is sealed already. What was cut short goes on."""
    found = _rotation().rotate(name)
    words = f"{found.key} seals now; {found.values} values were sealed anew, earlier keys still open"
    tell(asdict(found), words, as_json=as_json)
    for place in found.lost:
        say(f"warning: no key of the file opens {place}")


@key_app.command("drop", no_args_is_help=True)
def drop_key(name: Annotated[str, typer.Argument(help="Of a key that seals nothing any more.")]) -> None:
    """Forget a key, when nothing is sealed with it."""
    _rotation().drop(name)
    say(f"{name} is gone: copy the key file to each server of the database")


def _rotation() -> KeyRotation:
    from trainmaster.service import Service
    from trainmaster.service.driving.key_rotation import KeyRotation

    refuse_on_server("server key")
    service = Service.from_environment()
    return KeyRotation(service.database, service.home.root, os.environ)
