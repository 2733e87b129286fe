"""Ways to a Ray that may refuse, or be too busy: sent with `proxy_program`, and run where that runs."""

from __future__ import annotations

import itertools
import os
import socket
import ssl
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_REACH_S = 5.0
#: What a client of gRPC says first; what a server has said first by then has a four in its fourth byte.
_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"
#: So long is it tried again to be given a server of Ray Client.
_DIAL_S = 120.0
#: And that seldom, after the first times.
_AGAIN_S = 8.0
#: What a head says of a client's server that has died before it was one.
_STILLBORN = (
    "Starting Ray client server failed", "ZombieProcess", "NoSuchProcess", "Proxy failed to Connect",
)  # fmt: skip


class LoginNeededError(Exception):
    """It answers those only who show a certificate, or a token; or we do, and it takes none."""


def knock(address: str) -> None:
    """Refuse what Ray would try for ever: where nobody listens, or TLS is on one side only."""
    host, _, port = address.rpartition("//")[2].rpartition(":")
    if not host:
        return
    has = os.environ.get
    is_safe = has("RAY_USE_TLS", "").lower() in ("1", "true")
    with socket.create_connection((host.strip("[]"), int(port)), _REACH_S) as stream:
        try:
            if is_safe:
                context = ssl.create_default_context(cafile=has("RAY_TLS_CA_CERT"))
                context.check_hostname = False
                context.load_cert_chain(has("RAY_TLS_SERVER_CERT", ""), has("RAY_TLS_SERVER_KEY"))
                context.set_alpn_protocols(["h2"])
                stream = context.wrap_socket(stream)
            with stream:
                stream.sendall(_HELLO)
                first = stream.recv(9)
        except TimeoutError:  # it is busy
            return
        except (ConnectionError, ssl.SSLEOFError):
            first = b""
        except OSError as error:
            if not is_safe:
                raise
            raise LoginNeededError(f"not with the certificates of RAY_TLS_...: {error}") from None
    if not first:  # so does a tunnel whose other end is away: later may help
        does_so = "takes no such certificate" if is_safe else "has TLS, where RAY_USE_TLS is not set here"
        raise ConnectionError(f"it hangs up, as one that {does_so}")
    if first[3:4] != b"\4":
        raise LoginNeededError("it is no Ray" if is_safe else "it has TLS, and RAY_USE_TLS is not set here")


def dial(address: str) -> None:
    """Be a client of a Ray, as soon as it has a server for one."""
    import logging

    import ray

    if address.startswith("ray://"):
        _part_at_once()
    deadline = time.monotonic() + _DIAL_S
    for tries in itertools.count():
        try:
            ray.init(address, log_to_driver=False, logging_level=logging.ERROR, configure_logging=False)
            return
        except ConnectionError as error:
            # The head forks a server for each client, while other threads of it use gRPC: some die before
            # they are one (ray-project/ray#63202, open in 2.60). The next one may not.
            if time.monotonic() > deadline or not any(each in str(error) for each in _STILLBORN):
                raise
        # Each that fails leaves the head a thread for 41 s, and others share the head.
        time.sleep(min(0.2 * 2**tries, _AGAIN_S))


def _part_at_once() -> None:
    """Have a client not wait for its streams when it gives up; their threads end with the process.

    A head ends those of a server that never was after 41 s.
    """
    try:
        from ray.util.client.dataclient import DataClient
        from ray.util.client.logsclient import LogstreamClient
    except ImportError:  # of another version
        return

    def parting(close: Callable[[Any], None], thread: str) -> Callable[[Any], None]:
        def part(stream: Any) -> None:  # noqa: ANN401 - of Ray
            setattr(stream, thread, None)
            close(stream)

        return part

    DataClient.close = parting(DataClient.close, "data_thread")
    LogstreamClient.close = parting(LogstreamClient.close, "log_thread")
