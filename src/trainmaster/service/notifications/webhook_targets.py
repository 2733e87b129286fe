"""Where webhooks may go, and one request there: nothing of the server's own network, unless it is named."""

from __future__ import annotations

import http.client
import socket
import urllib.parse
from collections.abc import Mapping, Sequence
from typing import Final

from trainmaster.dataclass import dataclass
from trainmaster.spec.addresses import NETWORKS_VARIABLE, Address, Network, is_metadata, is_public
from trainmaster.spec.errors import UsageError
from trainmaster.transport.checked_connection import Resolve, UnreachedAddressError, checked_request

TIMEOUT_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class ReceiverResponse:
    """Of a receiver.

    Attributes:
        status: of HTTP; 0 if there was none.
        trouble: what went wrong, for people; empty if it took the message.
        retry_after_s: what it asks for; 0 if nothing.
        body: what it says, as far as that was asked for.
    """

    status: int
    trouble: str = ""
    retry_after_s: float = 0.0
    body: bytes = b""


def may_reach(address: Address, allowed: Sequence[Network], *, is_tls: bool) -> bool:
    """Whether a message may be sent to an address.

    >>> from trainmaster.spec.addresses import address_of
    >>> [may_reach(address_of(each), (), is_tls=True) for each in ("8.8.8.8", "::ffff:10.0.0.1")]
    [True, False]
    """
    if is_metadata(address):
        return False
    return any(address in network for network in allowed) or (is_tls and is_public(address))


def check_url(url: str, allowed: Sequence[Network]) -> None:
    """Refuse what can be no target.

    Raises:
        UsageError: it is none.
    """
    try:
        found = urllib.parse.urlsplit(url)
        is_good = bool(found.hostname) and found.username is None and found.port != 0
    except ValueError:
        is_good = False
    if not is_good or not url.isascii() or any(letter <= " " for letter in url):
        raise UsageError(f"{url[:200]!r} is no URL to send to", "Write https://HOST[:PORT]/PATH.")
    if found.scheme != "https" and not (found.scheme == "http" and allowed):
        raise UsageError(
            f"{found.scheme}: URLs are not sent to",
            f"Use https, or have {NETWORKS_VARIABLE} name the network.",
        )


def post(
    url: str,
    body: bytes,
    headers: Mapping[str, str],
    allowed: Sequence[Network],
    resolve: Resolve = socket.getaddrinfo,
    timeout_s: float = TIMEOUT_S,
    *,
    most_bytes: int = 0,
) -> ReceiverResponse:
    """Send one message; redirects are not followed, and only 2xx is taken for an answer.

    The name is resolved once, and what is connected to is what was checked: a name that means something
    else a moment later changes nothing. Of what is answered ``most_bytes`` are read.
    """
    is_tls = url.startswith("https:")
    try:
        status, told, said = checked_request(
            "POST", url, headers, body, lambda found: may_reach(found, allowed, is_tls=is_tls), timeout_s,
            resolve=resolve, most_bytes=most_bytes,
        )  # fmt: skip
    except (UnreachedAddressError, TimeoutError) as error:
        return ReceiverResponse(0, str(error))
    except (OSError, http.client.HTTPException) as error:
        return ReceiverResponse(0, f"{type(error).__name__} {str(error)[:200]}".rstrip())
    wait = told.get("retry-after", "")
    if 200 <= status < 300:
        return ReceiverResponse(status, body=said)
    trouble = f"HTTP {status}" + (": redirects are not followed" if 300 <= status < 400 else "")
    return ReceiverResponse(status, trouble, float(wait) if wait.isdecimal() and len(wait) < 7 else 0.0, said)
