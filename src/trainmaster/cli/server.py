"""``trainmaster server``: REST and web pages over this home."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trainmaster.cli.output import print_json, say
from trainmaster.spec.errors import UsageError

if TYPE_CHECKING:
    from fastapi import FastAPI


def server(
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
    local_runs: Annotated[
        str | None,
        typer.Option(
            metavar="HOW",
            envvar="TRAINMASTER_LOCAL_RUNS",
            help="How tasks of teams run on this machine: user[:PATTERN], container[:IMAGE], none.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One line of JSON when it is ready.")] = False,
) -> None:
    """Serve this home by REST and web, until Ctrl-C. Runs go on when it stops."""
    import os

    from trainmaster.api.serving import Listening, serve
    from trainmaster.service import Service
    from trainmaster.service.driving.local_runs import local_runs_of

    service, fingerprint = Service.from_environment(), ""
    if self_signed:
        from trainmaster.service.self_signed import self_signed as certificate

        if tls_cert is not None or behind_proxy is not None:
            raise UsageError("--self-signed is instead of --tls-cert and --behind-proxy", "Give one of them.")
        pem, fingerprint = certificate(service.home.root, host)
        tls_cert = tls_key = str(pem)

    local = local_runs_of(service.home, local_runs, os.environ)

    def ready(url: str, setup_url: str, apps: str) -> None:
        if as_json:
            more = {"fingerprint": fingerprint} if fingerprint else {}
            print_json({"url": url, "setup_url": setup_url, "apps_url": apps, **more})
            return
        if local:
            say(f"tasks of teams with `provider: local` run {local}")
        if fingerprint:
            say(f"its certificate has the SHA-256 {fingerprint}: `trainmaster login` shows the same")
        say(f"Trainmaster is at {url} (stop it with Ctrl-C; runs go on), apps are at {apps}")
        say(f"open {setup_url} to log in as its owner; it works once")

    where = Listening(host, port, tls_cert, tls_key, behind_proxy, apps_port, apps_url)
    serve(service, os.environ, where, ready, _pages, oidc)


def _pages(app: FastAPI) -> None:
    from trainmaster.web.pages import add_pages

    add_pages(app)
