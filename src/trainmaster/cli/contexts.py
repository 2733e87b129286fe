"""``trainmaster login``, ``trainmaster context`` and ``trainmaster open``."""

from __future__ import annotations

import socket
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from trainmaster.cli._groups import DefaultGroup
from trainmaster.cli.opening import context, open_client
from trainmaster.cli.options import AsJson, run_ids
from trainmaster.cli.output import print_json, say, show, table
from trainmaster.spec.errors import TrainmasterError, UsageError

if TYPE_CHECKING:
    from trainmaster.api.remote.connection import RestConnection
    from trainmaster.api.remote.contexts import Certificate

app = typer.Typer(
    cls=DefaultGroup,
    help="List the servers you have logged in to, or use another.",
    invoke_without_command=True,
)


def login(
    url: Annotated[str, typer.Argument(help="Of the server, such as https://trainmaster.example.org.")],
    name: Annotated[str | None, typer.Option(help="What to call it; its host's name without.")] = None,
    token: Annotated[
        str | None, typer.Option(metavar="-", help="`-` reads a token from standard input.")
    ] = None,
    fingerprint: Annotated[
        str | None,
        typer.Option(
            metavar="SHA256", help="Of a self-signed certificate; it is trusted without a question."
        ),
    ] = None,
) -> None:
    """Use a server from now on: all verbs then ask it. `trainmaster --local` asks this machine's home."""
    from trainmaster.api.remote.connection import RestConnection
    from trainmaster.api.remote.contexts import Contexts, ServerContext, certificate

    if token not in (None, "-"):
        raise UsageError(
            "a token on a command line is seen by others", "Write `--token -`, and send it there."
        )
    seen = certificate(url)
    pin = ""
    if seen is not None and seen.why_untrusted:
        pin = seen.fingerprint
        if fingerprint is None:
            _agree_to(url, seen)
        elif fingerprint.lower() != pin:
            raise UsageError(f"{url} has another certificate: {pin}", "Nothing was kept; ask who runs it.")
    is_pasted = token is not None
    secret = sys.stdin.readline().strip() if is_pasted else _confirmed(RestConnection(url, "", pin))
    if not secret:
        raise UsageError(
            "no token came on standard input", f"Send one: `trainmaster login {url} --token - < FILE`."
        )
    connection = RestConnection(url, secret, pin)
    who = connection.get("/info")["caller"]
    context = ServerContext(name or (urlsplit(url).hostname or ""), connection.url, secret, pin)
    contexts = Contexts()
    before = next((each for each in contexts.all()[0] if each.name == context.name), context)
    contexts.add(context)
    team = f", team {who['team']}" if who["team"] else ""
    where = "" if contexts.home is None else f", for TRAINMASTER_HOME={contexts.home} only"
    say(
        f"logged in to {context.url} as {who['name']}{team}{where}; `trainmaster context use local` leaves it"
    )
    if before != context:
        with suppress(TrainmasterError):  # it is good no more: nothing is lost
            was = RestConnection(before.url, before.token, before.fingerprint).get("/info")["caller"]
            if (before.url, was["name"], was["team"]) != (context.url, who["name"], who["team"]):
                of = f", team {was['team']}" if was["team"] else ""
                say(
                    f"the login as {was['name']}{of} at {before.url}, which was called {context.name}, is "
                    "forgotten; `--name NAME` keeps both"
                )


def _agree_to(url: str, seen: Certificate) -> None:
    say(f"{url}: this machine does not trust its certificate: {seen.why_untrusted}. Its SHA-256:")
    say(f"  {seen.fingerprint}")
    say("`trainmaster server` prints the same where it runs, if nobody is in between.")
    sys.stderr.write("Is it the same? [y/N] ")
    sys.stderr.flush()
    # From the terminal, as standard input may have the token.
    try:
        with open("/dev/tty", encoding="utf-8") as terminal:  # noqa: PTH123
            answer = terminal.readline()
    except OSError:
        answer = "" if sys.stdin is None else sys.stdin.readline()
    if answer.strip().lower() not in ("y", "yes"):
        raise UsageError(
            "not logged in: you did not agree to its certificate",
            "Nothing was kept. Where nobody can be asked, `--fingerprint SHA256` names the one to trust.",
        )


def _confirmed(connection: RestConnection) -> str:
    """A token, once a person has confirmed a code on the server's page."""
    asked = connection.post("/device/code", {"client": socket.gethostname()[:60]})
    say(f"Open {asked.get('url') or connection.url + '/device'}, log in, and confirm the code")
    say(f"  {asked['user_code']}")
    until = time.monotonic() + asked["expires_in_s"]
    while time.monotonic() < until:
        found = connection.post("/device/token", {"device_code": asked["device_code"]})
        if found["token"] is not None:
            return str(found["token"])
        time.sleep(asked["interval_s"])
    raise UsageError("nobody has confirmed the code in time", "Log in again, or with `--token -`.")


@app.command("list", hidden=True)
def list_contexts(
    as_json: AsJson = False,
) -> None:
    """List the servers; the one in use has a star."""
    from trainmaster.api.remote.contexts import Contexts

    found, current = Contexts().all()
    if as_json:
        print_json({"current": current or None, "contexts": [{"name": c.name, "url": c.url} for c in found]})
        return
    rows = [["*" if not current else "", "local", "the home of this machine"]]
    show(table(["", "context", "server"], rows + [["*" * (c.name == current), c.name, c.url] for c in found]))


@app.command()
def use(name: Annotated[str, typer.Argument(help="As listed; `local` is this machine's home.")]) -> None:
    """Use another from now on."""
    from trainmaster.api.remote.contexts import Contexts

    Contexts().use(name)


@app.command()
def remove(name: Annotated[str, typer.Argument(help="As listed.")]) -> None:
    """Forget one, and its token. The token itself is revoked on the server's page Team."""
    from trainmaster.api.remote.contexts import Contexts

    Contexts().remove(name)


def open_page(
    run: Annotated[
        str | None, typer.Argument(autocompletion=run_ids, help="Id of a run, or `latest`.")
    ] = None,
    port: Annotated[
        str | None,
        typer.Argument(metavar="[MEMBER:]PORT", help="What answers browsers there, such as worker-0:8265."),
    ] = None,
) -> None:
    """Open the page of the server in use, or of a run on it, or what answers at a port of a member."""
    import webbrowser

    found = context()
    if run is not None and port is not None:
        from trainmaster.cli.apps import lead

        client = open_client()
        member, _, number = port.rpartition(":")
        if not number.isdecimal():
            raise UsageError(f"{port!r} is no port", "Write PORT or MEMBER:PORT, such as worker-0:8265.")
        lead(client, client.apps.port(client.resolve(run), member or None, int(number)), as_json=False)
        return
    if found is None:
        raise UsageError(
            "no server is in use", "`trainmaster server` starts one, `trainmaster login` uses it."
        )
    url = found.url if run is None else f"{found.url}/runs/{open_client().resolve(run)}"
    show(url)
    if sys.stdout.isatty():
        webbrowser.open(url)
