"""A server's socket."""

import socket

from trainmaster.api.serving import Listening, _bound


def test_who_connects_gets_a_socket_that_says_it_is_tcp():
    """Else asyncio leaves Nagle's algorithm on, and each answer after the first takes 40 ms."""
    with _bound(Listening()) as listener:
        listener.listen()
        with socket.create_connection(listener.getsockname()):
            accepted, _ = listener.accept()
            with accepted:
                assert accepted.proto == socket.IPPROTO_TCP
