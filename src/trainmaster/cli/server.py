"""``trainmaster server``: REST and web pages over this home."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trainmaster.cli.output import print_json, say

if TYPE_CHECKING:
    from fastapi import FastAPI


def server(
    host: Annotated[str, typer.Option(help="Address to listen at.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen at; 0 for any that is free.")
    ] = 8470,
    tls_cert: Annotated[str | None, typer.Option(help="Certificate chain, PEM.")] = None,
    tls_key: Annotated[str | None, typer.Option(help="Its private key, PEM.")] = None,
    behind_proxy: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="A proxy there does TLS: its headers are believed.")
    ] = None,
    oidc: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Single sign-on: provider and groups, TOML.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One line of JSON when it is ready.")] = False,
) -> None:
    """Serve this home by REST and web, until Ctrl-C. Runs go on when it stops."""
    import os

    from trainmaster.api.serving import Listening, serve
    from trainmaster.service import Service

    def ready(url: str, setup_url: str) -> None:
        if as_json:
            print_json({"url": url, "setup_url": setup_url})
            return
        say(f"Trainmaster is at {url} (stop it with Ctrl-C; runs go on)")
        say(f"open {setup_url} to log in as its owner; it works once")

    where = Listening(host, port, tls_cert, tls_key, behind_proxy)
    serve(Service.from_environment(), os.environ, where, ready, _pages, oidc)


def _pages(app: FastAPI) -> None:
    from trainmaster.web.pages import add_pages

    add_pages(app)
