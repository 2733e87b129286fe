"""``trainmaster mcp``: the tools of assistants over standard input and output."""

from __future__ import annotations

from typing import Annotated

import typer

from trainmaster.api import ClientProtocol
from trainmaster.cli.opening import context, open_client
from trainmaster.cli.output import print_json, say
from trainmaster.spec.errors import UsageError
from trainmaster.spec.units import dollars


def mcp(
    at_most: Annotated[
        str | None,
        typer.Option(metavar="USD", help="A wallet: what all runs may cost that it ever starts."),
    ] = None,
    wallet: Annotated[
        str, typer.Option(metavar="NAME", help="Of the wallet: another one has spent nothing yet.")
    ] = "mcp",
    read_only: Annotated[bool, typer.Option("--read-only", help="It starts and ends nothing.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the tools and the wallet as JSON, and end.")
    ] = False,
) -> None:
    """Let an assistant use Trainmaster by the Model Context Protocol, over standard input and output."""
    from trainmaster.api.mcp.sdk_server import need_sdk, serve_stdio
    from trainmaster.api.mcp.tool_context import LocalToolContext
    from trainmaster.api.mcp.tools import TOOLS

    need_sdk()
    client = _client(at_most, wallet)
    context = LocalToolContext(client, is_reading=read_only)
    left = client.wallet()
    if as_json:
        tools = {
            tool.name: {"says": tool.says, "scope": tool.scope, "takes": tool.takes_of(context)}
            for tool in TOOLS.values()
            if tool.scope in context.scopes
        }
        print_json({"tools": tools, "wallet": left})
        return
    if read_only:
        say("an assistant may look, and start nothing")
    elif left is None:
        say("an assistant may start what costs nothing; `--at-most 20` gives it a wallet")
    else:
        may_usd = max(0.0, left["left_usd"])
        say(f"an assistant may spend {dollars(may_usd)} of {dollars(left['at_most_usd'])}")
    serve_stdio(context)


def _client(at_most: str | None, wallet: str) -> ClientProtocol:
    """The server in use, or this machine's home, paying from a wallet.

    Raises:
        UsageError: no amount; or the token of the server has no such wallet.
    """
    from trainmaster.cli.access import amount_usd
    from trainmaster.service.teams.wallet import checked_at_most
    from trainmaster.service.users.caller import Wallet

    amount = amount_usd(at_most)
    usd = None if amount is None else checked_at_most(amount)
    server = context()
    if server is None:
        from trainmaster.api import EmbeddedClient

        return EmbeddedClient(wallet=None if usd is None else Wallet(wallet, usd))
    client = open_client()
    found = client.wallet()
    if usd is not None and (found is None or found["at_most_usd"] > usd):
        has = "no wallet" if found is None else f"a wallet of {dollars(found['at_most_usd'])}"
        raise UsageError(
            f"the token for {server.url} has {has}: a server keeps wallets with tokens",
            f"There: `trainmaster token create NAME --at-most {usd:g}`; log in with that token.",
        )
    return client
